"""Integer shares: against brute force, and the promises on equal devices."""

import itertools
import time

import numpy as np
import pytest

from meshes.errors import PlanError
from meshes.minimax import even, shares_minimax

SPEEDS = (0.1, 0.5, 1.0, 1.0, 2.0, 3.0, 7.3)


def finish(units: tuple[int, ...], speeds: list[float], fixed: list[float]) -> float:
    return max(f + u / s for u, s, f in zip(units, speeds, fixed, strict=True))


def brute_force(total: int, speeds: list[float], caps: list[int], fixed: list[float]) -> float | None:
    """The least possible finish, by trying everything."""
    choices = itertools.product(*(range(min(cap, total) + 1) for cap in caps))
    return min((finish(units, speeds, fixed) for units in choices if sum(units) == total), default=None)


def random_case(rng: np.random.Generator) -> tuple[int, list[float], list[int], list[float]]:
    devices, total = int(rng.integers(1, 5)), int(rng.integers(0, 13))
    speeds = rng.choice(SPEEDS, devices).tolist()
    caps = [int(cap) if rng.random() < 0.5 else total for cap in rng.integers(0, 13, devices)]
    fixed = (rng.choice((0.0, 1.0, 2.5), devices) * (rng.random() < 0.4)).tolist()
    return total, speeds, caps, fixed


@pytest.mark.parametrize("seed", range(20))
def test_best_of_all_shares(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(20):
        total, speeds, caps, fixed = random_case(rng)
        best = brute_force(total, speeds, caps, fixed)
        if best is None:
            with pytest.raises(PlanError, match=f"can hold {sum(min(c, total) for c in caps)} of {total} units"):
                shares_minimax(total, speeds, caps, fixed)
            continue
        shares = shares_minimax(total, speeds, caps, fixed)
        assert sum(shares) == total and all(0 <= s <= c for s, c in zip(shares, caps, strict=True))
        assert finish(shares, speeds, fixed) == best


def test_brute_force_can_tell_a_bad_answer() -> None:
    """The twin: even shares are caught."""
    best = brute_force(8, [4.0, 2.0, 1.0, 1.0], [8] * 4, [0.0] * 4)
    assert best == 1.0 and finish(even(8, 4), [4.0, 2.0, 1.0, 1.0], [0.0] * 4) == 2.0


@pytest.mark.parametrize("seed", range(10))
def test_equal_devices_differ_by_at_most_one_and_few_sizes_remain(seed: int) -> None:
    rng = np.random.default_rng(seed)
    speeds = rng.choice((4.0, 2.0, 1.0), 64).tolist()
    shares = shares_minimax(int(rng.integers(64, 5000)), speeds)
    sizes = {s: {u for u, v in zip(shares, speeds, strict=True) if v == s} for s in set(speeds)}
    assert all(max(found) - min(found) <= 1 for found in sizes.values())
    assert sum(len(found) for found in sizes.values()) <= 4  # at most one kind of device is split


@pytest.mark.parametrize("seed", range(10))
def test_order_of_devices_is_immaterial(seed: int) -> None:
    rng = np.random.default_rng(seed)
    speeds = rng.choice(SPEEDS, 9)
    order = rng.permutation(9)
    plain, moved = shares_minimax(500, speeds.tolist()), shares_minimax(500, speeds[order].tolist())
    dealt = sorted(zip(speeds.tolist(), plain, strict=True))
    assert dealt == sorted(zip(speeds[order].tolist(), moved, strict=True))


@pytest.mark.parametrize(
    ("total", "speeds", "caps", "expected"),
    [
        (8, (4, 2, 1, 1), None, (4, 2, 1, 1)),
        (8, (1, 1, 2, 4), None, (1, 1, 2, 4)),
        (3, (1, 1, 1, 1, 1), None, (1, 1, 1, 0, 0)),
        (3, (5, 3, 1, 1, 0.5), None, (2, 1, 0, 0, 0)),
        (7, (1, 1), (2, None), (2, 5)),
        (10, (9, 1), (0, None), (0, 10)),
        (0, (1, 2), None, (0, 0)),
        (5, (3,), None, (5,)),
    ],
)
def test_cases(total: int, speeds: tuple[float, ...], caps: tuple[int | None, ...] | None, expected: object) -> None:
    assert shares_minimax(total, speeds, caps) == expected


def test_too_small_caps_name_the_shortfall() -> None:
    with pytest.raises(PlanError, match="2 devices can hold 7 of 10 units: 3 too many"):
        shares_minimax(10, (1.0, 2.0), (3, 4))


def test_many_devices_and_units_are_quick() -> None:
    speeds = np.exp(np.random.default_rng(0).normal(size=1024)).tolist()
    start = time.process_time()
    shares = shares_minimax(10**6, speeds, [2000] * 1024)
    assert sum(shares) == 10**6 and time.process_time() - start < 1.0


def test_even() -> None:
    assert even(10, 4) == (3, 3, 2, 2) and even(2, 3) == (1, 1, 0)
