"""Ring attention: keys and values travel round the devices of a group, so that nobody holds all of them.

Each round attends own queries to the block that is here; partial results merge by their log-sum-exp in float32
(Liu et al., "Ring Attention with Blockwise Transformers", 2023). The backward sends the blocks round again with
their gradients. Legend: B batch, T own tokens, S sequence, H heads, K key/value heads,
E head width, C tokens of the largest block, n devices.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from sharding.chain import signal, wait
from sharding.placement import Placement


def ring(
    placement: Placement,
    k_index_nC: jax.Array,
    kernel: Any,
    kv_of_head: tuple[int, ...],
    q_BTHE: jax.Array,
    kv_BTKF: jax.Array,
    segment_BS: jax.Array,
    axis_name: str = "seq",
) -> jax.Array:
    """Attention of own queries over all keys of the group, streamed.

    Args:
        placement: local sizes, with axis T.
        k_index_nC: positions of the tokens of each block in the order in which blocks come here, own ones first;
            padded to the largest share by a position that nobody sees.
        kernel: `forward`, `backward` and `Mask` of attention on exact local arrays, see `models.attention`.
        kv_of_head: the key/value head that each query head reads.
        q_BTHE: local queries of own tokens.
        kv_BTKF: their keys and values side by side, F = 2 E.
        segment_BS: document number of every token of the rows.
        axis_name: mesh axis of the ring.

    Returns:
        Outputs of own tokens [B, T, H, E].
    """
    groups, devices = placement.sizes["T"].shape
    turn = _Turn(axis_name, groups, devices, placement.chained)
    parts = _Parts(placement, kernel, kv_of_head)

    def forward(q: Any, kv: Any, k_index_nC: Any, *marks: jax.Array) -> tuple[jax.Array, tuple[Any, ...]]:
        def step(carry: tuple[Any, ...], k_index_C: jax.Array) -> tuple[tuple[Any, ...], None]:
            o, lse, block = carry
            part = parts.forward(q, block, k_index_C, *marks)
            return (*merge(o, lse, *part), *turn(block)), None

        start = (jnp.zeros(q.shape, jnp.float32), jnp.full(q.shape[:3], -jnp.inf, jnp.float32))
        (o, lse, _), _ = lax.scan(step, (*start, kv), k_index_nC)
        o = o.astype(q.dtype)
        return o, (q, kv, k_index_nC, marks, o, lse)

    def backward(residual: tuple[Any, ...], do: jax.Array) -> tuple[Any, ...]:
        q, kv, k_index_nC, marks, o, lse = residual

        def step(carry: tuple[Any, ...], k_index_C: jax.Array) -> tuple[tuple[Any, ...], None]:
            dq, dkv, block = carry
            part = parts.backward(q, o, lse, do, block, k_index_C, *marks)
            block, dkv = turn(block, dkv + part[1])
            return (dq + part[0], dkv, block), None

        start = (*(jnp.zeros(a.shape, jnp.float32) for a in (q, kv)), kv)
        (dq, dkv, _), _ = lax.scan(step, start, k_index_nC)
        return dq.astype(q.dtype), dkv.astype(kv.dtype), None, None, None

    run = jax.custom_vjp(lambda *arrays: forward(*arrays)[0])
    run.defvjp(forward, backward)
    widths = [(0, 0), (0, k_index_nC.shape[1] - kv_BTKF.shape[1]), (0, 0), (0, 0)]
    q_index_T = placement.trim(k_index_nC[0], 0, "T")
    return run(q_BTHE, jnp.pad(kv_BTKF, widths), k_index_nC, q_index_T, segment_BS)


@dataclass(frozen=True)
class _Turn:
    """One step of the ring: every device hands its arrays to the next.

    With several data groups it is an all-to-all with one full message, since a `ppermute` would also wait for groups
    that run fewer microbatches.
    """

    axis_name: str
    groups: int
    devices: int
    chained: bool

    def __call__(self, *arrays: jax.Array) -> list[jax.Array]:
        moved = list(arrays)
        move = self._permute if self.groups == 1 else self._swap
        for n, array in enumerate(moved):
            moved[n] = move(wait(array, signal(moved)) if self.chained else array)
        return moved

    def _permute(self, array: jax.Array) -> jax.Array:
        pairs = [(m, (m + 1) % self.devices) for m in range(self.devices)]
        return lax.ppermute(array, self.axis_name, pairs)

    def _swap(self, array: jax.Array) -> jax.Array:
        here = lax.axis_index(self.axis_name)
        slots = jnp.zeros((self.devices, *array.shape), array.dtype)
        slots = lax.dynamic_update_index_in_dim(slots, array, (here + 1) % self.devices, 0)
        arrived = lax.all_to_all(slots, self.axis_name, split_axis=0, concat_axis=0, tiled=True)
        return lax.dynamic_index_in_dim(arrived, (here - 1) % self.devices, keepdims=False)


@dataclass(frozen=True)
class _Parts:
    """Attention of own queries to one block of keys, at this device's sizes."""

    placement: Placement
    kernel: Any
    kv_of_head: tuple[int, ...]

    def forward(self, q: Any, kv: Any, k_index: Any, q_index: Any, segment: Any) -> Any:
        def exact(_: Any, q: Any, kv: Any, *marks: jax.Array) -> Any:
            k, v = jnp.split(kv, 2, axis=-1)
            return self.kernel.forward(q, k, v, self._mask(*marks), kv_of_head=self.kv_of_head, out_dtype=jnp.float32)

        signature = "B T H E, B C K F, C, T, B S -> B T H E, B T H"
        return self.placement.run(exact, signature, q, kv, k_index, q_index, segment)

    def backward(self, q: Any, o: Any, lse: Any, do: Any, kv: Any, k_index: Any, *marks: Any) -> Any:
        def exact(_: Any, q: Any, o: Any, lse: Any, do: Any, kv: Any, *marks: jax.Array) -> Any:
            k, v = jnp.split(kv, 2, axis=-1)
            mask = self._mask(*marks)
            dq, dk, dv = self.kernel.backward(q, k, v, mask, o, lse, do, kv_of_head=self.kv_of_head)
            return dq.astype(jnp.float32), jnp.concatenate([dk, dv], axis=-1).astype(jnp.float32)

        signature = "B T H E, B T H E, B T H, B T H E, B C K F, C, T, B S -> B T H E, B C K F"
        return self.placement.run(exact, signature, q, o, lse, do, kv, k_index, *marks)

    def _mask(self, k_index: Any, q_index: Any, segment: Any) -> Any:
        last = segment.shape[1] - 1
        k_segment = jnp.take(segment, jnp.minimum(k_index, last), axis=1)
        return self.kernel.Mask(q_index, k_index, jnp.take(segment, q_index, axis=1), k_segment)


def merge(o: jax.Array, lse: jax.Array, part: jax.Array, part_lse: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Combine two partial attentions [B, T, H, E], [B, T, H], float32; rows that saw nothing have lse -inf."""
    total = jnp.logaddexp(lse, part_lse)
    seen = jnp.where(jnp.isfinite(total), total, 0.0)
    old, new = jnp.exp(lse - seen), jnp.exp(part_lse - seen)
    return o * old[..., None] + part * new[..., None], total
