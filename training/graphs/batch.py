"""Many small graphs: each device has whole graphs of the batch, padded by jraph to one budget for the whole run.

Legend: D devices, N rows, E edges, G graphs of a device, one of which is padding.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import jraph
import numpy as np

from models.gnn.segments import Segments
from sharding.hops import GraphLayout, Hop, Structure
from sharding.placement import Placement
from training.graphs.graph import GraphSet
from training.graphs.spread import Entry, Part, Tree, of_rows, training_labels


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a device has room for, padding included.

    Args:
        nodes, edges, graphs: numbers.
    """

    nodes: int
    edges: int
    graphs: int


@dataclass(frozen=True, eq=False, kw_only=True)
class BatchSpread:
    """Each device has some graphs of every batch.

    Args:
        part: the graphs.
        graphs: of each device in a step.
        budgets: of each device.
        used: share of the rows and of the edges of the budgets that batches fill on average.
    """

    part: Part
    graphs: tuple[int, ...]
    budgets: tuple[Budget, ...]
    used: tuple[float, float] = (1.0, 1.0)

    named: ClassVar[Mapping[str, Any]] = {}
    common: ClassVar[Mapping[str, Any]] = {}
    tables: ClassVar[Mapping[str, Any]] = {}
    dealt: ClassVar[Mapping[str, str]] = {
        "features": "N F",
        "degree": "N R",
        "kind": "N",
        "id": "N",
        "graph": "N",
        "senders": "E",
        "receivers": "E",
        "relations": "E",
        "states": "E A",
        "n_node": "G",
        "n_edge": "G",
        "labels": "G",
    }

    @property
    def sizes(self) -> dict[str, np.ndarray]:
        """The budgets."""
        names = {"N": "nodes", "E": "edges", "G": "graphs"}
        return {axis: np.array([[getattr(b, name) for b in self.budgets]]) for axis, name in names.items()}

    def rows(self) -> list[np.ndarray]:
        """Places of each device's graphs in the batch; -1 is padding."""
        stops = np.cumsum((0, *self.graphs))
        own = (np.arange(stop - count, stop) for count, stop in zip(self.graphs, stops[1:], strict=True))
        return [np.append(ids, np.full(b.graphs - len(ids), -1)) for ids, b in zip(own, self.budgets, strict=True)]

    def notes(self) -> list[str]:
        """Budgets and their padding."""
        nodes, edges = (sum(getattr(b, name) for b in self.budgets) for name in ("nodes", "edges"))
        return [
            f"room for {nodes:,} vertices and {edges:,} edges in a step, of which {1 - self.used[0]:.1%} and"
            f" {1 - self.used[1]:.1%} are padding on average"
        ]

    def padded(self, device: int, ids: Sequence[int] | np.ndarray) -> dict[str, np.ndarray]:
        """The arrays of a device's graphs, -1 being none."""
        part, budget = self.part, self.budgets[device]
        graph = part.graph
        assert isinstance(graph, GraphSet)
        wanted = np.asarray(ids, np.int64)
        wanted = wanted[wanted >= 0]
        nodes = _ranges(graph.node_starts, wanted)
        edges = _ranges(graph.edge_starts, wanted)
        place = np.zeros(graph.vertices, np.int32)
        place[nodes] = np.arange(len(nodes))
        tuple_ = jraph.GraphsTuple(
            nodes={
                "features": graph.features[nodes],
                "degree": part.degree[nodes],
                "kind": graph.kinds[nodes].astype(np.int32),
                "id": nodes.astype(np.int32),
            },
            edges={"relations": part.relations[edges], "states": graph.edge_features[edges]},
            senders=place[graph.senders[edges]],
            receivers=place[graph.receivers[edges]],
            n_node=graph.n_node[wanted].astype(np.int32),
            n_edge=graph.n_edge[wanted].astype(np.int32),
            globals={"labels": training_labels(graph, wanted)},
        )
        found = jraph.pad_with_graphs(tuple_, budget.nodes, budget.edges, budget.graphs)
        labels = np.array(found.globals["labels"])
        labels[len(wanted) :] = -1 if labels.dtype.kind == "i" else np.nan
        counts = {"n_node": np.asarray(found.n_node), "n_edge": np.asarray(found.n_edge)}
        graph_of = np.repeat(np.arange(budget.graphs, dtype=np.int32), counts["n_node"])
        ends = {"senders": np.asarray(found.senders), "receivers": np.asarray(found.receivers)}
        values = {**found.nodes, **found.edges, **counts, **ends}
        return {name: np.asarray(value) for name, value in values.items()} | {"labels": labels, "graph": graph_of}

    def enter(self, placement: Placement, own: Tree, common: Tree, key: jax.Array) -> Entry:
        """Hops within own graphs."""
        facts, relations = of_rows(own), self.part.degree.shape[1]
        structure = Structure(
            arrays=[own[name] for name in ("senders", "receivers", "relations")],
            axes=("E", "E", "E"),
            view_of=lambda ends, targets: Segments(
                senders_E=ends[0], receivers_E=ends[1], relation_E=ends[2], targets=targets, relations=relations
            ),
        )
        hop = Hop(
            placement=placement,
            structure=structure,
            source=facts,
            target=facts,
            relations=relations,
            ends=tuple(own[name] for name in ("senders", "receivers", "n_node", "n_edge")),
        )
        layout = GraphLayout(
            placement=placement,
            hops=(hop,) * self.part.config.layers,
            edges=own["states"],
            graphs=placement.extent("G"),
            graph_of_N=own["graph"],
            shared=False,
        )
        return Entry(layout, own["features"], jnp.asarray(own["labels"]))


def dealt(graph: GraphSet, ids: np.ndarray, counts: Sequence[int], costs: Sequence[float]) -> list[np.ndarray]:
    """Graphs of a batch for each device: as many as the plan says, and so that costs are in proportion too.

    Largest graphs first, each to the device whose cost, the graph included, would be the least part of its share.

    Args:
        graph: the graphs.
        ids: those of the batch.
        counts: of each device.
        costs: of a vertex and of an edge.
    """
    weight = costs[0] * graph.n_node[ids] + costs[1] * graph.n_edge[ids]
    share, taken, load = np.array(counts, float), np.zeros(len(counts), int), np.zeros(len(counts))
    out: list[list[int]] = [[] for _ in counts]
    for at in np.argsort(-weight, kind="stable"):
        room = taken < np.array(counts)
        part = np.where(room, (load + weight[at]) / np.maximum(share, 1e-9), np.inf)
        device = int(np.argmin(part))
        out[device].append(int(ids[at]))
        taken[device] += 1
        load[device] += weight[at]
    return [np.array(sorted(own), np.int64) for own in out]


def fitted(part: Part, graph: GraphSet, deals: Iterator[list[np.ndarray]], counts: Sequence[int]) -> BatchSpread:
    """Room for the largest share of each device in all batches, with one vertex and one graph of padding."""
    sizes = np.array(
        [[[graph.n_node[own].sum(), graph.n_edge[own].sum()] for own in deal] for deal in deals], np.int64
    )  # [batches, D, 2]
    nodes, edges = sizes.max(axis=0).T
    room = tuple(
        Budget(nodes=int(n) + 1, edges=int(e), graphs=max(2, count + 1))  # jraph wants two
        for n, e, count in zip(nodes, edges, counts, strict=True)
    )
    full = np.array([sum(b.nodes for b in room), max(1, sum(b.edges for b in room))])
    rows, links = (sizes.sum(axis=1).mean(axis=0) / full).tolist()
    return BatchSpread(part=part, graphs=tuple(counts), budgets=room, used=(rows, links))


def _ranges(starts: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Numbers of all members of some groups that follow each other."""
    counts = starts[ids + 1] - starts[ids]
    offsets = np.repeat(starts[ids] - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
    return (np.arange(counts.sum()) + offsets).astype(np.int64)
