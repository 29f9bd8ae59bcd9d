"""Sampled neighbours: each target row has the same number of slots, and every slot a source row of its own.

Shapes: V target rows, F slots of a target, U = V + V F source rows, R relations, L lanes (heads), C channels of a lane.
"""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from models.gnn.view import widened

__all__ = ["Slots"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Slots:
    """A view whose edge values are one array [V, F, ...].

    Source rows are the V targets, then the sampled neighbours, slot by slot: slot f of target v is row V + v F + f.
    Neighbours are taken to be a uniform sample of all edges that arrive at the target, so that `sum` and `weighted`,
    scaled by how many were left out, are unbiased estimates of the sums over all of them. `max` and `softmax` are over
    the sample alone.

    Args:
        mask_VF: which slots hold an edge, bool.
        relation_VF: relation of each slot's edge, int32.
        degree_V: number of edges that arrive at each target in the whole graph, of all relations, float32.
        relations: number of relations R.
    """

    mask_VF: jax.Array
    relation_VF: jax.Array
    degree_V: jax.Array
    relations: int = field(default=1, metadata={"static": True})

    def senders(self, x_U: jax.Array) -> jax.Array:
        """The sender's row of each slot, 0 in unused ones: [V, F, ...]."""
        V, F = self.mask_VF.shape
        if x_U.shape[0] != V + V * F:
            raise ValueError(f"{V} targets of {F} slots have {V + V * F} source rows, not {x_U.shape[0]}")
        return self._clean(x_U[V:].reshape(V, F, *x_U.shape[1:]), 0)

    def receivers(self, y_V: jax.Array) -> jax.Array:
        """The receiver's row of each slot: [V, F, ...]."""
        return jnp.broadcast_to(y_V[:, None], (*self.mask_VF.shape, *y_V.shape[1:]))

    def receivers_by_relation(self, y_VR: jax.Array) -> jax.Array:
        """`y[receiver, relation]` of each slot: [V, F, ...]."""
        values = self.receivers(y_VR[:, 0])
        for relation in range(1, self.relations):
            values = jnp.where(self._of(relation, values.ndim), self.receivers(y_VR[:, relation]), values)
        return values

    def sum(self, x_ULC: jax.Array) -> jax.Array:
        """Estimated sums over all arriving edges, for each relation: [V, R, L, C]."""
        return self._by_relation(widened(self.senders(x_ULC))).astype(x_ULC.dtype)

    def weighted(self, x_ULC: jax.Array, a_VFL: jax.Array) -> jax.Array:
        """Estimated sums, each edge times its weights, for each relation: [V, R, L, C]."""
        x_VFLC = widened(self.senders(x_ULC))
        a_VFL = self._clean(a_VFL, 0).astype(x_VFLC.dtype)
        return self._by_relation(x_VFLC * a_VFL[..., None]).astype(x_ULC.dtype)

    def max(self, x_ULC: jax.Array) -> jax.Array:
        """The largest sampled row, 0 where there is none: [V, L, C]."""
        x_VFLC = self._clean(self.senders(x_ULC), -jnp.inf)
        return jnp.where(self._any(3), jnp.max(x_VFLC, axis=1, initial=-jnp.inf), jnp.zeros((), x_ULC.dtype))

    def softmax(self, s_VFL: jax.Array) -> jax.Array:
        """Softmax of the scores over the sampled edges of a target: [V, F, L]."""
        s = self._clean(widened(s_VFL), -jnp.inf)
        top_VL = jax.lax.stop_gradient(jnp.where(self._any(2), jnp.max(s, axis=1, initial=-jnp.inf), 0))
        e = self._clean(jnp.exp(self._clean(s, 0) - top_VL[:, None]), 0)
        return (e / jnp.where(self._any(2), jnp.sum(e, axis=1), 1)[:, None]).astype(s_VFL.dtype)

    def _by_relation(self, x_VFLC: jax.Array) -> jax.Array:
        count_V = jnp.maximum(jnp.sum(self.mask_VF, axis=1, dtype=jnp.int32), 1)
        scale_V = self.degree_V.astype(x_VFLC.dtype) / count_V.astype(x_VFLC.dtype)
        parts = (
            [jnp.where(self._of(r, 4), x_VFLC, 0) for r in range(self.relations)] if self.relations > 1 else [x_VFLC]
        )
        sums_VRLC = jnp.stack([jnp.sum(part, axis=1) for part in parts], axis=1)
        return sums_VRLC * scale_V[:, None, None, None]

    def _of(self, relation: int, ndim: int) -> jax.Array:
        return _trailing(self.relation_VF == relation, ndim)

    def _any(self, ndim: int) -> jax.Array:
        return _trailing(jnp.any(self.mask_VF, axis=1), ndim)

    def _clean(self, values_VF: jax.Array, unused: float) -> jax.Array:
        return jnp.where(_trailing(self.mask_VF, values_VF.ndim), values_VF, jnp.asarray(unused, values_VF.dtype))


def _trailing(x: jax.Array, ndim: int) -> jax.Array:
    return x.reshape(*x.shape, *[1] * (ndim - x.ndim))
