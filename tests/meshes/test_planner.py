"""The planner: kinds of plans, promises, limits of memory, and golden tables.

Write the golden files anew with LOPSIDED_GOLDEN=write python -m pytest tests/meshes/test_planner.py
"""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from workloads import FOUR, WORK

from meshes.cluster import Cluster, Device, Link
from meshes.cost import Division, Grid, seconds
from meshes.errors import PlanError, UsageError
from meshes.minimax import even
from meshes.plan import Plan
from meshes.planner import plan
from meshes.workload import Workload, divisors

GOLDEN = Path(__file__).parent / "golden"
FIVE = Cluster.from_flags(speeds=(5, 3, 1, 1, 0.5))


def random_cluster(rng: np.random.Generator, devices: int | None = None) -> Cluster:
    devices = devices or int(rng.integers(1, 13))
    speeds = rng.choice((0.3, 0.5, 1.0, 1.0, 2.0, 3.0, 4.0), devices)
    hosts = np.sort(rng.integers(0, 3, devices)) * int(rng.integers(0, 2))
    cross = Link(hosts=("*", "*"), bandwidth=float(rng.choice((1e8, 1e9, 1e10))), latency=1e-4)
    named = [Device(name=f"d{i}", speed=float(s), host=f"h{hosts[i]}") for i, s in enumerate(speeds)]
    return Cluster(devices=tuple(named), cross_host=cross)


def random_work(rng: np.random.Generator) -> Workload:
    kv_heads = int(rng.integers(1, 4))
    remat: Any = ("none", "layer")[rng.integers(2)]
    microbatch = int(rng.integers(1, 4))
    return replace(
        WORK,
        microbatch=microbatch,
        batch_size=microbatch * int(rng.integers(1, 9)),
        seq_len=int(rng.integers(1, 400)),
        heads=kv_heads * int(rng.integers(1, 4)),
        kv_heads=kv_heads,
        remat=remat,
    )


def plain_even_step(cluster: Cluster, work: Workload, groups: int) -> float:
    """What someone would do without a planner: devices as named, everything split evenly."""
    size = len(cluster.devices) // groups
    tokens = np.array([even(work.seq_len, size)] * groups)
    zero, heads = np.zeros_like(tokens), np.full_like(tokens, work.heads)
    division = Division(tokens, tokens, zero, heads, np.full_like(tokens, work.kv_heads), "context", "gather")
    grid = Grid.of(cluster, np.arange(groups * size).reshape(groups, size).tolist())
    return seconds(grid, work, division).step(np.array(even(work.microbatches, groups)))


@pytest.mark.parametrize("seed", range(20))
def test_never_worse_than_even(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(10):
        cluster, work = random_cluster(rng), random_work(rng)
        found = plan(cluster, work)
        assert found.even_step_seconds is not None and found.step_seconds <= found.even_step_seconds
        for groups in divisors(len(cluster.devices)):
            assert found.step_seconds <= plain_even_step(cluster, work, groups) * (1 + 1e-9)
        assert Plan.from_json(found.to_json()) == found


def test_even_can_be_worse() -> None:
    """The twin: an even plan of unequal devices would be caught."""
    assert plain_even_step(FOUR, WORK, 1) > 1.2 * plan(FOUR, WORK).step_seconds


@pytest.mark.parametrize("attention", ["context", "head", "hybrid"])
@pytest.mark.parametrize("seed", range(5))
def test_kinds_are_what_was_asked(attention: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(5):
        cluster = random_cluster(rng, int(rng.integers(3, 10)))
        work = replace(random_work(rng), heads=6, kv_heads=int(rng.choice((1, 2, 3, 6))))
        found = plan(cluster, work, attention=attention)
        assert found.attention == attention and len(found.order[0]) > 1
        assert found.even_step_seconds is None or found.step_seconds <= found.even_step_seconds


def test_shares_follow_the_speeds() -> None:
    found = plan(FOUR, WORK, attention="context", data_groups=1)
    assert found.tokens == ((128, 64, 32, 32),)
    assert [tile.tokens for tile in found.tiles[0]] == [128, 64, 32, 32]
    found = plan(FOUR, WORK, attention="head", data_groups=1)
    assert [tile.heads for tile in found.tiles[0]] == [(0, 4), (4, 6), (6, 7), (7, 8)]


def test_hybrid_bands_differ_in_size() -> None:
    found = plan(FOUR, WORK, attention="hybrid", data_groups=1)
    sizes = {heads: sum(t.heads == heads for t in found.tiles[0]) for heads in {t.heads for t in found.tiles[0]}}
    assert len(sizes) >= 2 and len(set(sizes.values())) >= 2
    costs = [cost.compute for cost in found.predictions[0]]
    assert max(costs) < 1.02 * min(costs)


def test_explicit_data_groups_deal_rows_by_speed() -> None:
    found = plan(FOUR, WORK, data_groups=2)
    assert len(found.order) == 2 and sum(found.microbatches) == 8
    assert max(c.compute for g in found.predictions for c in g) < 1.1 * min(
        c.compute for g in found.predictions for c in g
    )


@pytest.mark.parametrize("cluster", [FOUR, FIVE], ids=["4,2,1,1", "5,3,1,1,0.5"])
def test_specialized_comes_near_the_ideal(cluster: Cluster) -> None:
    found = plan(cluster, WORK, placement="specialized", data_groups=1)
    assert found.placement == "specialized" and found.gain is not None
    assert 0.8 * found.ideal_gain < found.gain <= found.ideal_gain


def test_one_device() -> None:
    for attention in ("auto", "context", "head"):
        found = plan(Cluster.from_flags(1), WORK, attention=attention)
        assert (found.placement, found.order, found.tokens) == ("single", ((0,),), ((256,),))
        assert found.attention == ("context" if attention == "auto" else attention)
    assert plan(Cluster.from_flags(1), WORK, placement="switched").placement == "single"


def test_eight_devices_and_three_heads() -> None:
    cluster = Cluster.from_flags(speeds=(4, 4, 2, 2, 1, 1, 1, 1))
    work = replace(WORK, heads=3, kv_heads=3)
    head = plan(cluster, work, attention="head", data_groups=1)
    assert sum(tile.tokens == 0 for tile in head.tiles[0]) >= 5
    hybrid = plan(cluster, work, attention="hybrid", data_groups=1)
    assert hybrid.step_seconds < head.step_seconds


def test_more_devices_than_tokens_and_microbatches() -> None:
    work = replace(WORK, seq_len=3, batch_size=2)
    assert sum(plan(FIVE, work, data_groups=1).tokens[0]) == 3
    assert sorted(plan(FIVE, work, data_groups=5).microbatches) == [0, 0, 0, 0, 1]


def test_sixty_four_devices_of_three_speeds_have_few_sizes() -> None:
    cluster = Cluster.from_flags(speeds=(4,) * 16 + (2,) * 16 + (1,) * 32)
    found = plan(cluster, replace(WORK, seq_len=2000), attention="context", data_groups=1)
    sizes = {(d, t) for d, t in zip([cluster.devices[i].speed for i in found.order[0]], found.tokens[0], strict=True)}
    assert len(sizes) <= 4


@pytest.mark.parametrize(
    ("speeds", "asked", "placement"),
    [
        ((1, 1), "auto", "uniform"),
        ((1, 1), "switched", "switched"),
        ((1, 1), "specialized", "specialized"),
        ((3, 1), "auto", "switched"),
        ((3, 1), "specialized", "specialized"),
    ],
)
def test_placement(speeds: tuple[float, ...], asked: Any, placement: str) -> None:
    assert plan(Cluster.from_flags(speeds=speeds), WORK, placement=asked, data_groups=1).placement == placement


def test_kv_can_be_insisted_on() -> None:
    assert plan(FOUR, WORK, kv="ring").kv == "ring"
    assert plan(FOUR, WORK, kv="ring", attention="context").attention == "context"
    assert plan(FOUR, WORK, kv="gather").kv == "gather"


def test_equal_devices_in_another_order_plan_the_same() -> None:
    one, other = (plan(Cluster.from_flags(speeds=s), WORK) for s in ((4, 2, 1, 1), (1, 4, 1, 2)))
    assert one.step_seconds == pytest.approx(other.step_seconds, rel=1e-12)
    assert (one.tokens, one.tiles, one.microbatches) == (other.tokens, other.tiles, other.microbatches)


SMALL = Cluster.from_flags(speeds=(4, 2, 1, 1), memory=("8MB", "8MB", "7MB", "8MB"))
BAD_REQUESTS: dict[str, tuple[Cluster, Workload, dict[str, Any], str]] = {
    "groups": (
        FOUR,
        WORK,
        {"data_groups": 3},
        "3 data groups do not divide 4 devices evenly: .* auto or one of 1, 2, 4",
    ),
    "no_groups": (FOUR, WORK, {"data_groups": 0}, "0 data groups do not divide 4"),
    "batch": (
        FOUR,
        replace(WORK, batch_size=15),
        {},
        "batch size 15 is not a multiple of microbatch 2: .* 14 or 16, or",
    ),
    "little": (FOUR, replace(WORK, batch_size=1), {}, "--batch-size 2, or --microbatch 1"),
    "ring": (
        FOUR,
        WORK,
        {"kv": "ring", "attention": "head"},
        "a ring of keys and values needs context attention, not head",
    ),
    "two": (
        Cluster.from_flags(2),
        WORK,
        {"attention": "hybrid"},
        "at least 3 devices in a data group, there are 2: use",
    ),
    "groups_of_two": (FOUR, WORK, {"attention": "hybrid", "data_groups": 2}, "there are 2: use fewer --data-groups"),
    "heads": (
        FOUR,
        replace(WORK, heads=1, kv_heads=1),
        {"attention": "hybrid"},
        "needs at least 2 heads, the model has 1",
    ),
    "memory": (
        SMALL,
        WORK,
        {},
        r"no plan fits in memory: at best device d2 needs \d+ bytes \(.* MB\) and has 7000000",
    ),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_impossible_requests(name: str) -> None:
    cluster, work, choices, message = BAD_REQUESTS[name]
    with pytest.raises(PlanError, match=message) as caught:
        plan(cluster, work, **choices)
    assert "\n" not in str(caught.value)


def test_unknown_choices() -> None:
    with pytest.raises(UsageError, match="attention is 'heads': it is one of auto, context, head, hybrid"):
        plan(FOUR, WORK, attention="heads")  # type: ignore[arg-type]


@pytest.mark.parametrize(("devices", "limit"), [(128, 1.0), (1024, 10.0)])
@pytest.mark.parametrize("alike", [True, False])
def test_planning_is_quick(devices: int, limit: float, alike: bool) -> None:
    rng = np.random.default_rng(0)
    speeds = rng.choice((4.0, 2.0, 1.0), devices) if alike else np.exp(rng.normal(size=devices))
    named = [Device(name=f"{i}", speed=float(s), host=f"{i // 8}", memory=80 * 10**9) for i, s in enumerate(speeds)]
    cluster = Cluster(devices=tuple(named), flops_per_speed=1e14)
    work = replace(WORK, batch_size=1024, seq_len=4096, layers=32, d_model=4096, heads=32, head_dim=128, d_ff=11008)
    start = time.process_time()
    found = plan(cluster, replace(work, remat="layer", compute_bytes=2))
    assert time.process_time() - start < limit
    assert found.gain is not None and found.gain >= 1


def two_hosts() -> Cluster:
    fast = [Device(name=f"a100-{i}", kind="A100", speed=4.8, memory=40 * 10**9, host="big") for i in range(4)]
    slow = [Device(name=f"t4-{i}", kind="T4", memory=16 * 10**9, host="small") for i in range(4)]
    return Cluster(devices=(*fast, *slow), flops_per_speed=65e12)


LARGE = replace(
    WORK, batch_size=64, seq_len=4096, vocab_size=32000, layers=16, d_model=2048, heads=16, head_dim=128, d_ff=5632
)
GOLDEN_CASES: dict[str, tuple[Cluster, Workload, dict[str, Any]]] = {
    "four_auto": (FOUR, WORK, {}),
    "four_hybrid": (FOUR, WORK, {"attention": "hybrid"}),
    "five_head": (FIVE, WORK, {"attention": "head"}),
    "five_ring": (FIVE, WORK, {"kv": "ring", "placement": "specialized"}),
    "two_hosts": (two_hosts(), replace(LARGE, remat="layer", compute_bytes=2), {}),
}


@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_golden_tables(name: str) -> None:
    cluster, work, choices = GOLDEN_CASES[name]
    path, text = GOLDEN / f"{name}.txt", plan(cluster, work, **choices).table() + "\n"
    if os.environ.get("LOPSIDED_GOLDEN") == "write":
        path.write_text(text)
    assert text == path.read_text(), "plans changed: see the docstring of this file"
