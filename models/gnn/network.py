"""Graph networks: an encoder of features, a stack of message passing layers, a head.

    x = LayerNorm(features W + b)
    x = x + dropout(update(ReLU(LayerNorm(x))))      in each layer
    outputs = ReLU(LayerNorm(x)) W + b

Updates follow the normalisation and activation, as in the deep residual networks of Li et al. (2020). Outputs of graphs
are those of the mean of their vertices. The model knows no device and no padding: it is handed a layout.

Shapes: N rows, F features, D width, K outputs, G graphs.
"""

from typing import Any

import jax
import jax.numpy as jnp

from models.gnn import graphnet, passing
from models.gnn.config import GnnConfig
from models.gnn.dense import activate, bias, kernel, layer_norm, linear, norm_init
from models.gnn.dropout import dropout
from models.gnn.gat import GAT
from models.gnn.gcn import GCN
from models.gnn.gin import GIN
from models.gnn.graphnet import States
from models.gnn.hgt import HGT
from models.gnn.layout import Hop, Layout, Weights
from models.gnn.passing import Passing
from models.gnn.rgcn import RGCN
from models.gnn.sage import SAGE

__all__ = ["PASSING", "init", "outputs"]

PASSING: dict[str, Passing] = {"gcn": GCN, "sage": SAGE, "gat": GAT, "gin": GIN, "rgcn": RGCN, "hgt": HGT}

State = tuple[jax.Array, States | None]  # x_ND, and what graphnet has beside


def init(config: GnnConfig, key: jax.Array) -> Weights:
    """Fresh float32 weights as a plain nested dict; layers are stacked on a leading axis.

    The draws depend on the key and the logical shapes alone, never on how arrays are spread.
    """
    encoder, layers, head, edges = jax.random.split(key, 4)

    def layer(key: jax.Array) -> Weights:
        own = graphnet.init if config.model == "graphnet" else PASSING[config.model].init
        return {"norm": norm_init(config.width), **own(config, key)}

    weights = {
        "encoder": {
            "kernel": kernel(encoder, config.inputs, config.width),
            "bias": bias(config.width),
            "norm": norm_init(config.width),
        },
        "layers": jax.vmap(layer)(jax.random.split(layers, config.layers)),
        "norm": norm_init(config.width),
        "head": {"kernel": kernel(head, config.width, config.outputs), "bias": bias(config.outputs)},
    }
    if config.model == "graphnet":
        weights["edge_encoder"] = graphnet.edge_encoder(config, edges)
    return weights


def outputs(
    config: GnnConfig, weights: Weights, features_NF: jax.Array, layout: Layout, *, key: jax.Array | None = None
) -> jax.Array:
    """Outputs of the target rows of the last hop [N, K], or of graphs [G, K] if that is the level; float32.

    Args:
        config: sizes.
        weights: as `init` makes them; layers work in their dtype.
        features_NF: features of the source rows of the first hop.
        layout: where vertices and edges are.
        key: of dropout, which is the same however vertices are spread; None for evaluation.
    """
    hops = layout.hops
    if len(hops) != config.layers:
        raise ValueError(f"{config.layers} layers need as many hops, the layout has {len(hops)}")
    same = all(hop is hops[0] for hop in hops)
    if config.model == "graphnet" and not same:
        raise ValueError("graphnet keeps states of edges from layer to layer: all hops must be one and the same")

    def body(hop: Hop) -> Any:
        def run(state: State, layer: tuple[Weights, jax.Array]) -> tuple[State, None]:
            return _layer(config, layer, state, hop, layout, key), None

        return jax.checkpoint(run) if config.remat == "layer" else run

    state, numbers = _start(config, weights, features_NF, layout), jnp.arange(config.layers)
    if same:
        state, _ = jax.lax.scan(body(hops[0]), state, (weights["layers"], numbers))
    else:
        for i, hop in enumerate(hops):
            state, _ = body(hop)(state, (jax.tree.map(lambda w, i=i: w[i], weights["layers"]), numbers[i]))
    output = {"norm": weights["norm"], "head": weights["head"]}
    if config.level == "graph":
        return _of_graphs(output, state, layout)
    axis = hops[-1].target_axis
    return layout.local(_of_vertices, f"{axis} D -> {axis} K")(output, state[0])


def _start(config: GnnConfig, weights: Weights, features_NF: jax.Array, layout: Layout) -> State:
    axis = layout.hops[0].source_axis
    x_ND = layout.local(_encode, f"{axis} F -> {axis} D")(weights["encoder"], features_NF)
    return x_ND, graphnet.encode(weights["edge_encoder"], layout) if config.model == "graphnet" else None


def _encode(weights: Weights, features_NF: jax.Array) -> jax.Array:
    return layer_norm(weights["norm"], linear(weights, features_NF.astype(weights["kernel"].dtype)))


def _layer(
    config: GnnConfig, layer: tuple[Weights, jax.Array], state: State, hop: Hop, layout: Layout, key: jax.Array | None
) -> State:
    (weights, number), (x_ND, states) = layer, state
    if states is None:
        update_ND = passing.update(config, PASSING[config.model], weights, x_ND, hop, layout)
    else:
        update_ND, states = graphnet.update(weights, x_ND, states, hop, layout)
    if key is not None and config.dropout > 0:
        update_ND = dropout(update_ND, key, number, hop.target.id_N, config.dropout)
    return hop.keep(x_ND) + update_ND, states


def _of_vertices(weights: Weights, x_ND: jax.Array) -> jax.Array:
    return linear(weights["head"], activate(weights["norm"], x_ND)).astype(jnp.float32)


def _of_graphs(weights: Weights, state: State, layout: Layout) -> jax.Array:
    """The head on the mean over the vertices of each graph, for graphnet beside the state of the graph: [G, K]."""
    x_ND, states = state

    def counted(weights: Weights, x_ND: jax.Array) -> jax.Array:
        h_ND = activate(weights, x_ND).astype(jnp.float32)
        return jnp.concatenate([h_ND, jnp.ones_like(h_ND[:, :1])], axis=1)

    def head(weights: Weights, sums_GD: jax.Array, *globals_GD: jax.Array) -> jax.Array:
        mean_GD = (sums_GD[:, :-1] / jnp.maximum(sums_GD[:, -1:], 1.0)).astype(weights["kernel"].dtype)
        return linear(weights, sum(globals_GD, start=mean_GD)).astype(jnp.float32)

    axis, beside = layout.hops[-1].target_axis, () if states is None else (states.globals_GD,)
    sums_GD = layout.graph_sum(layout.local(counted, f"{axis} D -> {axis} S")(weights["norm"], x_ND))
    signature = "G S -> G K" if states is None else "G S, G D -> G K"
    return layout.local(head, signature)(weights["head"], sums_GD, *beside)
