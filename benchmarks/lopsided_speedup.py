"""Unequal shares against equal ones in processes that really are unequal: context, head and data parallel transformers.

Two processes with CPU shares 3:1, and four with 4:2:1:1. The devices are profiled, and the uneven plan is made of what
was measured. Even and uneven steps alternate in one run; the gain is the ratio of the medians. The ideal is what the
integer shares would gain if messages and waiting took no time.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from gains import compare
from report import Report, flags
from slowed import VOCAB, profiled

from meshes.cluster import Cluster
from meshes.plan import Plan
from meshes.planner import plan as make
from training import setup
from training.config import TrainConfig

CLUSTERS = Path(__file__).parents[1] / "examples" / "clusters"
FILES = {"3:1": "three_to_one.toml", "4:2:1:1": "four_two_one_one.toml"}
KINDS = ("context", "head", "data")
MODEL: dict[str, Any] = {"layers": 2, "d_model": 256, "heads": 8, "kv_heads": 2, "d_ff": 1024}
GOAL = 0.95


def config_of(kind: str, quick: bool) -> TrainConfig:
    """Model and batch: enough tokens between the messages."""
    if kind == "data":
        sizes: dict[str, Any] = {"seq_len": 256 if quick else 1024, "batch_size": 16, "microbatch": 1}
    else:
        sizes = {"seq_len": 512 if quick else 8192, "batch_size": 2, "microbatch": 2}
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
    return {"even": make(alike, work, **request), "uneven": make(measured(cluster, config), work, **request)}


@cache
def measured(cluster: Cluster, config: TrainConfig) -> Cluster:
    """Profiled once for all kinds of a cluster that train the same."""
    return profiled(cluster, config)


def main() -> None:
    """Run the comparisons and print them."""
    given = flags(__doc__, [f"{shares} {kind}" for shares in FILES for kind in KINDS])
    report = Report("lopsided_speedup")
    for shares, file in FILES.items():
        cluster = Cluster.from_toml(CLUSTERS / file)
        for kind in KINDS:
            name = f"{shares} {kind}"
            if name in (given.only or [name]):
                config = config_of(kind, given.quick)
                made = plans(kind, config, cluster)
                compare(report, name, cluster, config, made, Plan.flops, quick=given.quick, goal=GOAL)
    report.show(as_json=given.json)


if __name__ == "__main__":
    main()
