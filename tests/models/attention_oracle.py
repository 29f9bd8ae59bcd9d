"""Attention written plainly, with the whole score matrix, and random cases to compare with it."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from models import attention
from models.attention import Mask

VALUE, GRADIENT = 1e-5, 1e-4  # relative to the largest entry, float32


class Case(NamedTuple):
    """One call: arrays, the gradient of the output, the mask and the head pattern."""

    q: jax.Array
    k: jax.Array
    v: jax.Array
    do: jax.Array
    mask: Mask
    heads: tuple[int, ...]


def draw(
    seed: int, keys: int, tokens: int, heads: tuple[int, ...], *, rows: int = 2, documents: int = 3, width: int = 8
) -> Case:
    """A random share of the tokens of random packed documents."""
    rng = np.random.default_rng(seed)
    index = np.sort(rng.choice(keys, tokens, replace=False)).astype(np.int32)
    segment = np.sort(rng.integers(0, documents, (rows, keys)), axis=1).astype(np.int32)
    mask = Mask(*map(jnp.asarray, (index, np.arange(keys, dtype=np.int32), segment[:, index], segment)))
    sizes = (
        (tokens, len(heads)),
        (keys, max(heads, default=0) + 1),
        (keys, max(heads, default=0) + 1),
        (tokens, len(heads)),
    )
    q, k, v, do = (jnp.asarray(rng.normal(size=(rows, *size, width)), jnp.float32) for size in sizes)
    return Case(q, k, v, do, mask, heads)


def oracle(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask, heads: tuple[int, ...], fault: str = ""
) -> tuple[jax.Array, jax.Array]:
    """Output and lse from the whole score matrix; `fault` breaks the mask on purpose."""
    q_index, k_index, q_segment, k_segment = mask
    causal = k_index[None, :] < q_index[:, None] if fault == "strict" else k_index[None, :] <= q_index[:, None]
    if fault == "local":  # as if the share began at the start of the sequence
        causal = k_index[None, :] <= jnp.arange(len(q_index))[:, None]
    same = q_segment[:, :, None] == k_segment[:, None, :]
    seen = (causal[None] | (fault == "future")) & (same | (fault == "documents"))
    k, v = (x[:, :, np.array(heads, np.int32)] for x in (k, v))
    s = jnp.einsum("bthd,bshd->bths", q, k, precision="highest") / np.float32(np.sqrt(q.shape[-1]))
    s = jnp.where(seen[:, :, None], s, -jnp.inf)
    some = jnp.any(seen, axis=-1)[:, :, None]
    lse = jnp.where(some, jax.nn.logsumexp(jnp.where(some[..., None], s, 0.0), axis=-1), -jnp.inf)
    p = jnp.where(seen[:, :, None], jnp.exp(s - jnp.where(some, lse, 0.0)[..., None]), 0.0)
    return jnp.einsum("bths,bshd->bthd", p, v, precision="highest"), lse


def ours(case: Case) -> tuple[jax.Array, ...]:
    """o, lse, dq, dk, dv."""
    return _ours(*case[:-1], heads=case.heads)


@partial(jax.jit, static_argnames="heads")
def _ours(
    q: jax.Array, k: jax.Array, v: jax.Array, do: jax.Array, mask: Mask, heads: tuple[int, ...]
) -> tuple[jax.Array, ...]:
    o, lse = attention.forward(q, k, v, mask, kv_of_head=heads)
    return o, lse, *attention.backward(q, k, v, mask, o, lse, do, kv_of_head=heads)


def plain(case: Case, fault: str = "") -> tuple[jax.Array, ...]:
    """The same from the oracle, differentiated by JAX."""
    return _plain(*case[:-1], heads=case.heads, fault=fault)


@partial(jax.jit, static_argnames=("heads", "fault"))
def _plain(
    q: jax.Array, k: jax.Array, v: jax.Array, do: jax.Array, mask: Mask, heads: tuple[int, ...], fault: str
) -> tuple[jax.Array, ...]:
    (o, lse), vjp = jax.vjp(lambda q, k, v: oracle(q, k, v, mask, heads, fault), q, k, v)
    return o, lse, *vjp((do, jnp.zeros_like(lse)))


def close(found: tuple[jax.Array, ...], right: tuple[jax.Array, ...]) -> None:
    names = ("o", "lse", "dq", "dk", "dv")
    for name, a, b in zip(names, found, right, strict=True):
        tolerance = VALUE if name in ("o", "lse") else GRADIENT
        size = float(jnp.max(jnp.abs(b), where=jnp.isfinite(b), initial=1.0))
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * size, err_msg=f"{name} is off")


def compare(case: Case, fault: str = "") -> None:
    close(ours(case), plain(case, fault))


def share(case: Case, tokens: list[int]) -> Case:
    """The part of a case that a device with these tokens computes."""
    at = np.array(tokens, np.int32)
    mask = case.mask._replace(q_index_T=case.mask.q_index_T[at], q_segment_BT=case.mask.q_segment_BT[:, at])
    return case._replace(q=case.q[:, at], do=case.do[:, at], mask=mask)
