"""Dropout that does not depend on how vertices are spread: which channels are dropped follows from the vertex's number.

Shapes: N rows, D channels.
"""

import jax
import jax.numpy as jnp

__all__ = ["dropout", "kept"]

LEVELS = 2**16  # the rate is rounded down to a multiple of 1 / LEVELS


def kept(key: jax.Array, layer: jax.Array | int, id_N: jax.Array, channels: int, rate: float) -> jax.Array:
    """Which channels stay, bool [N, D], each on its own.

    Args:
        key: of the step.
        layer: number of the layer.
        id_N: int32 number of each vertex in the whole graph.
        channels: D.
        rate: share that is dropped, in [0, 1).
    """
    layer_key = jax.random.fold_in(key, layer)

    def bits(id: jax.Array) -> jax.Array:
        return jax.random.bits(jax.random.fold_in(layer_key, id), (channels,), jnp.uint16)

    return jax.vmap(bits)(id_N) >= jnp.uint16(_level(rate))


def dropout(x_ND: jax.Array, key: jax.Array, layer: jax.Array | int, id_N: jax.Array, rate: float) -> jax.Array:
    """The rows with channels dropped, and those that stay divided by their share."""
    share = 1.0 - _level(rate) / LEVELS
    return jnp.where(kept(key, layer, id_N, x_ND.shape[1], rate), x_ND / share, jnp.zeros_like(x_ND))


def _level(rate: float) -> int:
    return int(rate * LEVELS)
