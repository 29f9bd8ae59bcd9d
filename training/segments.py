"""What one device computes in a step, free of collectives: to be timed before a plan is made, and beside the steps.

Three segments add up to a step's compute: the model without attention on a share of the tokens, attention of a tile,
and the optimizer on the stored share of the parameters.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from meshes.plan import Plan
from models import attention, transformer
from models.transformer import Batch, TransformerConfig
from sharding import rules
from sharding.placement import Placement
from sharding.weights import Keep, WeightSharding
from training.step import RULES

Run = Callable[[], None]


@dataclass(frozen=True)
class _WithoutAttention:
    """A layout in which queries, keys and values are only added up."""

    placement: Placement

    def local(self, fn: Callable[..., Any], signature: str) -> Callable[..., Any]:
        """`fn(weights, *arrays)` as in a step."""
        return self.placement.local(fn, signature)

    def attend(self, kernel: Any, q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array) -> jax.Array:
        """Something of the same shape that needs all three."""
        return q + jnp.repeat(k + v, q.shape[2] // k.shape[2], axis=2)


@dataclass(frozen=True, eq=False)
class Segments:
    """Makes the segments of a model; each is compiled and warm when it is handed out.

    Args:
        config: the model.
        seq_len, microbatch: tokens of a row, rows of a microbatch.
        dtype: compute dtype.
        optimizer: of the run.
        weights: how a step of one device, or of several, makes parameters whole, but without other devices.
    """

    config: TransformerConfig
    seq_len: int
    microbatch: int
    dtype: Any
    optimizer: optax.GradientTransformation
    weights: Keep | WeightSharding

    def tokens(self, device: jax.Device, tokens: int) -> Run:
        """Forward and backward of a microbatch of so many tokens a row, attention left out."""
        alone = isinstance(self.weights, Keep)
        sizes = {"T": np.array([[tokens]])}
        placement = Placement("single" if alone else "specialized", sizes, weights=self.weights)
        layout = _WithoutAttention(placement)
        shape = (self.microbatch, tokens)
        whole = jnp.zeros(shape, jnp.int32)
        spread = jnp.broadcast_to(jnp.arange(tokens, dtype=jnp.int32) % self.config.vocab_size, shape)
        batch = Batch(spread, spread, spread, jnp.ones(shape, jnp.float32), whole)
        weights = jax.jit(lambda key: transformer.init(self.config, key))(jax.random.key(0))
        if not alone:
            stored = rules.storage(weights, RULES, 1)
            weights = rules.apply(lambda storage, leaf: storage.shard(leaf, 1), stored, weights)

        def work(weights: Any, batch: Batch) -> Any:
            return jax.value_and_grad(lambda w: transformer.loss_sum(self.config, w, batch, layout))(weights)

        return _warm(work, device, weights, batch)

    def attention(self, device: jax.Device, queries: int, heads: tuple[int, int]) -> Run:
        """Forward and backward of a tile in one layer: some query tokens, a range of heads, all keys of the row."""
        start, stop = heads
        per_kv = self.config.heads // self.config.kv_heads
        kv = [head // per_kv for head in range(start, stop)]
        kv_of_head = tuple(head - kv[0] for head in kv)
        width, rows = self.config.head_width, self.microbatch
        index = jnp.asarray(np.linspace(0, self.seq_len - 1, queries).round(), jnp.int32)
        keys, segment = jnp.arange(self.seq_len, dtype=jnp.int32), jnp.ones((rows, self.seq_len), jnp.int32)
        draw = np.random.default_rng(0).standard_normal
        q = jnp.asarray(draw((rows, queries, stop - start, width)), self.dtype)
        k, v = (jnp.asarray(draw((rows, self.seq_len, kv_of_head[-1] + 1, width)), self.dtype) for _ in range(2))
        again = self.config.remat == "layer"

        def work(q: Any, k: Any, v: Any, index: Any, keys: Any, segment: Any) -> Any:
            mask = attention.Mask(index, keys, jnp.take(segment, index, axis=1), segment)
            o, lse = attention.forward(q, k, v, mask, kv_of_head=kv_of_head)
            if again:
                o, lse = attention.forward(q + 0 * o, k, v, mask, kv_of_head=kv_of_head)
            return attention.backward(q, k, v, mask, o, lse, o, kv_of_head=kv_of_head)

        return _warm(work, device, q, k, v, index, keys, segment)

    def of(self, plan: Plan, number: int, device: jax.Device) -> list[tuple[Run, int]]:
        """What a device runs in a step, by its number in the plan's cluster, and how often."""
        g, m = plan.place(number)
        tokens, tile, count = plan.tokens[g][m], plan.tiles[g][m], plan.microbatches[g]
        made: list[tuple[Run, int]] = []
        if tokens and count:
            made.append((self.tokens(device, tokens), count))
        if tile.tokens and tile.heads[1] > tile.heads[0] and count:
            made.append((self.attention(device, tile.tokens, tile.heads), count * plan.workload.layers))
        return made

    def update(self, device: jax.Device, parameters: int) -> Run:
        """One step of the optimizer on so many parameters."""
        params = {"kernel": jnp.ones(parameters, jnp.float32)}
        state = self.optimizer.init(params)

        def work(params: Any, state: Any) -> Any:
            with jax.numpy_dtype_promotion("standard"):  # optax raises a Python float to an int32 count
                updates, state = self.optimizer.update(params, state, params)
            return optax.apply_updates(params, updates), state

        return _warm(work, device, params, state)


def _warm(work: Callable[..., Any], device: jax.Device, *arrays: Any) -> Run:
    arrays = jax.device_put(arrays, device)
    compiled = jax.jit(work).lower(*arrays).compile()

    def run() -> None:
        jax.block_until_ready(compiled(*arrays))

    run()
    return run
