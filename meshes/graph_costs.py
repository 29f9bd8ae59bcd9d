"""Predicted seconds and bytes of a graph network's step, from measured curves or from FLOPs and bytes. NumPy only.

A device's work is dense in its vertices and sparse in its edges; the slowest device sets the pace, exchanges and
gradients come on top, and nothing is assumed to overlap. Legend: arrays are [M devices].
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from meshes.cluster import Cluster
from meshes.cost import SUMS, Grid, collective_seconds
from meshes.errors import UsageError
from meshes.graph_workload import GraphWorkload
from meshes.partition import Parts, busiest

FLOPS_PER_BYTE = 8.0  # FLOP that a device could do while a byte of a gathered row arrives from its memory: a guess
FLOAT, INDEX = 4, 4  # bytes


@dataclass(frozen=True, kw_only=True)
class GraphCurve:
    """Seconds of one device for a step, forward and backward of all layers.

    Args:
        network: digest of the network that was measured, `GraphWorkload.network`.
        fixed: of a step, whatever its size.
        vertex: of each vertex.
        edge: of each arriving edge, on all lanes.
        halo: of each row that another device sends, to use it as it came.
        train: of each training vertex, for the loss.
        byte: of the device's own for each byte that a link brings it, to pick, pack and unpack it.
    """

    network: str
    fixed: float
    vertex: float
    edge: float
    halo: float
    train: float = 0.0
    byte: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "network":
                continue
            if type(value) not in (int, float) or not np.isfinite(value) or value < 0:
                raise UsageError(f"graph curve.{field.name} is {value!r}: it must be a number, zero or more")
        if not (self.vertex > 0 and self.edge > 0):
            raise UsageError("a graph curve takes time for each vertex and edge: vertex and edge are more than zero")


def estimated(cluster: Cluster, workload: GraphWorkload) -> tuple[GraphCurve, ...]:
    """What each device should take, from its speed.

    The backward of a matrix product is twice its forward; of a gather or sum, as much; rematerialised layers run their
    forward again. A byte costs as much as `FLOPS_PER_BYTE` FLOPs.
    """
    again = workload.remat == "layer"
    dense, sparse = 3 + again, (2 + again) * FLOPS_PER_BYTE
    halo = 2.0 * workload.layers * workload.halo_bytes  # written as it arrives, read as it is used
    vertex = dense * workload.vertex_flops
    edge = dense * workload.edge_flops + sparse * workload.edge_bytes
    rates = [device.speed * cluster.flops_per_speed for device in cluster.devices]
    return tuple(
        GraphCurve(
            network=workload.network,
            fixed=0.0,
            vertex=vertex / rate,
            edge=edge / rate,
            halo=sparse * halo / rate,
            train=3 * workload.train_flops / rate,
        )
        for rate in rates
    )


@dataclass(frozen=True, eq=False)
class Portions:
    """What each device gets of a step; arrays.

    Args:
        vertices: rows of dense work.
        edges: that it aggregates over, each on all lanes; a part of the lanes counts as that part of the edges.
        halo: rows that others send it in a layer.
        train: training vertices.
        gathered: rows of D numbers that its aggregation reads in a layer.
        indices: edges whose numbers it stores.
        stored: rows of input features that it stores.
        busiest: rows of D numbers in the messages of a layer's exchanges, of the busiest device.
        rounds: of messages in a layer's exchanges; in one each device sends to one other.
        phases: whether exchanges part dense work from aggregation, so that each waits for its own slowest device.
    """

    vertices: np.ndarray
    edges: np.ndarray
    halo: np.ndarray
    train: np.ndarray
    gathered: np.ndarray
    indices: np.ndarray
    stored: np.ndarray
    busiest: float = 0.0
    rounds: int = 0
    phases: bool = False


def vertex_portions(workload: GraphWorkload, parts: Parts) -> Portions:
    """Each device computes the vertices that it owns, from halos; sums are added up where that makes them smaller."""
    halo = parts.rows if workload.adds_up else parts.halo
    return Portions(
        vertices=parts.vertices,
        edges=parts.edges,
        halo=halo.sum(axis=0),
        train=parts.train,
        gathered=parts.vertices * sum(workload.work.exchanged) + halo.sum(axis=0) * workload.work.sources,
        indices=parts.edges,
        stored=parts.vertices,
        busiest=float(workload.work.sources * busiest(halo)),
        rounds=parts.partners,
    )


def feature_portions(workload: GraphWorkload, vertices: np.ndarray, lanes: np.ndarray) -> Portions:
    """Each device computes dense layers of its own rows, and aggregates all edges on its own lanes."""
    part, whole = lanes / workload.heads, workload.vertices
    busiest = 0.0
    for rows in workload.work.exchanged:  # to lanes and back: own rows in other lanes, other rows in own lanes
        away, lent = vertices * (1 - part), (whole - vertices) * part
        busiest += rows * float(np.maximum(away, lent).max())
    return Portions(
        vertices=vertices,
        edges=part * workload.edges,
        halo=np.zeros_like(vertices),
        train=vertices * workload.train_vertices / whole,
        gathered=whole * sum(workload.work.exchanged) * part,
        indices=np.full_like(vertices, workload.edges) * (lanes > 0),
        stored=vertices,
        busiest=busiest,
        rounds=int((np.count_nonzero(vertices + lanes) - 1) * np.count_nonzero(workload.work.exchanged)),
        phases=True,
    )


def sample_portions(workload: GraphWorkload, seeds: np.ndarray) -> Portions:
    """Each device samples around its own seeds; it stores the whole graph and all features."""
    rows = seeds * float(workload.seed_rows)
    return Portions(
        vertices=seeds * workload.seed_vertices,
        edges=seeds * workload.seed_edges,
        halo=np.zeros_like(seeds),
        train=seeds,
        gathered=rows * sum(workload.work.exchanged),
        indices=np.full_like(seeds, workload.edges),
        stored=np.full_like(seeds, workload.vertices) + rows,
    )


def batch_portions(workload: GraphWorkload, graphs: np.ndarray) -> Portions:
    """Each device computes whole small graphs, of average size."""
    vertices, edges = graphs * workload.vertices, graphs * workload.edges
    return Portions(
        vertices=vertices,
        edges=edges,
        halo=np.zeros_like(graphs),
        train=graphs,
        gathered=vertices * sum(workload.work.exchanged),
        indices=edges,
        stored=vertices,
    )


@dataclass(frozen=True, eq=False)
class Costs:
    """Predicts what portions take on the devices of a cluster.

    Args:
        cluster, workload: what runs what.
        curves: of each device.
        specialized: every process compiles its own sizes; else unequal devices run one switched program.
    """

    cluster: Cluster
    workload: GraphWorkload
    curves: Sequence[GraphCurve]
    specialized: bool = False

    def rates(self, name: str) -> np.ndarray:
        """One kind of seconds of each device, a field of `GraphCurve`."""
        return np.array([getattr(curve, name) for curve in self.curves], float)

    def compute(self, portions: Portions, *, alike: bool = False) -> np.ndarray:
        """Seconds that each device works, in phases that wait for each other [phases, M].

        Args:
            portions: of the devices.
            alike: all devices have the same sizes: one plain program, whose backward recomputes nothing.
        """
        dense = self.rates("vertex") * portions.vertices + self.rates("train") * portions.train
        dense += self.rates("fixed") * (portions.vertices + portions.edges > 0)
        dense += self.rates("byte") * self._brought(portions)
        sparse = self.rates("edge") * portions.edges + self.rates("halo") * portions.halo
        work = np.stack([dense, sparse]) if portions.phases else (dense + sparse)[None]
        found: np.ndarray = work * self.slowdown(alike=alike)
        return found

    def slowdown(self, *, alike: bool = False) -> float:
        """How much longer work takes where a switched backward runs its forward again."""
        if self.specialized or alike or len(self.curves) == 1:
            return 1.0
        return 1 + 1 / (3 + (self.workload.remat == "layer"))

    def communication(self, portions: Portions) -> float:
        """Seconds of a step's messages: rows of each layer forward and backward, weights, gradients and sums.

        Weights are gathered in the compute dtype once a step, float32 gradients are scattered.
        """
        work, grid = self.workload, self._grid
        rows = self._row_bytes(portions) / float(grid.bandwidth[0])
        turns = self._passes * work.layers * portions.rounds * float(grid.latency[0])
        weights = float(collective_seconds(grid, self._weight_bytes, 2)[0])
        sums = 2 * SUMS * (len(self.curves) - 1) * grid.mesh_latency
        return rows + turns + weights + sums

    def bytes(self, portions: Portions) -> dict[str, np.ndarray]:
        """Bytes that each device needs, by what they are for [M].

        In one switched program every device allocates the arrays of the largest portion.
        """
        work, devices = self.workload, len(self.curves)
        wide = work.row_bytes
        layer = (2 + work.work.vertex) * portions.vertices * wide + portions.gathered * wide
        layer = layer + self._edge_bytes() * portions.edges
        kept = work.layers * (layer if work.remat == "none" else portions.vertices * wide)
        stored = 3 * FLOAT * -(-work.parameters // devices)
        found = {
            "parameters": np.full(devices, stored + work.parameters * (work.compute_bytes + FLOAT)),
            "features": portions.stored * work.features * FLOAT,
            "activations": kept + layer,  # one layer's gradients are about as large as what it keeps
            "edge tables": 2 * (2 + (work.relations > 1)) * INDEX * portions.indices,  # and the transposed ones
        }
        rounded = {name: np.ceil(size).astype(np.int64) for name, size in found.items()}
        return rounded if self.specialized else {name: np.full_like(s, s.max()) for name, s in rounded.items()}

    def shortage(self, needed: dict[str, np.ndarray]) -> float:
        """Bytes that all devices together lack."""
        return float(np.maximum(np.sum([*needed.values()], axis=0) - self.limit, 0).sum())

    def each_for_itself(self) -> "Costs":
        """The same, each device allocating no more than its own portion."""
        return replace(self, specialized=True)

    @property
    def limit(self) -> np.ndarray:
        """Bytes that each device has, infinite if unlimited [M]."""
        return self._grid.limit[0]

    def _brought(self, portions: Portions) -> float:
        """Bytes that links bring the busiest device in a step."""
        devices = len(self.curves)
        return self._row_bytes(portions) + self._weight_bytes * (devices - 1) / devices

    def _row_bytes(self, portions: Portions) -> float:
        return self._passes * self.workload.layers * portions.busiest * self.workload.row_bytes

    @property
    def _weight_bytes(self) -> float:
        return self.workload.parameters * (self.workload.compute_bytes + FLOAT)

    @property
    def _passes(self) -> int:
        return 2 + (self.workload.remat == "layer")

    @cached_property
    def _grid(self) -> Grid:
        return Grid.of(self.cluster, [[*range(len(self.cluster.devices))]])

    def _edge_bytes(self) -> int:
        """Bytes of what a layer keeps for each edge: scores of the heads, or values of the full width."""
        work = self.workload
        if work.work.edge:
            return 2 * work.row_bytes
        return 2 * work.heads * work.compute_bytes if work.model in ("gat", "hgt") else 0
