"""A whole graph's edges bucketed by degree: sums by gathers alone, forward and backward.

Shapes: E edges, U source rows, V target rows, R relations, M = V R rows (target, relation), N pieces of a bucket,
W slots of a piece, L lanes (heads), C channels of a lane, D = L C.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from models.gnn import folds
from models.gnn.tables import UNUSED, WIDTHS, Table, tabulate
from models.gnn.view import EdgeValues, wide, widened

__all__ = ["Buckets", "build"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Buckets:
    """A view whose edge values are an array [W, N, ...] for each bucket of `arriving`.

    Numbers of rows are in the shapes of arrays: nothing else differs between parts of one graph.

    Args:
        arriving: for each row (target, relation) the source rows of its edges.
        leaving: for each source row the rows (target, relation) that its edges go to, with their slots in `arriving`.
        relations: number of relations R.
    """

    arriving: Table
    leaving: Table
    relations: int = field(metadata={"static": True})

    @property
    def targets(self) -> int:
        """Number of target rows V."""
        return self.arriving.place_M.shape[0] // self.relations

    @property
    def padding_share(self) -> float:
        """Share of the slots of both tables that hold no edge; NumPy arrays."""
        entries = (*self.arriving.entries, *self.leaving.entries)
        slots = self.arriving.total_slots + self.leaving.total_slots
        return sum(int(np.sum(e == UNUSED)) for e in entries) / max(slots, 1)

    def axes(self) -> tuple[str, ...]:
        """The names of the axes of each array, in the order of `jax.tree.leaves`, as in "arriving3_width arriving3"."""
        names = replace(self, arriving=self.arriving.axes("arriving"), leaving=self.leaving.axes("leaving"))
        return tuple(jax.tree.leaves(names))

    def sizes(self) -> dict[str, int]:
        """The length of each axis that differs between parts, by its name in `axes`."""
        return {**self.arriving.sizes("arriving"), **self.leaving.sizes("leaving")}

    def senders(self, x_U: jax.Array) -> EdgeValues:
        """The sender's row of each edge, 0 in unused slots."""
        self._check(x_U)
        return _senders(self, x_U)

    def receivers(self, y_V: jax.Array) -> EdgeValues:
        """The receiver's row of each edge."""
        V, R = self.targets, self.relations
        return self.receivers_by_relation(jnp.broadcast_to(y_V[:, None], (V, R, *y_V.shape[1:])))

    def receivers_by_relation(self, y_VR: jax.Array) -> EdgeValues:
        """`y[receiver, relation]` of each edge."""
        return _receivers(self.arriving, y_VR.reshape(self.targets * self.relations, *y_VR.shape[2:]))

    def sum(self, x_ULC: jax.Array) -> jax.Array:
        """Sums of the senders' rows over the arriving edges, for each relation: [V, R, L, C]."""
        self._check(x_ULC)
        U, L, C = x_ULC.shape
        return self._by_relation(_sum(self.arriving, self.leaving, x_ULC.reshape(U, L * C)), L, C)

    def weighted(self, x_ULC: jax.Array, a_L: EdgeValues) -> jax.Array:
        """Sums of the senders' rows times the edges' weights, for each relation: [V, R, L, C]."""
        self._check(x_ULC)
        return self._by_relation(_weighted(self, x_ULC, tuple(a_L)), *x_ULC.shape[1:])

    def max(self, x_ULC: jax.Array) -> jax.Array:
        """The largest of the senders' rows over all arriving edges, 0 where there is none: [V, L, C]."""
        self._check(x_ULC)
        U, L, C = x_ULC.shape
        return _max(self, x_ULC.reshape(U, L * C)).reshape(self.targets, L, C)

    def softmax(self, s_L: EdgeValues) -> EdgeValues:
        """Softmax of the scores over all edges that arrive at a target."""
        return _softmax(self, tuple(s_L))

    def over_relations(self, x_M: jax.Array, fold: Callable[..., jax.Array]) -> jax.Array:
        """Rows [V R, ...] folded to targets [V, ...]."""
        return fold(x_M.reshape(self.targets, self.relations, *x_M.shape[1:]), axis=1)

    def target_of(self, row: jax.Array) -> jax.Array:
        """The target of a row; an unused row has none, and stays out of range."""
        return row // self.relations

    def _by_relation(self, x_M: jax.Array, L: int, C: int) -> jax.Array:
        return x_M.reshape(self.targets, self.relations, L, C)

    def _check(self, x_U: jax.Array) -> None:
        if x_U.shape[0] != self.leaving.place_M.shape[0]:
            raise ValueError(f"the edges leave {self.leaving.place_M.shape[0]} source rows, {x_U.shape[0]} are given")


def build(
    senders_E: np.ndarray,
    receivers_E: np.ndarray,
    relation_E: np.ndarray | None = None,
    *,
    sources: int,
    targets: int,
    num_relations: int = 1,
    widths: Sequence[int] = WIDTHS,
) -> Buckets:
    """Bucket a graph's edges, in NumPy.

    Args:
        senders_E: source row of each edge, 0..sources-1.
        receivers_E: target row of each edge, 0..targets-1.
        relation_E: relation of each edge, 0..num_relations-1; None if there is one.
        sources, targets, num_relations: U, V and R.
        widths: slots of a piece in each bucket, increasing; parts that run one program have the same.

    Returns:
        Buckets of NumPy arrays.

    Raises:
        ValueError: an index out of range, or more rows or slots than 32-bit indices count.
    """
    relation_E = np.zeros(len(senders_E), np.int32) if relation_E is None else relation_E
    for name, index, size in (
        ("sender", senders_E, sources),
        ("receiver", receivers_E, targets),
        ("relation", relation_E, num_relations),
    ):
        _check_range(name, index, len(senders_E), size)
    rows = targets * num_relations
    if max(rows, sources) >= UNUSED:
        raise ValueError(
            f"{targets} targets of {num_relations} relations and {sources} sources are more rows than the {UNUSED - 1}"
            " that 32-bit indices count: cut the graph into more parts"
        )
    row_E = receivers_E.astype(np.int64) * num_relations + relation_E
    arriving, slot_E = tabulate(row_E, senders_E, rows=rows, widths=widths)
    leaving, _ = tabulate(senders_E, row_E, rows=sources, widths=widths, slot_E=slot_E)
    return Buckets(arriving=arriving, leaving=leaving, relations=num_relations)


def _check_range(name: str, index: np.ndarray, edges: int, size: int) -> None:
    if index.shape != (edges,):
        raise ValueError(f"{edges} edges have {name}s of shape {index.shape}: give one for each edge")
    if (wrong := np.flatnonzero((index < 0) | (index >= size))).size:
        raise ValueError(f"edge {wrong[0]} has {name} {index[wrong[0]]}, outside 0..{size - 1}")


@jax.custom_vjp
def _senders(buckets: Buckets, x_U: jax.Array) -> tuple[jax.Array, ...]:
    x_U = folds.ended(x_U)
    return tuple(folds.take(x_U, entries) for entries in buckets.arriving.entries)


def _senders_backward(buckets: Buckets, d: tuple[jax.Array, ...]) -> tuple[None, jax.Array]:
    d_S, leaving = folds.flat(d), buckets.leaving

    def term(k: int, j: Any) -> jax.Array:
        return widened(folds.take(d_S, folds.column(leaving.slots[k], j)))

    return None, folds.rows(leaving, term).astype(d_S.dtype)


_senders.defvjp(lambda buckets, x: (_senders(buckets, x), buckets), _senders_backward)


@jax.custom_vjp
def _receivers(arriving: Table, y_M: jax.Array) -> tuple[jax.Array, ...]:
    y_M = folds.ended(y_M)
    return tuple(
        jnp.broadcast_to(folds.take(y_M, rows)[None], (*entries.shape, *y_M.shape[1:]))
        for entries, rows in zip(arriving.entries, arriving.rows, strict=True)
    )


def _receivers_backward(arriving: Table, d: tuple[jax.Array, ...]) -> tuple[None, jax.Array]:
    def term(k: int, j: Any) -> jax.Array:
        return widened(folds.used(arriving.entries[k], d[k], j))

    return None, folds.rows(arriving, term).astype(d[0].dtype)


_receivers.defvjp(lambda arriving, y: (_receivers(arriving, y), arriving), _receivers_backward)


@jax.custom_vjp
def _sum(here: Table, back: Table, x: jax.Array) -> jax.Array:
    """Rows [M, D] of one table from those [U, D] of the other."""
    ended = folds.ended(x)

    def term(k: int, j: Any) -> jax.Array:
        return widened(folds.take(ended, folds.column(here.entries[k], j)))

    return folds.rows(here, term).astype(x.dtype)


def _sum_backward(tables: tuple[Table, Table], d_MD: jax.Array) -> tuple[None, None, jax.Array]:
    here, back = tables
    return None, None, _sum(back, here, d_MD)


_sum.defvjp(lambda here, back, x: (_sum(here, back, x), (here, back)), _sum_backward)


@jax.custom_vjp
def _weighted(buckets: Buckets, x_ULC: jax.Array, a: tuple[jax.Array, ...]) -> jax.Array:
    entries, ended = buckets.arriving.entries, folds.ended(x_ULC)

    def term(k: int, j: Any) -> jax.Array:
        x_NLC = widened(folds.take(ended, folds.column(entries[k], j)))
        return x_NLC * folds.used(entries[k], a[k], j).astype(x_NLC.dtype)[:, :, None]

    return folds.rows(buckets.arriving, term).astype(x_ULC.dtype)


def _weighted_backward(kept: Any, d_MLC: jax.Array) -> tuple[None, jax.Array, tuple[jax.Array, ...]]:
    buckets, x_ULC, a = kept
    arriving, leaving, a_SL = buckets.arriving, buckets.leaving, folds.flat(a)
    entries = arriving.entries
    x_ended, d_ended = folds.ended(x_ULC), folds.ended(d_MLC)

    def term(k: int, j: Any) -> jax.Array:
        d_NLC = widened(folds.take(d_ended, folds.column(leaving.entries[k], j)))
        return d_NLC * folds.take(a_SL, folds.column(leaving.slots[k], j)).astype(d_NLC.dtype)[:, :, None]

    def dots(k: int) -> jax.Array:
        d_NLC = widened(folds.take(d_ended, arriving.rows[k]))
        return lax.map(
            lambda entry_N: folds.dot(widened(folds.take(x_ended, entry_N)), d_NLC).astype(a[k].dtype), entries[k]
        )

    return None, folds.rows(leaving, term).astype(x_ULC.dtype), tuple(map(dots, range(len(a))))


_weighted.defvjp(lambda buckets, x, a: (_weighted(buckets, x, a), (buckets, x, a)), _weighted_backward)


@jax.custom_vjp
def _max(buckets: Buckets, x_UD: jax.Array) -> jax.Array:
    arriving, ended = buckets.arriving, folds.ended(x_UD, -jnp.inf)

    def term(k: int, j: Any) -> jax.Array:
        return folds.take(ended, folds.column(arriving.entries[k], j))

    top_VD = buckets.over_relations(folds.rows(arriving, term, jnp.maximum, -jnp.inf), jnp.max)
    some_V = buckets.over_relations(arriving.place_M != UNUSED, jnp.any)
    return jnp.where(some_V[:, None], top_VD, jnp.zeros((), x_UD.dtype))


def _max_backward(kept: Any, d_VD: jax.Array) -> tuple[None, jax.Array]:
    """An edge whose row is the largest gets the gradient over the number of such edges."""
    buckets, x_UD, top_VD = kept
    arriving, leaving = buckets.arriving, buckets.leaving
    x_ended, top_ended = folds.ended(x_UD, jnp.nan), folds.ended(top_VD, jnp.nan)  # NaN equals no row
    top = [folds.take(top_ended, buckets.target_of(rows)) for rows in arriving.rows]

    def ties(k: int, j: Any) -> jax.Array:
        return (folds.take(x_ended, folds.column(arriving.entries[k], j)) == top[k]).astype(wide(x_UD.dtype))

    count_VD = buckets.over_relations(folds.rows(arriving, ties), jnp.sum)
    share_VD = folds.ended(widened(d_VD) / jnp.maximum(count_VD, 1))
    own = [folds.take(x_ended, rows) for rows in leaving.rows]

    def term(k: int, j: Any) -> jax.Array:
        target_N = buckets.target_of(folds.column(leaving.entries[k], j))
        return jnp.where(folds.take(top_ended, target_N) == own[k], folds.take(share_VD, target_N), 0)

    return None, folds.rows(leaving, term).astype(x_UD.dtype)


def _max_forward(buckets: Buckets, x_UD: jax.Array) -> tuple[jax.Array, Any]:
    top_VD = _max(buckets, x_UD)
    return top_VD, (buckets, x_UD, top_VD)


_max.defvjp(_max_forward, _max_backward)


@jax.custom_vjp
def _softmax(buckets: Buckets, s: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    s_wide = tuple(map(widened, s))
    top = _over_targets(buckets, s_wide, jnp.maximum, -jnp.inf)
    e = tuple(jnp.exp(x - t[None]) for x, t in zip(s_wide, top, strict=True))
    total = _over_targets(buckets, e, jnp.add, 0)
    used = (entries != UNUSED for entries in buckets.arriving.entries)
    p = (jnp.where(u[:, :, None], x / t[None], 0) for u, x, t in zip(used, e, total, strict=True))
    return tuple(x.astype(given.dtype) for x, given in zip(p, s, strict=True))


def _softmax_backward(kept: Any, d: tuple[jax.Array, ...]) -> tuple[None, tuple[jax.Array, ...]]:
    buckets, p = kept
    used = (entries != UNUSED for entries in buckets.arriving.entries)
    d = tuple(jnp.where(u[:, :, None], widened(x), 0) for u, x in zip(used, d, strict=True))
    mean = _over_targets(buckets, tuple(widened(x) * y for x, y in zip(p, d, strict=True)), jnp.add, 0)
    return None, tuple((widened(x) * (y - m[None])).astype(x.dtype) for x, y, m in zip(p, d, mean, strict=True))


def _softmax_forward(buckets: Buckets, s: tuple[jax.Array, ...]) -> tuple[tuple[jax.Array, ...], Any]:
    p = _softmax(buckets, s)
    return p, (buckets, p)


_softmax.defvjp(_softmax_forward, _softmax_backward)


def _over_targets(buckets: Buckets, values: tuple[jax.Array, ...], op: folds.Fold, unused: float) -> list[jax.Array]:
    """Edge values folded over each target's edges, and given to each piece [N, L] of that target."""
    arriving = buckets.arriving

    def term(k: int, j: Any) -> jax.Array:
        return folds.used(arriving.entries[k], values[k], j, unused)

    fold = jnp.max if op is jnp.maximum else jnp.sum
    found_VL = folds.ended(buckets.over_relations(folds.rows(arriving, term, op, unused), fold))
    return [folds.take(found_VL, buckets.target_of(rows)) for rows in arriving.rows]
