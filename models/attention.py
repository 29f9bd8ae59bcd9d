"""Exact causal attention over packed documents, for any share of the queries and any part of the keys.

Shapes: B rows, T local query tokens, S keys, H query heads, K key/value heads, D head width.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.backend import get_backend
from jax.typing import DTypeLike

from models import blockwise
from models.blocks import PADDING, Mask, layout

__all__ = ["PADDING", "Mask", "attend", "backward", "forward"]

Heads = tuple[int, ...]


def attend(
    q_BTHD: jax.Array,
    k_BSKD: jax.Array,
    v_BSKD: jax.Array,
    mask: Mask,
    *,
    kv_of_head: Heads,
    dense_causal: bool = False,
) -> jax.Array:
    """Softmax(q k' / sqrt(D)) v over the visible keys, differentiable in q, k and v.

    Args:
        q_BTHD: queries of this device's tokens; T and H may be 0.
        k_BSKD: keys; the content of padding keys has no effect, NaN included.
        v_BSKD: values, like the keys.
        mask: positions and documents of queries and keys.
        kv_of_head: key/value head (0..K-1) that each query head reads.
        dense_causal: a promise that T == S, both indices are 0..T-1 and each row is one document. On an NVIDIA
            GPU in 16 bit it lets cuDNN do the work; elsewhere it changes nothing.

    Returns:
        o_BTHD in the dtype of q; a query that sees no key gets 0.
    """
    _check(q_BTHD, k_BSKD, v_BSKD, kv_of_head, dense_causal)
    if dense_causal and _cudnn_can(q_BTHD):
        return _cudnn(q_BTHD, k_BSKD, v_BSKD, kv_of_head)[0]
    return _attend(q_BTHD, k_BSKD, v_BSKD, mask, tuple(kv_of_head))


def forward(
    q_BTHD: jax.Array,
    k_BSKD: jax.Array,
    v_BSKD: jax.Array,
    mask: Mask,
    *,
    kv_of_head: Heads,
    dense_causal: bool = False,
    out_dtype: DTypeLike | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Attention and the logarithm of each softmax sum, so that results over parts of the keys can be merged.

    Args: as `attend`; `out_dtype` is the dtype of the output, by default that of q.

    Returns:
        o_BTHD, and lse_BTH in float32; a query that sees no key has o = 0 and lse = -inf.
    """
    _check(q_BTHD, k_BSKD, v_BSKD, kv_of_head, dense_causal)
    out_dtype = q_BTHD.dtype if out_dtype is None else out_dtype
    if 0 in (*q_BTHD.shape, *k_BSKD.shape):
        zero = blockwise.tie(q_BTHD, k_BSKD, v_BSKD, *mask)
        return jnp.zeros(q_BTHD.shape, out_dtype) + zero.astype(out_dtype), zero - jnp.full(q_BTHD.shape[:3], jnp.inf)
    if dense_causal and _cudnn_can(q_BTHD):
        o_BTHD, lse_BTH = _cudnn(q_BTHD, k_BSKD, v_BSKD, kv_of_head)
        return o_BTHD.astype(out_dtype), lse_BTH.astype(jnp.float32)
    cut = layout(q_BTHD.shape[1], k_BSKD.shape[1], kv_of_head)
    return blockwise.forward(cut, q_BTHD, k_BSKD, v_BSKD, mask, out_dtype)


def backward(
    q_BTHD: jax.Array,
    k_BSKD: jax.Array,
    v_BSKD: jax.Array,
    mask: Mask,
    o_BTHD: jax.Array,
    lse_BTH: jax.Array,
    do_BTHD: jax.Array,
    *,
    kv_of_head: Heads,
    dense_causal: bool = False,
    out_dtype: DTypeLike | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gradients of q, k and v from these keys' part of the attention.

    Args: as `forward`, with the output, its lse and the gradient of the output. The keys may be a part of those that
        o and lse were computed from: the sum over the parts is the whole gradient of q.
        With `dense_causal` they are all.

    Returns:
        dq_BTHD, dk_BSKD, dv_BSKD in the dtypes of q, k and v, or in `out_dtype`.
    """
    _check(q_BTHD, k_BSKD, v_BSKD, kv_of_head, dense_causal)
    like = (q_BTHD, k_BSKD, v_BSKD)
    if 0 in (*q_BTHD.shape, *k_BSKD.shape):
        zero = blockwise.tie(*like, *mask, do_BTHD)
        grads = tuple(jnp.zeros(x.shape, jnp.float32) + zero for x in like)
    elif dense_causal and _cudnn_can(q_BTHD):
        grads = jax.vjp(lambda q, k, v: _cudnn(q, k, v, kv_of_head)[0], *like)[1](do_BTHD.astype(q_BTHD.dtype))
    else:
        cut = layout(q_BTHD.shape[1], k_BSKD.shape[1], kv_of_head)
        grads = blockwise.backward(cut, *like, mask, o_BTHD, lse_BTH, do_BTHD)
    dq, dk, dv = (g.astype(x.dtype if out_dtype is None else out_dtype) for g, x in zip(grads, like, strict=True))
    return dq, dk, dv


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _attend(q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask, heads: Heads) -> jax.Array:
    return forward(q, k, v, mask, kv_of_head=heads)[0]


def _attend_forward(q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask, heads: Heads) -> tuple[jax.Array, Any]:
    o, lse = forward(q, k, v, mask, kv_of_head=heads)
    return o, (q, k, v, mask, o, lse)


def _attend_backward(heads: Heads, kept: Any, do: jax.Array) -> tuple[Any, ...]:
    q, k, v, mask, o, lse = kept
    return (*backward(q, k, v, mask, o, lse, do, kv_of_head=heads), None)


_attend.defvjp(_attend_forward, _attend_backward)


def _cudnn_can(q_BTHD: jax.Array) -> bool:
    """Whether cuDNN is there and takes these shapes and dtypes."""
    width, dtype = q_BTHD.shape[-1], q_BTHD.dtype
    fits = width % 8 == 0 and width <= 128 and dtype in (jnp.bfloat16, jnp.float16) and q_BTHD.size > 0
    return fits and jax.default_backend() == "gpu" and "cuda" in get_backend().platform_version.lower()


def _cudnn(q: jax.Array, k: jax.Array, v: jax.Array, heads: Heads) -> tuple[jax.Array, jax.Array]:
    """o_BTHD and lse_BTH of dense causal attention; lse has the precision of q."""
    lanes = layout(q.shape[1], k.shape[1], heads).lanes
    k, v = (x if lanes == tuple(range(x.shape[2])) else jnp.take(x, jnp.array(lanes), axis=2) for x in (k, v))
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn", return_residual=True)


def _check(q_BTHD: jax.Array, k_BSKD: jax.Array, v_BSKD: jax.Array, kv_of_head: Heads, dense_causal: bool) -> None:
    """What does not fit would compute something else silently."""
    H, K = q_BTHD.shape[2], k_BSKD.shape[2]
    if len(kv_of_head) != H or any(not 0 <= head < K for head in kv_of_head):
        raise ValueError(
            f"kv_of_head {tuple(kv_of_head)} must name a key/value head 0..{K - 1} for each of {H} query heads"
        )
    if not q_BTHD.dtype == k_BSKD.dtype == v_BSKD.dtype:
        raise ValueError(
            f"q, k and v must have one dtype, got {q_BTHD.dtype}, {k_BSKD.dtype}, {v_BSKD.dtype}: cast them"
        )
    if dense_causal and q_BTHD.shape[1] != k_BSKD.shape[1]:
        raise ValueError(
            f"dense_causal promises as many queries as keys, got {q_BTHD.shape[1]} and {k_BSKD.shape[1]}: leave it out"
        )
