"""Plans of graph networks: shares, promises, limits of memory, owners found again, JSON and the table."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshes.cluster import Cluster, Device, Link
from meshes.errors import PlanError, UsageError
from meshes.graph_costs import Costs, GraphCurve, batch_portions, estimated, feature_portions, vertex_portions
from meshes.graph_plan import GraphPlan
from meshes.graph_planner import owners, plan_graph
from meshes.graph_workload import MODELS, GraphWorkload
from meshes.minimax import even
from meshes.partition import Edges, Parts, owner_digest
from meshes.plan import Plan

FOUR = Cluster.from_flags(speeds=(4, 2, 1, 1))
FIVE = Cluster.from_flags(speeds=(5, 3, 1, 1, 0.5))


def powerlaw(seed: int, vertices: int, edges: int, power: float = 0.8) -> Edges:
    rng = np.random.default_rng(seed)
    chance = np.arange(1, vertices + 1) ** -power
    ends = rng.permutation(vertices)[rng.choice(vertices, (2, edges), p=chance / chance.sum())]
    return Edges(ends[0], ends[1], None, rng.random(vertices) < 0.5)


def work_of(edges: Edges, **changes: Any) -> GraphWorkload:
    assert edges.train is not None
    sizes: dict[str, Any] = {"model": "gcn", "layers": 3, "width": 64, "heads": 8, "features": 50, "classes": 7}
    sizes |= {"vertices": len(edges.train), "edges": len(edges.senders), "train_vertices": int(edges.train.sum())}
    return GraphWorkload(**sizes | changes)


GRAPH = powerlaw(0, 2000, 16000)
WORK = work_of(GRAPH)
SAMPLED = replace(WORK, seeds=64, fanouts=(4, 3, 2))
SMALL = replace(WORK, level="graph", graphs=40, vertices=20, edges=60, train_vertices=0)
VERTEX = plan_graph(FOUR, WORK, parallel="vertex", graph=GRAPH)
FEATURE = plan_graph(FOUR, WORK, parallel="feature", graph=GRAPH)


def random_cluster(rng: np.random.Generator) -> Cluster:
    devices = int(rng.integers(1, 7))
    speeds = rng.choice((0.3, 1.0, 1.0, 2.0, 4.0), devices)
    hosts = np.sort(rng.integers(0, 2, devices))
    cross = Link(hosts=("*", "*"), bandwidth=float(rng.choice((1e7, 1e8, 1e10))), latency=1e-4)
    named = [Device(name=f"d{i}", speed=float(s), host=f"h{hosts[i]}") for i, s in enumerate(speeds)]
    return Cluster(devices=tuple(named), cross_host=cross)


@pytest.mark.parametrize("seed", range(12))
def test_never_worse_than_even(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cluster, graph = random_cluster(rng), powerlaw(seed, int(rng.integers(30, 300)), int(rng.integers(0, 900)))
    remat: Any = rng.choice(("none", "layer"))
    work = work_of(graph, model=str(rng.choice(MODELS)), heads=int(rng.choice((1, 2, 8))), remat=remat)
    placement: Any = rng.choice(("auto", "specialized"))
    found = [plan_graph(cluster, work, graph=graph, parallel=way, placement=placement) for way in ("vertex", "feature")]
    found.append(plan_graph(cluster, replace(work, seeds=17, fanouts=(2, 2, 1)), parallel="sample"))
    found.append(plan_graph(cluster, replace(SMALL, model=work.model), placement=placement))
    for made in found:
        assert made.even_step_seconds is not None and made.step_seconds <= made.even_step_seconds
        assert GraphPlan.from_json(made.to_json()) == made
    both = plan_graph(cluster, work, graph=graph, placement=placement)
    assert both.step_seconds == min(made.step_seconds for made in found[:2])


def test_even_can_be_worse() -> None:
    """The twin: the even plan of unequal devices would be caught."""
    for made in (VERTEX, FEATURE):
        assert made.gain is not None and made.gain > 1.4


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("cluster", [FOUR, FIVE], ids=["4,2,1,1", "5,3,1,1,0.5"])
def test_specialized_vertices_come_near_the_ideal(model: str, cluster: Cluster) -> None:
    made = plan_graph(cluster, replace(WORK, model=model), parallel="vertex", graph=GRAPH, placement="specialized")
    seconds = np.array([cost.compute for cost in made.predictions])
    speeds = np.array([device.speed for device in cluster.devices])
    assert seconds.max() <= 1.02 * (seconds * speeds).sum() / speeds.sum()
    assert made.gain is not None and made.gain > 0.9 * made.ideal_gain


def test_shares_follow_the_speeds() -> None:
    assert FEATURE.lanes == (4, 2, 1, 1) and FEATURE.vertices == (1000, 500, 250, 250)
    assert VERTEX.targets == (1000, 500, 250, 250) and VERTEX.lanes == (8, 8, 8, 8)
    assert plan_graph(FOUR, SAMPLED, parallel="sample").seeds == (32, 16, 8, 8)
    assert plan_graph(FOUR, SMALL).graphs == (20, 10, 5, 5)
    assert FEATURE.edges == (16000,) * 4 and FEATURE.partition is None


def test_equal_devices_are_uniform() -> None:
    alike = Cluster.from_flags(4)
    assert plan_graph(alike, WORK, parallel="feature").placement == "uniform"
    assert plan_graph(alike, SAMPLED, parallel="sample").placement == "uniform"
    assert plan_graph(alike, WORK, parallel="vertex", graph=GRAPH).placement == "switched"
    assert plan_graph(Cluster.from_flags(1), WORK).placement == "single"


def splits(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to deal units to devices."""
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        yield from ((first, *rest) for rest in splits(total - first, parts - 1))


def tiny(seed: int) -> tuple[Cluster, GraphWorkload, Edges, Costs]:
    rng = np.random.default_rng(seed)
    speeds = rng.choice((0.5, 1.0, 2.0, 3.0), int(rng.integers(2, 4))).tolist()
    cluster = replace(Cluster.from_flags(speeds=speeds), same_host=Link(hosts=("*", "*"), bandwidth=1e15, latency=0.0))
    graph = powerlaw(seed, int(rng.integers(4, 8)), int(rng.integers(5, 20)))
    work = work_of(graph, heads=4, model=str(rng.choice(("gcn", "gat", "rgcn"))))
    return cluster, work, graph, Costs(cluster, work, estimated(cluster, work), True)


def step(costs: Costs, portions: Any) -> float:
    return float(costs.compute(portions).max(axis=1).sum()) + costs.communication(portions)


@pytest.mark.parametrize("seed", range(6))
def test_lanes_and_graphs_are_the_best_of_all(seed: int) -> None:
    cluster, work, _, costs = tiny(seed)
    devices = len(cluster.devices)
    made = plan_graph(cluster, work, parallel="feature", placement="specialized")
    every = product(splits(work.vertices, devices), splits(work.heads, devices))
    best = min(step(costs, feature_portions(work, np.array(v), np.array(lanes))) for v, lanes in every)
    assert made.step_seconds == pytest.approx(best, rel=1e-6)
    batch = replace(work, level="graph", graphs=7, train_vertices=0)
    costs = replace(costs, workload=batch)
    best = min(step(costs, batch_portions(batch, np.array(g))) for g in splits(7, devices))
    assert plan_graph(cluster, batch, placement="specialized").step_seconds == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_vertices_come_near_the_best_of_all_owners(seed: int) -> None:
    cluster, work, graph, costs = tiny(seed)
    devices = len(cluster.devices)
    made = plan_graph(cluster, work, parallel="vertex", graph=graph, placement="specialized")
    every = product(range(devices), repeat=work.vertices)
    best = min(step(costs, vertex_portions(work, Parts.of(graph, np.array(o), devices))) for o in every)
    assert best * (1 - 1e-9) <= made.step_seconds <= 1.35 * best


def test_a_device_too_slow_or_too_far_gets_nothing() -> None:
    slow = plan_graph(Cluster.from_flags(speeds=(4, 4, 0.01)), WORK, parallel="feature")
    assert slow.lanes[2] == 0
    far = Cluster(
        devices=(Device(name="a", host="x"), Device(name="b", host="y", speed=0.2)),
        cross_host=Link(hosts=("*", "*"), bandwidth=1e5, latency=1e-2),
    )
    made = plan_graph(far, WORK, parallel="vertex", graph=GRAPH, placement="specialized")
    assert made.vertices == (2000, 0) and made.halo == (0, 0)
    assert made.step_seconds < 0.5 * (made.even_step_seconds or 0)
    assert owners(made, GRAPH).tolist() == [0] * 2000


def test_auto_takes_the_fastest_and_samples_only_where_asked() -> None:
    both = plan_graph(FOUR, WORK, graph=GRAPH)
    assert [way.parallel for way in both.alternatives] == ["vertex", "feature"]
    assert both.step_seconds == min(VERTEX.step_seconds, FEATURE.step_seconds)
    three = plan_graph(FOUR, SAMPLED, graph=GRAPH)
    assert [way.parallel for way in three.alternatives] == ["vertex", "feature", "sample"]
    steps = -(-WORK.train_vertices // 64) - 1
    sample = three.alternatives[2]
    assert sample.pass_seconds is not None and sample.step_seconds is not None
    assert sample.pass_seconds > steps * sample.step_seconds
    assert [way.parallel for way in plan_graph(FOUR, WORK).alternatives] == ["feature"]
    assert plan_graph(FOUR, SMALL).parallel == "batch"


def test_measured_curves_lead() -> None:
    """The second device takes ten times as long for an edge as the first, and as long for a vertex."""
    network = WORK.network
    curves = [GraphCurve(network=network, fixed=0, vertex=1e-6, edge=edge, halo=0) for edge in (1e-7, 1e-6)]
    made = plan_graph(Cluster.from_flags(2), WORK, parallel="vertex", graph=GRAPH, costs=curves)
    assert made.edges[0] > 2.5 * made.edges[1] and made.curves == tuple(curves)
    assert GraphPlan.from_json(made.to_json()) == made
    assert owner_digest(owners(made, GRAPH)) == made.partition
    late = replace(curves[0], fixed=1.0)
    idle = plan_graph(Cluster.from_flags(2), WORK, parallel="feature", costs=[curves[0], late])
    assert idle.vertices == (2000, 0)


def test_owners_are_found_again() -> None:
    owner = owners(VERTEX, GRAPH)
    assert np.array_equal(owner, owners(GraphPlan.from_json(VERTEX.to_json()), (*GRAPH,)))
    parts = Parts.of(GRAPH, owner, 4)
    assert VERTEX.vertices == tuple(parts.vertices) and VERTEX.edges == tuple(parts.edges)
    assert VERTEX.halo == tuple(parts.rows.sum(axis=0)) and owner_digest(owner) == VERTEX.partition
    assert np.bincount(owners(FEATURE, GRAPH)).tolist() == [1000, 500, 250, 250]
    assert plan_graph(FOUR, WORK, parallel="vertex", graph=GRAPH) == VERTEX
    assert plan_graph(FOUR, WORK, parallel="vertex", graph=GRAPH, seed=1).partition != VERTEX.partition


def test_another_graph_is_refused() -> None:
    with pytest.raises(UsageError, match=r"cut into parts \w+, the plan was made for \w+: run with the graph"):
        owners(VERTEX, powerlaw(1, 2000, 16000))
    with pytest.raises(UsageError, match="the graph has 15999 edges, the workload 16000"):
        owners(VERTEX, powerlaw(1, 2000, 15999))
    with pytest.raises(UsageError, match="a batch plan deals no vertices"):
        owners(plan_graph(FOUR, SMALL), GRAPH)


def needs(made: GraphPlan) -> list[int]:
    return [cost.memory for cost in made.predictions]


@pytest.mark.parametrize("way", ["vertex", "feature", "sample", "batch"])
@pytest.mark.parametrize("placement", ["auto", "specialized"])
def test_memory_is_a_hard_limit(way: Any, placement: Any) -> None:
    work = {"sample": SAMPLED, "batch": SMALL}.get(way, WORK)
    graph = GRAPH if way in ("vertex", "feature") else None
    free = plan_graph(FOUR, work, parallel=way, graph=graph, placement=placement)
    refused = 0
    for part in (0.95, 0.85, 0.7, 0.1):
        limit = int(max(needs(free)) * part)
        small = Cluster.from_flags(speeds=(4, 2, 1, 1), memory=(f"{limit}B",) * 4)
        try:
            made = plan_graph(small, work, parallel=way, graph=graph, placement=placement)
        except PlanError as error:
            assert "no plan fits in memory" in str(error)
            refused += 1
            continue
        assert max(needs(made)) <= limit and made.step_seconds >= free.step_seconds * (1 - 1e-9)
        if way in ("vertex", "feature"):
            assert len(owners(made, GRAPH)) == 2000
    assert 1 <= refused < 4


def test_no_even_plan_fits() -> None:
    even_needs = max(needs(plan_graph(Cluster.from_flags(2), WORK, parallel="vertex", graph=GRAPH)))
    cluster = Cluster.from_flags(speeds=(8, 1), memory=("1TB", f"{int(even_needs * 0.6)}B"))
    made = plan_graph(cluster, WORK, parallel="vertex", graph=GRAPH, placement="specialized")
    assert made.even_step_seconds is None and "no even plan fits" in made.table()


def test_what_is_short_is_named() -> None:
    small = Cluster.from_flags(speeds=(4, 2, 1, 1), memory=("1GB", "1GB", "30KB", "1GB"))
    message = (
        r"no plan fits in memory: at best, with \w+ parallelism, device d2 needs (\d+) bytes \(.*\), most of it \w+"
        r" \(.*\), and has 30000 \(30 KB\): (\d+) too many \(.*\): use "
    )
    with pytest.raises(PlanError, match=message) as caught:
        plan_graph(small, WORK, graph=GRAPH)
    assert "\n" not in str(caught.value)


def test_remedies_are_tried_before_they_are_named() -> None:
    light = plan_graph(FOUR, replace(WORK, remat="layer"), parallel="vertex", graph=GRAPH)
    small = Cluster.from_flags(speeds=(4, 2, 1, 1), memory=(f"{max(needs(light))}B",) * 4)
    with pytest.raises(PlanError, match="use --remat layer") as caught:
        plan_graph(small, WORK, parallel="vertex", graph=GRAPH)
    assert "or larger devices" not in str(caught.value)
    plan_graph(small, replace(WORK, remat="layer"), parallel="vertex", graph=GRAPH)


LITTLE = replace(WORK, vertices=4, train_vertices=1)
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "way": ({"parallel": "edge"}, "parallel is 'edge': it is one of auto, vertex"),
    "placement": ({"placement": "padded"}, "placement is 'padded': it is one of"),
    "no graph": ({"parallel": "vertex"}, "vertex parallelism on 4 devices without the graph"),
    "no seeds": ({"parallel": "sample", "graph": GRAPH}, "sample parallelism without seeds: give --batch-size"),
    "batch": ({"parallel": "batch"}, "batch parallelism of level vertex: use --graph-parallel auto or vertex"),
    "small": ({"workload": SMALL, "parallel": "vertex"}, "vertex parallelism of level graph: use .* batch"),
    "range": ({"graph": GRAPH._replace(senders=GRAPH.senders + 1)}, r"edge \d+ has sender 2000: the graph has"),
    "edges": ({"graph": powerlaw(0, 2000, 10)}, "the graph has 10 edges, the workload 16000"),
    "parts": ({"cluster": FIVE, "workload": LITTLE}, "5 devices for 4 vertices: use at most 4 devices"),
    "curves": ({"costs": [GraphCurve(network="", fixed=0, vertex=1, edge=1, halo=0)]}, "1 curves for 4 devices"),
    "network": (
        {"costs": [GraphCurve(network="x", fixed=0, vertex=1, edge=1, halo=0)] * 4},
        "the curve of device d0 is of network x, this is .*: measure it again",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_are_named(name: str) -> None:
    changes, message = BAD[name]
    given: dict[str, Any] = {"cluster": FOUR, "workload": WORK, **changes}
    with pytest.raises(UsageError, match=message) as caught:
        plan_graph(given.pop("cluster"), given.pop("workload"), **given)
    assert "\n" not in str(caught.value)


BAD_WORK: dict[str, tuple[dict[str, Any], str]] = {
    "zero": ({"layers": 0}, "layers is 0: it must be a whole number, 1 or more"),
    "bool": ({"vertices": True}, "vertices is True"),
    "edges": ({"edges": -1}, "edges is -1: it must be a whole number, 0 or more"),
    "model": ({"model": "gnc"}, "model is 'gnc': it is one of gcn, sage"),
    "lanes": ({"heads": 7}, "width 64 is not a multiple of heads 7"),
    "train": ({"train_vertices": 3000}, "3000 training vertices in a graph of 2000"),
    "seeds": ({"seeds": 8}, r"8 seeds with fan-outs \(\): give both, or neither"),
    "hops": ({"seeds": 8, "fanouts": (2, 2)}, r"2 fan-outs \(2, 2\) for 3 layers: give one for each"),
    "fanout": ({"seeds": 8, "fanouts": (2, 0, 2)}, r"fan-outs are \(2, 0, 2\): each must be a whole number"),
    "graphs": ({"graphs": 3}, "3 graphs a step with level vertex"),
    "level": ({"level": "edge"}, "level is 'edge': it is one of vertex, graph"),
    "both": ({"level": "graph", "graphs": 3, "seeds": 8, "fanouts": (2, 2, 2)}, "small graphs are not sampled"),
}


@pytest.mark.parametrize("name", BAD_WORK)
def test_bad_workloads_are_named(name: str) -> None:
    changes, message = BAD_WORK[name]
    with pytest.raises(UsageError, match=message):
        replace(WORK, **changes)


def test_bad_curves_are_named() -> None:
    with pytest.raises(UsageError, match=r"graph curve.halo is -1: it must be a number, zero or more"):
        GraphCurve(network="x", fixed=0, vertex=1, edge=1, halo=-1)
    with pytest.raises(UsageError, match="vertex and edge are more than zero"):
        GraphCurve(network="x", fixed=0, vertex=1, edge=0, halo=0)


def test_samples_grow_with_the_product_of_fanouts() -> None:
    assert SAMPLED.seed_rows == 5 * 4 * 3
    assert SAMPLED.seed_edges * SAMPLED.layers == 4 + 5 * 3 + 20 * 2
    assert SAMPLED.network == WORK.network != replace(WORK, width=128).network


BAD_JSON: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"vertexes": 1}, "plan: unknown key 'vertexes': did you mean 'vertices'"),
    "type": ({"vertices": [1.5, 0, 0, 0]}, r"plan.vertices\[0\] is 1.5: it must be int"),
    "length": ({"halo": [0]}, "halo has 1 entries for 4 devices"),
    "sum": ({"vertices": [1, 2, 3, 4]}, "vertices sum to 10, vertex parallelism deals 2000"),
    "negative": ({"targets": [-1, 2001, 0, 0]}, "targets sum to 2000, vertex"),
    "lanes": ({"lanes": [8, 8, 8, 0]}, "lanes sum to 24, vertex parallelism deals 32"),
    "way": ({"parallel": "edge"}, "plan.parallel is 'edge': it is one of vertex"),
    "single": ({"placement": "single"}, "placement is single with 4 devices"),
    "uniform": ({"placement": "uniform"}, "placement is uniform, but devices have 4 different sizes"),
    "parts": ({"partition": None}, "partition is None with vertex: only vertex has one"),
}


@pytest.mark.parametrize("name", BAD_JSON)
def test_bad_json_is_named_in_one_line(name: str) -> None:
    changes, message = BAD_JSON[name]
    with pytest.raises(UsageError, match=message) as caught:
        GraphPlan.from_json(json.dumps(json.loads(VERTEX.to_json()) | changes))
    assert "\n" not in str(caught.value) and str(caught.value).startswith("plan")


def test_files_and_comparison(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    VERTEX.save(path)
    assert GraphPlan.load(path) == VERTEX
    with pytest.raises(UsageError, match=r"plan file .*plan.json: unknown key 'parallel'"):
        Plan.load(path)
    VERTEX.check(FOUR, WORK)
    with pytest.raises(UsageError, match="another workload: layers is 3 in the plan and 4 here"):
        VERTEX.check(FOUR, replace(WORK, layers=4))
    assert replace(VERTEX, step_seconds=1.0, alternatives=()).digest() == VERTEX.digest() != FEATURE.digest()


def test_predictions_add_up() -> None:
    for made in (VERTEX, FEATURE):
        for cost in made.predictions:
            assert cost.compute + cost.communication + cost.waiting == pytest.approx(made.step_seconds)


def test_work_is_in_proportion_to_what_devices_compute() -> None:
    for way, work in (("vertex", WORK), ("feature", WORK), ("sample", SAMPLED), ("batch", SMALL)):
        graph = GRAPH if way == "vertex" else None
        made = plan_graph(FOUR, work, parallel=way, graph=graph, placement="specialized")  # type: ignore[arg-type]
        assert made.order == ((0, 1, 2, 3),)
        does = np.array([made.work(device, made.curves[0]) for device in range(4)])
        assert does / does.sum() == pytest.approx([0.5, 0.25, 0.125, 0.125], rel=0.25 if way == "vertex" else 1e-9)


def test_table_has_a_line_for_each_device() -> None:
    lines = VERTEX.table().splitlines()
    assert lines[0].startswith(f"Plan {VERTEX.digest()}: 4 devices, vertex parallelism, 2000 vertices and 16000 edges")
    assert lines[2].split()[3:7] == ["vertices", "edges", "halo", "halo"]
    assert [line.split()[0] for line in lines[4:8]] == ["d0", "d1", "d2", "d3"]
    assert [line.split()[3:6] for line in lines[4:8]] == [
        [*map(str, row)] for row in zip(VERTEX.vertices, VERTEX.edges, VERTEX.halo, strict=True)
    ]
    assert "as fast as the best even plan" in lines[-1] and lines[-1].endswith("the ideal, is 2.00x.")
    assert all(0 < share < 1 for share in VERTEX.halo_share)
    both = plan_graph(FOUR, WORK, graph=GRAPH).table()
    assert "Compared, for each pass over training vertices: vertex " in both and "feature " in both
    assert " lanes " in FEATURE.table() and " graphs " in plan_graph(FOUR, SMALL).table()


def test_even_units_of_the_even_plan() -> None:
    """Three equal devices with 2,000 vertices and 8 lanes: shares differ by one at most."""
    made = plan_graph(Cluster.from_flags(3), WORK, parallel="feature")
    assert sorted(made.lanes) == sorted(even(8, 3)) and sorted(made.vertices) == sorted(even(2000, 3))
