"""Plans to choose from: each with its predicted step and bytes."""

from dataclasses import dataclass, field

import numpy as np

from meshes import memory
from meshes.cluster import Cluster
from meshes.cost import Division, Grid, Seconds, reduction_seconds, seconds, weight_seconds
from meshes.divisions import Divider, Recipe, recipes
from meshes.errors import PlanError
from meshes.minimax import even, shares_minimax
from meshes.orders import orders
from meshes.request import Request
from meshes.workload import Workload


@dataclass(frozen=True, eq=False)
class Candidate:
    """A division of rows, with microbatches dealt to the data groups.

    Args:
        grid, division: who does what.
        counts: microbatches of each data group, int [G].
        seconds: predicted times of the division.
        needed: predicted bytes of each device, int [G, M].
        even: all shares, and the counts, as equal as whole numbers allow.
    """

    grid: Grid
    division: Division
    counts: np.ndarray
    seconds: Seconds
    needed: np.ndarray
    even: bool

    @property
    def step(self) -> float:
        """Predicted seconds of a step."""
        return self.seconds.step(self.counts)

    @property
    def fits(self) -> bool:
        """Whether every device has the memory."""
        return bool(np.all(self.needed <= self.grid.limit))

    @property
    def overflow(self) -> float:
        """Bytes needed over bytes available on the tightest device."""
        return float(np.max(self.needed / self.grid.limit))


def search(cluster: Cluster, workload: Workload, request: Request, *, first: bool = False) -> "Search":
    """Look through all ways to serve a request.

    Args:
        cluster, workload, request: what is to be planned.
        first: stop at the first candidate that fits.

    Raises:
        PlanError: the request contradicts itself or the sizes.
    """
    found = Search(workload, request)
    for groups in request.group_counts(cluster, workload):
        for order in orders(cluster, groups):
            found.explore(Grid.of(cluster, order))
            if first and found.best is not None:
                return found
    return found


@dataclass
class Search:
    """The best candidates so far.

    Args:
        workload, request: what is to be planned.
        best, best_even: the fastest that fit; of equal ones, the first seen.
        closest: of those that do not fit, the one that lacks the least memory.
    """

    workload: Workload
    request: Request
    best: Candidate | None = None
    best_even: Candidate | None = None
    closest: Candidate | None = None
    divider: Divider = field(init=False)

    def __post_init__(self) -> None:
        self.divider = Divider(self.workload)

    def explore(self, grid: Grid) -> None:
        """Try every recipe on a grid; the uneven ones only if the grid could beat the best so far."""
        for recipe in recipes(self.request.attention, self.request.kv, grid.shape[1], self.workload.heads):
            if not recipe.even and self.best is not None and self._bound(grid) >= self.best.step:
                return
            division = self._division(grid, recipe)
            if division is not None:
                self._offer(grid, division, recipe.even)

    def _division(self, grid: Grid, recipe: Recipe) -> Division | None:
        """The recipe's division; shares are capped where memory is short, if that helps."""
        division = self.divider.divide(grid, recipe)
        if division is None or recipe.even or self._fits(grid, division):
            return division
        caps = memory.token_caps(grid, self.workload, division, specialized=self.request.specialized)
        try:
            capped = self.divider.divide(grid, recipe, caps)
            if capped is None or recipe.attention != "head" or self._fits(grid, capped):
                return capped
            heads = memory.head_caps(grid, self.workload, capped, specialized=self.request.specialized)
            return self.divider.divide(grid, recipe, caps, heads)
        except PlanError:
            return division

    def _fits(self, grid: Grid, division: Division) -> bool:
        return bool(np.all(self._needed(grid, division) <= grid.limit))

    def _needed(self, grid: Grid, division: Division) -> np.ndarray:
        return memory.bytes_needed(grid, self.workload, division, specialized=self.request.specialized)

    def _offer(self, grid: Grid, division: Division, same: bool) -> None:
        """Consider a division with microbatches dealt by speed, and dealt evenly if it is even."""
        times = seconds(grid, self.workload, division, specialized=self.request.specialized)
        needed, total, groups = self._needed(grid, division), self.workload.microbatches, grid.shape[0]
        if same:
            counts = np.empty(groups, np.int64)
            counts[np.argsort(times.microbatch, kind="stable")] = even(
                total, groups
            )  # what is left over, to the fastest
            self._consider(Candidate(grid, division, counts, times, needed, True))
        dealt = np.array(shares_minimax(total, (1 / times.microbatch).tolist()))
        self._consider(Candidate(grid, division, dealt, times, needed, False))

    def _consider(self, candidate: Candidate) -> None:
        if not candidate.fits:
            if self.closest is None or candidate.overflow < self.closest.overflow:
                self.closest = candidate
            return
        if candidate.even and _faster(candidate, self.best_even):
            self.best_even = candidate
        if _faster(candidate, self.best):
            self.best = candidate

    def _bound(self, grid: Grid) -> float:
        """No division of a grid is faster: shares in exact proportion to the speeds, exchanges free."""
        work = self.workload.step_flops() / self.workload.microbatches
        group = work / grid.flops.sum(axis=1) + weight_seconds(grid, self.workload)
        return self.workload.microbatches / float(np.sum(1 / group)) + reduction_seconds(grid, self.workload)


def _faster(candidate: Candidate, than: Candidate | None) -> bool:
    """Whether a candidate is faster by more than rounding."""
    return than is None or candidate.step < than.step * (1 - 1e-9)
