"""The planner against the best of all plans of small clusters, and against the measured curves of their devices."""

from dataclasses import replace
from math import comb

import numpy as np
import pytest

from benchmarks.exhaustive import Case, bands, best, compositions, context, draw, splits
from meshes.cluster import Cluster
from meshes.cost import Division, Grid, seconds
from meshes.curve import Curve
from meshes.divisions import evenly
from meshes.memory import bytes_needed
from meshes.moves import near
from meshes.pace import TYPICAL, least_step, paces
from meshes.plan import Plan
from meshes.planner import plan
from meshes.recipes import Recipe
from meshes.workload import Workload

ENOUGH = 1.01
WORK = Workload(
    batch_size=8,
    microbatch=2,
    seq_len=6,
    vocab_size=64,
    layers=2,
    d_model=64,
    heads=4,
    kv_heads=2,
    head_dim=16,
    d_ff=128,
)


def planned(case: Case) -> Plan:
    return plan(case.cluster, case.workload, placement="specialized" if case.specialized else "auto")


@pytest.mark.parametrize("seed", range(0, 200, 10))
def test_near_the_best_of_all_plans(seed: int) -> None:
    case = draw(seed)
    found = planned(case)
    least = best(case.cluster, case.workload, specialized=case.specialized, below=found.step_seconds)
    assert found.step_seconds <= ENOUGH * least.step
    assert least.step <= found.step_seconds


def test_a_bad_plan_is_found_out() -> None:
    """The twin: devices of speeds 4 and 1 with equal shares."""
    cluster = Cluster.from_flags(speeds=(4, 1))
    grid = Grid.of(cluster, [(0, 1)])
    division = evenly(WORK, 1, 2, Recipe("context", even=True))
    bad = seconds(grid, WORK, division).step(np.array([WORK.microbatches]))
    assert bad > ENOUGH * best(cluster, WORK).step


def test_the_bound_changes_nothing() -> None:
    """The search finds the same without a bound to begin with, and what it found has that step."""
    case = draw(40)
    least = best(case.cluster, case.workload, specialized=case.specialized)
    again = best(case.cluster, case.workload, specialized=case.specialized, below=least.step * (1 + 1e-9))
    assert again.step == least.step and again.evaluated <= least.evaluated
    assert least.grid is not None and least.division is not None and least.counts is not None
    times = seconds(least.grid, case.workload, least.division, specialized=case.specialized)
    assert times.step(least.counts) == least.step


def test_all_plans_are_tried() -> None:
    assert [len([*splits(4, groups)]) for groups in (1, 2, 4)] == [1, 3, 1]
    assert len(compositions(6, 3)) == comb(8, 2) == len(set(compositions(6, 3)))
    assert len(context(WORK, 3)) == comb(8, 2)
    # One band, any of two devices; two bands, 3 deals of 4 heads in either order.
    assert len(bands(WORK, 2, "head")) == 2 + 3 * 2
    # A pair and a single, either first: 3 pairs, 3 deals of heads, 7 deals of queries.
    assert len(bands(WORK, 3, "hybrid")) == 2 * 3 * 3 * 7
    assert len(bands(replace(WORK, kv_heads=4), 3, "hybrid")) == 3 * 3 * 7


@pytest.mark.parametrize("seed", range(0, 200, 25))
def test_no_plan_is_below_the_bound_of_its_grid(seed: int) -> None:
    case = draw(seed)
    found = planned(case)
    grid = Grid.of(case.cluster, found.order)
    assert least_step(grid, case.workload, specialized=case.specialized) <= found.step_seconds


def test_memory_that_is_a_little_short_moves_a_little_work() -> None:
    """The recipe's plan does not fit; one with a unit elsewhere does, and is about as fast as any that fits."""
    free = plan(Cluster.from_flags(speeds=(4, 2, 1)), WORK, data_groups=1, placement="specialized")
    short = f"{free.predictions[0][0].memory - 1}B"
    cluster = Cluster.from_flags(speeds=(4, 2, 1), memory=(short, "1GB", "1GB"))
    found = plan(cluster, WORK, placement="specialized")
    assert all(cost.memory <= (cost.memory_limit or 0) for group in found.predictions for cost in group)
    assert found.step_seconds <= ENOUGH * best(cluster, WORK, specialized=True, below=found.step_seconds).step


# Measured curves: speeds that FLOP/s do not tell.


def measured(work: Workload, *curves: tuple[float, float, float]) -> Cluster:
    """Devices of equal FLOP/s with curves of fixed and token seconds, and of a query that sees all keys in one head."""
    cluster = Cluster.from_flags(devices=len(curves))
    devices = [
        replace(device, curve=Curve(model=work.model, fixed=fixed, token=token, pair=query / work.seq_len, update=1e-9))
        for device, (fixed, token, query) in zip(cluster.devices, curves, strict=True)
    ]
    return replace(cluster, devices=tuple(devices))


LONG = replace(WORK, seq_len=1000, kv_heads=4)


def test_shares_follow_the_curves() -> None:
    cluster = measured(LONG, (0, 1e-3, 1e-6), (0, 3e-3, 3e-6))
    found = plan(cluster, LONG, attention="context", data_groups=1, placement="specialized")
    assert found.tokens == ((750, 250),)


def test_a_fixed_part_takes_tokens_away() -> None:
    cluster = measured(LONG, (0.0, 1e-3, 1e-9), (0.2, 1e-3, 1e-9))
    found = plan(cluster, LONG, attention="context", data_groups=1, placement="specialized")
    assert found.tokens == ((600, 400),)


def test_attention_has_a_pace_of_its_own() -> None:
    """One device is slow at attention alone: it owns half of the tokens and does little attention."""
    cluster = measured(LONG, (0, 1e-3, 1e-3), (0, 1e-3, 3e-3))
    found = plan(cluster, LONG, data_groups=1, placement="specialized")
    (a, b), (one, other) = found.tokens[0], found.tiles[0]
    assert abs(a - b) <= 100
    work = [tile.tokens * (tile.heads[1] - tile.heads[0]) for tile in (one, other)]
    assert 2 < max(work) / min(work) < 4


def test_paces_are_those_of_the_cost_model() -> None:
    cluster = measured(LONG, (0.1, 1e-3, 2e-6), (0.0, 3e-3, 4e-6))
    (found,) = paces(Grid.of(cluster, [(0, 1)]), LONG, specialized=True)
    assert found.tokens.fixed == pytest.approx((0.1, 0.0)) and found.tokens.each == pytest.approx((1e-3, 3e-3))
    assert found.rows.fixed == (0.0, 0.0) and found.rows.each == pytest.approx((TYPICAL * 2e-6, TYPICAL * 4e-6))


# Moves.


def valid(work: Workload, division: Division) -> bool:
    """Tokens sum to a row; tiles cover the rectangle of query tokens and heads once."""
    area = np.sum(division.queries * division.heads, axis=1) == work.seq_len * work.heads
    positive = min(division.tokens.min(), division.queries.min(), division.heads.min()) >= 0
    return bool(positive and np.all(area) and np.all(division.tokens.sum(axis=1) == work.seq_len))


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe("context", even=True),
        Recipe("context", "ring", even=True),
        Recipe("head", even=True),
        Recipe("hybrid", bands=2, even=True),
    ],
)
def test_moves_keep_what_must_hold(recipe: Recipe) -> None:
    grid = Grid.of(Cluster.from_flags(speeds=(4, 3, 2, 1, 1, 1)), [(0, 1, 2), (3, 4, 5)])
    division = evenly(WORK, 2, 3, recipe)
    found = [*near(WORK, division, seconds(grid, WORK, division), 1)]
    assert found and all(valid(WORK, moved) for moved in found)
    for moved in found:
        assert (moved.attention, moved.kv) == (division.attention, division.kv)
        changed = np.any((moved.tokens != division.tokens) | (moved.queries != division.queries), axis=1)
        heads = np.any((moved.start != division.start) | (moved.stop != division.stop), axis=1)
        assert np.sum(changed | heads) == 1
        assert recipe.kv == "gather" or np.array_equal(moved.queries, moved.tokens)
        assert np.all(bytes_needed(grid, WORK, moved) > 0)


def test_planning_is_deterministic() -> None:
    case = draw(7)
    assert planned(case) == planned(case)
