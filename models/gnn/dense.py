"""Dense pieces that the graph networks share: plain functions of whole weights and exact rows.

Shapes: N rows, I inputs, O outputs, D width, L lanes, C channels of a lane.
"""

import jax
import jax.numpy as jnp

from models.gnn.layout import Weights

__all__ = ["activate", "bias", "kernel", "lanes", "layer_norm", "linear", "merge", "mlp", "mlp_init", "norm_init"]

NORM_EPSILON = 1e-5


def kernel(key: jax.Array, inputs: int, outputs: int, fan_in: int | None = None) -> jax.Array:
    """A random matrix [I, O] of variance 1 / fan_in, which is the number of inputs unless it is given."""
    rate = max(1, inputs if fan_in is None else fan_in) ** -0.5
    return rate * jax.random.normal(key, (inputs, outputs), jnp.float32)


def bias(outputs: int) -> jax.Array:
    """Zeros [O]."""
    return jnp.zeros((outputs,), jnp.float32)


def linear(weights: Weights, x_NI: jax.Array) -> jax.Array:
    """`x kernel + bias`: [N, O]."""
    return x_NI @ weights["kernel"] + weights["bias"][None, :]


def norm_init(width: int) -> Weights:
    """Weights of `layer_norm`."""
    return {"scale": jnp.ones((width,), jnp.float32), "bias": bias(width)}


def layer_norm(weights: Weights, x_ND: jax.Array) -> jax.Array:
    """Layer normalisation (Ba et al., 2016), in float32 whatever the dtype of the rows."""
    wide_ND = x_ND.astype(jnp.float32)
    centred_ND = wide_ND - jnp.mean(wide_ND, axis=1, keepdims=True)
    rate_N1 = jax.lax.rsqrt(jnp.mean(jnp.square(centred_ND), axis=1, keepdims=True) + NORM_EPSILON)
    scale_D, bias_D = (weights[name].astype(jnp.float32) for name in ("scale", "bias"))
    return (centred_ND * rate_N1 * scale_D[None, :] + bias_D[None, :]).astype(x_ND.dtype)


def activate(weights: Weights, x_ND: jax.Array) -> jax.Array:
    """ReLU of the normalised rows: what every layer begins with."""
    return jax.nn.relu(layer_norm(weights, x_ND))


def mlp_init(key: jax.Array, inputs: int, inner: int, outputs: int) -> Weights:
    """Weights of `mlp`."""
    up, down = jax.random.split(key)
    return {
        "up": {"kernel": kernel(up, inputs, inner), "bias": bias(inner)},
        "norm": norm_init(inner),
        "down": {"kernel": kernel(down, inner, outputs), "bias": bias(outputs)},
    }


def mlp(weights: Weights, x_NI: jax.Array) -> jax.Array:
    """A perceptron with one inner layer, normalised: [N, O]."""
    return linear(weights["down"], activate(weights["norm"], linear(weights["up"], x_NI)))


def lanes(x_ND: jax.Array, count: int) -> jax.Array:
    """The width as lanes: [N, L, C]."""
    return x_ND.reshape(x_ND.shape[0], count, x_ND.shape[1] // count)


def merge(x_NLC: jax.Array) -> jax.Array:
    """Lanes as one width: [N, D]."""
    return x_NLC.reshape(x_NLC.shape[0], x_NLC.shape[1] * x_NLC.shape[2])
