"""Flat edge lists on jraph's segment operations: plain, exact, and what the other views are compared with.

Shapes: E edges, U source rows, V target rows, R relations, L lanes (heads), C channels of a lane.
"""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import jraph

from models.gnn.view import widened

__all__ = ["Segments"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Segments:
    """A view whose edge values are one array [E, ...], in the order of the lists.

    Args:
        senders_E: source row of each edge, int32.
        receivers_E: target row of each edge, int32; an edge whose receiver is `targets` is padding.
        relation_E: relation of each edge, int32.
        targets: number of target rows V.
        relations: number of relations R.
    """

    senders_E: jax.Array
    receivers_E: jax.Array
    relation_E: jax.Array
    targets: int = field(metadata={"static": True})
    relations: int = field(default=1, metadata={"static": True})

    def senders(self, x_U: jax.Array) -> jax.Array:
        """The sender's row of each edge, [E, ...]."""
        return _gather(x_U, self.senders_E)

    def receivers(self, y_V: jax.Array) -> jax.Array:
        """The receiver's row of each edge, [E, ...]."""
        return _gather(y_V, self.receivers_E)

    def receivers_by_relation(self, y_VR: jax.Array) -> jax.Array:
        """`y[receiver, relation]` of each edge, [E, ...]."""
        return _gather(y_VR, (self.receivers_E, self.relation_E))

    def sum(self, x_ULC: jax.Array) -> jax.Array:
        """Sums of the senders' rows over the arriving edges, for each relation: [V, R, L, C]."""
        return self._by_relation(self.senders(widened(x_ULC))).astype(x_ULC.dtype)

    def weighted(self, x_ULC: jax.Array, a_EL: jax.Array) -> jax.Array:
        """Sums of the senders' rows times the edges' weights, for each relation: [V, R, L, C]."""
        x_ELC = self.senders(widened(x_ULC))
        a_EL = self._clean(a_EL).astype(x_ELC.dtype)
        return self._by_relation(x_ELC * a_EL[:, :, None]).astype(x_ULC.dtype)

    def max(self, x_ULC: jax.Array) -> jax.Array:
        """The largest of the senders' rows over all arriving edges, 0 where there is none: [V, L, C]."""
        return jraph.segment_max_or_constant(self.senders(x_ULC), self.receivers_E, self.targets)

    def softmax(self, s_EL: jax.Array) -> jax.Array:
        """Softmax of the scores over all edges that arrive at a target, [E, L]."""
        # Padding edges are a segment of their own: clamped to the last target, they would reach its gradient.
        s = widened(self._clean(s_EL))
        return self._clean(jraph.segment_softmax(s, self.receivers_E, self.targets + 1)).astype(s_EL.dtype)

    def _by_relation(self, x_ELC: jax.Array) -> jax.Array:
        row_E = self.receivers_E * self.relations + self.relation_E
        sums = jraph.segment_sum(x_ELC, row_E, self.targets * self.relations)
        return sums.reshape(self.targets, self.relations, *x_ELC.shape[1:])

    def _clean(self, a_EL: jax.Array) -> jax.Array:
        return jnp.where((self.receivers_E < self.targets)[:, None], a_EL, jnp.zeros_like(a_EL))


def _gather(x: jax.Array, index: jax.Array | tuple[jax.Array, jax.Array]) -> jax.Array:
    """Rows of x, 0 for those out of range; the gradient is summed in the wide dtype."""
    return widened(x).at[index].get(mode="fill", fill_value=0).astype(x.dtype)
