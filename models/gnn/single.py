"""The layout of one device: whole graphs as flat edge lists, all rows at hand. What other layouts are compared with.

Shapes: N vertices, U source rows, V target rows, E edges, R relations, L lanes, C channels, D width, A edge features, G
graphs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import jraph

from models.gnn.layout import Messages, Network, Rows, Weights
from models.gnn.segments import Segments

__all__ = ["Single", "SingleHop", "degrees", "single"]


@dataclass(frozen=True, eq=False, kw_only=True)
class SingleHop:
    """A hop of one device. The target rows are the first of the source rows, or all of them.

    Args:
        view: edges, from source to target rows.
        source, target: facts of rows before and after.
        n_node_G, n_edge_G: int32 vertices and edges of each graph, which follow each other.
        source_axis, target_axis: names of rows in signatures.
    """

    view: Segments
    source: Rows
    target: Rows
    n_node_G: jax.Array
    n_edge_G: jax.Array
    source_axis: str = "N"
    target_axis: str = "N"
    edge_axis: str = "E"

    @property
    def relations(self) -> int:
        """Number of relations R."""
        return self.view.relations

    def messages(self, fn: Messages, x_ULC: jax.Array, y_VLC: jax.Array | None = None) -> jax.Array:
        """`fn(view, x, y)`."""
        return fn(self.view, x_ULC, y_VLC)

    def network(
        self, fn: Network, weights: Weights, x_UD: jax.Array, edges_ED: jax.Array, globals_GD: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """`fn(weights, graph, N)` on all edges."""
        graph = jraph.GraphsTuple(
            nodes=x_UD,
            edges=edges_ED,
            globals=globals_GD,
            senders=self.view.senders_E,
            receivers=self.view.receivers_E,
            n_node=self.n_node_G,
            n_edge=self.n_edge_G,
        )
        found = fn(weights, graph, self.view.targets)
        return found.nodes, found.edges, found.globals

    def keep(self, x_U: jax.Array) -> jax.Array:
        """The first V rows."""
        return x_U[: self.view.targets]


@dataclass(frozen=True, eq=False, kw_only=True)
class Single:
    """A layout of one device.

    Args:
        hops: one for each layer.
        edges: features of edges [E, A].
        n_node_G: int32 vertices of each graph, which follow each other.
    """

    hops: tuple[SingleHop, ...]
    edges: jax.Array
    n_node_G: jax.Array

    @property
    def graphs(self) -> int:
        """Number of graphs G."""
        return self.n_node_G.shape[0]

    def local(self, fn: Callable[..., Any], signature: str) -> Callable[..., Any]:
        """`fn` itself."""
        return fn

    def total(self, x: jax.Array) -> jax.Array:
        """The array itself."""
        return x

    def graph_sum(self, x_ND: jax.Array) -> jax.Array:
        """Sums of the rows of each graph, [G, D]."""
        return jraph.segment_sum(x_ND, self._graph_of(x_ND.shape[0]), self.graphs)

    def _graph_of(self, rows: int) -> jax.Array:
        graphs_G = jnp.arange(self.graphs, dtype=jnp.int32)
        return jnp.repeat(graphs_G, self.n_node_G, total_repeat_length=rows)


def single(
    senders_E: jax.Array,
    receivers_E: jax.Array,
    *,
    vertices: int,
    layers: int,
    relations: int = 1,
    relation_E: jax.Array | None = None,
    kind_N: jax.Array | None = None,
    edges_EA: jax.Array | None = None,
    n_node_G: jax.Array | None = None,
    n_edge_G: jax.Array | None = None,
) -> Single:
    """The layout of a graph, or of several that follow each other, on one device; may be built inside `jit`.

    Args:
        senders_E, receivers_E: int32 vertices at the ends of each edge; a receiver of `vertices` is padding.
        vertices: number of vertices N.
        layers: number of hops, which are all the same.
        relations: number of relations R.
        relation_E: int32 relation of each edge; all 0 without.
        kind_N: int32 kind of each vertex; all 0 without.
        edges_EA: features of edges; none without.
        n_node_G, n_edge_G: int32 vertices and edges of each graph; one graph without.
    """
    count = senders_E.shape[0]
    relation_E = jnp.zeros((count,), jnp.int32) if relation_E is None else relation_E
    n_node_G = jnp.full((1,), vertices, jnp.int32) if n_node_G is None else n_node_G
    n_edge_G = jnp.full((1,), count, jnp.int32) if n_edge_G is None else n_edge_G
    rows = Rows(
        degree_NR=degrees(receivers_E, relation_E, vertices, relations),
        kind_N=jnp.zeros((vertices,), jnp.int32) if kind_N is None else kind_N,
        id_N=jnp.arange(vertices, dtype=jnp.int32),
    )
    view = Segments(
        senders_E=senders_E, receivers_E=receivers_E, relation_E=relation_E, targets=vertices, relations=relations
    )
    hop = SingleHop(view=view, source=rows, target=rows, n_node_G=n_node_G, n_edge_G=n_edge_G)
    edges_EA = jnp.zeros((count, 0), jnp.float32) if edges_EA is None else edges_EA
    return Single(hops=(hop,) * layers, edges=edges_EA, n_node_G=n_node_G)


def degrees(receivers_E: jax.Array, relation_E: jax.Array, vertices: int, relations: int) -> jax.Array:
    """Number of edges of each relation that arrive at each vertex, float32 [N, R]; padding is not counted."""
    ones_E = jnp.ones(receivers_E.shape, jnp.float32)
    counts = jraph.segment_sum(ones_E, receivers_E * relations + relation_E, vertices * relations)
    return counts.reshape(vertices, relations)
