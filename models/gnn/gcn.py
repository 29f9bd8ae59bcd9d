"""Graph convolution (Kipf & Welling, 2017): neighbours weighted by both degrees, with a self loop for each vertex.

    update_v = sum over edges u -> v of W h_u / sqrt((d_u + 1) (d_v + 1))  +  W h_v / (d_v + 1)  +  b

The degree d counts all edges that arrive in the whole graph, self loops that the data have included. Each edge's weight
is a product of a factor of its sender and one of its receiver, so that messages are plain sums.

Shapes: U source rows, V target rows, R relations, D width, L lanes, C channels of a lane.
"""

import jax
import jax.numpy as jnp

from models.gnn.config import GnnConfig
from models.gnn.dense import bias, kernel, lanes, merge
from models.gnn.layout import Messages, Rows, Weights
from models.gnn.passing import Passing
from models.gnn.view import View

__all__ = ["GCN", "sum_of_neighbours"]


def init(config: GnnConfig, key: jax.Array) -> Weights:
    """One square matrix and a bias."""
    width = config.width
    return {"send": {"kernel": kernel(key, width, width)}, "receive": {"bias": bias(width)}}


def send(config: GnnConfig, weights: Weights, h_UD: jax.Array, rows: Rows) -> jax.Array:
    """`W h_u / sqrt(d_u + 1)`, [U, L, C]."""
    return lanes(h_UD @ weights["kernel"] * _factor(rows, h_UD), config.heads)


def sum_of_neighbours(view: View, x_ULC: jax.Array, _: jax.Array | None) -> jax.Array:
    """Sums of what arrives over all relations, [V, L, C]."""
    return jnp.sum(view.sum(x_ULC), axis=1)


def messages(config: GnnConfig) -> Messages:
    """Plain sums."""
    return sum_of_neighbours


def receive(config: GnnConfig, weights: Weights, own_VLC: jax.Array, out_VLC: jax.Array, rows: Rows) -> jax.Array:
    """`(own + sum) / sqrt(d_v + 1) + b`, [V, D]."""
    sum_VD = merge(own_VLC + out_VLC)
    return sum_VD * _factor(rows, sum_VD) + weights["bias"][None, :]


def _factor(rows: Rows, like: jax.Array) -> jax.Array:
    return jax.lax.rsqrt(jnp.sum(rows.degree_NR, axis=1, keepdims=True) + 1.0).astype(like.dtype)


GCN = Passing(init=init, send=send, messages=messages, receive=receive)
