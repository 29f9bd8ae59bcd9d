"""What was predicted beside what is measured: each device's own work, timed apart from the collectives."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jax

from meshes.job import Job
from meshes.plan import Plan
from meshes.stopwatch import timed
from training.segments import Run, Segments

APART = 0.1  # relative difference that is worth a word
SAMPLES = 3


@dataclass(frozen=True, kw_only=True)
class DeviceTimes:
    """Seconds of a step on one device.

    Args:
        name: of the device.
        compute, predicted_compute: its own work.
        waiting, predicted_waiting: the rest of the step: messages, and waiting for others.
    """

    name: str
    compute: float
    predicted_compute: float
    waiting: float
    predicted_waiting: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One comparison.

    Args:
        devices: in the order of the cluster.
        step, predicted_step: seconds.
        ideal_fraction: seconds that the step's work would take if all devices shared it without a message or a wait,
            each as fast as it was just measured, over the seconds of the step.
    """

    devices: tuple[DeviceTimes, ...]
    step: float
    predicted_step: float
    ideal_fraction: float

    def lines(self) -> Iterator[str]:
        """For people: a table, and a sentence where prediction and measurement differ."""
        width = max(len("device"), *(len(device.name) for device in self.devices))
        yield f"{'device':<{width}}  compute ms  predicted  waiting ms  predicted"
        for d in self.devices:
            numbers = (d.compute, d.predicted_compute, d.waiting, d.predicted_waiting)
            yield f"{d.name:<{width}}" + "".join(
                f"{1e3 * n:>{w}.4g}" for n, w in zip(numbers, (12, 11, 12, 11), strict=True)
            )
        yield (
            f"step {1e3 * self.step:.4g} ms, predicted {1e3 * self.predicted_step:.4g} ms;"
            f" {self.ideal_fraction:.0%} of the ideal, in which no device waits and no message takes time"
        )
        if advice := self.advice():
            yield advice

    def advice(self) -> str:
        """One sentence on what differs most and what to do; empty if nothing does."""
        worked = [d for d in self.devices if d.predicted_compute and d.compute]
        if not worked or abs(self.step / self.predicted_step - 1) <= APART:
            return ""
        busy, planned = max(d.compute for d in worked), max(d.predicted_compute for d in worked)
        rest, planned_rest = self.step - busy, self.predicted_step - planned
        if rest < 0:
            return (
                f"advice: a step takes {1e3 * self.step:.4g} ms and its work alone {1e3 * busy:.4g} ms: steps so short"
                " cannot be compared, try a larger model or --microbatch"
            )
        if abs(rest - planned_rest) > abs(busy - planned):
            return (
                f"advice: messages and waiting take {1e3 * rest:.4g} ms of the step, {1e3 * planned_rest:.4g} ms were"
                " planned: measure links with --profile always, or send less often with a larger --microbatch"
            )
        ratios = sorted((d.compute / d.predicted_compute, d.name) for d in worked)
        (low, fast), (high, slow) = ratios[0], ratios[-1]
        if high / low > 1 + APART:
            return (
                f"advice: {slow} takes {high:.2f}x its predicted time and {fast} {low:.2f}x, so that shares are not in"
                " proportion to speeds: measure again with --profile always"
            )
        return (
            f"advice: all devices take about {statistics.median(r for r, _ in ratios):.2f}x the predicted time: the"
            " shares are right and the predicted step is not: measure again with --profile always"
        )


@dataclass(eq=False)
class Comparer:
    """Times this process's devices at the shares of the plan.

    Args:
        job: this process among the others.
        plan: what was predicted.
        devices: in the order of the plan's cluster.
        segments: of the model.
    """

    job: Job
    plan: Plan
    devices: Sequence[jax.Device]
    segments: Segments

    def prepare(self) -> None:
        """Compile what will be timed."""
        here = jax.process_index()
        with jax.transfer_guard("allow"):
            self._runs = {n: self._segments(n) for n, d in enumerate(self.devices) if d.process_index == here}

    def compare(self, what: str, step: float) -> Comparison:
        """Time all devices at once, each in its own process, and tell everyone.

        Args:
            what: unique in the run.
            step: seconds of a step.
        """
        mine = {str(n): sum(times * timed(run, SAMPLES).seconds for run, times in r) for n, r in self._runs.items()}
        compute: dict[str, float] = {}
        for part in self.job.exchange(f"measured {what}", mine):
            compute |= part
        times = []
        for number, device in enumerate(self.plan.cluster.devices):
            g, m = self.plan.place(number)
            predicted, seconds = self.plan.predictions[g][m], compute[str(number)]
            times.append(
                DeviceTimes(
                    name=device.name,
                    compute=seconds,
                    predicted_compute=predicted.compute,
                    waiting=max(step - seconds, 0.0),
                    predicted_waiting=self.plan.step_seconds - predicted.compute,
                )
            )
        rates = [self.plan.flops(n) / compute[str(n)] for n in range(len(times)) if compute[str(n)]]
        ideal = self.plan.workload.step_flops() / sum(rates)
        return Comparison(
            devices=tuple(times), step=step, predicted_step=self.plan.step_seconds, ideal_fraction=ideal / step
        )

    def _segments(self, number: int) -> list[tuple[Run, int]]:
        """Segments of one device, and how often a step runs each."""
        (g, m), work, device = self.plan.place(number), self.plan.workload, self.devices[number]
        tokens, tile, count = self.plan.tokens[g][m], self.plan.tiles[g][m], self.plan.microbatches[g]
        made: list[tuple[Run, int]] = []
        if tokens and count:
            made.append((self.segments.tokens(device, tokens), count))
        if tile.tokens and tile.heads[1] > tile.heads[0] and count:
            made.append((self.segments.attention(device, tile.tokens, tile.heads), count * work.layers))
        return made
