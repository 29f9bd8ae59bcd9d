"""GraphSAGE (Hamilton et al., 2017): a vertex and an aggregate of its neighbours have a matrix each.

    update_v = W_self h_v + W_neighbours aggregate(h_u of edges u -> v) + b

`mean` divides by the degree in the whole graph; `max` is elementwise. Both are 0 where no edge arrives.

Shapes: U source rows, V target rows, R relations, D width, L lanes, C channels of a lane.
"""

import jax
import jax.numpy as jnp

from models.gnn.config import GnnConfig
from models.gnn.dense import bias, kernel, lanes, merge
from models.gnn.gcn import sum_of_neighbours
from models.gnn.layout import Messages, Rows, Weights
from models.gnn.passing import Passing
from models.gnn.view import View

__all__ = ["SAGE", "plain"]


def init(config: GnnConfig, key: jax.Array) -> Weights:
    """Two square matrices and a bias."""
    width, (own, neighbours) = config.width, jax.random.split(key)
    receive = {
        "self": {"kernel": kernel(own, width, width, 2 * width)},
        "neighbours": {"kernel": kernel(neighbours, width, width, 2 * width)},
        "bias": bias(width),
    }
    return {"receive": receive}


def plain(config: GnnConfig, weights: Weights, h_UD: jax.Array, rows: Rows) -> jax.Array:
    """The rows themselves, [U, L, C]."""
    return lanes(h_UD, config.heads)


def messages(config: GnnConfig) -> Messages:
    """Sums for the mean, or maxima."""
    return _largest if config.aggregate == "max" else sum_of_neighbours


def receive(config: GnnConfig, weights: Weights, own_VLC: jax.Array, out_VLC: jax.Array, rows: Rows) -> jax.Array:
    """Both products, [V, D]."""
    out_VD = merge(out_VLC)
    if config.aggregate == "mean":
        degree_V1 = jnp.sum(rows.degree_NR, axis=1, keepdims=True)
        out_VD = out_VD * (1.0 / jnp.maximum(degree_V1, 1.0)).astype(out_VD.dtype)
    own_VD = merge(own_VLC) @ weights["self"]["kernel"]
    return own_VD + out_VD @ weights["neighbours"]["kernel"] + weights["bias"][None, :]


def _largest(view: View, x_ULC: jax.Array, _: jax.Array | None) -> jax.Array:
    return view.max(x_ULC)


SAGE = Passing(init=init, send=plain, messages=messages, receive=receive)
