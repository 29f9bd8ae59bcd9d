"""Divisions near a division: one device hands a little of its work to another."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from meshes.cost import Division, Seconds
from meshes.divisions import Numbers, Tiles, banded, stacked
from meshes.workload import Workload

ENDS = 4  # devices that finish last and hand over, and that finish first and receive

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One group's division.

    Args:
        tokens: owned by each device.
        bands: devices that share heads, in the order of their heads.
        heads: of each band, none zero.
        queries: query tokens of each band's devices.
    """

    tokens: Numbers
    bands: tuple[Numbers, ...]
    heads: Numbers
    queries: tuple[Numbers, ...]

    @staticmethod
    def of(division: Division, group: int) -> "Layout":
        """The layout of one group of a division."""
        members: dict[tuple[int, int], list[int]] = {}
        for m, tile in enumerate(zip(division.start[group].tolist(), division.stop[group].tolist(), strict=True)):
            if tile[0] < tile[1]:
                members.setdefault(tile, []).append(m)
        ranges = sorted(members)
        return Layout(
            tokens=tuple(division.tokens[group].tolist()),
            bands=tuple(tuple(members[tile]) for tile in ranges),
            heads=tuple(stop - start for start, stop in ranges),
            queries=tuple(tuple(division.queries[group][members[tile]].tolist()) for tile in ranges),
        )

    @property
    def tiles(self) -> Tiles:
        """The same as tiles."""
        return banded(len(self.tokens), self.bands, self.heads, self.queries)

    @property
    def idle(self) -> list[int]:
        """Devices in no band."""
        return sorted({*range(len(self.tokens))} - {m for band in self.bands for m in band})


def near(workload: Workload, division: Division, times: Seconds, unit: int) -> Iterator[Division]:
    """Divisions of the same kind that differ in one move in one group.

    Args:
        workload, division: what to begin with.
        times: predicted of it; devices that finish last hand over to those that finish first.
        unit: tokens that a move carries; heads move one by one.
    """
    for g in range(len(division.tokens)):
        for moved in _moves(workload, division, Layout.of(division, g), times.tokens[g], times.attention[g], unit):
            yield _with_layout(workload, division, g, moved)


def _moves(
    workload: Workload, division: Division, layout: Layout, tokens: np.ndarray, attention: np.ndarray, unit: int
) -> Iterator[Layout]:
    yield from _token_moves(division, layout, tokens, unit)
    if division.kv == "gather":
        yield from _query_moves(layout, attention, unit)
    if division.attention != "context":
        yield from _head_moves(workload, division, layout, attention)


def _with_layout(workload: Workload, division: Division, group: int, layout: Layout) -> Division:
    """The division with another layout of one group."""
    made = stacked(workload, [layout.tokens], [layout.tiles], division.attention, division.kv)
    arrays = {}
    for name in ("tokens", "queries", "start", "stop", "kv_heads"):
        arrays[name] = getattr(division, name).copy()
        arrays[name][group] = getattr(made, name)[0]
    return replace(division, **arrays)


def _token_moves(division: Division, layout: Layout, times: np.ndarray, unit: int) -> Iterator[Layout]:
    """Owned tokens, with their queries where these stay with them, and alone."""
    aligned = division.attention == "context" and layout.queries[0] == layout.tokens
    for a, b in _pairs(times):
        if tokens := _handed(layout.tokens, a, b, unit):
            if aligned:
                yield replace(layout, tokens=tokens, queries=(tokens,))
            if division.kv == "gather":
                yield replace(layout, tokens=tokens)


def _query_moves(layout: Layout, times: np.ndarray, unit: int) -> Iterator[Layout]:
    """Query tokens inside the band that finishes last."""
    last = max(range(len(layout.bands)), key=lambda i: times[list(layout.bands[i])].max())
    for a, b in _pairs(times[list(layout.bands[last])]):
        if queries := _handed(layout.queries[last], a, b, unit):
            yield replace(layout, queries=_with(layout.queries, last, queries))


def _head_moves(workload: Workload, division: Division, layout: Layout, times: np.ndarray) -> Iterator[Layout]:
    """A head to another band, or to a device that has none. A band of one device may lose its last."""
    last = np.array([times[list(band)].max() for band in layout.bands])
    spare = len(layout.bands) > 2 or division.attention == "head"
    for a, b in _pairs(last):
        if layout.heads[a] > 1 or (spare and len(layout.bands[a]) == 1):
            more = _with(layout.heads, b, layout.heads[b] + 1)
            yield _without_empty(replace(layout, heads=_with(more, a, more[a] - 1)))
    for a in _ends(last)[0]:
        for m in layout.idle[:ENDS] if layout.heads[a] > 1 else []:
            yield Layout(
                tokens=layout.tokens,
                bands=(*layout.bands, (m,)),
                heads=(*_with(layout.heads, a, layout.heads[a] - 1), 1),
                queries=(*layout.queries, (workload.seq_len,)),
            )


def _ends(times: np.ndarray) -> tuple[list[int], list[int]]:
    """Those that finish last and those that finish first."""
    order = np.argsort(-times, kind="stable").tolist()
    return order[:ENDS], order[::-1][:ENDS]


def _pairs(times: np.ndarray) -> Iterator[tuple[int, int]]:
    last, first = _ends(times)
    return ((a, b) for a in last for b in first if a != b)


def _handed(values: Numbers, a: int, b: int, unit: int) -> Numbers | None:
    """So many units from one to another, None if it has fewer."""
    return _with(_with(values, a, values[a] - unit), b, values[b] + unit) if values[a] >= unit else None


def _with(values: Sequence[T], at: int, value: T) -> tuple[T, ...]:
    return (*values[:at], value, *values[at + 1 :])


def _without_empty(layout: Layout) -> Layout:
    kept = [i for i, heads in enumerate(layout.heads) if heads]
    return Layout(
        tokens=layout.tokens,
        bands=tuple(layout.bands[i] for i in kept),
        heads=tuple(layout.heads[i] for i in kept),
        queries=tuple(layout.queries[i] for i in kept),
    )
