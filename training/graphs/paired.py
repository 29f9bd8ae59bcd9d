"""Links in a graph that is spread: each device scores every pair of a step in its own lanes, and scores are added up.

So a pair's ends may be anywhere, and are, in a draw that knows no devices. Legend: D devices, N own rows, VL pairs
(vertex, own lane), P pairs of a step, Q ends of a pair and those without an edge to the first, K channels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from models.gnn import losses
from sharding import exchange
from sharding.exchange import Exchange
from sharding.hops import LaneScores
from sharding.placement import Placement
from training.graphs.feature import FeatureSpread, lane_rows
from training.graphs.spread import Entry, Tree
from training.graphs.vertex import VertexSpread


@dataclass(frozen=True, eq=False, kw_only=True)
class PairedSpread:
    """A spread graph whose outputs are embeddings of vertices, of which pairs are scored.

    Args:
        graph: how the graph is spread.
        lanes: in which each device scores pairs.
        ragged, direct: see `sharding.exchange.build`.
    """

    graph: VertexSpread | FeatureSpread
    lanes: tuple[int, ...]
    ragged: bool = False
    direct: bool = False

    dealt: ClassVar[Mapping[str, str]] = {"ends": "P Q", "counted": "P"}

    @property
    def sizes(self) -> dict[str, np.ndarray]:
        """Of the graph, and pairs of a vertex and an own lane; at least one."""
        pairs = [[max(1, self._vertices * lanes) for lanes in self.lanes]]
        return {**self.graph.sizes, "VL": np.array(pairs)}

    @property
    def named(self) -> Tree:
        """Of the graph."""
        return self.graph.named

    @property
    def common(self) -> Tree:
        """Of the graph."""
        return self.graph.common

    @cached_property
    def exchange(self) -> Exchange:
        """From own vertices to own lanes."""
        have, want = lane_rows(self.rows(), self.lanes, self._vertices)
        return exchange.build([have], [want], ragged=self.ragged, direct=self.direct)

    @property
    def tables(self) -> Tree:
        """Index tables of the graph and of pairs, [1, D, ...]."""
        return {"graph": self.graph.tables, "pairs": self.exchange.tables}

    def rows(self) -> list[np.ndarray]:
        """Own vertices."""
        return self.graph.rows()

    def notes(self) -> list[str]:
        """Of the graph."""
        return self.graph.notes()

    def enter(self, placement: Placement, own: Tree, common: Tree, key: jax.Array) -> Entry:
        """The graph, and the loss of pairs."""
        tables = own["tables"]
        entry = self.graph.enter(placement, {**own, "tables": tables["graph"]}, common, key)
        scores = LaneScores(placement=placement, spread=self.exchange, tables=tables["pairs"], vertices=self._vertices)

        def loss(outputs_NK: jax.Array) -> jax.Array:
            rows, K = outputs_NK.shape
            lanes_NLC = outputs_NK.reshape(rows, sum(self.lanes), K // sum(self.lanes))
            found_PS = scores(partial(losses.link_scores, channels=K), lanes_NLC, own["ends"])
            return jnp.stack(losses.links(found_PS, own["counted"] > 0))

        return entry._replace(loss=loss)

    @property
    def _vertices(self) -> int:
        return self.graph.part.graph.vertices
