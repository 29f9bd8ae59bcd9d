"""The compiled step of graph networks: own arrays in, one program out. Legend: D devices, N own rows, K outputs.

All devices are one group, and parameters are cut evenly over them. The loss is a global sum over a global weight. Graph
arrays are inputs of the step, never constants in it.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from models.gnn import losses, network
from models.gnn.config import GnnConfig
from sharding import rules
from sharding.hops import local
from sharding.weights import pieces
from training.graphs.spread import Entry, Named, Spread
from training.trainable import Trainable, on_mesh, put

RULES: rules.Rules = (("kernel", -2, 2), ("bias", -1, 1), ("scale", -1, 1))
OWN = P("data", "seq")  # [1, D, ...]
Inputs = Mapping[str, Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class GraphProgram(Trainable):
    """Everything that the step of a graph network is compiled from.

    Args:
        config: the network.
        spread: who has which part.
        task: `classification` or `regression`, of labels.
        seed: of dropout and of samples.
        direct: how weights travel, see `sharding.collectives`.
        mesh, placement, optimizer, dtype: see `Trainable`; the placement's weights are set here.
    """

    config: GnnConfig
    spread: Spread
    task: str
    seed: int = 0
    direct: bool = False

    rule_table = RULES

    def fresh(self, key: jax.Array) -> Any:
        """Fresh parameters, logical."""
        return network.init(self.config, key)

    @property
    def inputs(self) -> tuple[Inputs, Inputs]:
        """Own arrays of the devices, and those that all have whole."""
        return self._placed[0], self._placed[1]

    @functools.cached_property
    def _placed(self) -> tuple[Inputs, Inputs, dict[str, Any]]:
        """Those arrays, and the names of the axes of own ones; the host's copies are not kept."""
        own, common = on_mesh(self.mesh, OWN), on_mesh(self.mesh, P())
        named = dict(self.spread.named)
        axes = jax.tree.map(lambda one: one.axes, named, is_leaf=_is_named)
        arrays = jax.tree.map(lambda one: put(one.stacked(), own), named, is_leaf=_is_named)
        tables = jax.tree.map(lambda table: put(table, own), dict(self.spread.tables))
        shared = jax.tree.map(lambda array: put(np.asarray(array), common), dict(self.spread.common))
        return arrays | {"tables": tables}, shared, axes

    def train_step(self) -> jax.stages.Wrapped:
        """`step(state, batch, own, common) -> state, metrics`, see `Trainable.jitted_step`."""
        gradients = self._mapped(self._gradients, (P(), P(), rules.specs(self.stored["params"])))
        return self.jitted_step(lambda state, *inputs: gradients(state["params"], state["step"], *inputs))

    def gradient_step(self) -> jax.stages.Wrapped:
        """`(params, step, batch, own, common) -> loss sum, weight, stored gradients of the sum`, jitted."""
        return jax.jit(self._mapped(self._gradients, (P(), P(), rules.specs(self.stored["params"]))))

    def output_step(self) -> jax.stages.Wrapped:
        """`(params, step, batch, own, common) -> outputs [1, D, most rows, K]`, jitted; without dropout."""
        return jax.jit(self._mapped(self._outputs, OWN))

    def _mapped(self, fn: Callable[..., Any], out_specs: Any) -> Callable[..., Any]:
        specs = (rules.specs(self.stored["params"]), P(), OWN, OWN, P())
        return jax.shard_map(fn, mesh=self.mesh, in_specs=specs, out_specs=out_specs, check_vma=False)

    # What one device runs.

    def _gradients(self, params: Any, step: jax.Array, batch: Any, own: Inputs, common: Inputs) -> tuple[Any, ...]:
        key = jax.random.fold_in(jax.random.key(self.seed), step)
        own, shards = self._own(batch, own), self._shards(params)

        def loss(shards: Any) -> tuple[jax.Array, jax.Array]:
            outputs, entry = self._forward(shards, own, common, key, training=True)
            both = self._of_labels(outputs, entry.labels) if entry.loss is None else entry.loss(outputs)
            return both[0], both[1]

        (total, weight), grads = jax.value_and_grad(loss, has_aux=True)(shards)
        both = self.sums(jnp.stack([total, weight]), grads)
        return both[0], both[1], self.after(pieces(grads), both)

    def _outputs(self, params: Any, step: jax.Array, batch: Any, own: Inputs, common: Inputs) -> jax.Array:
        key = jax.random.fold_in(jax.random.key(self.seed), step)
        outputs, _ = self._forward(self._shards(params), self._own(batch, own), common, key, training=False)
        most = int(self.placement.sizes[self._unit].max())
        return jnp.pad(outputs, ((0, most - outputs.shape[0]), (0, 0)))[None, None]

    def _forward(
        self, shards: Any, own: Inputs, common: Inputs, key: jax.Array, training: bool
    ) -> tuple[jax.Array, Entry]:
        """Outputs of own rows, and what they were made from."""
        entry = self.spread.enter(self.placed(self.direct), own, common, jax.random.fold_in(key, 0))
        dropout = jax.random.fold_in(key, 1) if training and self.config.dropout else None
        outputs = network.outputs(self.config, shards, entry.features, entry.layout, key=dropout)
        return outputs, entry

    def _of_labels(self, outputs_NK: jax.Array, labels_N: jax.Array) -> jax.Array:
        """Sum and weight of the loss, [2]."""
        both: jax.Array = local(self.placement, self._loss, f"{self._unit} K, {self._unit} -> T")(
            (), outputs_NK, labels_N
        )
        return both

    def _loss(self, _: Any, outputs_NK: jax.Array, labels_N: jax.Array) -> jax.Array:
        """Sum and weight, [2]."""
        if self.task == "classification":
            return jnp.stack(losses.classification(outputs_NK, labels_N))
        return jnp.stack(losses.regression(outputs_NK, labels_N[:, None]))

    @property
    def _unit(self) -> str:
        """Axis of what has outputs."""
        return "G" if self.config.level == "graph" else "N"

    def _own(self, batch: Any, own: Inputs) -> dict[str, Any]:
        """This device's arrays at this program's extents."""

        def cut(axes: str, array: jax.Array) -> jax.Array:
            local = array[0, 0]
            for axis, name in enumerate(axes.split()):
                if name in self.placement.sizes:
                    local = lax.slice_in_dim(local, 0, self.placement.extent(name), axis=axis)
            return local

        axes = self._placed[2]
        arrays = {name: own[name] for name in axes} | dict(batch)
        tables = jax.tree.map(lambda table: table[0, 0], own["tables"])
        return jax.tree.map(cut, axes | dict(self.spread.dealt), arrays) | {"tables": tables}

    def _shards(self, params: Any) -> Any:
        if self.mesh.size == 1:
            return params
        return rules.apply(lambda s, leaf: s.shard(leaf, self.mesh.size), self.stored["params"], params)


def _is_named(node: Any) -> bool:
    return isinstance(node, Named)


def gathered(program: GraphProgram, outputs: jax.Array, count: int) -> np.ndarray:
    """Outputs of the devices [1, D, most rows, K] in the order of vertices [count, K]; on every process."""
    from jax.experimental import multihost_utils

    if outputs.is_fully_addressable:
        host = np.asarray(jax.device_get(outputs))
    else:
        host = np.asarray(multihost_utils.process_allgather(outputs, tiled=True))
    found = np.full((count, host.shape[-1]), np.nan, host.dtype)
    for device, ids in enumerate(program.spread.rows()):
        found[ids[ids >= 0]] = host[0, device, : len(ids)][ids >= 0]
    return found
