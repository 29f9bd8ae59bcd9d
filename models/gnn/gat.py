"""Graph attention (Velickovic et al., 2018) with several heads, over the edges that arrive and the vertex itself.

    score_uv = LeakyReLU(a_sender . W h_u + a_receiver . W h_v)
    update_v = softmax-weighted mean of W h_u over edges u -> v and of W h_v, plus b

The edge to the vertex itself is added here, beside self loops that the data have. As LeakyReLU rises, the largest score
of a vertex is the score of its largest sender term: a maximum over rows, not edges, makes the softmax stable. Numerator
and denominator are both sums over edges, so that sampled edges stand for all of them in both.

Shapes: U source rows, V target rows, D width, L lanes (heads), C channels of a lane.
"""

import jax
import jax.numpy as jnp

from models.gnn.config import GnnConfig
from models.gnn.dense import bias, kernel, lanes, merge
from models.gnn.layout import Messages, Rows, Weights
from models.gnn.passing import Passing
from models.gnn.view import View

__all__ = ["GAT", "SLOPE"]

SLOPE = 0.2  # of LeakyReLU below 0


def init(config: GnnConfig, key: jax.Array) -> Weights:
    """A square matrix, for each head a vector [L, C] of senders and one of receivers, and a bias."""
    matrix, sender, receiver = jax.random.split(key, 3)
    send = {
        "kernel": kernel(matrix, config.width, config.width),
        "sender": {"kernel": kernel(sender, config.heads, config.channels, config.channels)},
        "receiver": {"kernel": kernel(receiver, config.heads, config.channels, config.channels)},
    }
    return {"send": send, "receive": {"bias": bias(config.width)}}


def send(config: GnnConfig, weights: Weights, h_UD: jax.Array, rows: Rows) -> jax.Array:
    """`W h_u` and its sender term, [U, L, C + 1]."""
    z_ULC = lanes(h_UD @ weights["kernel"], config.heads)
    term_UL1 = jnp.sum(z_ULC * weights["sender"]["kernel"][None], axis=2, keepdims=True)
    return jnp.concatenate([z_ULC, term_UL1], axis=2)


def ask(config: GnnConfig, weights: Weights, h_VD: jax.Array, rows: Rows) -> jax.Array:
    """The receiver term of a vertex, and its sender term, [V, L, 2], without `W h_v` between."""
    matrix_DLC = lanes(weights["kernel"], config.heads)
    terms = [jnp.einsum("dlc,lc->dl", matrix_DLC, weights[name]["kernel"]) for name in ("receiver", "sender")]
    return jnp.stack([h_VD @ term_DL for term_DL in terms], axis=2)


def messages(config: GnnConfig) -> Messages:
    """Attention, with stable softmax."""
    return _attend


def receive(config: GnnConfig, weights: Weights, own_VLX: jax.Array, out_VLX: jax.Array, rows: Rows) -> jax.Array:
    """What arrived and the vertex's own share, [V, D]."""
    mean_VLC = out_VLX[:, :, :-1] + out_VLX[:, :, -1:] * own_VLX[:, :, :-1]
    return merge(mean_VLC) + weights["bias"][None, :]


def _attend(view: View, x_ULX: jax.Array, y_VL2: jax.Array | None) -> jax.Array:
    """The edges' part of the mean, and the weight of the vertex itself: [V, L, C + 1]."""
    assert y_VL2 is not None
    sender_UL1 = x_ULX[:, :, -1:].astype(jnp.float32)
    receiver_VL, own_VL = jnp.moveaxis(y_VL2.astype(jnp.float32), 2, 0)
    self_VL = _leaky(own_VL + receiver_VL)
    # Of two channels, one is the largest sender term and the other tells whether any edge arrives.
    most_VL2 = view.max(jax.lax.stop_gradient(jnp.concatenate([sender_UL1, jnp.ones_like(sender_UL1)], axis=2)))
    most_VL = jnp.where(most_VL2[:, :, 1] > 0, _leaky(most_VL2[:, :, 0] + receiver_VL), self_VL)
    shift_VL = jax.lax.stop_gradient(jnp.maximum(most_VL, self_VL))

    def weight(sender_L: jax.Array, receiver_L2: jax.Array) -> jax.Array:
        return jnp.exp(_leaky(sender_L + receiver_L2[..., 0]) - receiver_L2[..., 1])

    receivers = view.receivers(jnp.stack([receiver_VL, shift_VL], axis=2))
    weights = jax.tree.map(weight, view.senders(sender_UL1[:, :, 0]), receivers)
    values_ULX = jnp.concatenate([x_ULX[:, :, :-1], jnp.ones_like(x_ULX[:, :, -1:])], axis=2)
    sums_VLX = jnp.sum(view.weighted(values_ULX, weights), axis=1)
    self_VL1 = jnp.exp(self_VL - shift_VL)[:, :, None].astype(x_ULX.dtype)
    total_VL1 = sums_VLX[:, :, -1:] + self_VL1
    return jnp.concatenate([sums_VLX[:, :, :-1], self_VL1], axis=2) / total_VL1


def _leaky(score: jax.Array) -> jax.Array:
    return jax.nn.leaky_relu(score, SLOPE)


GAT = Passing(init=init, send=send, ask=ask, messages=messages, receive=receive)
