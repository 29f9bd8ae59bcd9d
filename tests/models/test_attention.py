"""Blockwise attention against a plain full score matrix, whole and in parts."""

from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshes.lengths import visited
from models import attention
from models.attention import Mask
from models.blocks import layout
from sharding.shares import Shares
from tests.models.attention_oracle import Case, close, compare, draw, ours, plain, share

PATTERNS = [(0,), (0, 1, 2), (0, 0, 1, 1), (0, 0, 0, 1), (0, 1, 1, 1, 1), (1, 1), (0, 0, 2, 2, 2, 2)]
LENGTHS = [(1, 1), (3, 1), (13, 7), (97, 41), (257, 257), (300, 37), (300, 263), (530, 530)]


@pytest.mark.parametrize(("number", "lengths"), [*enumerate(LENGTHS)])
def test_random_shares_equal_the_full_score_matrix(number: int, lengths: tuple[int, int]) -> None:
    compare(draw(number, *lengths, PATTERNS[number % len(PATTERNS)]))


@pytest.mark.parametrize("heads", PATTERNS)
def test_every_head_pattern_equals_the_full_score_matrix(heads: tuple[int, ...]) -> None:
    compare(draw(7, 150, 70, heads))


@pytest.mark.parametrize("fault", ["strict", "local", "future", "documents"])
def test_the_comparison_sees_a_broken_mask(fault: str) -> None:
    with pytest.raises(AssertionError, match="is off"):
        compare(draw(3, 150, 70, (0, 0, 1)), fault)


@pytest.mark.parametrize("tokens", [3, 15, 16, 17, 33, 128, 129])
def test_lengths_around_a_block(tokens: int) -> None:
    compare(draw(tokens, tokens, tokens, (0, 0), rows=1, documents=1))


def test_order_of_keys_and_segments_is_free() -> None:
    case = draw(5, 150, 90, (0, 1))
    rng = np.random.default_rng(5)
    order, segment = rng.permutation(150), jnp.asarray(rng.integers(0, 3, (2, 150)), jnp.int32)
    mask = Mask(case.mask.q_index_T, jnp.asarray(order, jnp.int32), segment[:, case.mask.q_index_T], segment[:, order])
    compare(case._replace(mask=mask))


def test_sequence_shorter_than_the_mesh_and_devices_without_tokens() -> None:
    whole = draw(11, 3, 3, (0, 0), documents=1)
    right = plain(whole)
    found = [ours(share(whole, [i] if i < 3 else [])) for i in range(4)]
    close(
        (
            *(jnp.concatenate([part[i] for part in found], axis=1) for i in range(3)),
            *(sum((part[i] for part in found[1:]), start=found[0][i]) for i in (3, 4)),
        ),
        right,
    )


@pytest.mark.parametrize(("keys", "tokens", "heads"), [(5, 0, (0, 0)), (5, 5, ()), (40, 0, ())])
def test_no_tokens_or_no_heads(keys: int, tokens: int, heads: tuple[int, ...]) -> None:
    case = draw(1, keys, tokens, heads)
    o, lse, dq, dk, dv = ours(case)
    assert o.shape == dq.shape == case.q.shape and lse.shape == case.q.shape[:3]
    assert dk.shape == dv.shape == case.k.shape
    assert not jnp.any(dk) and not jnp.any(dv)


def in_parts(case: Case, cuts: tuple[int, ...]) -> tuple[jax.Array, ...]:
    """Attention key part by key part: outputs merged by lse in float32, gradients from the whole o and lse."""
    return _in_parts(*case[:-1], heads=case.heads, cuts=cuts)


@partial(jax.jit, static_argnames=("heads", "cuts"))
def _in_parts(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    do: jax.Array,
    mask: Mask,
    heads: tuple[int, ...],
    cuts: tuple[int, ...],
) -> tuple[jax.Array, ...]:
    edges = [0, *cuts, k.shape[1]]
    parts = [slice(a, b) for a, b in pairwise(edges)]
    part_mask = [mask._replace(k_index_S=mask.k_index_S[p], k_segment_BS=mask.k_segment_BS[:, p]) for p in parts]
    o, lse = jnp.zeros(q.shape, jnp.float32), jnp.full(q.shape[:3], -jnp.inf)
    for p, m in zip(parts, part_mask, strict=True):
        new_o, new_lse = attention.forward(q, k[:, p], v[:, p], m, kv_of_head=heads, out_dtype=jnp.float32)
        both = jnp.logaddexp(lse, new_lse)
        base = jnp.where(both == -jnp.inf, 0.0, both)
        o = o * jnp.exp(lse - base)[..., None] + new_o * jnp.exp(new_lse - base)[..., None]
        lse = both
    grads = [
        attention.backward(q, k[:, p], v[:, p], m, o, lse, do, kv_of_head=heads, out_dtype=jnp.float32)
        for p, m in zip(parts, part_mask, strict=True)
    ]
    dq = sum((g[0] for g in grads[1:]), start=grads[0][0])
    return o, lse, dq, *(jnp.concatenate([g[i] for g in grads], axis=1) for i in (1, 2))


@pytest.mark.parametrize("cuts", [(), (60,), (1, 40, 97)])
def test_parts_of_the_keys_merge_to_the_whole(cuts: tuple[int, ...]) -> None:
    case = draw(9, 130, 66, (0, 0, 1))
    close(in_parts(case, cuts), plain(case))


def test_16_bit_error_does_not_grow_with_the_number_of_parts() -> None:
    case = draw(10, 256, 256, (0, 1), rows=1, documents=1, width=64)
    small = case._replace(**{name: getattr(case, name).astype(jnp.bfloat16) for name in ("q", "k", "v", "do")})
    exact = plain(small._replace(**{n: getattr(small, n).astype(jnp.float32) for n in ("q", "k", "v", "do")}))
    one, eight = (
        [float(jnp.max(jnp.abs(a - b))) for a, b in zip(in_parts(small, cuts), exact, strict=True)]
        for cuts in ((), (32, 64, 96, 128, 160, 192, 224))
    )
    assert all(b <= 2 * a + 1e-6 for a, b in zip(one, eight, strict=True)), (one, eight)


def test_dtypes() -> None:
    case = draw(12, 40, 20, (0, 0))
    q, k, v, do = (x.astype(jnp.bfloat16) for x in case[:4])
    found = ours(Case(q, k, v, do, case.mask, case.heads))
    assert [x.dtype.name for x in found] == ["bfloat16", "float32", "bfloat16", "bfloat16", "bfloat16"]
    right = plain(case)
    for a, b in zip(found, right, strict=True):
        np.testing.assert_allclose(a.astype(jnp.float32), b, atol=0.05 * float(jnp.max(jnp.abs(b))))


@pytest.mark.parametrize("heads", [(0, 0, 1, 1), (0, 0, 0, 1), (1, 1)])
def test_the_kernel_path_maps_heads_and_gradients_alike(
    heads: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuDNN needs a GPU; here another implementation of the same public function stands in for it."""
    case = draw(15, 48, 48, heads, documents=1)
    used = []

    def stand_in(*args: jax.Array, implementation: str, **options: bool) -> tuple[jax.Array, jax.Array]:
        used.append(implementation)
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return dot_product_attention(*args, implementation="xla", **options)

    dot_product_attention = jax.nn.dot_product_attention
    monkeypatch.setattr(jax.nn, "dot_product_attention", stand_in)
    monkeypatch.setattr(attention, "_cudnn_can", lambda q: True)
    dense: Any = {"kv_of_head": heads, "dense_causal": True}

    @jax.jit
    def run(q: jax.Array, k: jax.Array, v: jax.Array, do: jax.Array, mask: Mask) -> tuple[tuple[jax.Array, ...], ...]:
        o, lse = attention.forward(q, k, v, mask, **dense)
        grads = attention.backward(q, k, v, mask, o, lse, do, **dense)
        through, vjp = jax.vjp(lambda q, k, v: attention.attend(q, k, v, mask, **dense), q, k, v)
        return (o, lse, *grads), (through, lse, *vjp(do))

    for found in run(*case[:-1]):
        close(found, plain(case))
    assert set(used) == {"cudnn"}


def test_kernels_are_never_chosen_on_cpu() -> None:
    case = draw(1, 64, 64, (0,), documents=1, width=64)
    assert not attention._cudnn_can(case.q.astype(jnp.bfloat16))


@pytest.mark.parametrize("heads", [(0,), (0, 2), (0, -1)])
def test_a_head_pattern_that_does_not_fit_is_refused(heads: tuple[int, ...]) -> None:
    case = draw(1, 8, 8, (0, 1))
    with pytest.raises(ValueError, match=r"must name a key/value head 0\.\.1 for each of 2 query heads"):
        attention.attend(case.q, case.k, case.v, case.mask, kv_of_head=heads)


def test_mixed_dtypes_are_refused() -> None:
    case = draw(1, 8, 8, (0, 1))
    with pytest.raises(ValueError, match="must have one dtype, got bfloat16, float32, float32"):
        attention.attend(case.q.astype(jnp.bfloat16), case.k, case.v, case.mask, kv_of_head=(0, 1))


def test_a_false_promise_of_density_is_refused() -> None:
    case = draw(1, 8, 5, (0, 1))
    with pytest.raises(ValueError, match="dense_causal promises as many queries as keys, got 5 and 8"):
        attention.attend(case.q, case.k, case.v, case.mask, kv_of_head=(0, 1), dense_causal=True)


@pytest.mark.parametrize(
    "sizes", [(534, 289, 93, 108), (512, 256, 128, 128), (4301, 2000, 900, 991), (600, 424), (8192,)]
)
def test_the_cost_model_knows_which_blocks_are_computed(sizes: tuple[int, ...]) -> None:
    """Blocks of queries that begin before a block of keys ends visit it; shares are dealt in turn over the row."""
    row = sum(sizes)
    for own in Shares(sizes).indices:
        cut = layout(len(own), row, (0,))
        last = own[np.minimum(cut.query_block * np.arange(1, cut.query_blocks + 1), len(own)) - 1]
        sees = cut.key_block * np.arange(cut.key_blocks) <= last[:, None]
        assert visited(np.array(len(own)), np.array(row)) == pytest.approx(sees.mean(), rel=0.03)
