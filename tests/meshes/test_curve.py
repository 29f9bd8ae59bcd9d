"""Curves from samples."""

import numpy as np
import pytest

from meshes.curve import Curve, Sample, fit
from meshes.errors import UsageError
from meshes.stopwatch import timed


def samples(noise: float = 0.0, seed: int = 0) -> list[Sample]:
    rng = np.random.default_rng(seed)
    sizes = [(64, 0), (128, 0), (256, 0), (0, 512), (0, 1024), (0, 2048)]

    def seconds(tokens: int, pairs: int) -> float:
        exact = 1e-3 + 2e-5 * tokens if tokens else 5e-4 + 3e-7 * pairs
        return exact * (1 + noise * rng.uniform(-1, 1))

    return [Sample(tokens=t, pairs=p, seconds=seconds(t, p)) for t, p in sizes]


def test_exact_samples_give_the_curve_that_made_them() -> None:
    found = fit("m", samples(), update=1e-9)
    parts = (found.curve.fixed, found.curve.token, found.curve.pair, found.curve.update)
    assert parts == pytest.approx((1.5e-3, 2e-5, 3e-7, 1e-9), rel=1e-6)
    assert found.error < 1e-9
    assert found.curve.compute(100, 1000, 0) == pytest.approx(1.5e-3 + 2e-3 + 3e-4)


def test_keys_of_few_heads_are_read_in_less_time() -> None:
    """A row in all heads, parts of it, and a row in one head: what keys take is told from what queries take."""
    sizes = [(1024, 8), (2048, 8), (4096, 8), (8192, 8), (4096, 4), (1024, 1)]
    tiles = [Sample(tokens=0, pairs=p, seconds=2e-4 + 3e-7 * p + 5e-5 * k, kv_heads=k) for p, k in sizes]
    found = fit("m", samples()[:3] + tiles, update=0.0)
    assert (found.curve.pair, found.curve.key) == pytest.approx((3e-7, 5e-5), rel=1e-6)
    assert found.curve.fixed == pytest.approx(1e-3 + 2e-4, rel=1e-6) and found.error < 1e-9
    assert found.curve.compute(0, 1000, 2) == pytest.approx(found.curve.fixed + 3e-4 + 1e-4)


def test_noise_is_told_and_bounded() -> None:
    found = fit("m", samples(0.1), update=0.0)
    assert 0.01 < found.error < 0.2
    assert found.curve.token == pytest.approx(2e-5, rel=0.3)


def test_no_part_is_negative() -> None:
    """Work that grows faster than its size has no time to spare for a fixed part."""
    steep = [Sample(tokens=t, pairs=0, seconds=1e-8 * t * t) for t in (64, 128, 256)] + samples()[3:]
    assert fit("m", steep, update=0.0).curve.fixed == pytest.approx(5e-4, rel=1e-6)


def test_no_work_is_free() -> None:
    """Noise may hide that larger sizes take longer."""
    flat = [Sample(tokens=t, pairs=0, seconds=s) for t, s in ((64, 1.2e-3), (128, 1e-3), (256, 1e-3))] + samples()[3:]
    found = fit("m", flat, update=0.0)
    assert 1e-3 / 256 < found.curve.token < 1.2e-3 / 64 and found.error > 0.3


def test_token_work_may_bend_upwards() -> None:
    """Measured on a core whose cache holds half a row's arrays; straight lines are a third off."""
    sizes = {64: 7.1e-3, 128: 13.9e-3, 256: 30.5e-3, 512: 97e-3}
    found = fit("m", [Sample(tokens=t, pairs=0, seconds=s) for t, s in sizes.items()] + samples()[3:], update=0.0)
    assert found.curve.knee == 256 and found.curve.bend > found.curve.token and found.error < 0.07
    halfway = found.curve.compute(384, 0, 0) - found.curve.compute(0, 0, 0)
    assert 45e-3 < halfway < 70e-3


def test_a_straight_line_does_not_bend() -> None:
    found = fit("m", samples(), update=0.0)
    assert found.curve.bend == found.curve.knee == 0


def test_one_size_is_no_line() -> None:
    with pytest.raises(ValueError, match="1 sizes of tokens were measured, a line needs two"):
        fit("m", samples()[2:], update=0.0)


@pytest.mark.parametrize(
    ("part", "value", "says"),
    [("fixed", -1.0, "curve.fixed is -1.0: it must be a number"), ("token", 0.0, "token and pair are more than zero")],
)
def test_impossible_curves(part: str, value: float, says: str) -> None:
    parts = {"fixed": 0.0, "token": 1.0, "pair": 1.0, "update": 0.0} | {part: value}
    with pytest.raises(UsageError, match=says):
        Curve(model="m", **parts)


def test_timing_counts_runs_and_tells_cpu_from_waiting() -> None:
    runs = []
    timing = timed(lambda: runs.append(sum(range(20_000))), samples=3, least=0.01)
    assert len(runs) > 4 and 0 < timing.seconds < 0.01
    assert 0 < timing.share <= 1.5
