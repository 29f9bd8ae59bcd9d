"""Unequal shares against equal ones in processes that really are unequal: context, head and data parallel transformers.

Two processes with CPU shares 3:1, and four with 4:2:1:1. The devices are profiled, and the uneven plan is made of what
was measured. Even and uneven steps alternate in one run; the gain is the ratio of the medians. The ideal is what the
integer shares would gain if messages and waiting took no time.
"""

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from report import Report, flags, note
from slowed import VOCAB, profiled, timed

from meshes.cluster import Cluster
from meshes.plan import Plan
from meshes.planner import plan as make
from training import setup
from training.config import TrainConfig

CLUSTERS = Path(__file__).parents[1] / "examples" / "clusters"
FILES = {"3:1": "three_to_one.toml", "4:2:1:1": "four_two_one_one.toml"}
MODEL: dict[str, Any] = {"layers": 2, "d_model": 256, "heads": 8, "kv_heads": 2, "d_ff": 1024}
GOAL = 0.95


def config_of(kind: str, quick: bool) -> TrainConfig:
    """Model and batch: enough tokens between the messages."""
    if kind == "data":
        sizes: dict[str, Any] = {"seq_len": 256 if quick else 1024, "batch_size": 16, "microbatch": 1}
    else:
        sizes = {"seq_len": 512 if quick else 4096, "batch_size": 4, "microbatch": 4}
    return TrainConfig(**MODEL, **sizes)


def plans(kind: str, config: TrainConfig, cluster: Cluster) -> dict[str, Plan]:
    """The even plan of a kind, and the uneven one of the measured devices."""
    work, count = setup.workload(config, VOCAB), len(cluster.devices)
    request: dict[str, Any] = {"placement": "specialized", "kv": "gather"}
    if kind == "data":
        request |= {"data_groups": count}
    else:
        request |= {"data_groups": 1, "attention": kind}
    alike = replace(cluster, devices=tuple(replace(device, speed=1.0) for device in cluster.devices))
    return {"even": make(alike, work, **request), "uneven": make(profiled(cluster, config), work, **request)}


def ideal(cluster: Cluster, made: dict[str, Plan]) -> float:
    """Gain of the integer shares, were messages and waiting free: busiest device of the even plan over the uneven's."""
    return busiest(cluster, made["even"]) / busiest(cluster, made["uneven"])


def busiest(cluster: Cluster, plan: Plan) -> float:
    """Largest work of a device over its CPU share."""
    shares = [device.limits.cpu_share for device in cluster.devices if device.limits is not None]
    return max(plan.flops(number) / share for number, share in enumerate(shares) if share is not None)


def main() -> None:
    """Run the comparisons and print them."""
    given = flags(__doc__)
    report = Report("lopsided_speedup")
    for shares, file in FILES.items():
        cluster = Cluster.from_toml(CLUSTERS / file)
        for kind in ("context", "head", "data"):
            config = config_of(kind, given.quick)
            made = plans(kind, config, cluster)
            best = ideal(cluster, made)
            found = timed(cluster, config, made, rounds=3 if given.quick else 5)
            seconds = {name: statistics.median(side["seconds"]) for name, side in found.items()}
            gain = seconds["even"] / seconds["uneven"]
            name = f"{shares} {kind}"
            note(f"{name}: {found}")
            report.add(f"{name}, even step", seconds["even"], "s")
            report.add(f"{name}, uneven step", seconds["uneven"], "s")
            report.add(f"{name}, gain", gain, "x")
            report.add(f"{name}, ideal gain of these shares", best, "x")
            report.add(f"{name}, gain over ideal", gain / best, "", at_least=GOAL)
            difference = abs(found["even"]["loss"] / found["uneven"]["loss"] - 1)
            report.add(f"{name}, relative difference of losses", difference, "", at_most=1e-5)
    report.show(as_json=given.json)


if __name__ == "__main__":
    main()
