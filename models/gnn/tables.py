"""Rows bucketed by degree: the static structure, made in NumPy, by which sums over edges need only gathers.

A row of a table gathers the entries of its edges. It is cut into pieces of at most the largest width, and each piece
lies in the bucket of the smallest width that holds it; the pieces of one row (a hub) are folded by a second table of
the same kind. Nothing is ever as wide as the degree of a hub.

Shapes: E edges, M rows, P pieces, W slots of a piece, N pieces of a bucket, H hubs of a bucket, S slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

__all__ = ["HUB_WIDTHS", "UNUSED", "WIDTHS", "Array", "Table", "tabulate"]

Array = Any  # a NumPy array on the host, a JAX array or a tracer in a program

UNUSED = int(np.iinfo(np.int32).max)  # out of every range, so that gathers fill it in
WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
HUB_WIDTHS = tuple(4**k for k in range(1, 14))


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Table:
    """M rows, each with the edges that it gathers. All indices are int32, `UNUSED` where there is nothing.

    Args:
        entries: for each width W what the slots gather, [W, N].
        slots: for each width the slot of another table that holds the same edge [W, N], or nothing.
        rows: for each width the row that each piece belongs to, [N].
        hubs: for each hub width the pieces of each hub [W, H], counted through all buckets.
        place_M: where the fold of each row is: its piece, or its hub counted on after all pieces.
    """

    entries: tuple[Array, ...]
    slots: tuple[Array, ...]
    rows: tuple[Array, ...]
    hubs: tuple[Array, ...]
    place_M: Array

    @property
    def total_slots(self) -> int:
        """Slots of all pieces, used or not."""
        return sum(entries.shape[0] * entries.shape[1] for entries in self.entries)

    def axes(self, name: str) -> "Table":
        """The names of each array's axes in its place, those that differ between devices after `name`."""
        entries = tuple(f"{name}{k}_width {name}{k}" for k in range(len(self.entries)))
        return Table(
            entries=entries,
            slots=entries if self.slots else (),
            rows=tuple(f"{name}{k}" for k in range(len(self.rows))),
            hubs=tuple(f"{name}_hub{k}_width {name}_hub{k}" for k in range(len(self.hubs))),
            place_M=f"{name}_rows",
        )

    def sizes(self, name: str) -> dict[str, int]:
        """The length of each axis that differs between devices, by its name in `axes`."""
        pieces = {f"{name}{k}": len(rows) for k, rows in enumerate(self.rows)}
        hubs = {f"{name}_hub{k}": hub.shape[1] for k, hub in enumerate(self.hubs)}
        return {**pieces, **hubs, f"{name}_rows": len(self.place_M)}


def tabulate(
    row_E: np.ndarray, entry_E: np.ndarray, *, rows: int, widths: Sequence[int], slot_E: np.ndarray | None = None
) -> tuple[Table, np.ndarray]:
    """Bucket rows by degree.

    Args:
        row_E: the row that gathers each edge, 0..rows-1.
        entry_E: what it gathers.
        rows: number of rows M.
        widths: slots of a piece in each bucket, increasing.
        slot_E: the slot of another table that holds each edge, if that is to be kept.

    Returns:
        The table, and the slot of each edge in it, counted through all buckets.
    """
    pieces = _Pieces.of(np.bincount(row_E, minlength=rows), widths)
    order_E = np.argsort(row_E, kind="stable")
    slot_of_E = np.empty(len(row_E), np.int32)
    entries, slots, owners = [], [], []
    start = 0
    for width, at in zip(widths, pieces.buckets, strict=True):
        column_W1 = np.arange(width)[:, None]
        used_WN = column_W1 < pieces.length_P[at]
        edge = order_E[(pieces.start_P[at] + column_W1)[used_WN]]
        slot_of_E[edge] = start + np.flatnonzero(used_WN)
        start += used_WN.size
        entries.append(_filled(used_WN, entry_E[edge]))
        slots.append(None if slot_E is None else _filled(used_WN, slot_E[edge]))
        owners.append(pieces.row_P[at].astype(np.int32))
    hubs, place_M = pieces.placed()
    kept = tuple(slot for slot in slots if slot is not None)
    return Table(entries=tuple(entries), slots=kept, rows=tuple(owners), hubs=hubs, place_M=place_M), slot_of_E


@dataclass(frozen=True, kw_only=True)
class _Pieces:
    """Pieces of rows, in the order of rows; `start_P` counts edges in that order, `buckets` lists pieces by width."""

    count_M: np.ndarray
    row_P: np.ndarray
    start_P: np.ndarray
    length_P: np.ndarray
    buckets: list[np.ndarray]

    @classmethod
    def of(cls, degree_M: np.ndarray, widths: Sequence[int]) -> "_Pieces":
        widest = widths[-1]
        count_M = -(-degree_M // widest)
        if (most := int(count_M.max(initial=0))) > HUB_WIDTHS[-1]:
            raise ValueError(f"a row needs {most} pieces of {widest}, more than {HUB_WIDTHS[-1]}: give a larger width")
        row_P = np.repeat(np.arange(len(degree_M)), count_M)
        skipped_P = widest * (np.arange(len(row_P)) - _starts(count_M)[row_P])
        length_P = np.minimum(degree_M[row_P] - skipped_P, widest)
        bucket_P = np.searchsorted(widths, length_P).astype(np.uint8)
        sizes = np.bincount(bucket_P, minlength=len(widths))
        if (slots := int(sizes @ np.asarray(widths, np.int64))) >= UNUSED:
            raise ValueError(
                f"{int(degree_M.sum())} edges need {slots} slots, more than the {UNUSED - 1} that 32-bit indices count:"
                " cut the graph into more parts"
            )
        buckets = np.split(np.argsort(bucket_P, kind="stable"), np.cumsum(sizes)[:-1])
        start_P = _starts(degree_M)[row_P] + skipped_P
        return cls(count_M=count_M, row_P=row_P, start_P=start_P, length_P=length_P, buckets=buckets)

    def placed(self) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """The pieces of each hub by hub width, and the place of each row."""
        at_P = np.empty(len(self.row_P), np.int32)
        at_P[np.concatenate(self.buckets)] = np.arange(len(at_P), dtype=np.int32)
        first_M, place_M = _starts(self.count_M), np.full(len(self.count_M), UNUSED, np.int32)
        single_M = self.count_M == 1
        place_M[single_M] = at_P[first_M[single_M]]
        level_M = np.where(self.count_M > 1, np.searchsorted(HUB_WIDTHS, self.count_M), -1)
        hubs, start = [], len(at_P)
        for level, width in enumerate(HUB_WIDTHS):
            rows = np.flatnonzero(level_M == level)
            column_W1 = np.arange(width if len(rows) else 0)[:, None]
            used_WH = np.zeros((width, 0), bool) if not len(rows) else column_W1 < self.count_M[rows]
            hubs.append(_filled(used_WH, at_P[(first_M[rows] + column_W1)[used_WH]] if len(rows) else at_P[:0]))
            place_M[rows] = start + np.arange(len(rows))
            start += len(rows)
        return tuple(hubs), place_M


def _starts(lengths: np.ndarray) -> np.ndarray:
    return np.cumsum(lengths) - lengths


def _filled(used: np.ndarray, values: np.ndarray) -> np.ndarray:
    out = np.full(used.shape, UNUSED, np.int32)
    out[used] = values
    return out
