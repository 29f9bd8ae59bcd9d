"""Predicted bytes of each device: what is stored, gradients, and what a step computes with. NumPy only.

Token ids and index tables are left out. Legend: arrays are [G data groups, M devices].
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from meshes.activations import FLOAT, Activations, looped
from meshes.cost import Division, Grid
from meshes.lengths import Lengths
from meshes.workload import Workload


def bytes_needed(grid: Grid, workload: Workload, division: Division, *, specialized: bool = False) -> np.ndarray:
    """Bytes that each device needs, int [G, M].

    In one switched program every device allocates the arrays of the largest share in the mesh.
    """
    own = _lengths(grid, workload, division)
    room = own if specialized else own.widest()
    plain = specialized or division.even_tokens
    needed = _bytes(grid, workload, own, room, ring=division.kv == "ring", exact=plain, chained=specialized)
    return needed if specialized else np.full_like(needed, needed.max())


def stored_bytes(grid: Grid, workload: Workload) -> int:
    """Bytes of each device between steps: float32 parameters and two moments, sharded over all devices."""
    return 3 * FLOAT * -(-workload.parameters // grid.order.size)


def state_bytes(grid: Grid, workload: Workload) -> int:
    """What is stored, and gradients of each device's share of its group.

    With several microbatches or groups there are two of those, sum and newest; with several groups the parameters of
    that share, too.
    """
    groups = grid.shape[0]
    copies = 1 + looped(workload, groups) + (groups > 1)
    return stored_bytes(grid, workload) + copies * _gradient_bytes(grid, workload)


def token_caps(grid: Grid, workload: Workload, division: Division, *, specialized: bool = False) -> np.ndarray:
    """Most tokens of each device that its memory holds, int [G, M]; -1 where not even none.

    Tiles stay as they are, except that aligned devices attend from the tokens that they own.
    """
    ring = division.kv == "ring"
    own = _lengths(grid, workload, division)
    if division.aligned:
        whole = np.ones_like(own.heads)
        own = replace(own, heads=whole * workload.heads, kv_heads=whole * workload.kv_heads)
    room = own if specialized or division.aligned else own.widest()

    def needed(tokens: np.ndarray) -> np.ndarray:
        changes = {"tokens": tokens, "arriving": _arriving(grid, workload, division, tokens)}
        if division.aligned:
            changes["queries"] = tokens
        if ring:
            changes["keys"] = tokens
        here, wide = replace(own, **changes), replace(room, **changes)
        return _bytes(grid, workload, here, wide, ring=ring, exact=specialized, chained=specialized)

    caps = largest(workload.seq_len, grid.limit, needed)
    return caps if specialized and not ring else np.full_like(caps, caps.min())


def head_caps(grid: Grid, workload: Workload, division: Division, *, specialized: bool = False) -> np.ndarray:
    """Most heads of each device whose tiles span all tokens that its memory holds, int [G, M]; -1 where none."""
    own = _lengths(grid, workload, division)
    if not specialized:
        own = replace(own, tokens=np.full_like(own.tokens, own.tokens.max()))

    def needed(heads: np.ndarray) -> np.ndarray:
        kv = np.minimum(-(-heads * workload.kv_heads // workload.heads) + (heads > 0), workload.kv_heads)
        tile = replace(own, queries=own.keys, heads=heads, kv_heads=kv)
        return _bytes(grid, workload, tile, tile, ring=False, exact=specialized, chained=specialized)

    caps = largest(workload.heads, grid.limit, needed)
    return caps if specialized else np.full_like(caps, caps.min())


def largest(most: int, limit: np.ndarray, needed: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The largest number up to `most` that needs no more than the limit, by bisection; -1 where zero needs more."""
    low, high = np.full(limit.shape, -1), np.full(limit.shape, most)
    for _ in range(most.bit_length() + 1):
        middle = (low + high + 1) // 2
        fits = needed(np.maximum(middle, 0)) <= limit
        low, high = np.where(fits, middle, low), np.where(fits, high, np.maximum(middle - 1, low))
    return low


def _bytes(
    grid: Grid, workload: Workload, own: Lengths, room: Lengths, *, ring: bool, exact: bool, chained: bool
) -> np.ndarray:
    """Bytes of devices that work on arrays of some lengths and allocate others."""
    activations = Activations(
        workload=workload,
        own=own,
        room=room,
        devices=grid.shape[1],
        groups=grid.shape[0],
        exact=exact,
        ring=ring,
        chained=chained,
    )
    needed = state_bytes(grid, workload) + activations.peak(_gradient_bytes(grid, workload))
    return needed.astype(np.int64)


def _gradient_bytes(grid: Grid, workload: Workload) -> int:
    """Float32 gradients of one device's share of its group."""
    return FLOAT * -(-workload.parameters // grid.shape[1])


def _lengths(grid: Grid, workload: Workload, division: Division) -> Lengths:
    """Lengths of local arrays; without work there is a row of padding."""
    most = np.full_like(division.tokens, division.tokens.max())
    return Lengths(
        tokens=np.maximum(division.tokens, 1),
        queries=np.maximum(division.queries, 1),
        heads=np.maximum(division.heads, 1),
        keys=most if division.kv == "ring" else np.full_like(most, workload.seq_len),
        kv_heads=np.maximum(division.kv_heads, 1),
        arriving=_arriving(grid, workload, division, most),
    )


def _arriving(grid: Grid, workload: Workload, division: Division, tokens: np.ndarray) -> np.ndarray:
    """Key rows that an exchange brings to each device if the largest share has so many tokens.

    Everybody sends as many as the largest share has; where tiles differ in heads, rounds of sends bring what the
    largest tile reads, but only with one data group.
    """
    kv_heads = int(division.kv_heads.max())
    padded = grid.shape[1] * tokens * kv_heads
    if grid.shape[0] > 1 or np.all(division.kv_heads == kv_heads):
        return padded
    return np.minimum(padded, workload.seq_len * kv_heads)
