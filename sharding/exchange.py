"""Moves rows between the devices of a mesh axis, forward and backward.

An exchange is built once, in NumPy, from two lists of row ids for every device: what it has and what it wants, in
local order (`routes.py` makes the tables). Tables travel as sharded arrays; only sizes are static. The backward is
the reverse table, adding where a row was sent to several. Legend: B batch, R rows, C channels, n devices, N buffer.

Padding is zero whatever lies in unused rows, because unused table entries name a row of zeros.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sharding.chain import signal, wait
from sharding.collectives import all_gather, reduce_scatter
from sharding.routes import Form, Leg, Rows, crossings, legs, message_sizes, schedule

Tables = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Exchange:
    """Rows from owners to users, and gradients back.

    Args:
        have: for every device [data groups][devices], the ids of its local rows; no id twice in a group.
        want: for every device, the ids it needs, each at most once; every id has an owner in its group.
        form: `gather` (all-gather of padded blocks), `swap` (all-to-all of equal messages), `permute` (rounds of
            matched sends), `ragged` (ragged all-to-all, where the backend has it), `none` (all is in place already).
        direct: how `gather` and its reverse travel, see `sharding.collectives`.
        axis_name: the mesh axis along which rows move.
    """

    have: Rows
    want: Rows
    form: Form
    direct: bool = False
    axis_name: str = "seq"

    @cached_property
    def legs(self) -> tuple[Leg, Leg]:
        """The forward and the backward direction."""
        return legs(self.have, self.want, self.form)

    @cached_property
    def tables(self) -> Tables:
        """Index tables by name, each [data groups, devices, ...] int32, to be sharded over both mesh axes."""
        forward, backward = self.legs
        named = {f"forward_{k}": v for k, v in forward.tables.items()}
        return named | {f"backward_{k}": v for k, v in backward.tables.items()}

    def __call__(self, rows_BRC: jax.Array, tables: Tables, wanted: int) -> jax.Array:
        """Send this device's rows, receive the wanted ones.

        Args:
            rows_BRC: local rows [B, R, C].
            tables: this device's slice of `tables`.
            wanted: static number of rows of the result.

        Returns:
            [B, wanted, C] in the order of `want`; rows beyond this device's own are zero.
        """
        if self.form == "none":  # what a device without rows has is padding, of other sizes before and after
            own = rows_BRC[:, :wanted]
            return jnp.pad(own, ((0, 0), (0, wanted - own.shape[1]), (0, 0)))
        forward, backward = self.legs
        had = rows_BRC.shape[1]

        def send(rows: jax.Array, tables: Tables) -> jax.Array:
            return self._move(forward, rows, _named(tables, "forward_"), wanted)

        def reverse(tables: Tables, cotangent: jax.Array) -> tuple[jax.Array, None]:
            return self._move(backward, cotangent, _named(tables, "backward_"), had), None

        run = jax.custom_vjp(send)
        run.defvjp(lambda rows, tables: (send(rows, tables), tables), reverse)
        return run(rows_BRC, tables)

    def _move(self, leg: Leg, rows_BRC: jax.Array, tables: Tables, wanted: int) -> jax.Array:
        """One direction: local rows [B, R, C] -> [B, wanted, C]."""
        zero = jnp.zeros((rows_BRC.shape[0], 1, rows_BRC.shape[2]), rows_BRC.dtype)
        source = jnp.concatenate([zero, rows_BRC], axis=1)
        buffer_BNC = _TRANSPORT[leg.form](self, leg, source, tables)
        if leg.form not in ("gather", "scatter"):  # of which own rows are a part; unused entries lie beyond the buffer
            buffer_BNC = jnp.concatenate([buffer_BNC, source.astype(buffer_BNC.dtype)], axis=1)
        take_RS = tables["take"][:wanted]
        picked = [
            jnp.take(buffer_BNC, take_RS[:, slot], axis=1, mode="fill", fill_value=0)
            for slot in range(take_RS.shape[1])
        ]
        if len(picked) == 1:
            return picked[0].astype(rows_BRC.dtype)
        total = picked[0].astype(jnp.float32)
        for part in picked[1:]:
            total = total + part.astype(jnp.float32)
        return total.astype(rows_BRC.dtype)


def build(have: Rows, want: Rows, *, ragged: bool = False, direct: bool = False, round_cost: int = 256) -> Exchange:
    """The exchange in the cheapest form.

    Rounds of sends are for a single data group: a `ppermute` has no groups of participants, and where groups run
    different numbers of microbatches it would wait for devices that never come.

    Args:
        have: row ids by device, see `Exchange`.
        want: row ids by device.
        ragged: whether the backend has a ragged all-to-all.
        direct: how blocks are gathered, see `sharding.collectives`.
        round_cost: what starting one more collective costs, in rows.
    """
    routes = crossings(have, want)
    pairs = [(h, w) for hs, ws in zip(have, want, strict=True) for h, w in zip(hs, ws, strict=True)]
    if all(np.array_equal(h, w) for h, w in pairs):
        return Exchange(have, want, "none")
    if ragged:
        return Exchange(have, want, "ragged")
    sizes, devices = message_sizes(routes), len(have[0])
    cost: dict[Form, int] = {
        "gather": (devices - 1) * max(len(rows) for group in have for rows in group) + round_cost,
        "swap": (devices - 1) * max(sizes.values(), default=0) + round_cost,
    }
    if len(have) == 1:
        cost["permute"] = sum(size + round_cost for _, size in schedule(sizes))
    return Exchange(have, want, min(cost, key=lambda form: cost[form]), direct)


def _named(tables: Tables, prefix: str) -> Tables:
    return {k.removeprefix(prefix): v for k, v in tables.items() if k.startswith(prefix)}


def _gathered(exchange: Exchange, leg: Leg, source: jax.Array, tables: Tables) -> jax.Array:
    """Everybody receives everybody's block."""
    blocks_nBRC = all_gather(jnp.take(source, tables["send"], axis=1), exchange.axis_name, direct=exchange.direct)
    batch, channels = source.shape[0], source.shape[2]
    return jnp.moveaxis(blocks_nBRC, 0, 1).reshape(batch, leg.received, channels)


def _scattered(exchange: Exchange, _: Leg, source: jax.Array, tables: Tables) -> jax.Array:
    """Everybody sends everybody a block, and blocks add on arrival, in float32."""
    n, rows = tables["send"].shape
    blocks = jnp.take(source, tables["send"].reshape(-1), axis=1).astype(jnp.float32)
    blocks_BnRC = blocks.reshape(source.shape[0], n, rows, source.shape[2])
    return reduce_scatter(jnp.moveaxis(blocks_BnRC, 1, 0), exchange.axis_name, direct=exchange.direct)


def _swapped(exchange: Exchange, leg: Leg, source: jax.Array, tables: Tables) -> jax.Array:
    """One all-to-all of messages of equal length."""
    messages = jnp.take(source, tables["send"], axis=1)
    return lax.all_to_all(messages, exchange.axis_name, split_axis=1, concat_axis=1, tiled=True)


def _permuted(exchange: Exchange, leg: Leg, source: jax.Array, tables: Tables) -> jax.Array:
    """Rounds of matched sends; the messages of a round have one size."""
    parts: list[jax.Array] = []
    start = 0
    for pairs, size in leg.rounds:
        message = wait(jnp.take(source, tables["send"][start : start + size], axis=1), signal(parts[-1:]))
        parts.append(lax.ppermute(message, exchange.axis_name, pairs))
        start += size
    return jnp.concatenate(parts, axis=1) if parts else source[:, :0]


def _ragged(exchange: Exchange, leg: Leg, source: jax.Array, tables: Tables) -> jax.Array:
    """One ragged all-to-all: rows leave sorted by receiver and arrive sorted by sender."""
    operand_RBC = jnp.moveaxis(jnp.take(source, tables["send"], axis=1), 1, 0)
    empty_RBC = jnp.zeros((leg.received, *operand_RBC.shape[1:]), operand_RBC.dtype)
    sizes = [tables[k] for k in ("input_offsets", "send_sizes", "output_offsets", "recv_sizes")]
    return jnp.moveaxis(lax.ragged_all_to_all(operand_RBC, empty_RBC, *sizes, axis_name=exchange.axis_name), 0, 1)


_TRANSPORT = {
    "gather": _gathered,
    "scatter": _scattered,
    "swap": _swapped,
    "permute": _permuted,
    "ragged": _ragged,
}
