"""Which axis of each parameter is cut, by path; strict. The optimizer state follows the parameters.

Stored arrays are the logical ones, zero-padded at the end of the cut axis to a multiple of the device count, so
that every device holds an equal piece. Zero padding stays zero through training (its gradient is zero) and is
left out of checkpoints.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sharding.weights import Shard

# (pattern of the end of the path, cut axis counted from the end, dimensions without the layer axis)
Rules = Sequence[tuple[str, int, int]]
STORED_OVER = ("seq", "data")


@dataclass(frozen=True)
class Storage:
    """How one logical array is stored: the cut axis from the end (None: replicated), its logical length."""

    shape: tuple[int, ...]
    axis: int | None
    devices: int

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of the stored array: the cut axis rounded up to a multiple of the devices."""
        if self.axis is None:
            return self.shape
        shape = list(self.shape)
        shape[self.axis] = -(-shape[self.axis] // self.devices) * self.devices
        return tuple(shape)

    @property
    def spec(self) -> P:
        """Partition spec of the stored array."""
        if self.axis is None:
            return P()
        names: list[Any] = [None] * len(self.shape)
        names[self.axis] = STORED_OVER
        return P(*names)

    def pad(self, logical: Any, module: Any = jnp) -> Any:
        """Logical to stored."""
        if self.axis is None:
            return logical
        widths = [(0, wide - size) for size, wide in zip(self.shape, self.stored_shape, strict=True)]
        return module.pad(logical, widths)

    def crop(self, stored: Any) -> Any:
        """Stored to logical."""
        return stored[tuple(slice(0, size) for size in self.shape)]

    def shard(self, local: jax.Array, devices: int) -> Shard:
        """The local piece, once gathered over data groups: `devices` pieces make the whole."""
        if self.axis is None:
            raise ValueError(f"a replicated array of shape {self.shape} has no pieces")
        return Shard(local, self.axis, self.shape[self.axis])


def storage(tree: Any, rules: Rules, devices: int) -> Any:
    """A `Storage` for every array of a tree of logical shapes.

    Scalars (the optimizer's counters) are replicated. Every other leaf needs a rule whose pattern matches the
    end of its path and whose rank fits; anything else raises with path, shape and the remedy.
    """

    def rule(path: Any, leaf: Any) -> Storage:
        name = path_name(path)
        if leaf.ndim == 0:
            return Storage((), None, devices)
        for pattern, axis, ndim in rules:
            if re.search(pattern + "$", name):
                if leaf.ndim not in (ndim, ndim + 1):
                    raise ValueError(
                        f"parameter {name} of shape {leaf.shape} has {leaf.ndim} dimensions, its rule {pattern!r}"
                        f" is for {ndim} (or {ndim + 1} with a layer axis): mend the rule table"
                    )
                return Storage(tuple(leaf.shape), axis, devices)
        raise ValueError(f"parameter {name} of shape {leaf.shape} matches no sharding rule: add one for its path")

    return jax.tree_util.tree_map_with_path(rule, tree)


def path_name(path: Any) -> str:
    """ "0/mu/layers/up/kernel" for a path of a tree."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def shardings(stored: Any, mesh: Mesh) -> Any:
    """The `NamedSharding` of every stored array."""
    return jax.tree.map(lambda s: NamedSharding(mesh, s.spec), stored, is_leaf=is_storage)


def specs(stored: Any) -> Any:
    """The partition spec of every stored array."""
    return jax.tree.map(lambda s: s.spec, stored, is_leaf=is_storage)


def apply(fn: Callable[..., Any], stored: Any, *trees: Any) -> Any:
    """Map `fn(storage, *leaves)` over a tree of storages."""
    return jax.tree.map(fn, stored, *trees, is_leaf=is_storage)


def is_storage(node: Any) -> bool:
    """Whether a tree node is a `Storage`."""
    return isinstance(node, Storage)


def padding_share(stored: Any) -> float:
    """Fraction of stored elements that are padding."""
    leaves: Iterator[Storage] = iter(jax.tree.leaves(stored, is_leaf=is_storage))
    sizes = [(np.prod(s.shape), np.prod(s.stored_shape)) for s in leaves]
    return 1.0 - float(sum(a for a, _ in sizes) / max(sum(b for _, b in sizes), 1))
