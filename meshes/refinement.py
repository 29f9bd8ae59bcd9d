"""Improves the most promising candidates, a move at a time, under the cost model itself.

Recipes balance compute and leave exchanges and whole units aside; where devices are few and units large, or messages
dear, a neighbouring division may be faster. And a candidate that does not fit may need little to fit.
"""

from meshes.candidates import Candidate, Search, better
from meshes.moves import ENDS, near

FITTING, SHORT = 4, 12  # candidates that are improved, of those that fit and of those short of memory
NEAR = 1.3  # how much slower than the best so far they may be
LOOKAHEAD = 4  # moves after each of which another is tried
WORTH = 1e-3  # part of the step that an improvement must gain


def refine(found: Search) -> None:
    """Improve the most promising candidates of a search.

    Those of many groups are left as they are: a move touches one group, and the step waits for all.
    """
    limit = NEAR * found.best.step if found.best is not None else float("inf")
    near_best = [c for c in found.promising.values() if c.step <= limit and c.grid.shape[0] <= ENDS]
    near_best.sort(key=lambda candidate: candidate.step)
    fitting = [candidate for candidate in near_best if candidate.fits][:FITTING]
    short = [candidate for candidate in near_best if not candidate.fits][:SHORT]
    for start in fitting + short:
        candidate: Candidate | None = start
        while candidate is not None:
            found.consider(candidate)
            candidate = _improved(found, candidate)


def _improved(found: Search, candidate: Candidate) -> Candidate | None:
    """The best candidate a move away, or two large ones, None if none is better by enough; large moves come first."""
    unit = largest = 2 ** max((found.workload.seq_len // 64).bit_length() - 1, 0)
    moved = _near(found, candidate, unit)
    large = moved
    while unit > 1 and not _improves(moved, candidate):
        unit = max(unit // 4, 1)
        moved = _near(found, candidate, unit)
    if _improves(moved, candidate):
        return moved[0]
    twice = (_near(found, once, largest) for once in large[:LOOKAHEAD])
    return next((several[0] for several in twice if _improves(several, candidate)), None)


def _improves(moved: list[Candidate], candidate: Candidate) -> bool:
    return bool(moved) and better(moved[0], candidate, WORTH)


def _near(found: Search, candidate: Candidate, unit: int) -> list[Candidate]:
    """Candidates a move away, the best first."""
    divisions = near(found.workload, candidate.division, candidate.seconds, unit)
    moved = [found.candidate(candidate.grid, division) for division in divisions]
    return sorted(moved, key=lambda candidate: (candidate.excess, candidate.step))
