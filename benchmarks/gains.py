"""What an uneven plan gains over an even one, both timed in turn in slowed processes."""

import statistics
from collections.abc import Callable, Mapping
from typing import TypeVar

from report import Report, note
from slowed import timed

from meshes.cluster import Cluster
from meshes.graph_plan import GraphPlan
from meshes.plan import Plan
from training.config import TrainConfig

AnyPlan = TypeVar("AnyPlan", Plan, GraphPlan)


def compare(
    report: Report,
    name: str,
    cluster: Cluster,
    config: TrainConfig,
    plans: Mapping[str, AnyPlan],
    work: Callable[[AnyPlan, int], float],
    *,
    quick: bool,
    goal: float,
) -> None:
    """Time a plan `even` and a plan `uneven`, and report steps, gain, and the gain over the ideal of the shares.

    The ideal is what the integer shares would gain, were messages and waiting free: work of the busiest device of the
    even plan over that of the uneven one.

    Args:
        report: that is added to.
        name: of the case.
        cluster, config: whom and what is timed.
        plans: both.
        work: what a plan gives a device, by its number.
        quick: fewer rounds.
        goal: of the gain over the ideal.
    """
    best = _busiest(cluster, plans["even"], work) / _busiest(cluster, plans["uneven"], work)
    found = timed(cluster, config, plans, rounds=3 if quick else 5)
    seconds = {side: statistics.median(times["seconds"]) for side, times in found.items()}
    gain = seconds["even"] / seconds["uneven"]
    note(f"{name}: {found}")
    report.add(f"{name}, even step", seconds["even"], "s")
    report.add(f"{name}, uneven step", seconds["uneven"], "s")
    report.add(f"{name}, gain", gain, "x")
    report.add(f"{name}, ideal gain of these shares", best, "x")
    report.add(f"{name}, gain over ideal", gain / best, "", at_least=goal)
    difference = abs(found["even"]["loss"] / found["uneven"]["loss"] - 1)
    report.add(f"{name}, relative difference of losses", difference, "", at_most=1e-5)


def _busiest(cluster: Cluster, plan: AnyPlan, work: Callable[[AnyPlan, int], float]) -> float:
    """Largest work of a device over its CPU share."""
    shares = [device.limits.cpu_share for device in cluster.devices if device.limits is not None]
    return max(work(plan, number) / share for number, share in enumerate(shares) if share is not None)
