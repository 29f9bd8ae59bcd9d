"""Blockwise attention against the full score matrix: time of forward and backward, and temporary memory.

Shapes: B rows, T local query tokens, S keys, H heads, D head width.
"""

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from report import Report, compare, flags, note

from models.attention import Mask, attend

ROWS, HEADS, WIDTH = 1, 8, 64
KV_OF_HEAD = tuple(range(HEADS))
Arrays = tuple[jax.Array, jax.Array, jax.Array, jax.Array, Mask]


def ours(q_BTHD: jax.Array, k_BSHD: jax.Array, v_BSHD: jax.Array, mask: Mask) -> jax.Array:
    """The attention of this project."""
    return attend(q_BTHD, k_BSHD, v_BSHD, mask, kv_of_head=KV_OF_HEAD)


def full(q_BTHD: jax.Array, k_BSHD: jax.Array, v_BSHD: jax.Array, mask: Mask) -> jax.Array:
    """The plain way: the whole score matrix, masked."""
    seen_TS = mask.k_index_S[None, :] <= mask.q_index_T[:, None]
    seen_BTS = seen_TS[None] & (mask.q_segment_BT[:, :, None] == mask.k_segment_BS[:, None, :])
    s_BHTS = jnp.einsum("bthd,bshd->bhts", q_BTHD, k_BSHD) * WIDTH**-0.5
    p_BHTS = jax.nn.softmax(jnp.where(seen_BTS[:, None], s_BHTS, -1e30), axis=-1)
    return jnp.einsum("bhts,bshd->bthd", p_BHTS, v_BSHD)


def both_ways(attention: Callable[..., jax.Array]) -> Any:
    """Jitted forward and backward: the output and the gradients of q, k and v."""

    @jax.jit
    def run(q: jax.Array, k: jax.Array, v: jax.Array, do: jax.Array, mask: Mask) -> tuple[jax.Array, ...]:
        o, vjp = jax.vjp(lambda q, k, v: attention(q, k, v, mask), q, k, v)
        return o, *vjp(do)

    return run


def inputs(length: int, *, stride: int = 1, documents: int = 1) -> Arrays:
    """Random float32 arrays; queries are each `stride`-th token, documents are equally long."""
    rng = np.random.default_rng(length)
    index = np.arange(stride - 1, length, stride, dtype=np.int32)
    q, k, v, do = (
        jnp.asarray(rng.normal(size=(ROWS, tokens, HEADS, WIDTH)), jnp.float32)
        for tokens in (len(index), length, length, len(index))
    )
    segment = np.arange(length, dtype=np.int32)[None].repeat(ROWS, axis=0) // (length // documents)
    mask = Mask(*map(jnp.asarray, (index, np.arange(length, dtype=np.int32), segment[:, index], segment)))
    return q, k, v, do, mask


def temporary_bytes(attention: Callable[..., jax.Array], length: int) -> int:
    """Temporary memory of forward and backward, from the compiler; nothing runs."""
    shapes = jax.eval_shape(lambda: inputs(length))
    return both_ways(attention).lower(*shapes).compile().memory_analysis().temp_size_in_bytes


def against_full(report: Report, length: int, rounds: int, at_least: float | None) -> None:
    """Time both at one length, if the full score matrix fits in the free memory."""
    needed, free = temporary_bytes(full, length), os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > 0.8 * free:
        note(f"{length} tokens: the full score matrix needs {needed / 2**30:.1f} GiB, free are {free / 2**30:.1f} GiB")
        return
    arrays, (a, b) = inputs(length), map(both_ways, (ours, full))
    found = compare(lambda: a(*arrays), lambda: b(*arrays), rounds)
    report.add(f"{length} tokens, ours", found.a_seconds, "s")
    report.add(f"{length} tokens, full score matrix", found.b_seconds, "s")
    report.add(f"{length} tokens, speed against full score matrix", found.ratio, "x", at_least=at_least)


def against_whole(report: Report, name: str, length: int, rounds: int, **options: int) -> None:
    """How much faster an easier task is than all tokens of one document."""
    whole, easy, run = inputs(length), inputs(length, **options), both_ways(ours)
    found = compare(lambda: run(*easy), lambda: run(*whole), rounds)
    report.add(f"{length} tokens, {name}, speed against all", found.ratio, "x")


def memory(report: Report, lengths: list[int]) -> None:
    """Temporary memory at doubling lengths."""
    sizes = [temporary_bytes(ours, length) for length in lengths]
    for length, size, before in zip(lengths, sizes, [None, *sizes[:-1]], strict=True):
        report.add(f"{length} tokens, temporary memory", size / 2**20, "MiB")
        if before is not None:
            report.add(f"{length} tokens, memory against half as many", size / before, "x", at_most=2.1)


def main() -> None:
    given = flags(__doc__)
    report = Report("attention")
    against_full(report, 2048, 5 if given.quick else 15, at_least=2.0)
    if not given.quick:
        against_full(report, 8192, 3, at_least=None)
    length, rounds = (2048, 5) if given.quick else (8192, 5)
    against_whole(report, "an eighth of the queries", length, rounds, stride=8)
    against_whole(report, "eight packed documents", length, rounds, documents=8)
    memory(report, [1024, 2048, 4096] if given.quick else [1024, 2048, 4096, 8192, 16384])
    report.show(as_json=given.json)


if __name__ == "__main__":
    main()
