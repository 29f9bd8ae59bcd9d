"""Loss on held-out rows, each with its true weight, by the program that trains."""

import math
from collections.abc import Callable
from contextlib import closing
from typing import Any

import jax

from training.batches import Dealer
from training.data import EvalBatches


def held_out_loss(
    step: Callable[..., Any],
    params: Any,
    tables: Any,
    dealer: Dealer,
    batches: EvalBatches,
    stop: Callable[[], bool] = lambda: False,
) -> float | None:
    """Mean loss (nats) over the weight of all rows; NaN if they weigh nothing, None if stopped.

    Args:
        step: `Program.eval_step()`.
        params: stored parameters.
        tables: of the program.
        dealer: deals batches of `batches.batch_size` rows.
        batches: rows that are held out.
        stop: asked before each batch.
    """
    parts = []
    with closing(batches.prefetch(dealer.my_rows)) as ahead:
        for rows in ahead:
            if stop():
                return None
            parts.append(step(params, dealer(rows), dealer.device_counts, tables))
    sums = jax.device_get(parts)
    weight = math.fsum(float(w) for _, w in sums)
    return math.fsum(float(total) for total, _ in sums) / weight if weight else math.nan
