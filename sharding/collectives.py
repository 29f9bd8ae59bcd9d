"""All-gather and reduce-scatter along a mesh axis, straight from device to device where rings are slow.

Gloo, between processes on CPU, passes an all-gather round a ring, where each message waits for the one before, and
polls while it waits in a reduce-scatter, at the cost of the work. An all-to-all sends the same bytes at once (see
`docs/design/006-direct-collectives.md`).
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax


def all_gather(x: jax.Array, axis_name: str, *, direct: bool) -> jax.Array:
    """The arrays of all devices, [n, ...] in their order."""
    if not direct:
        return lax.all_gather(x, axis_name)
    copies = jnp.broadcast_to(x, (lax.axis_size(axis_name), *x.shape))
    return lax.all_to_all(copies, axis_name, split_axis=0, concat_axis=0)


def reduce_scatter(x_n: jax.Array, axis_name: str, *, direct: bool) -> jax.Array:
    """The sum over devices of what each has for this one: [n, ...] -> [...]."""
    if not direct:
        return lax.psum_scatter(x_n, axis_name, scatter_dimension=0)
    return jnp.sum(lax.all_to_all(x_n, axis_name, split_axis=0, concat_axis=0), axis=0)


def better_direct(devices: Sequence[jax.Device]) -> bool:
    """Whether collectives among devices are better sent straight: CPUs of several processes."""
    return devices[0].platform == "cpu" and len({device.process_index for device in devices}) > 1
