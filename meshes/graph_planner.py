"""Cluster, graph network and graph in, plan out: the fastest predicted way to spread a step over unequal devices.

Every way's even plan is a candidate, so that the answer is never predicted slower than it. Deterministic.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np

from meshes.cluster import Cluster
from meshes.errors import PlanError, UsageError
from meshes.graph_candidates import Candidate, candidates, owners_of
from meshes.graph_costs import Costs, GraphCurve, estimated
from meshes.graph_plan import Alternative, GraphParallel, GraphPlan
from meshes.graph_workload import GraphWorkload
from meshes.partition import Edges, owner_digest
from meshes.plan import DevicePrediction
from meshes.request import AskedPlacement
from meshes.units import format_bytes
from meshes.workload import PlacementMode

__all__ = ["AskedGraphParallel", "owners", "plan_graph"]

AskedGraphParallel = Literal["auto", "vertex", "feature", "sample", "batch"]


def plan_graph(
    cluster: Cluster,
    workload: GraphWorkload,
    *,
    parallel: AskedGraphParallel = "auto",
    graph: Edges | tuple[Any, ...] | None = None,
    costs: Sequence[GraphCurve] | None = None,
    placement: AskedPlacement = "auto",
    seed: int = 0,
) -> GraphPlan:
    """The fastest predicted plan that fits in memory.

    `auto` compares `vertex` and `feature` where the whole graph is trained on. It compares `sample` too only if the
    workload has seeds and fan-outs, because sampling changes the training, and then by the time of a pass over the
    training vertices. Small graphs are always dealt in a `batch`.

    Args:
        cluster, workload: what there is, and what it has to do.
        parallel: a way to insist on.
        graph: its edges; without them `vertex` cannot be planned on several devices, and `auto` leaves it out.
        costs: measured curves, one for each device; None estimates them from the devices' speeds.
        placement: `specialized` if every process can compile its own sizes, which the caller checks; `switched` is kept
            even where sizes are equal; `auto` is `uniform` where sizes are equal, else `switched`.
        seed: of partitions.

    Raises:
        UsageError: edges, curves or choices contradict the workload.
        PlanError: there are more devices than vertices, or nothing fits in memory.
    """
    for name, value, choices in (("parallel", parallel, AskedGraphParallel), ("placement", placement, AskedPlacement)):
        if value not in get_args(choices):
            raise UsageError(f"{name} is {value!r}: it is one of {', '.join(get_args(choices))}")
    edges = None if graph is None else _checked(Edges(*graph), workload)
    curves = estimated(cluster, workload) if costs is None else _measured(costs, cluster, workload)
    known = Costs(cluster, workload, curves, placement == "specialized")
    ways = _ways(cluster, workload, parallel, edges)
    found = {way: candidates(known, way, edges, seed) for way in ways}
    fitting = {way: [c for c in made if not c.short] for way, made in found.items()}
    everything = [candidate for made in fitting.values() for candidate in made]
    if not everything:
        closest = min((c for made in found.values() for c in made), key=lambda candidate: candidate.order)
        raise _nothing_fits(known, closest, parallel, edges, placement)
    best = min(everything, key=lambda candidate: _pass_seconds(workload, candidate))
    even = [_pass_seconds(workload, candidate) for candidate in everything if candidate.even]
    return GraphPlan(
        cluster=cluster,
        workload=workload,
        parallel=best.parallel,
        placement=_mode(cluster, best, placement),
        curves=curves,
        seed=seed,
        **_shares(best, workload, len(curves)),
        partition=None if best.owner is None else owner_digest(best.owner),
        predictions=_predictions(known, best),
        alternatives=tuple(_alternative(way, fitting[way], workload) for way in ways),
        even_step_seconds=min(even) * best.step / _pass_seconds(workload, best) if even else None,
        step_seconds=best.step,
    )


def owners(plan: GraphPlan, graph: Edges | tuple[Any, ...]) -> np.ndarray:
    """The device that owns each vertex, int32 [N].

    Of a `vertex` plan it is found again from the plan's targets, curves and seed. With `feature` devices own ranges of
    vertices, in order.

    Args:
        plan: `vertex` or `feature`.
        graph: the edges that it was made for.

    Raises:
        UsageError: the plan deals no vertices, or the graph leads to other owners.
    """
    if plan.parallel not in ("vertex", "feature"):
        raise UsageError(f"a {plan.parallel} plan deals no vertices: plan with vertex or feature")
    edges = _checked(Edges(*graph), plan.workload)
    devices = len(plan.vertices)
    if plan.parallel == "feature" or devices == 1:
        return np.repeat(np.arange(devices, dtype=np.int32), plan.vertices)
    costs = Costs(plan.cluster, plan.workload, plan.curves, plan.placement == "specialized")
    owner = owners_of(costs, edges, np.array(plan.targets), plan.seed)
    if (found := owner_digest(owner)) != plan.partition:
        raise UsageError(
            f"the graph is cut into parts {found}, the plan was made for {plan.partition}: run with the graph and the"
            " version of pymetis that it was made for, or plan anew without --plan"
        )
    return owner


def _ways(
    cluster: Cluster, workload: GraphWorkload, parallel: AskedGraphParallel, edges: Edges | None
) -> list[GraphParallel]:
    """The ways to compare."""
    devices = len(cluster.devices)
    possible: list[GraphParallel] = ["batch"] if workload.level == "graph" else ["vertex", "feature"]
    if workload.seeds:
        possible.append("sample")
    if parallel == "sample" and not workload.seeds:
        raise UsageError("sample parallelism without seeds: give --batch-size and --fanouts, or use vertex or feature")
    if parallel != "auto" and parallel not in possible:
        raise UsageError(
            f"{parallel} parallelism of level {workload.level}: use --graph-parallel auto or {' or '.join(possible)}"
        )
    ways = possible if parallel == "auto" else [way for way in possible if way == parallel]
    if parallel == "vertex" and edges is None and devices > 1:
        raise UsageError(f"vertex parallelism on {devices} devices without the graph: give its edges")
    if edges is None and devices > 1:
        ways = [way for way in ways if way != "vertex"]
    if devices > workload.vertices and not {"sample", "batch"} & {*ways}:
        raise PlanError(f"{devices} devices for {workload.vertices} vertices: use at most {workload.vertices} devices")
    return [way for way in ways if devices <= workload.vertices or way in ("sample", "batch")]


def _checked(edges: Edges, workload: GraphWorkload) -> Edges:
    edges.check(workload.vertices)
    if len(edges.senders) != workload.edges:
        raise UsageError(f"the graph has {len(edges.senders)} edges, the workload {workload.edges}: give one graph")
    return edges


def _measured(curves: Sequence[GraphCurve], cluster: Cluster, workload: GraphWorkload) -> tuple[GraphCurve, ...]:
    if len(curves) != len(cluster.devices):
        raise UsageError(f"{len(curves)} curves for {len(cluster.devices)} devices: measure each")
    for curve, device in zip(curves, cluster.devices, strict=True):
        if curve.network != workload.network:
            raise UsageError(
                f"the curve of device {device.name} is of network {curve.network}, this is {workload.network}:"
                " measure it again"
            )
    return tuple(curves)


def _pass_seconds(workload: GraphWorkload, candidate: Candidate) -> float:
    """Of one pass over the training vertices; a step on the whole graph is one."""
    if candidate.parallel != "sample":
        return candidate.step
    return candidate.step * max(workload.train_vertices / workload.seeds, 1)


def _mode(cluster: Cluster, best: Candidate, asked: AskedPlacement) -> PlacementMode:
    if len(cluster.devices) == 1:
        return "single"
    if asked != "auto":
        return asked
    return "uniform" if best.alike else "switched"


def _shares(best: Candidate, workload: GraphWorkload, devices: int) -> dict[str, Any]:
    """Units of each device by name, and what they bring."""
    none = np.zeros(devices, np.int64)
    edges = best.portions.indices if best.parallel == "feature" else np.rint(best.portions.edges)
    if best.parallel == "sample":
        edges = np.rint(best.portions.edges * workload.layers)  # each edge of a sample is in one layer
    shares = {
        "targets": none,
        "vertices": none,
        "lanes": np.full(devices, workload.heads),
        "seeds": none,
        "graphs": none,
        **best.dealt,
        "edges": edges.astype(np.int64),
        "halo": best.portions.halo,
    }
    return {name: tuple(units.tolist()) for name, units in shares.items()}


def _predictions(costs: Costs, best: Candidate) -> tuple[DevicePrediction, ...]:
    """What the step costs each device; it waits for whatever it neither computes nor communicates."""
    compute = best.compute.sum(axis=0).tolist()
    needed = np.sum([*best.needed.values()], axis=0).tolist()
    return tuple(
        DevicePrediction(
            compute=seconds,
            communication=best.communication,
            waiting=max(best.step - (seconds + best.communication), 0.0),
            memory=size,
            memory_limit=device.memory,
        )
        for seconds, size, device in zip(compute, needed, costs.cluster.devices, strict=True)
    )


def _alternative(way: GraphParallel, fitting: list[Candidate], workload: GraphWorkload) -> Alternative:
    best = min(fitting, key=lambda candidate: candidate.step, default=None)
    if best is None:
        return Alternative(parallel=way, step_seconds=None, pass_seconds=None)
    return Alternative(parallel=way, step_seconds=best.step, pass_seconds=_pass_seconds(workload, best))


def _nothing_fits(
    costs: Costs, closest: Candidate, parallel: AskedGraphParallel, edges: Edges | None, placement: AskedPlacement
) -> PlanError:
    """The error: which device lacks how much, what takes most, and what was tried and would fit."""
    needed = np.sum([*closest.needed.values()], axis=0)
    worst = int(np.argmax(needed / costs.limit))
    device, need, has = costs.cluster.devices[worst], int(needed[worst]), int(costs.limit[worst])
    most = max(closest.needed, key=lambda name: closest.needed[name][worst])
    size = int(closest.needed[most][worst])
    helpful = []
    for flag, change in (("--remat layer", {"remat": "layer"}), ("--dtype bfloat16", {"compute_bytes": 2})):
        work = replace(costs.workload, **change)  # type: ignore[arg-type]
        if work != costs.workload and _fits(costs, work, parallel, edges, placement):
            helpful.append(flag)
    if parallel != "auto" and _fits(costs, costs.workload, "auto", edges, placement):
        helpful.append("--graph-parallel auto")
    remedy = " or ".join(helpful) or "more or larger devices, or a smaller model"
    return PlanError(
        f"no plan fits in memory: at best, with {closest.parallel} parallelism, device {device.name} needs {need} bytes"
        f" ({format_bytes(need)}), most of it {most} ({format_bytes(size)}), and has {has} ({format_bytes(has)}):"
        f" {need - has} too many ({format_bytes(need - has)}): use {remedy}"
    )


def _fits(
    costs: Costs,
    workload: GraphWorkload,
    parallel: AskedGraphParallel,
    edges: Edges | None,
    placement: AskedPlacement,
) -> bool:
    curves = estimated(costs.cluster, workload)
    known = Costs(costs.cluster, workload, curves, placement == "specialized")
    ways = _ways(costs.cluster, workload, parallel, edges)
    return any(not candidate.short for way in ways for candidate in candidates(known, way, edges, 0))
