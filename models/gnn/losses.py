"""Losses as sums and weights, never means, so that devices add them exactly. Float32 whatever the dtype of outputs.

An entry without label weighs nothing, and what its output or label holds, NaN included, reaches neither loss nor
gradient.

Shapes: N rows, K classes or targets, P pairs, Q ends of a pair, S = Q - 1 scores, C channels.
"""

import jax
import jax.numpy as jnp

__all__ = ["classification", "link", "link_scores", "links", "regression"]


def classification(logits_NK: jax.Array, labels_N: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sum of softmax cross-entropies (nats), and the number of labels.

    Args:
        logits_NK: one row for each label.
        labels_N: int32 class 0..K-1, or -1 for none.
    """
    known_N = labels_N >= 0
    logits_NK = jnp.where(known_N[:, None], logits_NK.astype(jnp.float32), 0.0)
    picked_N = jnp.take_along_axis(logits_NK, jnp.where(known_N, labels_N, 0)[:, None], axis=1)[:, 0]
    return _sums(jax.nn.logsumexp(logits_NK, axis=1) - picked_N, known_N)


def regression(outputs_NK: jax.Array, targets_NK: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sum of squared errors, and the number of targets.

    Args:
        outputs_NK: predictions.
        targets_NK: float32, NaN for none.
    """
    known_NK = ~jnp.isnan(targets_NK)
    error_NK = _where(known_NK, outputs_NK) - _where(known_NK, targets_NK)
    return _sums(jnp.square(error_NK), known_NK)


def link(scores_P: jax.Array, labels_P: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sum of sigmoid cross-entropies (nats), and the number of labels; also of tables [N, K] of yes and no.

    Args:
        scores_P: logits, of any shape.
        labels_P: int32 of the same shape: 1 for an edge, 0 for none, -1 for unknown.
    """
    known_P = labels_P >= 0
    scores_P, edge_P = _where(known_P, scores_P), (labels_P > 0).astype(jnp.float32)
    return _sums(jax.nn.softplus(scores_P) - scores_P * edge_P, known_P)


def link_scores(ends_PQC: jax.Array, channels: int) -> jax.Array:
    """Products of the first end of each pair and its other ends over sqrt(channels), float32 [P, Q - 1].

    Args:
        ends_PQC: channels of the ends, or some of them: scores add up over channels.
        channels: of whole ends.
    """
    ends_PQC = ends_PQC.astype(jnp.float32)
    return jnp.sum(ends_PQC[:, :1] * ends_PQC[:, 1:], axis=2) * channels**-0.5


def links(scores_PS: jax.Array, known_P: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sum and number as of `link`, where the first score of each row is that of an edge, others those of none.

    Args:
        scores_PS: logits.
        known_P: whether a row counts, bool.
    """
    edge_PS = jnp.broadcast_to(jnp.arange(scores_PS.shape[1], dtype=jnp.int32)[None, :] == 0, scores_PS.shape)
    return link(scores_PS, jnp.where(known_P[:, None], edge_PS.astype(jnp.int32), -1))


def _where(known: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.where(known, x.astype(jnp.float32), 0.0)


def _sums(losses: jax.Array, known: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.sum(_where(known, losses)), jnp.sum(known.astype(jnp.float32))
