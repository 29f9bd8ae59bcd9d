"""Relational graph convolution (Schlichtkrull et al., 2018): a matrix for each type of edge, from a few shared ones.

    update_v = W_self h_v + sum over relations r of W_r mean(h_u of edges u -> v of r) + b,   W_r = sum_b a_rb V_b

Means divide by the degree of the relation in the whole graph. Matrices are applied by the receiver, to the sums of all
relations that one call gives, so that messages have no parameters.

Shapes: U source rows, V target rows, R relations, B bases, D width, L lanes, C channels of a lane.
"""

import jax
import jax.numpy as jnp

from models.gnn.config import GnnConfig
from models.gnn.dense import bias, kernel, merge
from models.gnn.layout import Messages, Rows, Weights
from models.gnn.passing import Passing
from models.gnn.sage import plain
from models.gnn.view import View

__all__ = ["RGCN"]


def init(config: GnnConfig, key: jax.Array) -> Weights:
    """Bases [B * D, D], their coefficients [R, B], a square matrix of the vertex itself, and a bias."""
    width, (own, basis, mix) = config.width, jax.random.split(key, 3)
    receive = {
        "self": {"kernel": kernel(own, width, width)},
        "basis": {"kernel": kernel(basis, config.bases * width, width, width)},
        "coefficients": {"kernel": kernel(mix, config.relations, config.bases, config.relations * config.bases)},
        "bias": bias(width),
    }
    return {"receive": receive}


def messages(config: GnnConfig) -> Messages:
    """Sums of each relation."""
    return _sums


def receive(config: GnnConfig, weights: Weights, own_VLC: jax.Array, out_VLZ: jax.Array, rows: Rows) -> jax.Array:
    """Means of each relation, mixed into the inputs of each basis, [V, D]."""
    count, relations = out_VLZ.shape[0], config.relations
    sum_VLRC = out_VLZ.reshape(count, config.heads, relations, config.channels)
    rate_VR = (1.0 / jnp.maximum(rows.degree_NR, 1.0)).astype(out_VLZ.dtype)
    mean_VLRC = sum_VLRC * rate_VR[:, None, :, None]
    mixed_VBLC = jnp.einsum("vlrc,rb->vblc", mean_VLRC, weights["coefficients"]["kernel"])
    related_VD = mixed_VBLC.reshape(count, config.bases * config.width) @ weights["basis"]["kernel"]
    return merge(own_VLC) @ weights["self"]["kernel"] + related_VD + weights["bias"][None, :]


def _sums(view: View, x_ULC: jax.Array, _: jax.Array | None) -> jax.Array:
    """Sums of all relations, side by side in each lane: [V, L, R * C]."""
    sum_VLRC = jnp.moveaxis(view.sum(x_ULC), 1, 2)
    return sum_VLRC.reshape(*sum_VLRC.shape[:2], sum_VLRC.shape[2] * sum_VLRC.shape[3])


RGCN = Passing(init=init, send=plain, messages=messages, receive=receive)
