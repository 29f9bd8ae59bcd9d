"""GraphPlan: which device does how much of a graph network's step, and what that should cost."""

from dataclasses import dataclass
from typing import Literal

from meshes import graph_table
from meshes.cluster import Cluster
from meshes.errors import UsageError
from meshes.graph_costs import GraphCurve
from meshes.graph_workload import GraphWorkload
from meshes.plan import DevicePrediction
from meshes.plan_file import PlanFile
from meshes.workload import PlacementMode

GraphParallel = Literal["vertex", "feature", "sample", "batch"]


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """A way to spread the work that was compared.

    Args:
        parallel: the way.
        step_seconds: of its best plan; None if none fits in memory.
        pass_seconds: of one pass over the training vertices; a step on the whole graph is one.
    """

    parallel: GraphParallel
    step_seconds: float | None
    pass_seconds: float | None


@dataclass(frozen=True, kw_only=True)
class GraphPlan(PlanFile):
    """Who does what; tuples have an entry for each device, in the order of the cluster.

    The owners of vertices are not stored: `meshes.graph_planner.owners` finds them again.

    Args:
        cluster, workload: what the plan is for.
        parallel: `vertex` cuts the graph, `feature` cuts the lanes of the width, `sample` deals seed vertices, `batch`
            deals small graphs.
        placement: how local work runs at unequal sizes.
        curves: the seconds of each device that the plan goes by.
        seed: of the partition.
        targets: vertices that the partition was asked for, by their average cost; with `vertex` only, else zeros.
        vertices: owned, in `vertex` and `feature`.
        lanes: of aggregation, in `feature`; elsewhere each device has all.
        seeds: of a step, in `sample`.
        graphs: of a step, in `batch`.
        edges: that a device aggregates over; of samples and batches as many as expected.
        halo: rows that other devices send it in a layer, in `vertex`.
        partition: digest of the owners, `meshes.partition.owner_digest`; with `vertex` only.
        predictions: what a step should cost each device.
        alternatives: the ways that were compared.
        even_step_seconds: of the best even plan that fits, for as many training vertices; None if none fits.
        step_seconds: of this plan.
    """

    cluster: Cluster
    workload: GraphWorkload
    parallel: GraphParallel
    placement: PlacementMode
    curves: tuple[GraphCurve, ...]
    seed: int
    targets: tuple[int, ...]
    vertices: tuple[int, ...]
    lanes: tuple[int, ...]
    seeds: tuple[int, ...]
    graphs: tuple[int, ...]
    edges: tuple[int, ...]
    halo: tuple[int, ...]
    partition: str | None
    predictions: tuple[DevicePrediction, ...]
    alternatives: tuple[Alternative, ...]
    even_step_seconds: float | None
    step_seconds: float

    def __post_init__(self) -> None:
        self._check_lengths()
        self._check_sums()
        devices = len(self.cluster.devices)
        if (devices == 1) != (self.placement == "single"):
            raise UsageError(f"placement is {self.placement} with {devices} devices")
        if (self.partition is None) == (self.parallel == "vertex"):
            raise UsageError(f"partition is {self.partition} with {self.parallel}: only vertex has one")
        if self.placement == "uniform" and (found := len(set(self._sizes()))) > 1:
            raise UsageError(f"placement is uniform, but devices have {found} different sizes: it must be switched")

    @property
    def halo_share(self) -> tuple[float, ...]:
        """Part of the rows that each device reads in a layer which others send it."""
        rows = zip(self.halo, self.vertices, strict=True)
        return tuple(halo / (halo + own) if halo else 0.0 for halo, own in rows)

    @property
    def order(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the devices in the cluster, [data groups][devices]: one group, in order."""
        return (tuple(range(len(self.curves))),)

    def prediction(self, device: int) -> DevicePrediction:
        """What a step should cost a device, by its number in the cluster."""
        return self.predictions[device]

    def part(self, device: int) -> float:
        """Of a step's work, what a device does, by its number in the cluster."""
        return self.work(device, self.curves[0]) / sum(self.work(n, self.curves[0]) for n in range(len(self.curves)))

    def size(self, device: int) -> tuple[float, float]:
        """Vertices and edges that a device computes in a step, as expected; some lanes are that part of the edges.

        Args:
            device: its number in the cluster.
        """
        work, units = self.workload, self.seeds[device] + self.graphs[device]
        if self.parallel == "sample":
            return units * work.seed_vertices, units * work.seed_edges
        if self.parallel == "batch":
            return units * work.vertices, units * work.edges
        return self.vertices[device], self.edges[device] * self.lanes[device] / work.heads

    def work(self, device: int, curve: GraphCurve) -> float:
        """What a device does in a step, in seconds of one with this curve and without halos; compares unlike shares.

        Args:
            device: its number in the cluster.
            curve: of whatever device.
        """
        vertices, edges = self.size(device)
        return vertices * curve.vertex + edges * curve.edge

    def table(self) -> str:
        """The plan as plain text, one line for each device."""
        return graph_table.render(self)

    def _sizes(self) -> list[tuple[int, ...]]:
        rows = (self.vertices, self.lanes, self.seeds, self.graphs, self.halo)
        edges = self.edges if self.parallel == "vertex" else (0,) * len(self.edges)
        return [*zip(*rows, edges, strict=True)]

    def _check_lengths(self) -> None:
        devices = len(self.cluster.devices)
        for name in ("curves", "targets", "vertices", "lanes", "seeds", "graphs", "edges", "halo", "predictions"):
            if len(values := getattr(self, name)) != devices:
                raise UsageError(f"{name} has {len(values)} entries for {devices} devices")

    def _check_sums(self) -> None:
        work, zero = self.workload, (0,) * len(self.vertices)
        totals = {
            "targets": work.vertices if self.parallel == "vertex" else 0,
            "vertices": work.vertices if self.parallel in ("vertex", "feature") else 0,
            "lanes": work.heads if self.parallel == "feature" else work.heads * len(zero),
            "seeds": work.seeds if self.parallel == "sample" else 0,
            "graphs": work.graphs if self.parallel == "batch" else 0,
        }
        for name, total in totals.items():
            values: tuple[int, ...] = getattr(self, name)
            if min(values) < 0 or sum(values) != total:
                raise UsageError(f"{name} sum to {sum(values)}, {self.parallel} parallelism deals {total}")
