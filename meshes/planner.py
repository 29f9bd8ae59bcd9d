"""Cluster and workload in, plan out: the fastest predicted way to use unequal devices.

Every even plan is a candidate, so that the answer is never predicted slower than the best of them. Deterministic.
"""

from typing import Literal, TypeVar

import numpy as np

from meshes.candidates import Candidate, search
from meshes.cluster import Cluster
from meshes.cost import Division
from meshes.minimax import shares_minimax
from meshes.plan import DevicePrediction, Plan, Tile
from meshes.plan_rules import kinds
from meshes.refinement import refine
from meshes.remedies import nothing_fits
from meshes.request import AskedAttention, AskedKeysValues, AskedPlacement, Request
from meshes.workload import PlacementMode, Workload

__all__ = ["plan", "shares_minimax"]

T = TypeVar("T")


def plan(
    cluster: Cluster,
    workload: Workload,
    *,
    attention: AskedAttention = "auto",
    data_groups: int | Literal["auto"] = "auto",
    placement: AskedPlacement = "auto",
    kv: AskedKeysValues = "auto",
) -> Plan:
    """The fastest predicted plan that fits in memory.

    Args:
        cluster, workload: what there is, and what it has to do.
        attention: a kind of tiling to insist on; with `data_groups` auto, groups then have at least two devices (a
            hybrid's three) where the cluster has, and so with a ring.
        data_groups: a number to insist on.
        placement: `specialized` if every process can compile its own sizes, which the caller checks; `switched`
            is kept even where sizes are equal; `auto` is `uniform` where sizes are equal, else `switched`.
        kv: `gather` or `ring` to insist on.

    Raises:
        PlanError: the request contradicts itself or the sizes, or nothing fits in memory.
    """
    request = Request(attention=attention, data_groups=data_groups, placement=placement, kv=kv)
    found = search(cluster, workload, request)
    refine(found)
    best = found.best
    if best is None:
        raise nothing_fits(cluster, workload, request, found.closest)
    if found.best_even is not None and found.best_even.step <= best.step:
        best = found.best_even
    return _finished(cluster, workload, best, found.best_even, placement)


def _finished(
    cluster: Cluster, workload: Workload, best: Candidate, best_even: Candidate | None, asked: AskedPlacement
) -> Plan:
    """The chosen candidate as a plan."""
    division = best.division
    tokens, tiles = _nested(division.tokens, int), _nested(_tiles(division), Tile)
    same = len(kinds(workload, tokens, tiles)) == 1
    mode: PlacementMode = "single" if len(cluster.devices) == 1 else "uniform" if same else "switched"
    if asked != "auto" and mode != "single":
        mode = asked
    return Plan(
        cluster=cluster,
        workload=workload,
        order=_nested(best.grid.order, int),
        microbatches=tuple(best.counts.tolist()),
        tokens=tokens,
        tiles=tiles,
        attention=division.attention,
        kv=division.kv,
        placement=mode,
        predictions=_nested(_predictions(cluster, best), DevicePrediction),
        even_step_seconds=None if best_even is None else best_even.step,
        step_seconds=best.step,
    )


def _tiles(division: Division) -> np.ndarray:
    tiles = np.empty(division.tokens.shape, object)
    for at in np.ndindex(*tiles.shape):
        heads = (int(division.start[at]), int(division.stop[at]))
        tiles[at] = Tile(heads=heads, tokens=int(division.queries[at]))
    return tiles


def _predictions(cluster: Cluster, best: Candidate) -> np.ndarray:
    """What the step costs each device; it waits for whatever it neither computes nor communicates."""
    times = best.seconds
    compute = best.counts[:, None] * (times.tokens + times.attention)
    communication = best.counts * times.communication + times.once
    predictions = np.empty(compute.shape, object)
    for g, m in np.ndindex(*predictions.shape):
        spent = float(compute[g, m] + communication[g])
        predictions[g, m] = DevicePrediction(
            compute=float(compute[g, m]),
            communication=float(communication[g]),
            waiting=max(best.step - spent, 0.0),
            memory=int(best.needed[g, m]),
            memory_limit=cluster.devices[best.grid.order[g, m]].memory,
        )
    return predictions


def _nested(values: np.ndarray, kind: type[T]) -> tuple[tuple[T, ...], ...]:
    """[G, M] array to nested tuples."""
    return tuple(tuple(row) for row in values.tolist())
