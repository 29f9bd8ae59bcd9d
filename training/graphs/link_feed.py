"""What the steps of link prediction are fed with, and metrics on pairs that are held out."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from training.feed import Stop
from training.graphs.feed import GraphFeed, Held, Order, seeds
from training.graphs.links import JUDGED, Links, features_alone, judged
from training.graphs.sample import SampleSpread
from training.trainable import State

DRAWS = {"train": 1, "valid": 2, "test": 3}  # that tell negatives of parts apart; 0 are those of steps


@dataclass(frozen=True, kw_only=True)
class PairOrder:
    """Which pairs make the batch of a step, and their negatives: a function of seed and step alone.

    Args:
        links: the pairs.
        order: of the numbers of training pairs.
        negatives: vertices without an edge to the first of each pair.
    """

    links: Links
    order: Order
    negatives: int

    @property
    def size(self) -> int:
        """Pairs of a batch."""
        return self.order.size

    def batch(self, step: int) -> np.ndarray:
        """Both ends of each pair, then its negatives, int64 [P, 2 + M]."""
        pairs = self.links.train[self.order.batch(step)]
        drawn = self.links.drawn(pairs, self.negatives, (0, self.order.start(step)))
        return np.concatenate([pairs, drawn], axis=1)

    def state(self, step: int) -> dict[str, Any]:
        """What a checkpoint keeps after so many steps."""
        return self.order.state(step)

    def resumed(self, state: Mapping[str, Any], step: int) -> "PairOrder":
        """The order that goes on from a checkpoint's state.

        Raises:
            UsageError: the data or the seed differ from the checkpoint's.
        """
        return replace(self, order=self.order.resumed(state, step))


@dataclass(eq=False)
class LinkFeed(GraphFeed[PairOrder]):
    """A `training.feed.Feed` of pairs; arguments are those of `GraphFeed`."""

    @property
    def unit(self) -> str:
        """What is scored, with an edge and without."""
        return "pairs"

    def place(self, host: np.ndarray) -> dict[str, jax.Array]:
        """Device arrays of a batch: every device has all pairs and counts some, or samples around its own."""
        spread, devices = self.program.spread, self.program.mesh.size
        if isinstance(spread, SampleSpread):
            return self._put(seeds(spread, host.ravel()))
        turn, ends = np.arange(len(host)) % devices, host.astype(np.int32)
        return self._put(lambda device: {"ends": ends, "counted": (turn == device).astype(np.int32)})

    def held(self, part: Held) -> np.ndarray:
        """Pairs that have an edge."""
        pairs: np.ndarray = getattr(self.order.links, part)
        return pairs

    def score(self, state: State, part: Held, stop: Stop = lambda: False) -> dict[str, float] | None:
        """Exact metrics on the pairs of a part, each among as many negatives; None if stopped."""
        rows = self.outputs(state, np.arange(self.data.vertices), stop)
        return None if rows is None else judged(rows, *self._judged(part))

    def without_network(self, part: Held) -> Mapping[str, float]:
        """The same metrics of features alone."""
        return features_alone(self.order.links, *self._judged(part))

    def _judged(self, part: Held) -> tuple[np.ndarray, np.ndarray]:
        pairs = self.held(part)
        return pairs, self.order.links.drawn(pairs, JUDGED, (DRAWS[part],), held_out=True)
