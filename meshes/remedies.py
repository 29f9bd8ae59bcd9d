"""The error when nothing fits in memory: which device lacks how much, and what was tried and would fit."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from meshes.candidates import Candidate, search
from meshes.cluster import Cluster
from meshes.errors import PlanError
from meshes.request import Request
from meshes.units import format_bytes
from meshes.workload import Workload, divisors


def nothing_fits(cluster: Cluster, workload: Workload, request: Request, closest: Candidate | None) -> PlanError:
    """The error to raise.

    Args:
        cluster, workload, request: what was to be planned.
        closest: the candidate that lacks the least memory; None if there is no candidate at all.
    """
    if closest is None:
        return PlanError(
            f"{request.attention} attention of {workload.heads} heads leaves no band of several devices on devices"
            " of these speeds: use --attention auto"
        )
    at = tuple(int(i) for i in np.unravel_index(np.argmax(closest.needed / closest.grid.limit), closest.needed.shape))
    device, needed = cluster.devices[closest.grid.order[at]], int(closest.needed[at])
    limit = device.memory or 0
    return PlanError(
        f"no plan fits in memory: at best device {device.name} needs {needed} bytes ({format_bytes(needed)}) and has"
        f" {limit} ({format_bytes(limit)}): {_remedy(cluster, workload, request)}"
    )


def _remedy(cluster: Cluster, workload: Workload, request: Request) -> str:
    helpful: dict[str, str] = {}
    for text, work, ask in _single_changes(workload, request):
        flag = text.split()[0]
        if flag not in helpful and _fits(cluster, work, ask):
            helpful[flag] = text
    if helpful:
        return f"use {' or '.join(helpful.values())}"
    least = replace(workload, microbatch=1, remat="layer", compute_bytes=2)
    if _fits(cluster, least, Request(placement=request.placement)):
        return "use several of --remat layer, --microbatch 1, --dtype bfloat16, --attention auto, --data-groups auto"
    return "use more or larger devices, a smaller model or a shorter --seq-len"


def _single_changes(workload: Workload, request: Request) -> Iterator[tuple[str, Workload, Request]]:
    """Changes of one flag that may save memory, the gentlest first."""
    if workload.remat == "none":
        yield "--remat layer", replace(workload, remat="layer"), request
    for rows in divisors(workload.microbatch)[-2:-5:-1]:
        yield f"--microbatch {rows}", replace(workload, microbatch=rows), request
    if request.attention in ("head", "hybrid"):
        yield "--attention context", workload, replace(request, attention="context")
    if request.data_groups not in ("auto", 1):
        yield "--data-groups 1", workload, replace(request, data_groups=1)
    if request.kv == "gather":
        yield "keys and values in a ring", workload, replace(request, kv="ring", attention="context")
    if workload.compute_bytes > 2:
        yield "--dtype bfloat16", replace(workload, compute_bytes=2), request


def _fits(cluster: Cluster, workload: Workload, request: Request) -> bool:
    return search(cluster, workload, request, first=True).best is not None
