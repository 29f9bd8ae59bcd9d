"""Unequal parts of a graph against equal ones in processes that really are unequal: vertex, feature and sampled plans.

Two processes with CPU shares 3:1, and four with 4:2:1:1. The devices are profiled, and the uneven plan is made of what
was measured. Even and uneven steps alternate in one run; the gain is the ratio of the medians. The ideal is what the
integer shares would gain if messages and waiting took no time.
"""

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gains import compare
from report import Report, flags
from slowed import graph_profiled

from meshes.cluster import Cluster
from meshes.graph_costs import GraphCurve
from meshes.graph_plan import GraphPlan
from meshes.graph_planner import plan_graph
from training.config import TrainConfig
from training.graphs.subject import Graphs

CLUSTERS = Path(__file__).parents[1] / "examples" / "clusters"
FILES = {"3:1": "three_to_one.toml", "4:2:1:1": "four_two_one_one.toml"}
WAYS = ("vertex", "feature", "sample")
CLASSES, FEATURES = 16, 128
GOAL = 0.9


def save_graph(path: Path, vertices: int, degree: int) -> None:
    """Communities with a few edges between them, ends in proportion to a power law inside each; labels at random."""
    rng = np.random.default_rng(0)
    size = 250
    receivers = np.repeat(np.arange(vertices), degree)
    near = receivers // size * size + (size * rng.random(len(receivers)) ** 2).astype(np.int64)
    anywhere = rng.integers(0, vertices, len(receivers))
    senders = np.where(rng.random(len(receivers)) < 0.95, np.minimum(near, vertices - 1), anywhere)
    np.savez(
        path,
        senders=senders,
        receivers=receivers,
        features=rng.normal(size=(vertices, FEATURES)).astype(np.float32),
        labels=rng.integers(0, CLASSES, vertices).astype(np.int32),
    )


def config_of(way: str, data: Path) -> TrainConfig:
    """Three layers of a graph convolution; of samples two."""
    sampled: dict[str, Any] = {"fanouts": (10, 10), "seeds": 512} if way == "sample" else {}
    layers = 2 if way == "sample" else 3
    sizes: dict[str, Any] = {"layers": layers, "d_model": 256, "heads": 16}
    return TrainConfig(model="gcn", data=data, graph_parallel=way, **sizes, **sampled)  # type: ignore[arg-type]


def plans(config: TrainConfig, cluster: Cluster) -> dict[str, GraphPlan]:
    """The even plan, and the uneven one of the measured devices."""
    subject = Graphs(config)
    found, curves = graph_profiled(cluster, config)
    alike = replace(found, devices=tuple(replace(device, speed=1.0) for device in found.devices))
    request: dict[str, Any] = {"parallel": config.graph_parallel, "placement": "specialized"}
    if config.graph_parallel != "sample":
        request["graph"] = subject.edges
    slowest = max(curves, key=lambda curve: curve.vertex)
    sides = {"even": (alike, (slowest,) * len(curves)), "uneven": (found, curves)}
    return {name: plan_graph(of, subject.workload, costs=costs, **request) for name, (of, costs) in sides.items()}


def main() -> None:
    """Run the comparisons and print them."""
    given = flags(__doc__, [f"{shares} {way}" for shares in FILES for way in WAYS])
    report = Report("graph_speedup")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "graph.npz")
        save_graph(data, *((2_000, 16) if given.quick else (20_000, 40)))
        for shares, file in FILES.items():
            cluster = Cluster.from_toml(CLUSTERS / file)
            for way in WAYS:
                name = f"{shares} {way}"
                if name in (given.only or [name]):
                    config = config_of(way, data)
                    made = plans(config, cluster)
                    work = partial(_work, made["uneven"].curves[0])
                    compare(report, name, cluster, config, made, work, quick=given.quick, goal=GOAL)
    report.show(as_json=given.json)


def _work(curve: GraphCurve, plan: GraphPlan, device: int) -> float:
    return plan.work(device, curve)


if __name__ == "__main__":
    main()
