"""Collectives for measuring: what messages cost between devices, apart from any work."""

from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "x"


def collective(devices: Sequence[jax.Device], floats: int) -> Callable[[], None]:
    """One all-gather and one reduce-scatter among devices, as weights and their gradients travel.

    Args:
        devices: who takes part; every process that has one of them calls the result equally often.
        floats: float32 numbers that each device gives to the all-gather.
    """

    def both(x_P: jax.Array) -> jax.Array:
        whole_nP = lax.all_gather(x_P, AXIS)
        return lax.psum_scatter(whole_nP, AXIS, scatter_dimension=0) / len(devices)

    return _over(devices, both, floats)


def _over(devices: Sequence[jax.Device], fn: Callable[[jax.Array], jax.Array], floats: int) -> Callable[[], None]:
    mesh = Mesh(np.array(devices), (AXIS,), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, P(AXIS))
    shape = (len(devices) * floats,)
    x = jax.make_array_from_callback(shape, sharding, lambda _: np.ones(floats, np.float32))
    mapped = jax.shard_map(fn, mesh=mesh, in_specs=P(AXIS), out_specs=P(AXIS), check_vma=False)
    compiled = jax.jit(mapped).lower(x).compile()

    def run() -> None:
        jax.block_until_ready(compiled(x))

    run()
    return run
