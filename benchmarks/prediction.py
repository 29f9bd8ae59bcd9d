"""Predicted against measured steps: devices and links are profiled, eight kinds of plans are made, timed and compared.

Four processes with CPU shares 4:2:1:1. No plan was used for fitting: the profile times segments of the model alone.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from report import Report, flags, note
from slowed import VOCAB, profiled, timed

from meshes.cluster import Cluster
from meshes.plan import Plan
from meshes.planner import plan as make
from training import setup
from training.config import TrainConfig

CLUSTER = Path(__file__).parents[1] / "examples" / "clusters" / "four_two_one_one.toml"
MODEL: dict[str, Any] = {"layers": 2, "d_model": 128, "heads": 8, "kv_heads": 8, "d_ff": 512}
REQUESTS: dict[str, dict[str, Any]] = {
    "context": {"attention": "context", "kv": "gather", "data_groups": 1},
    "ring": {"attention": "context", "kv": "ring", "data_groups": 1},
    "head": {"attention": "head", "data_groups": 1},
    "hybrid": {"attention": "hybrid", "data_groups": 1},
    "context in two groups": {"attention": "context", "kv": "gather", "data_groups": 2},
    "head in two groups": {"attention": "head", "data_groups": 2},
    "ring in two groups": {"attention": "context", "kv": "ring", "data_groups": 2},
    "rows": {"data_groups": 4},
}
GOAL = 0.10


def main() -> None:
    """Profile, plan, time and compare."""
    given = flags(__doc__)
    sizes: dict[str, Any] = {"seq_len": 512 if given.quick else 1024, "batch_size": 8, "microbatch": 2}
    config = TrainConfig(**MODEL, **sizes)
    measured = profiled(Cluster.from_toml(CLUSTER), config)
    note("  ".join(f"{device.name} {device.speed:g}" for device in measured.devices) + f"  {measured.same_host}")
    work = setup.workload(config, VOCAB)
    plans = {name: make(measured, work, placement="specialized", **request) for name, request in REQUESTS.items()}
    found = timed(measured, config, plans, rounds=3 if given.quick else 7)
    report, errors = Report("prediction"), {}
    for name, plan in plans.items():
        seconds = statistics.median(found[name]["seconds"])
        note(f"{name}: each device's work, predicted {_work(plan)}, measured {_measured(measured, found[name]['cpu'])}")
        errors[name] = abs(plan.step_seconds / seconds - 1)
        report.add(f"{name}, predicted step", plan.step_seconds, "s")
        report.add(f"{name}, measured step", seconds, "s")
        report.add(f"{name}, relative error", errors[name], "")
    worst = max(errors, key=lambda name: errors[name])
    report.add("median relative error", statistics.median(errors.values()), "", at_most=GOAL)
    report.add(f"worst relative error ({worst})", errors[worst], "", at_most=GOAL)
    report.show(as_json=given.json)


def _work(plan: Plan) -> str:
    places = (plan.place(number) for number in range(len(plan.cluster.devices)))
    return " ".join(f"{plan.predictions[group][place].compute:.3f}" for group, place in places)


def _measured(cluster: Cluster, cpu: Sequence[float]) -> str:
    """CPU seconds over the share of a core."""
    shares = [device.limits.cpu_share for device in cluster.devices if device.limits is not None]
    return " ".join(f"{seconds / share:.3f}" for seconds, share in zip(cpu, shares, strict=True) if share)


if __name__ == "__main__":
    main()
