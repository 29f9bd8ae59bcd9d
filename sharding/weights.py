"""Parameters sharded evenly: gathered whole for a layer's work, their gradients scattered back as sums."""

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from sharding.collectives import all_gather, reduce_scatter


@functools.partial(jax.tree_util.register_dataclass, data_fields=["value"], meta_fields=["axis", "size"])
@dataclass(frozen=True)
class Shard:
    """One device's piece of a parameter.

    Args:
        value: the local piece; along `axis` the pieces of all devices follow each other, the last ones padded.
        axis: the cut axis, counted from the end (so that scanning over a leading layer axis keeps it true).
        size: logical length of that axis.
    """

    value: jax.Array
    axis: int
    size: int


@dataclass(frozen=True)
class Keep:
    """Weights that are whole already: only cast to the compute dtype."""

    dtype: Any = jnp.float32

    def gather(self, weights: Any) -> Any:
        """The same parameters in the compute dtype."""
        return jax.tree.map(lambda w: w.astype(self.dtype), weights)

    def scatter(self, grads: Any, like: Any) -> Any:
        """Gradients in the dtype of the parameters."""
        return jax.tree.map(lambda g, w: g.astype(w.dtype), grads, like)


@dataclass(frozen=True)
class WeightSharding:
    """Weights cut over one mesh axis.

    Args:
        axis_name: mesh axis that holds the pieces.
        devices: its length.
        dtype: compute dtype; pieces are cast before they travel, gradients travel and add in float32.
        direct: how they travel, see `sharding.collectives`.
    """

    axis_name: str
    devices: int
    dtype: Any = jnp.float32
    direct: bool = False

    def gather(self, shards: Any) -> Any:
        """Whole parameters from a tree of `Shard`: one collective for the whole tree."""
        nodes, tree = jax.tree.flatten(shards, is_leaf=_is_shard)
        if self.devices == 1:
            return jax.tree.unflatten(tree, [_join(n.value.astype(self.dtype)[None], n) for n in nodes])
        flat = jnp.concatenate([n.value.astype(self.dtype).reshape(-1) for n in nodes])
        flat_nP = all_gather(flat, self.axis_name, direct=self.direct)
        whole, start = [], 0
        for node in nodes:
            stop = start + math.prod(node.value.shape)
            pieces = flat_nP[:, start:stop].reshape(self.devices, *node.value.shape)
            whole.append(_join(pieces, node))
            start = stop
        return jax.tree.unflatten(tree, whole)

    def scatter(self, grads: Any, like: Any) -> Any:
        """Sum whole gradients over the axis, each device keeping its piece: one collective."""
        nodes, tree = jax.tree.flatten(like, is_leaf=_is_shard)
        wholes = jax.tree.leaves(grads)
        cut = [_cut(g.astype(jnp.float32), n, self.devices) for g, n in zip(wholes, nodes, strict=True)]
        if self.devices == 1:
            pieces = [Shard(c[0].astype(n.value.dtype), n.axis, n.size) for c, n in zip(cut, nodes, strict=True)]
            return jax.tree.unflatten(tree, pieces)
        flat_nP = jnp.concatenate([c.reshape(self.devices, -1) for c in cut], axis=1)
        flat = reduce_scatter(flat_nP, self.axis_name, direct=self.direct)
        pieces, start = [], 0
        for node in nodes:
            stop = start + math.prod(node.value.shape)
            piece = flat[start:stop].reshape(node.value.shape).astype(node.value.dtype)
            pieces.append(Shard(piece, node.axis, node.size))
            start = stop
        return jax.tree.unflatten(tree, pieces)


def pieces(tree: Any) -> Any:
    """The local pieces of a tree of `Shard`, or of arrays that are whole."""
    return jax.tree.map(lambda node: node.value if _is_shard(node) else node, tree, is_leaf=_is_shard)


def _is_shard(node: Any) -> bool:
    return isinstance(node, Shard)


def _join(pieces: jax.Array, node: Shard) -> jax.Array:
    """[n, ..., a, ...] pieces -> whole array whose cut axis has its logical length."""
    axis = node.value.ndim + node.axis
    moved = jnp.moveaxis(pieces, 0, axis)
    shape = list(node.value.shape)
    shape[axis] *= pieces.shape[0]
    return lax.slice_in_dim(moved.reshape(shape), 0, node.size, axis=axis)


def _cut(whole: jax.Array, node: Shard, devices: int) -> jax.Array:
    """The inverse of `_join`: zero-pad the cut axis and split it into [n, ..., a, ...]."""
    axis, local = node.value.ndim + node.axis, node.value.shape[node.axis]
    widths = [(0, 0)] * whole.ndim
    widths[axis] = (0, local * devices - node.size)
    shape = [*whole.shape]
    shape[axis : axis + 1] = [devices, local]
    return jnp.moveaxis(jnp.pad(whole, widths).reshape(shape), axis, 0)
