"""Times something that runs on one device: warm, several samples, the median. No JAX."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

SAMPLES = 5
SAMPLE_SECONDS = 0.1  # a sample repeats what is shorter: a throttled process runs and rests in turns of milliseconds
ENOUGH_SECONDS = 2.0  # what takes longer is sampled less often, but twice
NOISY = 0.1


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What was measured.

    Args:
        seconds: median of the samples, of one run.
        spread: half the distance between the quartiles over the median.
        share: CPU seconds of this process for each second, while it was timed.
    """

    seconds: float
    spread: float
    share: float

    @property
    def noisy(self) -> bool:
        """Whether samples disagree by more than a tenth."""
        return self.spread > NOISY


def timed(run: Callable[[], None], samples: int = SAMPLES, least: float = SAMPLE_SECONDS) -> Timing:
    """Time a callable that has run before and returns when its work is done.

    Args:
        run: what to time.
        samples: how many, fewer if they take long.
        least: seconds of a sample.
    """
    began = time.perf_counter()
    run()
    once = max(time.perf_counter() - began, 1e-9)
    repeats = max(1, round(least / once))
    seconds = []
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(min(samples, max(2, round(ENOUGH_SECONDS / (once * repeats))))):
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        seconds.append((time.perf_counter() - start) / repeats)
    share = (time.process_time() - cpu) / (time.perf_counter() - wall)
    low, middle, high = np.quantile(seconds, (0.25, 0.5, 0.75))
    return Timing(seconds=float(middle), spread=float((high - low) / 2 / middle), share=share)
