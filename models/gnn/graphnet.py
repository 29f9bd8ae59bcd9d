"""Graph network (Battaglia et al., 2018): states of edges, vertices and graphs, each updated by a perceptron.

    e' = e + MLP(e, x_sender, x_receiver, g)
    x' = x + MLP(x, sum of e' that arrive, g)
    g' = g + MLP(g, mean of x', mean of e')

Inputs of perceptrons are normalised, but for the sums. Only edges that arrive are aggregated. Edges and vertices are
updated by `jraph.GraphNetwork` on one device's edges; its global update only adds up, as a graph may reach over
devices: sums and counts are added over them before the perceptron of the graph. Types of edges are seen where they are
among the edges' features.

Shapes: U rows of the graph, V own rows, E edges, G graphs, D width, A edge features, P = 2 D + 2 sums and counts.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jraph

from models.gnn.config import GnnConfig
from models.gnn.dense import activate, bias, kernel, layer_norm, linear, mlp, mlp_init, norm_init
from models.gnn.layout import Hop, Layout, Weights
from models.gnn.view import wide

__all__ = ["States", "edge_encoder", "encode", "init", "update"]


class States(NamedTuple):
    """What layers hand on beside vertices: edges [E, D] and graphs [G, D]."""

    edges_ED: jax.Array
    globals_GD: jax.Array


def init(config: GnnConfig, key: jax.Array) -> Weights:
    """Three perceptrons, and norms of edges and graphs; the norm of vertices is every layer's."""
    width, (edge, node, whole) = config.width, jax.random.split(key, 3)
    return {
        "edge": {"norm": norm_init(width), "mlp": mlp_init(edge, 4 * width, config.inner, width)},
        "node": {"mlp": mlp_init(node, 3 * width, config.inner, width)},
        "global": {"norm": norm_init(width), "mlp": mlp_init(whole, 3 * width, config.inner, width)},
    }


def edge_encoder(config: GnnConfig, key: jax.Array) -> Weights:
    """Weights of `encode`; without features, all edges begin with the same bias."""
    matrix = {"kernel": kernel(key, config.edge_features, config.width)} if config.edge_features else {}
    return {**matrix, "bias": bias(config.width), "norm": norm_init(config.width)}


def encode(weights: Weights, layout: Layout) -> States:
    """States before the first layer: encoded edges, and graphs at 0."""

    def encoder(weights: Weights, features_EA: jax.Array) -> jax.Array:
        features_EA = features_EA.astype(weights["bias"].dtype)
        if "kernel" in weights:
            return layer_norm(weights["norm"], linear(weights, features_EA))
        rows_ED = jnp.broadcast_to(weights["bias"][None, :], (features_EA.shape[0], weights["bias"].shape[0]))
        return layer_norm(weights["norm"], rows_ED)

    axis = layout.hops[0].edge_axis
    edges_ED = layout.local(encoder, f"{axis} A -> {axis} D")(weights, layout.edges)
    return States(edges_ED, jnp.zeros((layout.graphs, edges_ED.shape[1]), edges_ED.dtype))


def update(weights: Weights, x_VD: jax.Array, states: States, hop: Hop, layout: Layout) -> tuple[jax.Array, States]:
    """What a layer adds to its vertices, [V, D], and the new states of edges and graphs."""
    ours = {name: weights[name] for name in ("norm", "edge", "node")} | {"globals": weights["global"]["norm"]}
    update_VD, edges_ED, sums_GP = hop.network(_network, ours, x_VD, states.edges_ED, states.globals_GD)
    globals_GD = layout.local(_global, "G D, G P -> G D")(weights["global"], states.globals_GD, layout.total(sums_GP))
    return update_VD, States(edges_ED, globals_GD)


def _network(weights: Weights, graph: jraph.GraphsTuple, own: int) -> jraph.GraphsTuple:
    """Updates of edges and own vertices, and float32 sums and counts of both for each graph [G, P]."""
    x_UD = graph.nodes

    def edge(e_ED: jax.Array, sender_ED: jax.Array, receiver_ED: jax.Array, global_ED: jax.Array) -> jax.Array:
        inputs = (activate(weights["edge"]["norm"], e_ED), sender_ED, receiver_ED, global_ED)
        return e_ED + mlp(weights["edge"]["mlp"], jnp.concatenate(inputs, axis=1))

    def node(h_UD: jax.Array, _: jax.Array, arrived_UD: jax.Array, global_UD: jax.Array) -> dict[str, jax.Array]:
        inputs = [a[:own] for a in (h_UD, arrived_UD, global_UD)]
        update_VD = mlp(weights["node"]["mlp"], jnp.concatenate(inputs, axis=1))
        return {"update": update_VD, "state": x_UD[:own] + update_VD}

    def pool(x_ND: jax.Array, graph_N: jax.Array, graphs: int) -> jax.Array:
        wide_ND = x_ND.astype(wide(x_ND.dtype))
        counted_ND = jnp.concatenate([wide_ND, jnp.ones_like(wide_ND[:, :1])], axis=1)
        return jraph.segment_sum(counted_ND, graph_N[: x_ND.shape[0]], graphs)

    def gather_sums(nodes: dict[str, jax.Array], edges_GD: jax.Array, _: Any) -> jax.Array:
        return jnp.concatenate([nodes["state"], edges_GD], axis=1)

    network = jraph.GraphNetwork(edge, node, gather_sums, _sum, pool, pool)
    globals_GD = activate(weights["globals"], graph.globals)
    found = network(graph._replace(nodes=activate(weights["norm"], x_UD), globals=globals_GD))
    return found._replace(nodes=found.nodes["update"])


def _global(weights: Weights, globals_GD: jax.Array, sums_GP: jax.Array) -> jax.Array:
    means = [a_GD[:, :-1] / jnp.maximum(a_GD[:, -1:], 1.0) for a_GD in jnp.split(sums_GP, 2, axis=1)]
    inputs = [activate(weights["norm"], globals_GD), *(mean_GD.astype(globals_GD.dtype) for mean_GD in means)]
    return globals_GD + mlp(weights["mlp"], jnp.concatenate(inputs, axis=1))


def _sum(x_ED: jax.Array, row_E: jax.Array, rows: int) -> jax.Array:
    return jraph.segment_sum(x_ED.astype(wide(x_ED.dtype)), row_E, rows).astype(x_ED.dtype)
