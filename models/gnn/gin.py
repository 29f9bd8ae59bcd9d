"""Graph isomorphism network (Xu et al., 2019): sums, which tell multisets of neighbours apart, then a perceptron.

    update_v = MLP((1 + epsilon) h_v + sum over edges u -> v of h_u)

Epsilon is learnt, one for each layer. The perceptron normalises its inner layer over channels; the paper did so over
the batch.

Shapes: U source rows, V target rows, D width, L lanes, C channels of a lane.
"""

import jax
import jax.numpy as jnp

from models.gnn.config import GnnConfig
from models.gnn.dense import merge, mlp, mlp_init
from models.gnn.gcn import messages
from models.gnn.layout import Rows, Weights
from models.gnn.passing import Passing
from models.gnn.sage import plain

__all__ = ["GIN"]


def init(config: GnnConfig, key: jax.Array) -> Weights:
    """A perceptron, and epsilon [1] at 0."""
    epsilon = {"scale": jnp.zeros((1,), jnp.float32)}
    return {"receive": {**mlp_init(key, config.width, config.inner, config.width), "epsilon": epsilon}}


def receive(config: GnnConfig, weights: Weights, own_VLC: jax.Array, out_VLC: jax.Array, rows: Rows) -> jax.Array:
    """The perceptron of vertex and sum, [V, D]."""
    epsilon_11 = weights["epsilon"]["scale"][None, :]
    return mlp(weights, merge(own_VLC) * (1.0 + epsilon_11) + merge(out_VLC))


GIN = Passing(init=init, send=plain, messages=messages, receive=receive)
