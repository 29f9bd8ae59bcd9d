"""A graph, and many small graphs, as arrays of the host.

N vertices, E edges, R relations (edge types), F features of a vertex, A features of an edge, G graphs.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np

from meshes.errors import UsageError
from training.graphs import checks

DTYPES = {
    "senders": np.int64, "receivers": np.int64, "features": np.float32, "relations": np.int32, "kinds": np.int32,
    "edge_features": np.float32, "train": np.int64, "valid": np.int64, "test": np.int64,
}  # fmt: skip

Task = Literal["classification", "regression"]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Arrays:
    name: str
    senders: np.ndarray
    receivers: np.ndarray
    features: np.ndarray
    relations: np.ndarray
    kinds: np.ndarray
    edge_features: np.ndarray
    labels: np.ndarray | None
    relation_names: tuple[str, ...] = ("edge",)
    kind_names: tuple[str, ...] = ("vertex",)
    classes: tuple[str, ...] = ()
    train: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    valid: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    test: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def vertices(self) -> int:
        """Number of vertices."""
        return len(self.features)

    @property
    def edges(self) -> int:
        """Number of edges, duplicates and self loops counted."""
        return len(self.senders)

    @property
    def task(self) -> Task:
        """Classification where there are classes, regression otherwise."""
        return "classification" if self.classes else "regression"

    @cached_property
    def arrivals(self) -> np.ndarray:
        """Number of edges that arrive at each vertex by relation, int64 [N, R]; duplicates and self loops count."""
        shape = self.vertices, len(self.relation_names)
        cells = self.receivers * shape[1] + self.relations
        return np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape).astype(np.int64, copy=False)

    @property
    def degree(self) -> np.ndarray:
        """In-degree of each vertex by relation, float32 [N, R]."""
        return self.arrivals.astype(np.float32)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all arrays and names of types and classes, whatever they were read from."""
        digest = hashlib.blake2b(digest_size=12)
        for spec in dataclasses.fields(self):
            value = getattr(self, spec.name)
            if isinstance(value, np.ndarray):
                said = f"{spec.name} {value.dtype.str} {value.shape}"
                digest.update(said.encode() + np.ascontiguousarray(value).tobytes())
            elif spec.name != "name":
                digest.update(f"{spec.name} {value!r}".encode())
        return digest.hexdigest()

    def _check(self, count: int, of: str) -> None:
        name, vertices, edges = self.name, self.vertices, self.edges
        if not vertices:
            raise UsageError(f"{name} is empty: it has 0 vertices and {edges} edges; give a graph with vertices")
        for what, dtype in DTYPES.items():
            if (found := getattr(self, what).dtype) != dtype:
                raise UsageError(f"{name}: {what} has dtype {found}, wanted {dtype.__name__}: convert it")
        checks.shape(f"{name}: features", self.features, (vertices, None), "vertices")
        if not self.features.shape[1]:
            raise UsageError(f"{name}: features has shape {self.features.shape}: a model needs one column or more")
        checks.shape(f"{name}: kinds", self.kinds, (vertices,), "vertices")
        checks.shape(f"{name}: senders", self.senders, (edges,), "edges")
        checks.shape(f"{name}: receivers", self.receivers, (edges,), "edges")
        checks.shape(f"{name}: relations", self.relations, (edges,), "edges")
        checks.shape(f"{name}: edge features", self.edge_features, (edges, None), "edges")
        checks.ids(f"{name}: senders", self.senders, vertices, "vertex")
        checks.ids(f"{name}: receivers", self.receivers, vertices, "vertex")
        checks.ids(f"{name}: relations", self.relations, len(self.relation_names), "relation")
        checks.ids(f"{name}: kinds", self.kinds, len(self.kind_names), "kind")
        checks.real_numbers(f"{name}: features", self.features)
        checks.real_numbers(f"{name}: edge features", self.edge_features)
        if self.labels is not None:
            checks.shape(f"{name}: labels", self.labels, (count,), "vertices" if of == "vertex" else "graphs")
        if self.labels is not None and self.task == "classification":
            checks.labels(f"{name}: labels", self.labels, len(self.classes))
        elif self.labels is not None:
            checks.real_numbers(f"{name}: labels", self.labels, missing=True)
        parts = {"train": self.train, "valid": self.valid, "test": self.test}
        checks.parts(name, parts, None if self.labels is None else labelled(self.labels), count, of)


@dataclass(frozen=True, kw_only=True, eq=False)
class Graph(_Arrays):
    """One graph. Messages flow along its edges, from sender to receiver.

    Edges are kept as they were read: directed (a source that is undirected is read as both directions), duplicates as
    often as they stand and each with its own message, self loops where there are some and nowhere else. A vertex
    without edges is a vertex like others, with degree 0. A vertex without a label takes part in messages, never in a
    loss or a metric: it stands in none of train, valid and test.

    Args:
        name: what it was read from, for messages.
        senders, receivers: ends of the edges, int64 [E].
        features: float32 [N, F], finite.
        relations: type of each edge, int32 [E].
        kinds: type of each vertex, int32 [N].
        edge_features: float32 [E, A], finite; A may be 0.
        labels: int32 [N], -1 without label, for classification; float32 [N], NaN without label, for regression; None
            where links are all there is to predict.
        relation_names, kind_names: of the R relations and of the kinds.
        classes: their names; none for regression.
        train, valid, test: ids of vertices, int64, ascending, apart from each other.

    Errors:
        UsageError: anything of this does not hold.
    """

    def __post_init__(self) -> None:
        self._check(self.vertices, "vertex")


@dataclass(frozen=True, kw_only=True, eq=False)
class GraphSet(_Arrays):
    """Many small graphs, one after the other, with a label for each graph.

    As `Graph`, but senders and receivers are numbered through all graphs, and labels, train, valid and test are of
    graphs, not of vertices. A graph may have no edges, and no vertices.

    Args:
        n_node, n_edge: vertices and edges of each graph, int64 [G].
    """

    n_node: np.ndarray
    n_edge: np.ndarray

    def __post_init__(self) -> None:
        name, graphs = self.name, len(self.n_node)
        checks.shape(f"{name}: n_edge", self.n_edge, (graphs,), "graphs")
        for what, sizes, total in (("n_node", self.n_node, self.vertices), ("n_edge", self.n_edge, self.edges)):
            if (sizes < 0).any() or int(sizes.sum()) != total:
                rows = "vertices" if what == "n_node" else "edges"
                raise UsageError(f"{name}: {what} sums to {int(sizes.sum())}, but there are {total} {rows}: mend one")
        self._check(graphs, "graph")
        home = np.repeat(np.arange(graphs), self.n_edge)
        graph_of = np.repeat(np.arange(graphs), self.n_node)
        for what, ends in (("sender", self.senders), ("receiver", self.receivers)):
            away = np.flatnonzero(graph_of[ends] != home)
            if len(away):
                at = int(away[0])
                raise UsageError(
                    f"{name}: {what} {ends[at]} of edge {at} is a vertex of graph {graph_of[ends[at]]}, but the edge"
                    f" belongs to graph {home[at]}: mend the edge, n_node or n_edge"
                )

    @property
    def graphs(self) -> int:
        """Number of graphs."""
        return len(self.n_node)

    @cached_property
    def node_starts(self) -> np.ndarray:
        """First vertex of each graph, and the number of all vertices; int64 [G + 1]."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.n_node)])

    @cached_property
    def edge_starts(self) -> np.ndarray:
        """First edge of each graph, and the number of all edges; int64 [G + 1]."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.n_edge)])


def labelled(labels: np.ndarray) -> np.ndarray:
    """Which labels are given, bool."""
    return ~np.isnan(labels) if labels.dtype.kind == "f" else labels >= 0


Data = TypeVar("Data", bound=_Arrays)  # Graph or GraphSet


def both_ways(data: Data) -> Data:
    """The graph, or graphs, with every edge in the other direction too, as a relation of its own.

    Relations double to 2 R: "x" and "x reversed"; features of an edge serve both its directions. Reversed edges stand
    after all others of their graph.
    """
    names = data.relation_names
    order = np.arange(2 * data.edges)
    sizes: dict[str, Any] = {}
    if isinstance(data, GraphSet):
        home = np.repeat(np.arange(data.graphs), data.n_edge)
        order, sizes = np.argsort(np.concatenate([home, home]), kind="stable"), {"n_edge": 2 * data.n_edge}
    return dataclasses.replace(
        data,
        senders=np.concatenate([data.senders, data.receivers])[order],
        receivers=np.concatenate([data.receivers, data.senders])[order],
        relations=np.concatenate([data.relations, data.relations + np.int32(len(names))])[order],
        edge_features=np.concatenate([data.edge_features, data.edge_features])[order],
        relation_names=(*names, *(f"{name} reversed" for name in names)),
        **sizes,
    )
