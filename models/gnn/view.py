"""What message passing sees of a graph: rows of sources, rows of targets, and the edges between them.

Shapes: U source rows, V target rows, R relations, L lanes (heads), C channels of a lane.
"""

from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

__all__ = ["EdgeValues", "View", "wide", "widened"]

# A value for each edge: a pytree of arrays whose leading axes belong to the view that made it, and whose trailing axes
# are those of the values. Values of one view combine elementwise by `jax.tree.map`.
EdgeValues = Any


class View(Protocol):
    """Edges that arrive at target rows. Every result is differentiable in the values that are given.

    An edge goes from a source row (its sender) to a target row (its receiver) and has a relation. Sums are in float32
    or wider and results have the dtype of the rows that are given. What unused edge values hold, NaN included, is seen
    in no result and in no gradient.
    """

    @property
    def relations(self) -> int:
        """Number of relations R, of which some may have no edge."""
        ...

    def senders(self, x_U: jax.Array) -> EdgeValues:
        """The sender's row of each edge; x_U is [U, ...], the trailing axes are kept."""
        ...

    def receivers(self, y_V: jax.Array) -> EdgeValues:
        """The receiver's row of each edge; y_V is [V, ...], the trailing axes are kept."""
        ...

    def receivers_by_relation(self, y_VR: jax.Array) -> EdgeValues:
        """`y[receiver, relation]` of each edge; y_VR is [V, R, ...], the trailing axes are kept."""
        ...

    def sum(self, x_ULC: jax.Array) -> jax.Array:
        """Sums of the senders' rows over the arriving edges, for each relation: [V, R, L, C]."""
        ...

    def weighted(self, x_ULC: jax.Array, a_L: EdgeValues) -> jax.Array:
        """Sums of the senders' rows, each edge's times its weights a_L [.., L], for each relation: [V, R, L, C]."""
        ...

    def max(self, x_ULC: jax.Array) -> jax.Array:
        """The largest of the senders' rows over all arriving edges: [V, L, C]; 0 where no edge arrives.

        Edges that tie share the gradient equally.
        """
        ...

    def softmax(self, s_L: EdgeValues) -> EdgeValues:
        """Softmax of the scores s_L [.., L] over all edges, whatever their relation, that arrive at a target."""
        ...


def wide(dtype: DTypeLike) -> jnp.dtype:
    """The dtype that sums are taken in: float32 for 16-bit floats, otherwise that of the values."""
    dtype = jnp.dtype(dtype)
    return jnp.dtype(jnp.float32) if jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4 else dtype


def widened(x: jax.Array) -> jax.Array:
    """Values in the dtype that sums are taken in."""
    return x.astype(wide(x.dtype))
