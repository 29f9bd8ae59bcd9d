"""Attention block by block with a running softmax: the portable path, on every backend.

Query blocks visit only the key blocks that they can see (Rabe and Staats 2021, arXiv:2112.05682; Dao et al. 2022,
arXiv:2205.14135). Positions and documents are run-time data, so who is skipped is decided when the program runs,
and one program serves any share of a sequence. Memory is linear in the length.

Shapes: B rows, T local query tokens, S keys, H query heads, K key/value heads, D head width; in blocks: L lanes,
N query blocks of R rows, M key blocks of C columns (see `models.blocks`). Statistics and sums are float32.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from models.blocks import PADDING, KeyBlocks, Layout, Mask, QueryBlock, pick, visible


class Softmax(NamedTuple):
    """Running softmax of a query block: highest score, sum of exponentials and weighted values so far."""

    top_BLR: jax.Array
    sum_BLR: jax.Array
    o_BLRD: jax.Array


class Keys(NamedTuple):
    """Keys and values in blocks, and their columns of the mask."""

    k_MBLCD: jax.Array
    v_MBLCD: jax.Array
    mask: KeyBlocks


class Query(NamedTuple):
    """What the backward needs of a query block. Stacked along N outside loops."""

    q_BLRD: jax.Array
    do_BLRD: jax.Array
    lse_BL1R: jax.Array
    delta_BL1R: jax.Array


class Grads(NamedTuple):
    """Sums of gradients: of one query block (transposed), and of all keys and values."""

    dq_BLDR: jax.Array
    dk_MBLCD: jax.Array
    dv_MBLCD: jax.Array


def forward(
    cut: Layout, q_BTHD: jax.Array, k_BSKD: jax.Array, v_BSKD: jax.Array, mask: Mask, out_dtype: DTypeLike
) -> tuple[jax.Array, jax.Array]:
    """o_BTHD in `out_dtype` and lse_BTH; see `models.attention.forward`."""
    rows, keys = _cut(cut, k_BSKD, v_BSKD, mask)
    zero = tie(q_BTHD, k_BSKD, v_BSKD, *mask)

    def block(this: tuple[jax.Array, QueryBlock]) -> tuple[jax.Array, jax.Array]:
        q_BLRD, row = this
        none_BLR = jnp.zeros(q_BLRD.shape[:3]) + zero
        start = Softmax(none_BLR - jnp.inf, none_BLR, jnp.zeros(q_BLRD.shape) + zero)
        end = lax.fori_loop(0, row.n_visits, lambda n, state: _soften(state, q_BLRD, row, keys, n), start)
        some_BLR = jnp.where(end.sum_BLR > 0, end.sum_BLR, 1.0)
        lse_BLR = end.top_BLR + jnp.log(some_BLR)
        return (end.o_BLRD / some_BLR[..., None]).astype(out_dtype), lse_BLR[..., None]

    o_NBLRD, lse_NBLR1 = lax.map(block, (cut.cut_queries(q_BTHD), rows))
    return cut.join_queries(o_NBLRD), cut.join_queries(lse_NBLR1)[..., 0]


def backward(
    cut: Layout,
    q_BTHD: jax.Array,
    k_BSKD: jax.Array,
    v_BSKD: jax.Array,
    mask: Mask,
    o_BTHD: jax.Array,
    lse_BTH: jax.Array,
    do_BTHD: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """dq_BTHD, dk_BSKD and dv_BSKD in float32; see `models.attention.backward`."""
    rows, keys = _cut(cut, k_BSKD, v_BSKD, mask)
    zero = tie(q_BTHD, k_BSKD, v_BSKD, *mask, do_BTHD, o_BTHD, lse_BTH)
    delta_BTH = jnp.sum(o_BTHD.astype(jnp.float32) * do_BTHD.astype(jnp.float32), axis=-1)
    lse_BTH = jnp.where(lse_BTH == -jnp.inf, 0.0, lse_BTH)
    queries = Query(
        cut.cut_queries(q_BTHD),
        cut.cut_queries(do_BTHD.astype(v_BSKD.dtype)),
        cut.cut_queries(lse_BTH[..., None]).swapaxes(3, 4),
        cut.cut_queries(delta_BTH[..., None]).swapaxes(3, 4),
    )

    def block(
        sums: tuple[jax.Array, jax.Array], this: tuple[Query, QueryBlock]
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        query, row = this
        start = Grads(jnp.zeros(query.q_BLRD.swapaxes(2, 3).shape) + zero, *sums)
        end = lax.fori_loop(0, row.n_visits, lambda n, state: _differentiate(state, query, row, keys, n), start)
        return (end.dk_MBLCD, end.dv_MBLCD), end.dq_BLDR

    start = (jnp.zeros(keys.k_MBLCD.shape) + zero, jnp.zeros(keys.v_MBLCD.shape) + zero)
    (dk_MBLCD, dv_MBLCD), dq_NBLDR = lax.scan(block, start, (queries, rows))
    scale, heads = q_BTHD.shape[-1] ** -0.5, k_BSKD.shape[2]
    dq_BTHD = cut.join_queries(dq_NBLDR.swapaxes(3, 4)) * scale
    return dq_BTHD, cut.join_keys(dk_MBLCD, heads) * scale, cut.join_keys(dv_MBLCD, heads)


def tie(*arrays: jax.Array) -> jax.Array:
    """A float32 zero that depends on the arrays but not on their content.

    Loops start from constants; a constant plus this zero varies between devices as the arrays do.
    """
    zeros = (jnp.sum(lax.slice_in_dim(x, 0, 0)).astype(jnp.float32) for x in arrays)
    return sum(zeros, start=jnp.float32(0))


def _cut(cut: Layout, k_BSKD: jax.Array, v_BSKD: jax.Array, mask: Mask) -> tuple[QueryBlock, Keys]:
    """The mask and the keys in blocks; padding keys become zeros, so that 0 * NaN cannot happen."""
    real_S = mask.k_index_S < PADDING
    k, v = (jnp.where(real_S[None, :, None, None], x, jnp.zeros((), x.dtype)) for x in (k_BSKD, v_BSKD))
    rows, columns = cut.cut_mask(mask)
    return rows, Keys(cut.cut_keys(k), cut.cut_keys(v), columns)


def _soften(state: Softmax, q_BLRD: jax.Array, row: QueryBlock, keys: Keys, n: jax.Array) -> Softmax:
    """Let a query block see the n-th of its key blocks."""
    at = pick(row.visits_M, n)
    s_BLRC = _scores(q_BLRD, pick(keys.k_MBLCD, at))
    s_BLRC = jnp.where(visible(row, keys.mask, at), s_BLRC, -jnp.inf)
    top_BLR = jnp.maximum(state.top_BLR, jnp.max(s_BLRC, axis=-1))
    base_BLR = jnp.where(top_BLR == -jnp.inf, 0.0, top_BLR)
    p_BLRC = jnp.exp(s_BLRC - base_BLR[..., None])
    keep_BLR = jnp.exp(state.top_BLR - base_BLR)
    pv_BLRD = _dot(p_BLRC.astype(keys.v_MBLCD.dtype), pick(keys.v_MBLCD, at), 3, 2)
    return Softmax(
        top_BLR,
        state.sum_BLR * keep_BLR + jnp.sum(p_BLRC, axis=-1),
        state.o_BLRD * keep_BLR[..., None] + pv_BLRD,
    )


def _differentiate(state: Grads, query: Query, row: QueryBlock, keys: Keys, n: jax.Array) -> Grads:
    """Add the gradients of a query block and the n-th of its key blocks.

    Scores are keys x queries here: then only one product of five has a transposed operand, which CPUs do slowly.
    """
    q_BLRD, do_BLRD, lse_BL1R, delta_BL1R = query
    at = pick(row.visits_M, n)
    k_BLCD, v_BLCD = pick(keys.k_MBLCD, at), pick(keys.v_MBLCD, at)
    s_BLCR = jnp.where(visible(row, keys.mask, at).swapaxes(2, 3), _scores(k_BLCD, q_BLRD), -jnp.inf)
    p_BLCR = jnp.exp(s_BLCR - lse_BL1R)
    ds_BLCR = (p_BLCR * (_dot(v_BLCD, do_BLRD, 3, 3) - delta_BL1R)).astype(q_BLRD.dtype)
    return Grads(
        state.dq_BLDR + _dot(k_BLCD, ds_BLCR, 2, 2),
        _add(state.dk_MBLCD, at, _dot(ds_BLCR, q_BLRD, 3, 2)),
        _add(state.dv_MBLCD, at, _dot(p_BLCR.astype(do_BLRD.dtype), do_BLRD, 3, 2)),
    )


def _scores(a_BLXD: jax.Array, b_BLYD: jax.Array) -> jax.Array:
    return _dot(a_BLXD, b_BLYD, 3, 3) * a_BLXD.shape[-1] ** -0.5


def _dot(a: jax.Array, b: jax.Array, axis_a: int, axis_b: int) -> jax.Array:
    """Product of matrices for each row and lane, summed in float32."""
    over = (((axis_a,), (axis_b,)), ((0, 1), (0, 1)))
    return lax.dot_general(a, b, over, preferred_element_type=jnp.float32)


def _add(x: jax.Array, at: jax.Array, value: jax.Array) -> jax.Array:
    return lax.dynamic_update_index_in_dim(x, pick(x, at) + value, at, axis=0)
