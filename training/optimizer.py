"""AdamW with warmup, a schedule and clipping by the global norm, from optax."""

from typing import Any

import jax
import optax


def schedule(kind: str, peak: float, warmup: int, steps: int) -> optax.Schedule:
    """Learning rate by step: linear up to `peak` over `warmup` steps, then `constant`, `cosine` or `linear` to 0.

    Args:
        kind: constant, cosine or linear.
        peak: highest learning rate.
        warmup: steps of the rise.
        steps: all steps of the run, warmup included.
    """
    rest = max(steps - warmup, 1)
    after = {
        "constant": optax.constant_schedule(peak),
        "cosine": optax.cosine_decay_schedule(peak, rest),
        "linear": optax.linear_schedule(peak, 0.0, rest),
    }[kind]
    if warmup == 0:
        return after
    # The first step already learns a little: it counts as step 1 of the rise.
    rise = optax.linear_schedule(peak / warmup, peak, max(warmup - 1, 1))
    return optax.join_schedules([rise, after], [warmup])


def adamw(learning_rate: optax.Schedule, weight_decay: float, clip_norm: float) -> optax.GradientTransformation:
    """AdamW (Loshchilov & Hutter, 2019) with b1 0.9 and b2 0.95; decay on matrices, not on norms.

    Args:
        learning_rate: by step.
        weight_decay: as a fraction of the learning rate.
        clip_norm: largest global norm of the gradient; 0 never clips.
    """
    adam = optax.adamw(learning_rate, b1=0.9, b2=0.95, weight_decay=weight_decay, mask=_matrices)
    # The same state with and without clipping, so that a run may change it when it goes on.
    return optax.chain(optax.clip_by_global_norm(clip_norm) if clip_norm > 0 else optax.identity(), adam)


def _matrices(params: Any) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key != "scale", params)
