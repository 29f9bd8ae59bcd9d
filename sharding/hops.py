"""Hops of graph networks between devices: what a layer sends before, and returns after, its local messages.

A hop is written for a model that knows no device (`models.gnn.layout`): it hands over own rows and gets own rows back.
Legend: N own rows, U rows that own edges come from, W pairs (vertex, own lane), A all vertices, L lanes, X, Y, Z any
channels, D width, E own edges, G graphs, R relations, F sampled neighbours of a row, S own sums, H own rows and sums.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import jraph
from jax import lax

from sharding.chain import follow
from sharding.exchange import Exchange
from sharding.placement import Placement
from sharding.weights import Keep

Messages = Callable[[Any, jax.Array, Any], jax.Array]
ViewOf = Callable[[Any, int], Any]  # (tree of arrays, number of targets) -> view


@dataclass(frozen=True, eq=False, kw_only=True)
class Structure:
    """The edges of one device, as arrays that a view is made of.

    Args:
        arrays: a tree of this device's arrays.
        axes: names of the axes of each leaf, for signatures.
        view_of: makes the view.
    """

    arrays: Any
    axes: tuple[str, ...]
    view_of: ViewOf

    @property
    def leaves(self) -> list[jax.Array]:
        """The arrays, in the order of `axes`."""
        return jax.tree.leaves(self.arrays)

    def view(self, leaves: Sequence[jax.Array], targets: int) -> Any:
        """The view of exact arrays."""
        return self.view_of(jax.tree.unflatten(jax.tree.structure(self.arrays), leaves), targets)


@dataclass(frozen=True, eq=False, kw_only=True)
class Hop:
    """Messages among own rows: what the kinds of hops have in common; alone, that of whole graphs on a device.

    Args:
        placement: runs local work.
        structure: own edges.
        source, target: facts of own rows before and after, with degree_NR, kind_N and id_N.
        relations: number of relations R.
        source_axis, target_axis, edge_axis: names of rows in signatures.
        ends: senders, receivers [E] and vertices and edges of graphs [G]; for networks with states of edges.
    """

    placement: Placement
    structure: Structure
    source: Any
    target: Any
    relations: int
    source_axis: str = "N"
    target_axis: str = "N"
    edge_axis: str = "E"
    ends: tuple[jax.Array, ...] = ()

    @property
    def reach(self) -> str:
        """Name of the axis of the rows that own edges come from."""
        return self.source_axis

    def fetch(self, x_NX: jax.Array) -> jax.Array:
        """Rows that own edges come from, the first of them own rows."""
        return x_NX

    def keep(self, x_U: jax.Array) -> jax.Array:
        """The rows of targets."""
        return x_U

    def messages(self, fn: Messages, x_NLX: jax.Array, y_NLY: jax.Array | None = None) -> jax.Array:
        """`fn(view, x, y)` on all rows that own targets hear from, [N, L, Z]."""
        structure, asked = self.structure, () if y_NLY is None else (y_NLY,)
        x_ULX = self.fetch(x_NLX.reshape(x_NLX.shape[0], math.prod(x_NLX.shape[1:])))
        x_ULX = x_ULX.reshape(x_ULX.shape[0], *x_NLX.shape[1:])

        def run(_: Any, ids_N: jax.Array, x: jax.Array, *rest: jax.Array) -> jax.Array:
            view = structure.view(rest[len(asked) :], ids_N.shape[0])
            return fn(view, x, rest[0] if asked else None)

        t = self.target_axis
        ins = ", ".join([t, f"{self.reach} L X", *[f"{t} L Y"] * len(asked), *structure.axes])
        return local(self.placement, run, f"{ins} -> {t} L Z")((), self.target.id_N, x_ULX, *asked, *structure.leaves)

    def network(
        self, fn: Any, weights: Any, x_ND: jax.Array, edges_ED: jax.Array, globals_GD: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """`fn(weights, graph, N)` on own edges; see `models.gnn.layout.Hop.network`."""

        def run(weights: Any, ids_N: jax.Array, *arrays: jax.Array) -> tuple[jax.Array, ...]:
            x_UD, edges_ED, globals_GD, senders_E, receivers_E, n_node_G, n_edge_G = arrays
            graph = jraph.GraphsTuple(
                nodes=x_UD,
                edges=edges_ED,
                globals=globals_GD,
                senders=senders_E,
                receivers=receivers_E,
                n_node=n_node_G,
                n_edge=n_edge_G,
            )
            found = fn(weights, graph, ids_N.shape[0])
            return found.nodes, found.edges, found.globals

        n, e = self.target_axis, self.edge_axis
        signature = f"{n}, {self.reach} D, {e} D, G D, {e}, {e}, G, G -> {n} D, {e} D, G P"
        arrays = (self.fetch(x_ND), edges_ED, globals_GD, *self.ends)
        found: tuple[jax.Array, jax.Array, jax.Array]
        found = self.placement.local(run, signature)(weights, self.target.id_N, *arrays)
        return found


@dataclass(frozen=True, eq=False, kw_only=True)
class VertexHop(Hop):
    """Each device has some vertices and the edges that arrive there; rows of other devices (the halo) are sent.

    Args:
        halo: from own rows, and own sums, to own rows, rows of others and their sums.
        tables: of the exchange.
        sums: edges from own rows to sums that are added up here for other devices; None where there are none.
    """

    halo: Exchange
    tables: dict[str, jax.Array]
    sums: Structure | None = None

    @property
    def reach(self) -> str:
        """Own rows and halo."""
        return "U"

    def fetch(self, x_NX: jax.Array) -> jax.Array:
        """Own rows, then the halo."""
        x_HX = x_NX if self.sums is None else self._with_sums(self.sums, x_NX)
        return self.halo(x_HX[None], self.tables, self.placement.extent("U"))[0]

    def _with_sums(self, sums: Structure, x_NX: jax.Array) -> jax.Array:
        """Own rows, then what others get in sums."""

        def run(_: Any, x_NX: jax.Array, *leaves: jax.Array) -> jax.Array:
            sum_S11X = sums.view(leaves, 0).sum(x_NX[:, None, :])
            return jnp.concatenate([x_NX, sum_S11X[:, 0, 0]])

        signature = f"{', '.join(['N X', *sums.axes])} -> H X"
        x_HX: jax.Array = local(self.placement, run, signature)((), x_NX, *sums.leaves)
        return x_HX


@dataclass(frozen=True, eq=False, kw_only=True)
class FeatureHop(Hop):
    """Each device has some vertices for dense work, and some lanes of all vertices for messages.

    Args:
        spread, join: exchanges of rows (vertex, lane): from own vertices to own lanes, and back.
        spread_tables, join_tables: of the exchanges.
        vertices: number of all vertices A.
    """

    spread: Exchange
    join: Exchange
    spread_tables: dict[str, jax.Array]
    join_tables: dict[str, jax.Array]
    vertices: int

    def messages(self, fn: Messages, x_NLX: jax.Array, y_NLY: jax.Array | None = None) -> jax.Array:
        """`fn(view, x, y)` on all vertices in own lanes, the results again in own rows: [N, L, Z]."""
        rows, lanes, X = x_NLX.shape
        both = x_NLX if y_NLY is None else jnp.concatenate([x_NLX, y_NLY], axis=2)
        both_RX = both.reshape(rows * lanes, both.shape[2])
        both_WX = self.spread(both_RX[None], self.spread_tables, self.placement.extent("W"))[0]
        structure = self.structure

        def run(_: Any, both_WX: jax.Array, *leaves: jax.Array) -> jax.Array:
            view, own = structure.view(leaves, self.vertices), both_WX.shape[0] // self.vertices

            def of(both_ALX: jax.Array) -> jax.Array:
                return fn(view, both_ALX[:, :, :X], None if y_NLY is None else both_ALX[:, :, X:])

            if not own:  # no lane: a row of zeros, whose exchanges keep their places in the order of all
                one = jax.ShapeDtypeStruct((self.vertices, 1, both_WX.shape[1]), both_WX.dtype)
                kind = jax.eval_shape(of, one)
                return follow(jnp.zeros((both_WX.shape[0], kind.shape[2]), kind.dtype), both_WX)
            out_ALZ = of(both_WX.reshape(self.vertices, own, both_WX.shape[1]))
            return out_ALZ.reshape(both_WX.shape[0], out_ALZ.shape[2])

        signature = f"{', '.join(['W X', *structure.axes])} -> W Z"
        out_WZ = local(self.placement, run, signature)((), both_WX, *structure.leaves)
        out = self.join(out_WZ[None], self.join_tables, rows * lanes)
        return out.reshape(rows, lanes, out_WZ.shape[1])


@dataclass(frozen=True, eq=False, kw_only=True)
class SampleHop(Hop):
    """Sampled neighbours: the rows before the hop are the targets, then the neighbours of each."""

    def keep(self, x_U: jax.Array) -> jax.Array:
        """The first rows; they are as many as there are targets."""
        names = [chr(ord("a") + axis) for axis in range(x_U.ndim - 1)]
        tail = " ".join(names)

        def run(_: Any, ids_N: jax.Array, x_U: jax.Array) -> jax.Array:
            return x_U[: ids_N.shape[0]]

        signature = f"{self.target_axis}, {self.source_axis} {tail} -> {self.target_axis} {tail}"
        out: jax.Array = local(self.placement, run, signature)((), self.target.id_N, x_U)
        return out


@dataclass(frozen=True, eq=False, kw_only=True)
class LaneScores:
    """Scores of pairs of any vertices, as sums over lanes: each device has some lanes of all vertices.

    Args:
        placement: runs local work.
        spread: from own vertices to own lanes, rows (vertex, lane).
        tables: of the exchange.
        vertices: number of all vertices A.
    """

    placement: Placement
    spread: Exchange
    tables: dict[str, jax.Array]
    vertices: int

    def __call__(self, fn: Callable[[jax.Array], jax.Array], x_NLC: jax.Array, ends_PQ: jax.Array) -> jax.Array:
        """`fn(ends_PQC) -> [P, S]` of own channels, added up over devices.

        Args:
            fn: has no parameters and adds up over channels.
            x_NLC: own rows.
            ends_PQ: vertices of every pair, the same on every device.
        """
        rows, lanes, channels = x_NLC.shape
        x_WC = self.spread(x_NLC.reshape(1, rows * lanes, channels), self.tables, self.placement.extent("VL"))[0]

        def run(_: Any, x_WC: jax.Array, ends_PQ: jax.Array) -> jax.Array:
            own = x_WC.shape[0] // self.vertices
            if not own:  # no lane: as in a hop
                kind = jax.eval_shape(fn, jax.ShapeDtypeStruct((*ends_PQ.shape, channels), x_WC.dtype))
                return follow(jnp.zeros(kind.shape, kind.dtype), x_WC)
            x_AX = x_WC.reshape(self.vertices, own * channels)
            return fn(x_AX[ends_PQ])

        scores_PS = local(self.placement, run, "VL C, P Q -> P S")((), x_WC, ends_PQ)
        return scores_PS if self.placement.mode == "single" else lax.psum(scores_PS, "seq")


@dataclass(frozen=True, eq=False, kw_only=True)
class GraphLayout:
    """What a graph network is handed inside a step; see `models.gnn.layout.Layout`.

    Args:
        placement: runs local work.
        hops: one for each layer.
        edges: features of own edges [E, A]; where edges have states.
        graphs: number of graphs G on a device.
        graph_of_N: int32 graph of own rows; where graphs have outputs.
        shared: whether graphs reach over devices.
    """

    placement: Placement
    hops: tuple[Hop, ...]
    edges: jax.Array = field(default_factory=lambda: no_edges())
    graphs: int = 1
    graph_of_N: jax.Array | None = None
    shared: bool = True

    def local(self, fn: Callable[..., Any], signature: str) -> Callable[..., Any]:
        """`fn(weights, *arrays)` on exact local arrays; see `Placement.local`."""
        return self.placement.local(fn, signature)

    def total(self, x: jax.Array) -> jax.Array:
        """Sum over the devices that share a graph."""
        return lax.psum(x, "seq") if self.shared and self.placement.mode != "single" else x

    def graph_sum(self, x_ND: jax.Array) -> jax.Array:
        """Sums of the rows of each graph, [G, D]."""

        def run(_: Any, x_ND: jax.Array, graph_of_N: jax.Array, graphs_G: jax.Array) -> jax.Array:
            return jraph.segment_sum(x_ND, graph_of_N, graphs_G.shape[0])

        numbers_G = jnp.arange(self.graphs, dtype=jnp.int32)
        return self.total(local(self.placement, run, "N D, N, G -> G D")((), x_ND, self.graph_of_N, numbers_G))


def no_edges() -> jax.Array:
    """Features of no edge."""
    return jnp.zeros((0, 0), jnp.float32)


def local(placement: Placement, fn: Callable[..., Any], signature: str) -> Callable[..., Any]:
    """`Placement.local` for work without parameters."""
    return replace(placement, weights=Keep()).local(fn, signature)
