"""Edge values folded to the rows of a table by gathers, in loops that keep memory in proportion to rows.

Shapes: N pieces of a bucket, W slots of a piece, H hubs of a bucket, P pieces of all, M rows, S slots of all,
L lanes (heads), C channels of a lane.
"""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from models.gnn.tables import UNUSED, Array, Table

__all__ = ["Fold", "column", "dot", "ended", "flat", "rows", "take", "used"]

Fold = Callable[[jax.Array, jax.Array], jax.Array]
STEP = 4  # slots that one turn of a loop folds
ROUND = 64  # pieces of a hub that one loop folds


def rows(table: Table, term: Callable[[int, Any], jax.Array], op: Fold = jnp.add, unused: float = 0) -> jax.Array:
    """Rows [M, ...] of a table, where slot j of the pieces of bucket k has the values `term(k, j)` [N, ...]."""
    pieces = [
        _fold(entries.shape[0] if entries.shape[1] else 1, partial(term, k), op)
        for k, entries in enumerate(table.entries)
    ]
    hubs = [hub for hub in table.hubs if hub.shape[1]]
    end = jnp.full((sum(hub.shape[1] for hub in hubs) + 1, *pieces[0].shape[1:]), unused, pieces[0].dtype)
    x_P, at = jnp.concatenate([*pieces, end]), sum(piece.shape[0] for piece in pieces)
    for hub in hubs:
        x_P = lax.dynamic_update_slice_in_dim(x_P, _gathered(x_P, hub, op), at, axis=0)
        at += hub.shape[1]
    return take(x_P, table.place_M)


def _gathered(x_P: jax.Array, index_WH: Array, op: Fold) -> jax.Array:
    """Each hub's pieces folded, [H, ...], in rounds."""
    W, H = index_WH.shape
    if W <= ROUND:
        return _fold(W, lambda j: take(x_P, column(index_WH, j)), op)
    rounds = _gathered(x_P, index_WH.reshape(ROUND, W // ROUND * H), op)
    return _gathered(rounds, jnp.arange(W // ROUND * H).reshape(W // ROUND, H), op)


def _fold(width: int, term: Callable[[Any], jax.Array], op: Fold) -> jax.Array:
    """`term(j)` for j in 0..width-1 folded: the first `STEP` or fewer, then `STEP` in each turn of a loop."""
    first = (width - 1) % STEP + 1
    start = reduce(op, map(term, range(first)))
    if first == width:
        return start

    def turn(number: jax.Array, folded: jax.Array) -> jax.Array:
        return reduce(op, (term(first + number * STEP + j) for j in range(STEP)), folded)

    return lax.fori_loop(0, (width - first) // STEP, turn, start)


def dot(x_NLC: jax.Array, y_NLC: jax.Array) -> jax.Array:
    """Products summed over channels, [N, L]: a matrix product, which is faster on CPU than a sum of short rows."""
    N, L, C = x_NLC.shape
    lane_DL = jnp.repeat(jnp.eye(L, dtype=x_NLC.dtype), C, axis=0)
    return jnp.dot((x_NLC * y_NLC).reshape(N, L * C), lane_DL, precision="highest")


def ended(x: jax.Array, unused: float = 0) -> jax.Array:
    """The rows and, after the last, one that an index out of range reads: clipping is cheaper than filling."""
    return jnp.concatenate([x, jnp.full((1, *x.shape[1:]), unused, x.dtype)])


def take(x_ended: jax.Array, index: jax.Array) -> jax.Array:
    """Rows of `ended` rows, the last one where an index is out of range."""
    return x_ended.at[index].get(mode="clip", wrap_negative_indices=False)


def column(index_WN: jax.Array, j: Any) -> jax.Array:
    """Slot j of each piece."""
    return lax.dynamic_index_in_dim(index_WN, j, keepdims=False)


def used(entries_WN: jax.Array, values_WN: jax.Array, j: Any, unused: float = 0) -> jax.Array:
    """Edge values of slot j of each piece, whatever an unused one holds."""
    used_N, values_N = column(entries_WN, j) != UNUSED, column(values_WN, j)
    return jnp.where(used_N.reshape(*used_N.shape, *[1] * (values_N.ndim - 1)), values_N, unused)


def flat(values: Sequence[jax.Array]) -> jax.Array:
    """Edge values by slot, [S + 1, ...], the last one 0."""
    slots = [x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]) for x in values]
    return jnp.concatenate([*slots, jnp.zeros((1, *slots[0].shape[1:]), slots[0].dtype)])
