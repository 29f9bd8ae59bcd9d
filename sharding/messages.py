"""Arrays that travel for measuring: what messages cost between devices, in one program with work between them."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sharding import exchange
from sharding.chain import signal, wait
from sharding.weights import Shard, WeightSharding

AXIS = "seq"
WIDTH = 64  # of matrices that travel, and of the square one that a unit of work multiplies with itself
MATRICES = 2  # that travel together

Travels = Literal["weights", "rows"]
Turns = Callable[[int, int], None]  # (turns, units of work before each message), returns when all is done
Carry = tuple[list[jax.Array], jax.Array]
Pull = Callable[[list[jax.Array]], list[jax.Array]]


def exchanging(
    devices: Sequence[jax.Device], rows: int, *, direct: bool, what: Travels = "weights", batch: int = 1
) -> Turns:
    """Turns of work, something gathered, work, and its gradients scattered, as in a step.

    Args:
        devices: who takes part; every process that has one of them calls the result with as many turns.
        rows: of the float32 pieces [rows, `WIDTH`] of each device, of which it gives and keeps `MATRICES`.
        direct: how they travel, see `sharding.collectives`.
        what: weights, or rows of an exchange, which are picked and put into order besides.
        batch: how many batches the rows of an exchange are in, which all move alike; a divisor of rows.
    """
    count = len(devices)
    moving = _weights(count, rows, direct) if what == "weights" else _rows(count, rows, direct, batch)

    def turn(carry: Carry, units: jax.Array, tables: Any) -> Carry:
        pieces, matrix = carry
        matrix = _work(wait(matrix, signal(pieces)), units)
        wholes, pull = moving.gathered(wait(pieces, signal(matrix)), tables)
        matrix = _work(wait(matrix, signal(wholes)), units)
        return [piece / count for piece in pull(wait(wholes, signal(matrix)))], matrix

    def step(pieces: list[jax.Array], matrix: jax.Array, turns: jax.Array, units_1: jax.Array, tables: Any) -> Any:
        return lax.fori_loop(0, turns, lambda _, carry: turn(carry, units_1[0], tables), (pieces, matrix))[0]

    mesh = Mesh(np.array(devices), (AXIS,), axis_types=(AxisType.Auto,))
    specs = (P(AXIS), P(), P(), P(AXIS), P(None, AXIS))
    mapped = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=P(AXIS), check_vma=False)
    own, same = NamedSharding(mesh, P(AXIS)), NamedSharding(mesh, P())
    piece = jax.ShapeDtypeStruct((count * rows, moving.width), jnp.float32, sharding=own)
    pieces = [piece] * (MATRICES * WIDTH // moving.width)
    tables = {name: _placed(table, NamedSharding(mesh, P(None, AXIS))) for name, table in moving.tables.items()}
    matrix = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32, sharding=same)
    turns = jax.ShapeDtypeStruct((), jnp.int32, sharding=same)
    units = jax.ShapeDtypeStruct((count,), jnp.int32, sharding=own)
    compiled = jax.jit(mapped).lower(pieces, matrix, turns, units, tables).compile()

    def run(turn_count: int, unit_count: int) -> None:
        arrays = [_filled(piece, 1.0) for piece in pieces], _filled(matrix, 0.01)
        jax.block_until_ready(compiled(*arrays, _filled(turns, turn_count), _filled(units, unit_count), tables))

    return run


class _Moving(NamedTuple):
    """What travels.

    Args:
        width: of the pieces.
        tables: that it takes, [1, devices, ...].
        gathered: `(pieces, tables)` -> whole arrays, and what takes their gradients back.
    """

    width: int
    tables: dict[str, np.ndarray]
    gathered: Callable[[list[jax.Array], dict[str, jax.Array]], tuple[list[jax.Array], Pull]]


def _weights(count: int, rows: int, direct: bool) -> _Moving:
    sharding = WeightSharding(AXIS, count, direct=direct)

    def gathered(pieces: list[jax.Array], _: dict[str, jax.Array]) -> tuple[list[jax.Array], Pull]:
        shards = [Shard(piece, -2, count * rows) for piece in pieces]
        return sharding.gather(shards), lambda wholes: [s.value for s in sharding.scatter(wholes, shards)]

    return _Moving(WIDTH, {}, gathered)


def _rows(count: int, rows: int, direct: bool, batch: int) -> _Moving:
    total, width = count * (rows // batch), MATRICES * WIDTH
    dealt = [np.arange(device, total, count) for device in range(count)]  # in turn, as tokens are
    moves = exchange.build([dealt], [[np.arange(total)] * count], direct=direct)

    def gathered(pieces: list[jax.Array], tables: dict[str, jax.Array]) -> tuple[list[jax.Array], Pull]:
        own = {name: table[0, 0] for name, table in tables.items()}
        parts = pieces[0].reshape(batch, rows // batch, width)
        whole, pull = jax.vjp(lambda parts: moves(parts, own, total), parts)
        return [whole], lambda wholes: [pull(wholes[0])[0].reshape(rows, width)]

    return _Moving(width, moves.tables, gathered)


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


def _placed(table: np.ndarray, sharding: NamedSharding) -> jax.Array:
    return jax.make_array_from_callback(table.shape, sharding, lambda index: table[index])
