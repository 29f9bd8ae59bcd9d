"""Integer shares that finish as early as they can."""

import heapq
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from meshes.errors import PlanError


def shares_minimax(
    total: int,
    speeds: Sequence[float],
    caps: Sequence[int | None] | None = None,
    fixed: Sequence[float] | None = None,
) -> tuple[int, ...]:
    """Whole units for each device, such that the last device finishes as early as possible.

    Minimises max_i(fixed_i + units_i / speed_i) over whole units_i with sum `total` and 0 <= units_i <= caps_i.
    The cost of a device rises with its units, so giving each unit to the device that would finish it first is
    exact (Ibaraki and Katoh, "Resource Allocation Problems", 1988); the start is computed, not counted. Among the
    best answers it prefers one that gives equal devices equal shares: few distinct sizes make a small program.

    Args:
        total: units to deal, zero or more.
        speeds: units per second of each device, positive.
        caps: most units of each device; None is no limit.
        fixed: seconds that each device spends in any case.

    Returns:
        Units of each device. Devices of equal speed, cap and fixed cost differ by at most one.

    Raises:
        PlanError: the caps cannot hold the total.
    """
    speed = np.asarray(speeds, np.float64)
    begin = np.zeros(len(speed)) if fixed is None else np.asarray(fixed, np.float64)
    cap = np.array([total if c is None else min(max(c, 0), total) for c in caps or [None] * len(speed)], np.int64)
    if cap.sum() < total:
        raise PlanError(f"{len(speed)} devices can hold {cap.sum()} of {total} units: {total - cap.sum()} too many")
    order = np.lexsort((-cap, begin, -speed))  # ties must not hang on the order in which devices are named
    sorted_units = _solve(total, speed[order], cap[order], begin[order])
    shares = np.empty_like(sorted_units)
    shares[order] = sorted_units
    return tuple(shares.tolist())


def even(total: int, parts: int) -> tuple[int, ...]:
    """Shares that differ by at most one, larger ones first."""
    return tuple(total // parts + (part < total % parts) for part in range(parts))


def _solve(total: int, speed: np.ndarray, cap: np.ndarray, begin: np.ndarray) -> np.ndarray:
    units = _start(total, speed, cap, begin)
    _deal(units, total - int(units.sum()), speed, cap, begin)
    return _tidy(units, speed, cap, begin)


def _finish(units: np.ndarray, speed: np.ndarray, begin: np.ndarray) -> np.ndarray:
    """When each device has finished; the one formula that all comparisons use."""
    return begin + units / speed


def _within(limit: float, speed: np.ndarray, cap: np.ndarray, begin: np.ndarray) -> np.ndarray:
    """Most units that each device finishes by the limit."""
    units = np.clip(np.floor((limit - begin) * speed), 0, cap)
    units -= (units > 0) & (_finish(units, speed, begin) > limit)
    units += (units < cap) & (_finish(units + 1, speed, begin) <= limit)
    return units.astype(np.int64)


def _start(total: int, speed: np.ndarray, cap: np.ndarray, begin: np.ndarray) -> np.ndarray:
    """Units that every best answer holds, at most about one short for each device."""
    low = float((total / speed.sum() + np.min(begin)) * (1 - 1e-9))
    units = _within(low, speed, cap, begin)
    if total - units.sum() <= 2 * len(speed):
        return units
    high = float(np.max(begin + cap / speed))
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        found = _within(middle, speed, cap, begin)
        low, high, units = (middle, high, found) if found.sum() <= total else (low, middle, units)
        if total - units.sum() <= len(speed):
            break
    return units


def _deal(units: np.ndarray, rest: int, speed: np.ndarray, cap: np.ndarray, begin: np.ndarray) -> None:
    """Give each remaining unit to the device that would finish it first, the earlier device if they tie."""
    following = _finish(units + 1, speed, begin)
    heap = [(float(following[i]), int(i)) for i in np.flatnonzero(units < cap)]
    heapq.heapify(heap)
    for _ in range(rest):
        _, i = heapq.heappop(heap)
        units[i] += 1
        if units[i] < cap[i]:
            heapq.heappush(heap, (float(begin[i] + (units[i] + 1) / speed[i]), i))


def _tidy(units: np.ndarray, speed: np.ndarray, cap: np.ndarray, begin: np.ndarray) -> np.ndarray:
    """Make the shares of equal devices equal, all but perhaps one kind's, if nobody finishes later for it."""
    kinds: dict[tuple[float, int, float], list[int]] = defaultdict(list)
    for i, key in enumerate(zip(speed.tolist(), cap.tolist(), begin.tolist(), strict=True)):
        kinds[key].append(i)
    if len(kinds) == len(units):
        return units
    members = sorted(kinds.values(), key=lambda kind: (-len(kind), kind))
    out = units.copy()
    for kind in members:
        out[kind] = units[kind].min()
    pool = int(units.sum() - out.sum())
    if pool == 0:
        return units
    limit = float(_finish(units, speed, begin)[units > 0].max())
    most = _within(limit, speed, cap, begin)
    for kind, raised in zip(members, _raises(pool, members, most - out), strict=True):
        out[kind] += raised
        pool -= raised * len(kind)
    if pool:
        kind = min((k for k in members if len(k) > pool and out[k[0]] < most[k[0]]), key=len)
        out[kind[:pool]] += 1
    return out


def _raises(pool: int, members: list[list[int]], room: np.ndarray) -> list[int]:
    """Units by which to raise each kind as a whole, so that the pool is used up as far as possible.

    A bounded subset sum; bit b of a reachable set says that b units can be placed.
    """
    mask, reach = (1 << (pool + 1)) - 1, [1]
    steps = [min(int(room[kind[0]]), pool // len(kind)) for kind in members]
    for kind, step in zip(members, steps, strict=True):
        found = reach[-1]
        for _ in range(step):
            found |= (found << len(kind)) & mask
        reach.append(found)
    target, raised = reach[-1].bit_length() - 1, []
    for kind, step, before in zip(members[::-1], steps[::-1], reach[-2::-1], strict=True):
        times = next(t for t in range(step + 1) if target >= t * len(kind) and before >> (target - t * len(kind)) & 1)
        raised.append(times)
        target -= times * len(kind)
    return raised[::-1]
