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
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from models import transformer
from models.transformer import Batch, TransformerConfig
from sharding import rules
from sharding.chain import signal, wait
from sharding.layout import Layout
from sharding.placement import Placement
from sharding.rules import Storage
from sharding.tiles import Tiling
from sharding.weights import Keep, Shard, WeightSharding

State = dict[str, Any]  # params, opt_state, step

# Parameters are cut along their inputs (rows of a matrix), so that gathered pieces follow each other in memory.
RULES: rules.Rules = (("kernel", -2, 2), ("embedding", -2, 2), ("scale", -1, 1))

TOKENS_SPEC = P("data", None, "seq")  # [G, K microbatches, M, B rows, T tokens]
ROWS_SPEC = P("data")  # [G, K, B, S]
_SPECS: list[Any] = [TOKENS_SPEC] * 4 + [ROWS_SPEC]
BATCH_SPECS = Batch(*_SPECS)
COUNTS_SPEC = P("data")
TABLES_SPEC = P("data", "seq")


@dataclass(frozen=True, eq=False)
class Program:
    """Everything that the step is compiled from.

    Args:
        config: the model.
        mesh: axes data and seq.
        tiling, placement: who does which work; the placement's weights are set here.
        optimizer: an optax transformation; elementwise apart from the global norm.
        dtype: compute dtype; parameters, gradients and moments are float32.
    """

    config: TransformerConfig
    mesh: Mesh
    tiling: Tiling
    placement: Placement
    optimizer: optax.GradientTransformation
    dtype: Any = jnp.float32

    @functools.cached_property
    def logical(self) -> State:
        """Logical shapes and dtypes of the state."""
        params = jax.eval_shape(functools.partial(transformer.init, self.config), jax.random.key(0))
        opt_state = jax.eval_shape(self.optimizer.init, params)
        return {"params": params, "opt_state": opt_state, "step": jax.ShapeDtypeStruct((), jnp.int32)}

    @functools.cached_property
    def stored(self) -> State:
        """How each array of the state is stored: a tree of `Storage`."""
        return rules.storage(self.logical, RULES, self.mesh.size)

    @functools.cached_property
    def shardings(self) -> State:
        """The sharding of each array of the state."""
        return rules.shardings(self.stored, self.mesh)

    @functools.cached_property
    def tables(self) -> Any:
        """Index tables on the devices."""
        sharding = on_mesh(self.mesh, TABLES_SPEC)
        return jax.tree.map(lambda t: put(t, sharding), self.tiling.tables)

    def init(self, key: jax.Array) -> State:
        """Fresh state, drawn on logical shapes, so that it does not depend on the plan."""

        def fresh(key: jax.Array) -> State:
            params = transformer.init(self.config, key)
            state = {"params": params, "opt_state": self.optimizer.init(params), "step": jnp.zeros((), jnp.int32)}
            return rules.apply(lambda s, leaf: s.pad(leaf), self.stored, state)

        return jax.jit(fresh, out_shardings=self.shardings)(key)

    def train_step(self) -> jax.stages.Wrapped:
        """`step(state, batch, counts, tables) -> state, metrics`, jitted, the state donated.

        `batch` has leading axes [G, K microbatches of B rows]; `counts` [G] int32 says how many each group runs.
        Metrics are float32 scalars: loss (mean over weight), grad_norm, tokens (weight in the loss).
        """
        gradients = self._mapped(self._gradients, (P(), P(), rules.specs(self.stored["params"])))

        def step(state: State, batch: Batch, counts: jax.Array, tables: Any) -> tuple[State, dict[str, jax.Array]]:
            total, weight, grads = gradients(state["params"], batch, counts, tables)
            # A step without any target has zero gradients, not 0/0.
            scale = 1.0 / jnp.maximum(weight, jnp.finfo(jnp.float32).tiny)
            scale = jnp.where(weight > 0, scale, 0.0)
            grads = jax.tree.map(lambda g: g * scale, grads)
            with jax.numpy_dtype_promotion("standard"):  # optax raises a Python float to an int32 count
                updates, opt_state = self.optimizer.update(grads, state["opt_state"], state["params"])
            params = optax.apply_updates(state["params"], updates)
            metrics = {"loss": total * scale, "grad_norm": optax.tree.norm(grads), "tokens": weight}
            return {"params": params, "opt_state": opt_state, "step": state["step"] + 1}, metrics

        replicated = on_mesh(self.mesh, P())
        return jax.jit(step, donate_argnums=0, out_shardings=(self.shardings, replicated))

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
        return total, weight, self._scatter_over_data(self._after(grads, weight), params)

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
        return self._sum(jnp.sum(jnp.where(mine_T[:, None], logits_BTV[0], 0.0), axis=0))

    def _layout(self, tables: Any) -> Layout:
        local, direct = jax.tree.map(lambda t: t[0, 0], tables), self.tiling.direct
        weights: Keep | WeightSharding = WeightSharding("seq", self.mesh.shape["seq"], self.dtype, direct)
        placement = Placement(
            self.placement.mode,
            self.placement.sizes,
            self.placement.mine,
            Keep(self.dtype) if self.mesh.size == 1 else weights,
        )
        return Layout(placement, self.tiling, local)

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

    def _after(self, tree: Any, *before: Any) -> Any:
        return wait(tree, signal(*before)) if self.placement.chained else tree

    def _sums(self, total: jax.Array, batch: Batch, before: Any) -> tuple[jax.Array, jax.Array]:
        """Loss and weight over all devices, one sum for both, after all that `before` comes from."""
        both = self._sum(self._after(jnp.stack([total, self._weight(batch)]), before))
        return both[0], both[1]

    def _sum(self, value: jax.Array) -> jax.Array:
        return lax.psum(value, self.mesh.axis_names) if self.mesh.size > 1 else value

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
        chunks = jax.tree.map(lambda s: s.value, grads, is_leaf=lambda n: isinstance(n, Shard))
        if self.mesh.shape["data"] == 1:
            return chunks
        pieces = self._over_data.scatter(chunks, self._pieces(params))
        return jax.tree.map(lambda s: s.value, pieces, is_leaf=lambda n: isinstance(n, Shard))

    def _pieces(self, params: Any) -> Any:
        """Stored local pieces as shards over the data axis; together they make a group's chunk, padding included."""
        groups = self.mesh.shape["data"]

        def piece(stored: Storage, leaf: jax.Array) -> Shard:
            axis = stored.axis or -1
            return Shard(leaf, axis, leaf.shape[axis] * groups)

        return rules.apply(piece, self.stored["params"], params)


def on_mesh(mesh: Mesh, spec: P) -> NamedSharding:
    """Which device holds which piece of an array."""
    return NamedSharding(mesh, spec)


def put(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """A host array on the devices, each process giving the pieces of its own devices."""
    return put_pieces(array.shape, sharding, lambda index: array[index])


def put_pieces(shape: tuple[int, ...], sharding: NamedSharding, piece: Callable[[Any], np.ndarray]) -> jax.Array:
    """An array from the pieces that this process's devices hold; a wanted transfer, so the guard lets it pass."""
    with jax.transfer_guard("allow"):
        return jax.make_array_from_callback(shape, sharding, piece)
