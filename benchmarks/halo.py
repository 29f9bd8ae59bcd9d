"""Halo traffic of vertex parallelism: METIS and random parts, the bound of the cut, and sums added up by the sender.

Two graphs: one made like the code of a library (functions in modules in packages, calls mostly nearby, some names known
everywhere), and one whose degrees follow a power law. Shares of 4:2:1:1. Bytes are of a training step, forward and
backward of all layers, summed over devices. An edge that is cut needs at most one row: edges cut times the bytes of a
row bound the halo from above.
"""

import numpy as np
from report import Report, flags, note

from meshes.cluster import Cluster
from meshes.cover import in_sums
from meshes.graph_planner import owners, plan_graph
from meshes.graph_workload import GraphWorkload
from meshes.partition import Edges, Parts, random_partition

SPEEDS = (4.0, 2.0, 1.0, 1.0)
PASSES = 2  # forward and backward


def library(rng: np.random.Generator, vertices: int, degree: int) -> Edges:
    """A tree of packages, modules and functions; calls to the same module, the same package, and names known to all."""
    module = np.sort(rng.integers(0, vertices // 40, vertices))
    package = module // 10
    caller = rng.integers(0, vertices, vertices * degree)
    order = rng.random(len(caller))
    near = np.where(order < 0.6, _among(rng, module, caller), _among(rng, package, caller))
    known = rng.permutation(vertices)[(vertices * rng.random(len(caller)) ** 4).astype(np.int64)]
    callee = np.where(order < 0.85, near, known)
    return Edges(caller, callee)


def powerlaw(rng: np.random.Generator, vertices: int, degree: int) -> Edges:
    """Ends drawn in proportion to rank to the power -0.8."""
    chance = np.arange(1, vertices + 1) ** -0.8
    ends = rng.permutation(vertices)[rng.choice(vertices, (2, vertices * degree), p=chance / chance.sum())]
    return Edges(ends[0], ends[1])


def traffic(report: Report, name: str, edges: Edges, vertices: int) -> None:
    """One graph: parts by METIS and by chance."""
    cluster = Cluster.from_flags(speeds=SPEEDS)
    work = GraphWorkload(
        model="gcn", layers=3, width=64, heads=8, features=64, classes=16, vertices=vertices, edges=len(edges.senders)
    )
    plan = plan_graph(cluster, work, parallel="vertex", graph=edges, placement="specialized")
    curve = plan.curves[0]
    weights = np.stack(
        [np.full(vertices, curve.vertex), curve.edge * np.bincount(edges.receivers, minlength=vertices)], axis=1
    )
    step = PASSES * work.layers * work.halo_bytes / 1e6
    halos = {}
    for kind, owner in (("METIS", owners(plan, edges)), ("random", random_partition(vertices, SPEEDS, weights, 0))):
        parts = Parts.of(edges, owner, len(SPEEDS))
        halos[kind] = int(parts.halo.sum())
        report.add(f"{name}, {kind}: edges cut", 100 * parts.cut_edges / work.edges, "%")
        report.add(f"{name}, {kind}: bound of the cut", parts.cut_edges * step, "MB")
        report.add(f"{name}, {kind}: halo", parts.halo.sum() * step, "MB")
        report.add(f"{name}, {kind}: halo over the bound", parts.halo.sum() / parts.cut_edges, "x", at_most=1)
        rows = travelling(edges, owner, len(SPEEDS))
        report.add(f"{name}, {kind}: sent, sums added up by the sender", rows * step, "MB")
        report.add(f"{name}, {kind}: that over the halo", rows / parts.halo.sum(), "x", at_most=1)
    report.add(f"{name}: halo of METIS over random", halos["METIS"] / halos["random"], "x", at_most=1)
    note(plan.table())


def travelling(edges: Edges, owner: np.ndarray, devices: int) -> int:
    """Rows that are sent in a layer: of vertices, or sums for one target."""
    sender, receiver = owner[edges.senders].astype(np.int64), owner[edges.receivers].astype(np.int64)
    cut = sender != receiver
    rows = edges.senders[cut] * devices + receiver[cut]
    sums = edges.receivers[cut] * devices + sender[cut]
    summed = in_sums(rows, sums)
    return len(np.unique(rows[~summed])) + len(np.unique(sums[summed]))


def main() -> None:
    """Count both graphs."""
    arguments = flags(__doc__)
    report = Report("halo")
    vertices = 5_000 if arguments.quick else 40_000
    for name, make in (("library", library), ("power law", powerlaw)):
        traffic(report, name, make(np.random.default_rng(0), vertices, 8), vertices)
    report.show(as_json=arguments.json)


def _among(rng: np.random.Generator, of: np.ndarray, at: np.ndarray) -> np.ndarray:
    """A random member of the group that each entry is in; groups are sorted."""
    start, stop = np.searchsorted(of, of[at]), np.searchsorted(of, of[at], side="right")
    return start + (rng.random(len(at)) * (stop - start)).astype(np.int64)


if __name__ == "__main__":
    main()
