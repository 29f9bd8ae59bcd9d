"""A graph cut by its features: each device has some vertices for dense work, and some lanes of all for messages.

Legend: D devices, N own rows, W pairs (vertex, own lane), R relations, A all vertices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import jax
import numpy as np

from models.gnn import buckets
from sharding import exchange
from sharding.exchange import Exchange
from sharding.hops import FeatureHop, GraphLayout, Structure
from sharding.placement import Placement
from sharding.shares import Shares
from training.graphs.spread import Entry, Part, Tree, of_rows, padding_note, whole


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
        return [padding_note(self._buckets.padding_share)]

    @cached_property
    def exchanges(self) -> tuple[Exchange, Exchange]:
        """From own vertices to own lanes, and back."""
        of_rows, of_lanes = lane_rows(self.rows(), self.lanes, self.part.graph.vertices)
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
        layout = GraphLayout(placement=placement, hops=(hop,) * self.part.config.layers)
        return Entry(layout, own["features"], own["labels"])


def lane_rows(
    rows: Sequence[np.ndarray], lanes: Sequence[int], vertices: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Ids of the rows (vertex, lane) of each device, vertex by vertex: own vertices in all lanes, all in own lanes.

    Args:
        rows: own vertices of each device; -1 is padding.
        lanes: of each device.
        vertices: number of all vertices A.
    """
    total, every, starts = sum(lanes), np.arange(vertices), np.cumsum((0, *lanes))
    of_rows = [_pairs(ids[ids >= 0], np.arange(total), total) for ids in rows]
    return of_rows, [_pairs(every, np.arange(a, a + n), total) for a, n in zip(starts, lanes, strict=False)]


def _pairs(vertices: np.ndarray, lanes: np.ndarray, total: int) -> np.ndarray:
    """Ids of rows (vertex, lane), vertex by vertex."""
    return (np.asarray(vertices, np.int64)[:, None] * total + lanes[None, :]).reshape(-1)
