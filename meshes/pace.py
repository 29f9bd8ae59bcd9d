"""How fast each device goes through a phase, asked of the cost model: fixed seconds, and seconds for each unit."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from meshes.cost import Division, Grid, seconds, weight_seconds
from meshes.workload import Workload

Reals = tuple[float, ...]

LEAST, TYPICAL = 0.5, 0.7  # part of all pairs of queries and keys that causal attention computes


class Pace(NamedTuple):
    """A phase of one microbatch on the devices of a group: device m takes fixed[m] + units * each[m] seconds."""

    fixed: Reals
    each: Reals

    @property
    def speeds(self) -> Reals:
        """Units a second."""
        return tuple(1 / each for each in self.each)

    def seconds(self, units: int) -> Reals:
        """Of each device with all units."""
        return tuple(fixed + units * each for fixed, each in zip(self.fixed, self.each, strict=True))

    def plus(self, other: "Pace", units: int) -> "Pace":
        """Two phases in one, where a unit of this one comes with some units of the other."""
        fixed = tuple(a + b for a, b in zip(self.fixed, other.fixed, strict=True))
        return Pace(fixed, tuple(a + units * b for a, b in zip(self.each, other.each, strict=True)))

    def of(self, devices: tuple[int, ...], units: int = 1) -> "Pace":
        """Of some of the devices, in units so many times as large; or as they are where only ratios matter."""
        if not any(self.fixed[m] for m in devices):
            units = 1
        return Pace(tuple(self.fixed[m] for m in devices), tuple(units * self.each[m] for m in devices))

    def together(self, units: int = 1) -> tuple[float, float]:
        """Fixed and unit seconds of all devices as one, which divides its work so that they finish together."""
        speeds = self.speeds
        fixed = sum(f * s for f, s in zip(self.fixed, speeds, strict=True))
        return fixed / sum(speeds), units / sum(speeds)

    def least(self, units: int) -> float:
        """Seconds that no division of the units goes below."""
        return min(self.fixed) + units / sum(self.speeds)


class Paces(NamedTuple):
    """Of one group: the token phase, in tokens; the attention phase, in query tokens of one head."""

    tokens: Pace
    rows: Pace

    def aligned(self, heads: int) -> Pace:
        """Both phases, in tokens whose queries stay with them in all heads."""
        return self.tokens.plus(self.rows, heads)


def paces(
    grid: Grid, workload: Workload, *, specialized: bool = False, even: bool = False, part: float = TYPICAL
) -> list[Paces]:
    """The paces of each group, from two sizes of the same work: shares around the even one.

    Blocks of attention have steps that a line has not: it is drawn for the part of all pairs that shares mostly read.

    Args:
        grid, workload, specialized: as `meshes.cost.seconds` takes them.
        even: as if all devices owned equally many tokens, which saves recomputation.
        part: of all pairs that attention reads.
    """
    few = 1 + 2 * workload.seq_len // (3 * grid.shape[1])
    many = 2 * few
    low, high = (_phases(grid, workload, share, part, specialized=specialized, even=even) for share in (few, many))
    tokens, rows = _line(few, low[0], high[0]), _line(few * workload.heads, low[1], high[1])
    return [Paces(Pace(a, b), Pace(c, d)) for a, b, c, d in zip(*tokens, *rows, strict=True)]


def least_step(grid: Grid, workload: Workload, *, specialized: bool = False) -> float:
    """Seconds of a step that no division of a grid goes below.

    Units and blocks have no size, exchanges of attention and reading keys are free, and curves do not bend.
    """
    if grid.curves is not None:
        free = np.zeros_like(grid.curves.bend)
        grid = replace(grid, curves=replace(grid.curves, bend=free, key=free))
    rows, shares = workload.seq_len * workload.heads, np.full(grid.shape, workload.seq_len)
    given = paces(grid, workload, specialized=specialized, even=True, part=LEAST)
    compute = [pace.tokens.least(workload.seq_len) + pace.rows.least(rows) for pace in given]
    group = np.array(compute) + weight_seconds(grid, workload)
    once = seconds(grid, workload, _aligned(workload, shares), specialized=specialized).once
    return workload.microbatches / float(np.sum(1 / group)) + once


def _aligned(workload: Workload, tokens: np.ndarray) -> Division:
    """Devices attend from so many tokens of their own, in all heads."""
    zero, heads = np.zeros_like(tokens), np.full_like(tokens, workload.heads)
    return Division(tokens, tokens, zero, heads, np.full_like(tokens, workload.kv_heads), "context", "gather")


def _phases(
    grid: Grid, workload: Workload, share: int, part: float, *, specialized: bool, even: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of the token and the attention phase, with a share for all; if not even, as if one had another."""
    shares = np.full(grid.shape, share)
    if even or grid.order.size == 1:
        times = seconds(grid, workload, _aligned(workload, shares), specialized=specialized, part=part)
        return times.tokens, times.attention
    first, last = shares.copy(), shares.copy()
    first[0, 0] += 1
    last[-1, -1] += 1
    times, others = (
        seconds(grid, workload, _aligned(workload, odd), specialized=specialized, part=part) for odd in (first, last)
    )
    same = first == shares
    return np.where(same, times.tokens, others.tokens), np.where(same, times.attention, others.attention)


def _line(few: int, low: np.ndarray, high: np.ndarray) -> tuple[list[Reals], list[Reals]]:
    """Fixed and unit seconds of the lines through so many units and twice as many [G, M]."""
    fixed = 2 * low - high
    fixed = np.where(fixed > 1e-9 * high, fixed, 0.0)  # but for rounding
    each = (high - fixed) / (2 * few)
    return [tuple(row) for row in fixed.tolist()], [tuple(row) for row in each.tolist()]
