"""Attention over typed vertices and edges, in the manner of the heterogeneous graph transformer (Hu et al., 2020).

    score_uv = (Q_kind(v) h_v  A_r) . (K_kind(u) h_u) / sqrt(C)      for an edge u -> v of relation r, in each head
    update_v = O_kind(v) GELU(sum over edges of softmax(score) (V_kind(u) h_u) M_r)

The softmax is over all edges that arrive, whatever their relation; where none arrives the sum is 0. Both matrices of a
relation are applied on the side of the receiver, A_r to the query and M_r to the sum over the edges of r, so that
messages have no parameters. Weights are divided by their own sum, so that sampled edges stand for all.

Shapes: U source rows, V target rows, R relations, D width, L lanes (heads), C channels of a lane.
"""

import jax
import jax.numpy as jnp

from models.gnn.config import GnnConfig
from models.gnn.dense import bias, kernel, lanes, merge
from models.gnn.layout import Messages, Rows, Weights
from models.gnn.passing import Passing
from models.gnn.view import View

__all__ = ["HGT"]


def init(config: GnnConfig, key: jax.Array) -> Weights:
    """Matrices [kinds * D, D] with biases [kinds * D], one below the other, and of relations [R * D, C]."""
    query, key_, value, out, attention, message = jax.random.split(key, 6)
    return {
        "send": {
            "query": _typed(config, query),
            "key": _typed(config, key_),
            "value": _typed(config, value),
            "attention": _related(config, attention),
        },
        "receive": {"message": _related(config, message), "out": _typed(config, out)},
    }


def send(config: GnnConfig, weights: Weights, h_UD: jax.Array, rows: Rows) -> jax.Array:
    """Keys and values, [U, L, 2 C]."""
    both = [lanes(_by_kind(weights[name], h_UD, rows), config.heads) for name in ("key", "value")]
    return jnp.concatenate(both, axis=2)


def ask(config: GnnConfig, weights: Weights, h_VD: jax.Array, rows: Rows) -> jax.Array:
    """Queries of each relation, side by side in each lane, [V, L, R * C]."""
    q_VLC = lanes(_by_kind(weights["query"], h_VD, rows), config.heads) * config.channels**-0.5
    q_VLRC = jnp.einsum("vlc,rlcz->vlrz", q_VLC, _matrices(config, weights["attention"]))
    return q_VLRC.reshape(*q_VLC.shape[:2], config.relations * config.channels)


def messages(config: GnnConfig) -> Messages:
    """Attention by relation."""
    return _attend


def receive(config: GnnConfig, weights: Weights, own_VLX: jax.Array, out_VLZ: jax.Array, rows: Rows) -> jax.Array:
    """The message matrix of each relation, and the output matrix of the kind, [V, D]."""
    sum_VLRC = out_VLZ.reshape(*out_VLZ.shape[:2], config.relations, config.channels)
    sum_VLC = jnp.einsum("vlrc,rlcz->vlz", sum_VLRC, _matrices(config, weights["message"]))
    return _by_kind(weights["out"], jax.nn.gelu(merge(sum_VLC)), rows)


def _attend(view: View, x_ULX: jax.Array, y_VLZ: jax.Array | None) -> jax.Array:
    """Weighted means of values for each relation, side by side in each lane: [V, L, R * C]."""
    assert y_VLZ is not None
    k_ULC, v_ULC = jnp.split(x_ULX, 2, axis=2)
    q_VRLC = jnp.moveaxis(y_VLZ.reshape(*y_VLZ.shape[:2], view.relations, k_ULC.shape[2]), 2, 1)
    weights = view.softmax(jax.tree.map(_dot, view.receivers_by_relation(q_VRLC), view.senders(k_ULC)))
    values_ULX = jnp.concatenate([v_ULC, jnp.ones_like(v_ULC[:, :, :1])], axis=2)
    sum_VLRX = jnp.moveaxis(view.weighted(values_ULX, weights), 1, 2)
    total_VL11 = jnp.sum(sum_VLRX[..., -1:], axis=2, keepdims=True)
    mean_VLRC = sum_VLRX[..., :-1] / jnp.where(total_VL11 > 0, total_VL11, jnp.ones_like(total_VL11))
    return mean_VLRC.reshape(*y_VLZ.shape)


def _dot(q: jax.Array, k: jax.Array) -> jax.Array:
    return jnp.sum(q.astype(jnp.float32) * k.astype(jnp.float32), axis=-1)


def _typed(config: GnnConfig, key: jax.Array) -> Weights:
    rows = config.kinds * config.width
    return {"kernel": kernel(key, rows, config.width, config.width), "bias": bias(rows)}


def _related(config: GnnConfig, key: jax.Array) -> Weights:
    return {"kernel": kernel(key, config.relations * config.width, config.channels, config.channels)}


def _matrices(config: GnnConfig, weights: Weights) -> jax.Array:
    """A matrix for each relation and lane, [R, L, C, C]."""
    return weights["kernel"].reshape(config.relations, config.heads, config.channels, config.channels)


def _by_kind(weights: Weights, h_ND: jax.Array, rows: Rows) -> jax.Array:
    """Each row times the matrix of its kind, [N, D]: one product of rows that are 0 but at the place of their kind."""
    width = h_ND.shape[1]
    bias_KD = weights["bias"].reshape(-1, width)
    kind_NK = jax.nn.one_hot(rows.kind_N, bias_KD.shape[0], dtype=h_ND.dtype)
    placed_NKD = kind_NK[:, :, None] * h_ND[:, None, :]
    return placed_NKD.reshape(-1, weights["kernel"].shape[0]) @ weights["kernel"] + kind_NK @ bias_KD


HGT = Passing(init=init, send=send, ask=ask, messages=messages, receive=receive)
