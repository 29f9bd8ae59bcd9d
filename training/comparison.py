"""What was predicted beside what is measured: each device's own work, timed apart from the collectives."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import jax

from meshes.cluster import Cluster
from meshes.job import Job
from meshes.plan import DevicePrediction
from meshes.stopwatch import timed
from training.segments import Run

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
                " cannot be compared, try a larger model or more work in a step"
            )
        if abs(rest - planned_rest) > abs(busy - planned):
            return (
                f"advice: messages and waiting take {1e3 * rest:.4g} ms of the step, {1e3 * planned_rest:.4g} ms were"
                " planned: measure links with --profile always, or give each step more work between messages"
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


class Compared(Protocol):
    """What a plan says that can be measured."""

    @property
    def cluster(self) -> Cluster:
        """The devices."""

    @property
    def step_seconds(self) -> float:
        """Of a step."""

    def prediction(self, device: int) -> DevicePrediction:
        """What a step should cost a device."""

    def part(self, device: int) -> float:
        """Of a step's work, what a device does."""


@dataclass(eq=False)
class Comparer:
    """Times this process's devices at the shares of the plan.

    Args:
        job: this process among the others.
        plan: what was predicted.
        devices: in the order of the plan's cluster.
        segments: of one device, by its number: what it runs in a step, free of collectives, and how often.
    """

    job: Job
    plan: Compared
    devices: Sequence[jax.Device]
    segments: Callable[[int], list[tuple[Run, int]]]

    def prepare(self) -> None:
        """Compile what will be timed."""
        here = jax.process_index()
        with jax.transfer_guard("allow"):
            self._runs = {n: self.segments(n) for n, d in enumerate(self.devices) if d.process_index == here}

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
            predicted, seconds = self.plan.prediction(number), compute[str(number)]
            times.append(
                DeviceTimes(
                    name=device.name,
                    compute=seconds,
                    predicted_compute=predicted.compute,
                    waiting=max(step - seconds, 0.0),
                    predicted_waiting=self.plan.step_seconds - predicted.compute,
                )
            )
        rates = [self.plan.part(n) / compute[str(n)] for n in range(len(times)) if compute[str(n)]]
        ideal = 1 / sum(rates) if rates else step
        return Comparison(
            devices=tuple(times), step=step, predicted_step=self.plan.step_seconds, ideal_fraction=ideal / step
        )
