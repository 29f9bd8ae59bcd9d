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
from sharding.hops import GraphLayout, Structure, VertexHop, no_edges
from sharding.placement import Placement
from training.graphs.halo import Halo
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

    def structure(self, leaves: Any) -> Structure:
        """The edges of a device."""
        return Structure(arrays=jax.tree.unflatten(self.tree, leaves), axes=self.axes, view_of=whole)


def bucketed(found: Sequence[buckets.Buckets], suffix: str = "") -> Bucketed:
    """The buckets of one device after the other; the suffix tells their axes from those of others."""
    axes = tuple(" ".join(f"{name}{suffix}" for name in names.split()) for names in found[0].axes())
    leaves = zip(*(jax.tree.leaves(one) for one in found), strict=True)
    named = [Named(parts=tuple(parts), axes=names) for parts, names in zip(leaves, axes, strict=True)]
    sizes = [one.sizes() for one in found]
    together = {f"{name}{suffix}": np.array([[size[name] for size in sizes]]) for name in sizes[0]}
    slots = [one.arriving.total_slots + one.leaving.total_slots for one in found]
    unused = sum(one.padding_share * count for one, count in zip(found, slots, strict=True))
    return Bucketed(named, axes, jax.tree.structure(found[0]), together, unused / max(sum(slots), 1))


@dataclass(frozen=True, eq=False, kw_only=True)
class VertexSpread:
    """Each device owns vertices and the edges that arrive there.

    Args:
        halo: who owns which vertices, and the rows and sums that devices send each other.
    """

    halo: Halo

    @property
    def part(self) -> Part:
        """The graph."""
        return self.halo.part

    def rows(self) -> list[np.ndarray]:
        """Own vertices; a device without any has a row of padding, that nothing arrives at."""
        return self.halo.rows

    def notes(self) -> list[str]:
        """What travels, and the padding of buckets."""
        return [self.halo.note(), *([] if self._has_states else [padding_note(self._buckets.padding)])]

    @cached_property
    def _buckets(self) -> Bucketed:
        """Edges that arrive at own rows."""
        halo, R, found = self.halo, self.part.degree.shape[1], []
        for ends, rows, reached in zip(halo.ends, halo.rows, self._reached, strict=True):
            found.append(buckets.build(*ends, sources=reached, targets=len(rows), num_relations=R))
        return bucketed(found)

    @cached_property
    def _sums(self) -> Bucketed | None:
        """Edges from own rows to own sums; None where no device makes any."""
        halo = self.halo
        if not len(halo.sums.targets):
            return None
        found = []
        for ends, rows, made in zip(halo.added, halo.rows, halo.made, strict=True):
            found.append(buckets.build(*ends, sources=len(rows), targets=len(made)))
        return bucketed(found, "_sum")

    @cached_property
    def _reached(self) -> list[int]:
        """Rows that own edges come from, on each device."""
        halo = self.halo
        return [sum(map(len, three)) for three in zip(halo.rows, halo.away, halo.received, strict=True)]

    @property
    def sizes(self) -> dict[str, np.ndarray]:
        """Own rows, rows that own edges come from, own rows and sums, and those of buckets or edges."""
        halo = self.halo
        own = np.array([[len(ids) for ids in halo.rows]])
        found = {"N": own, "U": np.array([self._reached])}
        if self._has_states:
            return found | {"E": np.array([[len(edges) for edges in halo.edges]])}
        if self._sums is not None:
            found |= {"H": own + np.array([[len(made) for made in halo.made]])} | self._sums.sizes
        return found | self._buckets.sizes

    @property
    def named(self) -> Tree:
        """Facts, exchange tables, and the edges: as buckets, or flat where edges have states."""
        halo, found = self.halo, dict(self.part.facts(self.halo.rows))
        if not self._has_states:
            sums = {} if self._sums is None else {"sums": self._sums.named}
            return found | {"edges": self._buckets.named} | sums
        order = [np.argsort(ends.receivers, kind="stable") for ends in halo.ends]
        features = self.part.graph.edge_features
        parts = [
            (ends.senders[o], ends.receivers[o], features[e[o]])
            for ends, e, o in zip(halo.ends, halo.edges, order, strict=True)
        ]
        senders, receivers, states = (tuple(column) for column in zip(*parts, strict=True))
        counts = [
            (np.array([r, 0] if rows[0] >= 0 else [0, r], np.int32), np.array([len(e), 0], np.int32))
            for rows, r, e in zip(halo.rows, self._reached, halo.edges, strict=True)
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
        """Index tables of the exchange, [1, D, ...]."""
        return self.halo.exchange.tables

    dealt: ClassVar[Mapping[str, str]] = {}

    def enter(self, placement: Placement, own: Tree, common: Tree, key: jax.Array) -> Entry:
        """Hops that fetch rows and sums of other devices."""
        facts = of_rows(own)
        if self._has_states:
            structure = Structure(arrays=(), axes=(), view_of=whole)
            ends = tuple(own[name] for name in ("senders", "receivers", "n_node", "n_edge"))
            edges = own["states"]
        else:
            structure, ends, edges = self._buckets.structure(own["edges"]), (), no_edges()
        hop = VertexHop(
            placement=placement,
            structure=structure,
            source=facts,
            target=facts,
            relations=self.part.degree.shape[1],
            ends=ends,
            halo=self.halo.exchange,
            tables=own["tables"],
            sums=None if self._sums is None else self._sums.structure(own["sums"]),
        )
        layers = self.part.config.layers
        # A row of padding is a graph of its own.
        layout = GraphLayout(placement=placement, hops=(hop,) * layers, edges=edges, graphs=2)
        return Entry(layout, own["features"], own["labels"])

    @property
    def _has_states(self) -> bool:
        return self.part.config.model == "graphnet"
