"""The compiled step: sharded state, uneven work, one program. Legend: G data groups, M devices of a group.

Every device gathers its group's pieces of the parameters, runs its group's own number of microbatches, and sums
gradients by reduce-scatter. The loss is a global sum over a global weight. Numbers of microbatches are run-time
inputs: shifting work between data groups compiles nothing.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from models import transformer
from models.transformer import Batch, TransformerConfig
from sharding import rules
from sharding.layout import Layout
from sharding.rules import Storage
from sharding.tiles import Tiling
from sharding.weights import Shard, WeightSharding, pieces
from training.trainable import Trainable, on_mesh, put

# Parameters are cut along their inputs (rows of a matrix), so that gathered pieces follow each other in memory.
RULES: rules.Rules = (("kernel", -2, 2), ("embedding", -2, 2), ("scale", -1, 1))

TOKENS_SPEC = P("data", None, "seq")  # [G, K microbatches, M, B rows, T tokens]
ROWS_SPEC = P("data")  # [G, K, B, S]
_SPECS: list[Any] = [TOKENS_SPEC] * 4 + [ROWS_SPEC]
BATCH_SPECS = Batch(*_SPECS)
COUNTS_SPEC = P("data")
TABLES_SPEC = P("data", "seq")


@dataclass(frozen=True, eq=False, kw_only=True)
class Program(Trainable):
    """Everything that the step of a transformer is compiled from.

    Args:
        config: the model.
        tiling: who attends which tile.
        mesh, placement, optimizer, dtype: see `Trainable`; the placement's weights are set here.
    """

    config: TransformerConfig
    tiling: Tiling

    rule_table = RULES

    def fresh(self, key: jax.Array) -> Any:
        """Fresh parameters, logical."""
        return transformer.init(self.config, key)

    @functools.cached_property
    def tables(self) -> Any:
        """Index tables on the devices."""
        sharding = on_mesh(self.mesh, TABLES_SPEC)
        return jax.tree.map(lambda t: put(t, sharding), self.tiling.tables)

    def train_step(self) -> jax.stages.Wrapped:
        """`step(state, batch, counts, tables) -> state, metrics`, see `Trainable.jitted_step`.

        `batch` has leading axes [G, K microbatches of B rows]; `counts` [G] int32 says how many each group runs.
        """
        gradients = self._mapped(self._gradients, (P(), P(), rules.specs(self.stored["params"])))
        return self.jitted_step(lambda state, *inputs: gradients(state["params"], *inputs))

    def gradient_step(self) -> jax.stages.Wrapped:
        """`(params, batch, counts, tables) -> loss sum, weight, stored gradients of the sum`, jitted."""
        return jax.jit(self._mapped(self._gradients, (P(), P(), rules.specs(self.stored["params"]))))

    def eval_step(self) -> jax.stages.Wrapped:
        """`(params, batch, counts, tables) -> loss sum, weight`, jitted."""
        return jax.jit(self._mapped(self._evaluate, (P(), P())))

    def logits_step(self) -> jax.stages.Wrapped:
        """`(params, batch, at, tables) -> logits [V]` of position `at` of the first row of group 0, jitted."""
        return jax.jit(self._mapped(self._logits_at, P(), counts=P()))

    def _mapped(self, fn: Callable[..., Any], out_specs: Any, counts: P = COUNTS_SPEC) -> Callable[..., Any]:
        specs = (rules.specs(self.stored["params"]), BATCH_SPECS, counts, TABLES_SPEC)
        # Replication is not tracked: the differentiated part holds no reduction over devices, gradients are
        # reduced by hand.
        return jax.shard_map(fn, mesh=self.mesh, in_specs=specs, out_specs=out_specs, check_vma=False)

    # What one device runs.

    def _gradients(self, params: Any, batch: Batch, counts: jax.Array, tables: Any) -> tuple[Any, ...]:
        shards = self._gather_over_data(params)
        layout = self._layout(tables)
        loss = jax.value_and_grad(lambda shards, micro: transformer.loss_sum(self.config, shards, micro, layout))

        def one(i: jax.Array, carry: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
            total, grads = carry
            value, grad = loss(shards, self._microbatch(batch, i))
            return total + value, jax.tree.map(jnp.add, grads, grad)

        if batch.tokens_BT.shape[1] == 1 and self.mesh.shape["data"] == 1:
            total, grads = loss(shards, self._microbatch(batch, 0))
        else:
            start = (jnp.zeros((), jnp.float32), jax.tree.map(jnp.zeros_like, shards))
            total, grads = lax.fori_loop(0, counts[0], one, start)
        total, weight = self._sums(total, batch, grads)
        return total, weight, self._scatter_over_data(self.after(grads, weight), params)

    def _evaluate(self, params: Any, batch: Batch, counts: jax.Array, tables: Any) -> tuple[jax.Array, jax.Array]:
        shards, layout = self._gather_over_data(params), self._layout(tables)

        def one(i: jax.Array, total: jax.Array) -> jax.Array:
            return total + transformer.loss_sum(self.config, shards, self._microbatch(batch, i), layout)

        total = lax.fori_loop(0, counts[0], one, jnp.zeros((), jnp.float32))
        return self._sums(total, batch, total)

    def _logits_at(self, params: Any, batch: Batch, at: jax.Array, tables: Any) -> jax.Array:
        shards, layout = self._gather_over_data(params), self._layout(tables)
        logits_BTV = transformer.logits(self.config, shards, self._microbatch(batch, 0), layout)
        index_T = self.placement.trim(layout.tables["token_index"], 0, "T")
        mine_T = (index_T == at) & (lax.axis_index("data") == 0)
        return self.sums(jnp.sum(jnp.where(mine_T[:, None], logits_BTV[0], 0.0), axis=0))

    def _layout(self, tables: Any) -> Layout:
        local = jax.tree.map(lambda t: t[0, 0], tables)
        return Layout(self.placed(self.tiling.direct), self.tiling, local)

    def _microbatch(self, batch: Batch, i: Any) -> Batch:
        """Microbatch `i` of this device's group, token arrays cut to this device's extent."""

        def pick(name: str, array: jax.Array) -> jax.Array:
            local = array[0, :, 0] if name.endswith("BT") else array[0]
            rows = lax.dynamic_index_in_dim(local, i, keepdims=False)
            return self.placement.trim(rows, 1, "T") if name.endswith("BT") else rows

        return Batch(**{name: pick(name, array) for name, array in batch._asdict().items()})

    def _weight(self, batch: Batch) -> jax.Array:
        """Weight of this device's targets; padding and microbatches that are not run weigh nothing."""
        return jnp.sum(batch.weights_BT)

    def _sums(self, total: jax.Array, batch: Batch, before: Any) -> tuple[jax.Array, jax.Array]:
        """Loss and weight over all devices, one sum for both, after all that `before` comes from."""
        both = self.sums(jnp.stack([total, self._weight(batch)]), before)
        return both[0], both[1]

    @property
    def _over_data(self) -> WeightSharding:
        return WeightSharding("data", self.mesh.shape["data"], direct=self.tiling.direct)

    def _gather_over_data(self, params: Any) -> Any:
        """Local pieces to the pieces of one group: `Shard` nodes cut over the seq axis alone."""
        if self.mesh.size == 1:
            return params
        groups, devices = self.mesh.shape["data"], self.mesh.shape["seq"]
        if groups > 1:
            params = self._over_data.gather(self._pieces(params))
        return rules.apply(lambda s, leaf: s.shard(leaf, devices), self.stored["params"], params)

    def _scatter_over_data(self, grads: Any, params: Any) -> Any:
        """Sum gradients over groups, each device keeping its stored piece."""
        if self.mesh.size == 1:
            return grads
        chunks = pieces(grads)
        if self.mesh.shape["data"] == 1:
            return chunks
        return pieces(self._over_data.scatter(chunks, self._pieces(params)))

    def _pieces(self, params: Any) -> Any:
        """Stored local pieces as shards over the data axis; together they make a group's chunk, padding included."""
        groups = self.mesh.shape["data"]

        def piece(stored: Storage, leaf: jax.Array) -> Shard:
            axis = stored.axis or -1
            return Shard(leaf, axis, leaf.shape[axis] * groups)

        return rules.apply(piece, self.stored["params"], params)
