"""Weights that travel for measuring: what messages cost between devices, in one program with work between them."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sharding.chain import signal, wait
from sharding.weights import Shard, WeightSharding

AXIS = "x"
WIDTH = 64  # of matrices that travel, and of the square one that a unit of work multiplies with itself
MATRICES = 2  # that travel together

Turns = Callable[[int, int], None]  # (turns, units of work before each message), returns when all is done


def exchanging(devices: Sequence[jax.Device], rows: int, *, direct: bool) -> Turns:
    """Turns of work, weights gathered, work, and gradients scattered, as in a step.

    Args:
        devices: who takes part; every process that has one of them calls the result with as many turns.
        rows: of the float32 pieces [rows, `WIDTH`] of each device, of which it gives and keeps `MATRICES`.
        direct: how they travel, see `sharding.collectives`.
    """
    count = len(devices)
    sharding = WeightSharding(AXIS, count, direct=direct)

    def turn(carry: tuple[list[jax.Array], jax.Array], units: jax.Array) -> tuple[list[jax.Array], jax.Array]:
        pieces, matrix = carry
        matrix = _work(wait(matrix, signal(pieces)), units)
        shards = [Shard(piece, -2, count * rows) for piece in wait(pieces, signal(matrix))]
        wholes = sharding.gather(shards)
        matrix = _work(wait(matrix, signal(wholes)), units)
        sums = sharding.scatter(wait(wholes, signal(matrix)), shards)
        return [shard.value / count for shard in sums], matrix

    def step(pieces: list[jax.Array], matrix: jax.Array, turns: jax.Array, units_1: jax.Array) -> list[jax.Array]:
        return lax.fori_loop(0, turns, lambda _, carry: turn(carry, units_1[0]), (pieces, matrix))[0]

    mesh = Mesh(np.array(devices), (AXIS,), axis_types=(AxisType.Auto,))
    mapped = jax.shard_map(step, mesh=mesh, in_specs=(P(AXIS), P(), P(), P(AXIS)), out_specs=P(AXIS), check_vma=False)
    own, same = NamedSharding(mesh, P(AXIS)), NamedSharding(mesh, P())
    pieces = [jax.ShapeDtypeStruct((count * rows, WIDTH), jnp.float32, sharding=own)] * MATRICES
    matrix = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32, sharding=same)
    turns = jax.ShapeDtypeStruct((), jnp.int32, sharding=same)
    units = jax.ShapeDtypeStruct((count,), jnp.int32, sharding=own)
    compiled = jax.jit(mapped).lower(pieces, matrix, turns, units).compile()

    def run(turn_count: int, unit_count: int) -> None:
        arrays = [_filled(piece, 1.0) for piece in pieces], _filled(matrix, 0.01)
        jax.block_until_ready(compiled(*arrays, _filled(turns, turn_count), _filled(units, unit_count)))

    return run


def working(device: jax.Device) -> Turns:
    """The same turns on one device, without messages."""
    compiled = jax.jit(lambda matrix, units: _work(matrix, units)).lower(*_start(device, 0)).compile()
    return lambda turns, units: jax.block_until_ready(compiled(*_start(device, 2 * turns * units)))


def _work(matrix: jax.Array, units: jax.Array) -> jax.Array:
    return lax.fori_loop(0, units, lambda _, m: jnp.tanh(m @ m), matrix)


def _start(device: jax.Device, units: int) -> Any:
    return jax.device_put((np.full((WIDTH, WIDTH), 0.01, np.float32), np.int32(units)), device)


def _filled(like: jax.ShapeDtypeStruct, value: float) -> jax.Array:
    def piece(index: Any) -> np.ndarray:
        local = [len(range(*part.indices(size))) for part, size in zip(index, like.shape, strict=True)]
        return np.full(local, value, like.dtype)

    return jax.make_array_from_callback(like.shape, like.sharding, piece)
