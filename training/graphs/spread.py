"""Who has which part of a graph: the arrays of every device, and the layout they make inside a step.

Legend: D devices, N own rows, U rows that own edges come from, E edges, R relations, A all vertices, F features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from models.gnn import buckets
from models.gnn.config import GnnConfig
from models.gnn.layout import Rows
from sharding import exchange
from sharding.exchange import Exchange
from sharding.hops import FeatureHop, GraphLayout, Structure, VertexHop
from sharding.placement import Placement
from sharding.shares import Shares
from training.graphs.graph import Graph, GraphSet


@dataclass(frozen=True, eq=False, kw_only=True)
class Named:
    """One array for every device, and the names of its axes.

    Args:
        parts: an array for each device; equal but for the axes that differ.
        axes: their names, as in signatures.
    """

    parts: tuple[np.ndarray, ...]
    axes: str

    def stacked(self) -> np.ndarray:
        """[1, D, ...], zeros where a device has less than another."""
        shape = tuple(np.max([part.shape for part in self.parts], axis=0))
        out = np.zeros((1, len(self.parts), *shape), self.parts[0].dtype)
        for device, part in enumerate(self.parts):
            out[0, device][tuple(slice(0, size) for size in part.shape)] = part
        return out


Tree = Mapping[str, Any]


class Spread(Protocol):
    """A way of spreading a graph over devices."""

    @property
    def sizes(self) -> dict[str, np.ndarray]:
        """Of the axes that differ between devices, [1, D] each."""

    @property
    def named(self) -> Tree:
        """A tree of `Named`: what each device has."""

    @property
    def common(self) -> Tree:
        """A tree of arrays that every device has whole."""

    @property
    def dealt(self) -> Mapping[str, str]:
        """Axes of the arrays that come with each batch, by name."""

    @property
    def tables(self) -> Tree:
        """Index tables of exchanges, [1, D, ...]."""

    def enter(self, placement: Placement, own: Tree, common: Tree, key: jax.Array) -> "Entry":
        """What a network is given, from a device's own arrays, at the extents of their axes, and the common ones."""

    def rows(self) -> list[np.ndarray]:
        """Numbers of what each device has outputs for; -1 is padding."""

    def notes(self) -> list[str]:
        """Lines for people: padding, if there is any."""


class Entry(NamedTuple):
    """What a network is given.

    Args:
        layout: where edges are.
        features: of the rows before the first hop, [N, F].
        labels: of the outputs, for training; -1 or NaN is none.
    """

    layout: GraphLayout
    features: jax.Array
    labels: jax.Array


@dataclass(frozen=True, eq=False, kw_only=True)
class Part:
    """A graph as a network reads it.

    Args:
        graph: read from disk.
        config: of the network, which may see all relations as one.
    """

    graph: Graph | GraphSet
    config: GnnConfig

    @cached_property
    def relations(self) -> np.ndarray:
        """Relation of each edge that the network tells apart, int32 [E]."""
        return self.graph.relations if self.config.typed else np.zeros(self.graph.edges, np.int32)

    @cached_property
    def degree(self) -> np.ndarray:
        """Edges that arrive at each vertex, float32 [A, R]."""
        degree = self.graph.degree
        return degree if self.config.typed else degree.sum(axis=1, keepdims=True, dtype=np.float32)

    def facts(self, ids: Sequence[np.ndarray]) -> dict[str, Named]:
        """Degree, kind, number, features and labels of each device's rows; -1 is padding."""
        graph = self.graph
        train = training_labels(graph, np.arange(graph.vertices))
        none = np.int32(-1) if train.dtype.kind == "i" else np.float32(np.nan)
        take = {
            "degree": (self.degree, "N R"),
            "kind": (graph.kinds.astype(np.int32), "N"),
            "id": (np.arange(graph.vertices, dtype=np.int32), "N"),
            "features": (graph.features, "N F"),
        }
        take["labels"] = (train, "N")
        absent = {"labels": none, "id": -1}
        return {
            name: Named(parts=tuple(_rows(array, at, absent.get(name, 0)) for at in ids), axes=axes)
            for name, (array, axes) in take.items()
        }


def training_labels(graph: Graph | GraphSet, ids: np.ndarray) -> np.ndarray:
    """Labels to train on of vertices or graphs; -1 or NaN where there is none."""
    labels = np.zeros(len(ids), np.float32) if graph.labels is None else graph.labels
    train = np.full_like(labels, -1 if labels.dtype.kind == "i" else np.nan)
    train[graph.train] = labels[graph.train]
    return train[ids]


def _rows(array: np.ndarray, ids: np.ndarray, none: Any) -> np.ndarray:
    out = array[np.maximum(ids, 0)]
    out[ids < 0] = none
    return out


def of_rows(arrays: Tree) -> Rows:
    """Facts of rows from named arrays."""
    return Rows(arrays["degree"], arrays["kind"], arrays["id"])


class Bucketed(NamedTuple):
    """The buckets of all devices.

    Args:
        named: leaves.
        axes: of each leaf.
        tree: that the leaves make.
        sizes: of the axes that differ, [1, D].
        padding: share of slots that hold no edge.
    """

    named: list[Named]
    axes: tuple[str, ...]
    tree: Any
    sizes: dict[str, np.ndarray]
    padding: float


def bucketed(found: Sequence[buckets.Buckets]) -> Bucketed:
    """The buckets of one device after the other."""
    axes, tree = found[0].axes(), jax.tree.structure(found[0])
    leaves = zip(*(jax.tree.leaves(one) for one in found), strict=True)
    named = [Named(parts=tuple(parts), axes=names) for parts, names in zip(leaves, axes, strict=True)]
    sizes = [one.sizes() for one in found]
    together = {name: np.array([[size[name] for size in sizes]]) for name in sizes[0]}
    slots = [one.arriving.total_slots + one.leaving.total_slots for one in found]
    unused = sum(one.padding_share * count for one, count in zip(found, slots, strict=True))
    return Bucketed(named, axes, tree, together, unused / max(sum(slots), 1))


def whole(view: Any, _: int) -> Any:
    """A view that is made of its arrays alone."""
    return view


@dataclass(frozen=True, eq=False, kw_only=True)
class VertexSpread:
    """Each device owns vertices and the edges that arrive there.

    Args:
        part: the graph.
        owner: device of each vertex, int [A].
        devices: how many D.
        ragged, direct: see `sharding.exchange.build`.
    """

    part: Part
    owner: np.ndarray
    devices: int
    ragged: bool = False
    direct: bool = False

    def rows(self) -> list[np.ndarray]:
        """Own vertices; a device without any has a row of padding, that nothing arrives at."""
        own = (np.flatnonzero(self.owner == device) for device in range(self.devices))
        return [ids if len(ids) else np.array([-1]) for ids in own]

    def notes(self) -> list[str]:
        """Padding of buckets."""
        return [] if self._has_states else [_padding(self._buckets.padding)]

    @cached_property
    def edges(self) -> list[np.ndarray]:
        """Numbers of the edges of each device."""
        owner = self.owner[self.part.graph.receivers]
        return [np.flatnonzero(owner == device) for device in range(self.devices)]

    @cached_property
    def halos(self) -> list[np.ndarray]:
        """Vertices of others that own edges come from."""
        found = []
        for device, edges in enumerate(self.edges):
            senders = np.unique(self.part.graph.senders[edges])
            found.append(senders[self.owner[senders] != device])
        return found

    @cached_property
    def ends(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Rows at the ends of each device's edges: among own rows and halo, and among own rows."""
        graph, place, found = self.part.graph, np.zeros(len(self.owner), np.int32), []
        rows = self.rows()
        for ids in rows:
            place[ids[ids >= 0]] = np.arange(np.sum(ids >= 0))
        for device, edges in enumerate(self.edges):
            senders = graph.senders[edges]
            away = len(rows[device]) + np.searchsorted(self.halos[device], senders)
            local = np.where(self.owner[senders] == device, place[senders], away)
            found.append((local.astype(np.int32), place[graph.receivers[edges]]))
        return found

    @cached_property
    def halo(self) -> Exchange:
        """From own rows to own rows and halo."""
        have = [ids[ids >= 0] for ids in self.rows()]
        want = [np.concatenate(pair) for pair in zip(have, self.halos, strict=True)]
        return exchange.build([have], [want], ragged=self.ragged, direct=self.direct)

    @cached_property
    def _buckets(self) -> Bucketed:
        found = []
        for edges, (senders, receivers), rows, halo in zip(self.edges, self.ends, self.rows(), self.halos, strict=True):
            relations, R = self.part.relations[edges], self.part.degree.shape[1]
            sources, targets = len(rows) + len(halo), len(rows)
            found.append(
                buckets.build(senders, receivers, relations, sources=sources, targets=targets, num_relations=R)
            )
        return bucketed(found)

    @property
    def sizes(self) -> dict[str, np.ndarray]:
        """Own rows, rows that own edges come from, and those of buckets or edges."""
        own = np.array([[len(ids) for ids in self.rows()]])
        found = {"N": own, "U": own + np.array([[len(halo) for halo in self.halos]])}
        if self._has_states:
            return found | {"E": np.array([[len(edges) for edges in self.edges]])}
        return found | self._buckets.sizes

    @property
    def named(self) -> Tree:
        """Facts, exchange tables, and the edges: as buckets, or flat where edges have states."""
        found: dict[str, Any] = dict(self.part.facts(self.rows()))
        if not self._has_states:
            return found | {"edges": self._buckets.named}
        order = [np.argsort(receivers, kind="stable") for _, receivers in self.ends]
        features = self.part.graph.edge_features
        parts = [(s[o], r[o], features[e[o]]) for (s, r), e, o in zip(self.ends, self.edges, order, strict=True)]
        senders, receivers, states = (tuple(column) for column in zip(*parts, strict=True))
        counts = [
            (np.array([len(r), 0] if r[0] >= 0 else [0, len(r)], np.int32), np.array([len(e), 0], np.int32))
            for r, e in zip(self._reached(), self.edges, strict=True)
        ]
        return found | {
            "senders": Named(parts=senders, axes="E"),
            "receivers": Named(parts=receivers, axes="E"),
            "states": Named(parts=states, axes="E A"),
            "n_node": Named(parts=tuple(n for n, _ in counts), axes="G"),
            "n_edge": Named(parts=tuple(e for _, e in counts), axes="G"),
        }

    @property
    def common(self) -> Tree:
        """Nothing."""
        return {}

    @property
    def tables(self) -> Tree:
        """Index tables of the halo, [1, D, ...]."""
        return self.halo.tables

    dealt: ClassVar[Mapping[str, str]] = {}

    def enter(self, placement: Placement, own: Tree, common: Tree, key: jax.Array) -> Entry:
        """Hops that fetch the halo."""
        facts = of_rows(own)
        if self._has_states:
            structure = Structure(arrays=(), axes=(), view_of=whole)
            ends = tuple(own[name] for name in ("senders", "receivers", "n_node", "n_edge"))
            edges = own["states"]
        else:
            arrays = jax.tree.unflatten(self._buckets.tree, own["edges"])
            structure, ends = Structure(arrays=arrays, axes=self._buckets.axes, view_of=whole), ()
            edges = jnp.zeros((0, 0), jnp.float32)
        hop = VertexHop(
            placement=placement,
            structure=structure,
            source=facts,
            target=facts,
            relations=self.part.degree.shape[1],
            ends=ends,
            halo=self.halo,
            tables=own["tables"],
        )
        padding = (facts.id_N < 0).astype(jnp.int32)
        layout = GraphLayout(
            placement=placement,
            hops=(hop,) * self.part.config.layers,
            edges=edges,
            graphs=2,
            graph_of_N=padding,
            shared=True,
        )
        return Entry(layout, own["features"], own["labels"])

    @property
    def _has_states(self) -> bool:
        return self.part.config.model == "graphnet"

    def _reached(self) -> list[np.ndarray]:
        return [np.concatenate(pair) for pair in zip(self.rows(), self.halos, strict=True)]


@dataclass(frozen=True, eq=False, kw_only=True)
class FeatureSpread:
    """Each device owns vertices for dense work, and lanes of all vertices for messages.

    Args:
        part: the graph.
        vertices, lanes: of each device.
        ragged, direct: see `sharding.exchange.build`.
    """

    part: Part
    vertices: tuple[int, ...]
    lanes: tuple[int, ...]
    ragged: bool = False
    direct: bool = False

    def rows(self) -> list[np.ndarray]:
        """Own vertices; a device without any has a row of padding."""
        return [ids if len(ids) else np.array([-1]) for ids in Shares(self.vertices, striped=False).indices]

    def notes(self) -> list[str]:
        """Padding of buckets."""
        return [_padding(self._buckets.padding_share)]

    @cached_property
    def exchanges(self) -> tuple[Exchange, Exchange]:
        """From own vertices to own lanes, and back."""
        total, every = sum(self.lanes), np.arange(self.part.graph.vertices, dtype=np.int64)
        starts = np.cumsum((0, *self.lanes))
        of_rows = [_pairs(ids[ids >= 0], np.arange(total), total) for ids in self.rows()]
        of_lanes = [_pairs(every, np.arange(a, a + n), total) for a, n in zip(starts, self.lanes, strict=False)]
        forms: dict[str, bool] = {"ragged": self.ragged, "direct": self.direct}
        return exchange.build([of_rows], [of_lanes], **forms), exchange.build([of_lanes], [of_rows], **forms)

    @cached_property
    def _buckets(self) -> buckets.Buckets:
        graph, R = self.part.graph, self.part.degree.shape[1]
        senders, receivers, N = graph.senders, graph.receivers, graph.vertices
        return buckets.build(senders, receivers, self.part.relations, sources=N, targets=N, num_relations=R)

    @property
    def sizes(self) -> dict[str, np.ndarray]:
        """Own rows, and pairs of a vertex and an own lane; at least one."""
        pairs = [[max(1, self.part.graph.vertices * lanes) for lanes in self.lanes]]
        return {"N": np.array([[len(ids) for ids in self.rows()]]), "W": np.array(pairs)}

    @property
    def named(self) -> Tree:
        """Facts."""
        return self.part.facts(self.rows())

    @property
    def common(self) -> Tree:
        """The edges of the whole graph."""
        return {"edges": jax.tree.leaves(self._buckets)}

    @property
    def tables(self) -> Tree:
        """Index tables of both exchanges, [1, D, ...]."""
        return {"spread": self.exchanges[0].tables, "join": self.exchanges[1].tables}

    dealt: ClassVar[Mapping[str, str]] = {}

    def enter(self, placement: Placement, own: Tree, common: Tree, key: jax.Array) -> Entry:
        """Hops that change between own vertices and own lanes."""
        facts, found = of_rows(own), self._buckets
        arrays = jax.tree.unflatten(jax.tree.structure(found), common["edges"])
        axes = tuple(f"{names}".replace(" ", "_all ") + "_all" for names in found.axes())
        hop = FeatureHop(
            placement=placement,
            structure=Structure(arrays=arrays, axes=axes, view_of=whole),
            source=facts,
            target=facts,
            relations=self.part.degree.shape[1],
            spread=self.exchanges[0],
            join=self.exchanges[1],
            spread_tables=own["tables"]["spread"],
            join_tables=own["tables"]["join"],
            vertices=self.part.graph.vertices,
        )
        layout = GraphLayout(
            placement=placement,
            hops=(hop,) * self.part.config.layers,
            edges=jnp.zeros((0, 0), jnp.float32),
            graphs=1,
            graph_of_N=jnp.zeros_like(facts.id_N),
            shared=True,
        )
        return Entry(layout, own["features"], own["labels"])


def _padding(share: float) -> str:
    return f"edges in buckets by degree, {share:.1%} of their slots padding"


def _pairs(vertices: np.ndarray, lanes: np.ndarray, total: int) -> np.ndarray:
    """Ids of rows (vertex, lane), vertex by vertex."""
    return (np.asarray(vertices, np.int64)[:, None] * total + lanes[None, :]).reshape(-1)
