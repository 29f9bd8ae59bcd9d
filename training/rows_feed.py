"""Rows of tokens for the transformer's steps, and the loss on held-out rows, each with its true weight."""

import math
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import jax

from models.transformer import Batch
from training.batches import Dealer
from training.data import EvalBatches, Rows, TrainStream
from training.feed import Evaluation, Stop
from training.step import Program
from training.trainable import State


@dataclass(eq=False)
class RowsFeed:
    """A `training.feed.Feed` of rows.

    Args:
        program: what evaluates.
        dealer: deals rows to devices.
        stream: training rows.
        batches: rows that are held out.
    """

    program: Program
    dealer: Dealer
    stream: TrainStream
    batches: EvalBatches
    _evaluate: Any = field(default=None, init=False)

    unit = "tokens"

    @property
    def rest(self) -> tuple[Any, ...]:
        """Microbatches of each group, and index tables."""
        return self.dealer.device_counts, self.program.tables

    def prefetch(self, first: int, steps: int) -> Generator[Rows, None, None]:
        """Rows of the batches of steps."""
        return self.stream.prefetch(first, steps, self.dealer.my_rows)

    def place(self, host: Rows) -> Batch:
        """Device arrays of a batch."""
        return self.dealer(host)

    def state(self, step: int) -> dict[str, Any]:
        """The place in the data after so many steps."""
        return self.stream.state(step)

    def compile(self, state: State, batch: Batch) -> dict[str, Any]:
        """Compile the evaluation."""
        self._evaluate = self.program.eval_step().lower(state["params"], batch, *self.rest).compile()
        return {"evaluation": self._evaluate}

    def evaluate(self, state: State, stop: Stop) -> Evaluation | None:
        """Mean loss (nats) over the weight of all rows; NaN if they weigh nothing."""
        parts = []
        with closing(self.batches.prefetch(self.dealer.my_rows)) as ahead:
            for rows in ahead:
                if stop():
                    return None
                parts.append(self._evaluate(state["params"], self.dealer(rows), *self.rest))
        sums = jax.device_get(parts)
        weight = math.fsum(float(w) for _, w in sums)
        loss = math.fsum(float(total) for total, _ in sums) / weight if weight else math.nan
        count = self.batches.row_count
        return Evaluation(values={"loss": loss, "rows": count}, said=f"held-out loss {loss:.4f} over {count} rows")
