"""What a graph network is handed: rows, hops between rows, and where local work runs.

Shapes: N rows, U source rows of a hop, V target rows, E edges, R relations, L lanes (heads), C channels of a lane, D
width, A edge features, G graphs.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jraph

from models.gnn.view import View

__all__ = ["Hop", "Layout", "Messages", "Network", "Rows", "Weights"]

Weights = dict[str, Any]
Messages = Callable[[View, jax.Array, Any], jax.Array]  # (view, x_ULC, y_VLC or None) -> [V, L, any]
Network = Callable[[Weights, jraph.GraphsTuple, int], jraph.GraphsTuple]  # (weights, graph, own rows V) -> graph


class Rows(NamedTuple):
    """Facts of rows.

    Args:
        degree_NR: float32 number of edges that arrive in the whole graph, for each relation; duplicates and self loops
            are counted.
        kind_N: int32 kind of vertex; zeros where vertices have no kinds.
        id_N: int32 number of the vertex in the whole graph.
    """

    degree_NR: jax.Array
    kind_N: jax.Array
    id_N: jax.Array


class Hop(Protocol):
    """One step of messages, from source rows to target rows; where all vertices take part, both are the same rows."""

    @property
    def source_axis(self) -> str:
        """Name of the axis of own rows before the hop in signatures of `Layout.local`."""
        ...

    @property
    def target_axis(self) -> str:
        """Name of the axis of own rows after the hop."""
        ...

    @property
    def edge_axis(self) -> str:
        """Name of the axis of own edges: those that arrive at own target rows."""
        ...

    @property
    def source(self) -> Rows:
        """Facts of own rows before the hop."""
        ...

    @property
    def target(self) -> Rows:
        """Facts of own rows after the hop."""
        ...

    @property
    def relations(self) -> int:
        """Number of relations R."""
        ...

    def messages(self, fn: Messages, x_ULC: jax.Array, y_VLC: jax.Array | None = None) -> jax.Array:
        """`fn(view, x, y)` on all rows that own targets hear from: [V, L, any].

        Args:
            fn: has no parameters and closes over no array; treats lanes alike and apart, for it may see fewer of them.
            x_ULC: own rows before the hop.
            y_VLC: own rows after the hop; None where `fn` reads none.
        """
        ...

    def network(
        self, fn: Network, weights: Weights, x_UD: jax.Array, edges_ED: jax.Array, globals_GD: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """`fn(weights, graph, V)` as local work on own edges: its nodes [V, D], its edges [E, D], its globals [G, any].

        The nodes of the graph are own rows, the first V, followed by those rows of other devices that own edges are
        sent from. Its edges are those that arrive at own rows, so that each edge has one owner and receivers are below
        V. Nodes and edges of one graph follow each other as n_node and n_edge say, rows of other devices counted to the
        last graph. There is no padding, or it has a graph of its own. V is a Python int. Returned are nodes for own
        rows alone, and as globals sums over own rows and own edges, which the model hands to `Layout.total`.

        Args:
            fn: gets whole weights, closes over no array, is differentiated inside.
            weights: as `Layout.local` takes them.
            x_UD: own rows before the hop, which are also those after it.
            edges_ED: states of own edges.
            globals_GD: states of graphs, equal on all devices that share a graph.
        """
        ...

    def keep(self, x_U: jax.Array) -> jax.Array:
        """The target rows of an array of source rows: the first V."""
        ...


class Layout(Protocol):
    """Where the vertices, edges and graphs of one pass are; knows what the model does not: devices."""

    @property
    def hops(self) -> Sequence[Hop]:
        """One for each layer, first layer first."""
        ...

    @property
    def edges(self) -> jax.Array:
        """Features of own edges [E, A], in the order of `Hop.network`; A may be 0."""
        ...

    @property
    def graphs(self) -> int:
        """Number of graphs G that own rows belong to."""
        ...

    def local(self, fn: Callable[..., Any], signature: str) -> Callable[..., Any]:
        """`fn(weights, *arrays)` on exact local arrays; the signature names every axis, "N D, N -> N L C"."""
        ...

    def total(self, x: jax.Array) -> jax.Array:
        """Sum over the devices that share a graph, the same on each; where graphs are whole, the array itself."""
        ...

    def graph_sum(self, x_ND: jax.Array) -> jax.Array:
        """Sums of the rows of each graph, over devices where they share it: [G, D]."""
        ...
