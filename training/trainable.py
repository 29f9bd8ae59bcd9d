"""What is trained, whatever the model: a state cut evenly over a mesh, fresh or updated by one step."""

import functools
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sharding import rules
from sharding.chain import signal, wait
from sharding.placement import Placement
from sharding.weights import Keep, WeightSharding

State = dict[str, Any]  # params, opt_state, step


@dataclass(frozen=True, eq=False, kw_only=True)
class Trainable:
    """A model whose parameters, gradients and moments are cut evenly over all devices.

    Args:
        mesh: axes data and seq.
        placement: who does which work.
        optimizer: an optax transformation; elementwise apart from the global norm.
        dtype: compute dtype; parameters, gradients and moments are float32.
    """

    mesh: Mesh
    placement: Placement
    optimizer: optax.GradientTransformation
    dtype: Any = jnp.float32

    rule_table: ClassVar[rules.Rules]

    @abstractmethod
    def fresh(self, key: jax.Array) -> Any:
        """Fresh parameters, logical."""

    @abstractmethod
    def train_step(self) -> jax.stages.Wrapped:
        """`step(state, batch, *rest) -> state, metrics`, see `jitted_step`."""

    @functools.cached_property
    def logical(self) -> State:
        """Logical shapes and dtypes of the state."""
        params = jax.eval_shape(self.fresh, jax.random.key(0))
        opt_state = jax.eval_shape(self.optimizer.init, params)
        return {"params": params, "opt_state": opt_state, "step": jax.ShapeDtypeStruct((), jnp.int32)}

    @functools.cached_property
    def stored(self) -> State:
        """How each array of the state is stored: a tree of `Storage`."""
        return rules.storage(self.logical, self.rule_table, self.mesh.size)

    @functools.cached_property
    def shardings(self) -> State:
        """The sharding of each array of the state."""
        return rules.shardings(self.stored, self.mesh)

    def init(self, key: jax.Array) -> State:
        """Fresh state, drawn on logical shapes, so that it does not depend on the plan."""

        def fresh(key: jax.Array) -> State:
            params = self.fresh(key)
            state = {"params": params, "opt_state": self.optimizer.init(params), "step": jnp.zeros((), jnp.int32)}
            return rules.apply(lambda s, leaf: s.pad(leaf), self.stored, state)

        return jax.jit(fresh, out_shardings=self.shardings)(key)

    def jitted_step(self, gradients: Callable[..., tuple[jax.Array, jax.Array, Any]]) -> jax.stages.Wrapped:
        """`step(state, *inputs) -> state, metrics`, jitted, the state donated.

        Metrics are float32 scalars: loss (mean over weight), grad_norm, weight (of the targets in the loss).

        Args:
            gradients: `(state, *inputs) -> loss sum, weight, stored gradients of the sum`.
        """

        def step(state: State, *inputs: Any) -> tuple[State, dict[str, jax.Array]]:
            total, weight, grads = gradients(state, *inputs)
            # A step without any target has zero gradients, not 0/0.
            scale = 1.0 / jnp.maximum(weight, jnp.finfo(jnp.float32).tiny)
            scale = jnp.where(weight > 0, scale, 0.0)
            grads = jax.tree.map(lambda g: g * scale, grads)
            with jax.numpy_dtype_promotion("standard"):  # optax raises a Python float to an int32 count
                updates, opt_state = self.optimizer.update(grads, state["opt_state"], state["params"])
            params = optax.apply_updates(state["params"], updates)
            metrics = {"loss": total * scale, "grad_norm": optax.tree.norm(grads), "weight": weight}
            return {"params": params, "opt_state": opt_state, "step": state["step"] + 1}, metrics

        return jax.jit(step, donate_argnums=0, out_shardings=(self.shardings, on_mesh(self.mesh, P())))

    def placed(self, direct: bool) -> Placement:
        """The placement with the weights of this mesh.

        Args:
            direct: how they travel, see `sharding.collectives`.
        """
        sharding: Keep | WeightSharding = WeightSharding("seq", self.mesh.shape["seq"], self.dtype, direct)
        return replace(self.placement, weights=Keep(self.dtype) if self.mesh.size == 1 else sharding)

    def sums(self, values: jax.Array, before: Any = ()) -> jax.Array:
        """The sum over all devices, after all that `before` comes from."""
        if self.mesh.size == 1:
            return values
        return jax.lax.psum(self.after(values, before), self.mesh.axis_names)

    def after(self, tree: Any, *before: Any) -> Any:
        """The same arrays, not before others where collectives are chained."""
        return wait(tree, signal(*before)) if self.placement.chained else tree


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
