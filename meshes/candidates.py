"""Plans to choose from: each with its predicted step and bytes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from meshes import memory
from meshes.cluster import Cluster
from meshes.cost import Division, Grid, Seconds, seconds
from meshes.divisions import Divider, evenly
from meshes.errors import PlanError
from meshes.minimax import even, shares_minimax
from meshes.orders import orders
from meshes.pace import Paces, least_step, paces
from meshes.recipes import Recipe, recipes
from meshes.request import Request
from meshes.workload import Workload


@dataclass(frozen=True, eq=False)
class Candidate:
    """A division of rows, with microbatches dealt to the data groups.

    Args:
        grid, workload, division: who does what.
        counts: microbatches of each data group, int [G].
        seconds: predicted times of the division.
        specialized: every process compiles its own sizes.
        even: all shares, and the counts, as equal as whole numbers allow.
    """

    grid: Grid
    workload: Workload
    division: Division
    counts: np.ndarray
    seconds: Seconds
    specialized: bool
    even: bool

    @cached_property
    def needed(self) -> np.ndarray:
        """Predicted bytes of each device, int [G, M]."""
        return memory.bytes_needed(self.grid, self.workload, self.division, specialized=self.specialized)

    @property
    def step(self) -> float:
        """Predicted seconds of a step."""
        return self.seconds.step(self.counts)

    @property
    def fits(self) -> bool:
        """Whether every device has the memory."""
        return self.grid.unlimited or bool(np.all(self.needed <= self.grid.limit))

    @property
    def excess(self) -> float:
        """Bytes lacking over bytes available, summed over devices; 0 if all fit."""
        return float(np.maximum(self.needed / self.grid.limit - 1, 0).sum())


def search(cluster: Cluster, workload: Workload, request: Request, *, first: bool = False) -> "Search":
    """Look through all ways to serve a request.

    Args:
        cluster, workload, request: what is to be planned.
        first: stop at the first candidate that fits.

    Raises:
        PlanError: the request contradicts itself or the sizes.
    """
    found = Search(workload, request)
    grids = [
        Grid.of(cluster, order)
        for groups in request.group_counts(cluster, workload)
        for order in orders(cluster, groups)
    ]
    for grid in grids:
        found.explore_even(grid)
        if first and found.best is not None:
            return found
    bounds = [least_step(grid, workload, specialized=request.specialized) for grid in grids]
    for i in np.argsort(bounds, kind="stable"):
        if found.best is not None and (first or bounds[i] >= found.best.step):
            break
        found.explore(grids[i])
    return found


@dataclass
class Search:
    """The best candidates so far.

    Args:
        workload, request: what is to be planned.
        best, best_even: the fastest that fit; of equal ones, the first seen.
        closest: of those that do not fit, the one that lacks the least memory.
        promising: the best of each kind and number of groups, and of those that do not fit, of each kind and order.
    """

    workload: Workload
    request: Request
    best: Candidate | None = None
    best_even: Candidate | None = None
    closest: Candidate | None = None
    promising: dict[tuple[object, ...], Candidate] = field(default_factory=dict)
    divider: Divider = field(init=False)

    def __post_init__(self) -> None:
        self.divider = Divider(self.workload)

    def explore_even(self, grid: Grid) -> None:
        """Try every even recipe on a grid."""
        for recipe in self._recipes(grid):
            if recipe.even:
                self._offer(grid, evenly(self.workload, *grid.shape, recipe), True)

    def explore(self, grid: Grid) -> None:
        """Try every recipe that follows the paces on a grid."""
        given = paces(grid, self.workload, specialized=self.request.specialized)
        for recipe in self._recipes(grid):
            if not recipe.even and (division := self._division(grid, given, recipe)) is not None:
                self._offer(grid, division, False)

    def _recipes(self, grid: Grid) -> Iterator[Recipe]:
        return recipes(self.request.attention, self.request.kv, grid.shape[1], self.workload.heads)

    def _division(self, grid: Grid, given: Sequence[Paces], recipe: Recipe) -> Division | None:
        """The recipe's division; shares are capped where memory is short, if that helps."""
        division = self.divider.divide(given, recipe)
        if division is None or self._fits(grid, division):
            return division
        caps = memory.token_caps(grid, self.workload, division, specialized=self.request.specialized)
        try:
            capped = self.divider.divide(given, recipe, caps)
            if capped is None or recipe.attention != "head" or self._fits(grid, capped):
                return capped
            heads = memory.head_caps(grid, self.workload, capped, specialized=self.request.specialized)
            return self.divider.divide(given, recipe, caps, heads)
        except PlanError:
            return division

    def _fits(self, grid: Grid, division: Division) -> bool:
        if grid.unlimited:
            return True
        needed = memory.bytes_needed(grid, self.workload, division, specialized=self.request.specialized)
        return bool(np.all(needed <= grid.limit))

    def _offer(self, grid: Grid, division: Division, same: bool) -> None:
        """Consider a division with microbatches dealt by speed, and dealt evenly if it is even."""
        candidate = self.candidate(grid, division)
        if same:  # what is left over goes to the fastest
            counts = np.empty_like(candidate.counts)
            fastest_first = np.argsort(candidate.seconds.microbatch, kind="stable")
            counts[fastest_first] = even(self.workload.microbatches, len(counts))
            self.consider(replace(candidate, counts=counts, even=True))
        self.consider(candidate)

    def consider(self, candidate: Candidate) -> None:
        """Keep a candidate if it is the best of those of which one is kept."""
        where = candidate.grid.shape if candidate.fits else candidate.grid.order.tobytes()
        kind = (candidate.division.attention, candidate.division.kv, where)
        if better(candidate, self.promising.get(kind)):
            self.promising[kind] = candidate
        if not candidate.fits:
            if better(candidate, self.closest):
                self.closest = candidate
            return
        if candidate.even and better(candidate, self.best_even):
            self.best_even = candidate
        if better(candidate, self.best):
            self.best = candidate

    def candidate(self, grid: Grid, division: Division) -> Candidate:
        """A division with microbatches dealt by speed."""
        times = seconds(grid, self.workload, division, specialized=self.request.specialized)
        counts = np.array(shares_minimax(self.workload.microbatches, (1 / times.microbatch).tolist()))
        return Candidate(grid, self.workload, division, counts, times, self.request.specialized, False)


def better(candidate: Candidate, than: Candidate | None, worth: float = 1e-9) -> bool:
    """Whether a candidate lacks less memory, or lacks as little and is faster.

    Args:
        candidate, than: the two; anything is better than None.
        worth: part of the step that it must be faster by, rounding unless told.
    """
    if than is None or candidate.excess != than.excess:
        return than is None or candidate.excess < than.excess
    return candidate.step < than.step * (1 - worth)
