"""A graph cut by its vertices: each device has some of them, and the edges that arrive there.

Legend: D devices, N own rows, U rows that own edges come from, E own edges, R relations, A all vertices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from models.gnn import buckets
from sharding import exchange
from sharding.exchange import Exchange
from sharding.hops import GraphLayout, Structure, VertexHop, no_edges
from sharding.placement import Placement
from training.graphs.spread import Entry, Named, Part, Tree, of_rows, padding_note, whole


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
        return [] if self._has_states else [padding_note(self._buckets.padding)]

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
            edges = no_edges()
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
        layers = self.part.config.layers
        # A row of padding is a graph of its own.
        layout = GraphLayout(placement=placement, hops=(hop,) * layers, edges=edges, graphs=2)
        return Entry(layout, own["features"], own["labels"])

    @property
    def _has_states(self) -> bool:
        return self.part.config.model == "graphnet"

    def _reached(self) -> list[np.ndarray]:
        return [np.concatenate(pair) for pair in zip(self.rows(), self.halos, strict=True)]
