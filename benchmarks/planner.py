"""The planner: against exhaustive search, against the best even plan, its time, and gains on published clusters.

All steps are predictions of one cost model. The exhaustive search tries every plan of small random clusters. Gains on
the clusters of the HexiSeq and HAP papers stand beside what the papers report, which is over other baselines: read
them as the same order of size, not as the same experiment.
"""

import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from exhaustive import best, draw
from report import Report, flags, note

from meshes.cluster import Cluster, Device
from meshes.plan import Plan
from meshes.planner import plan
from meshes.workload import Workload
from training import setup
from training.config import parse

EXAMPLES = Path(__file__).parents[1] / "examples"
VOCAB = 32_000
COUNTS = {8: None, 32: None, 128: 1.0, 1024: 10.0}  # devices, and the seconds that planning may take
PUBLISHED = {
    "hexiseq_h100_a100": ("hexiseq", "1.11x mean, 1.19x best on real H100 and A100"),
    "hexiseq_32": ("hexiseq", "1.36x mean, 1.72x best, simulated, 32 to 128 GPUs"),
    "hexiseq_64": ("hexiseq", "1.36x mean, 1.72x best, simulated, 32 to 128 GPUs"),
    "hexiseq_128": ("hexiseq", "1.36x mean, 1.72x best, simulated, 32 to 128 GPUs"),
    "hap_v100_p100": ("hap", "up to 2.41x"),
}


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A plan of a small cluster over the best of all plans.

    Args:
        ratio: of predicted steps.
        plans, evaluated: as `exhaustive.Found` has them.
        plan: the planner's.
    """

    ratio: float
    plans: int
    evaluated: int
    plan: Plan


def gap(seed: int) -> Gap:
    """One random cluster."""
    case = draw(seed)
    found = plan(case.cluster, case.workload, placement="specialized" if case.specialized else "auto")
    least = best(case.cluster, case.workload, specialized=case.specialized, below=found.step_seconds)
    return Gap(ratio=found.step_seconds / least.step, plans=least.plans, evaluated=least.evaluated, plan=found)


def against_all_plans(report: Report, clusters: int) -> list[Plan]:
    """The planner over exhaustive search on random clusters of two to four devices."""
    gaps = []
    for seed in range(clusters):
        gaps.append(gap(seed))
        if seed % 50 == 49:
            note(f"{seed + 1} clusters")
    report.add(f"{clusters} random clusters, plans that there are", float(sum(g.plans for g in gaps)), "")
    report.add("step over exhaustive search, worst", max(g.ratio for g in gaps), "x", at_most=1.01)
    report.add("step over exhaustive search, mean", statistics.mean(g.ratio for g in gaps), "x")
    report.add("clusters on which it is the same", float(sum(g.ratio <= 1 + 1e-9 for g in gaps)), "")
    return [g.plan for g in gaps]


def many_devices(count: int, alike: bool) -> tuple[Cluster, Workload]:
    """Hosts of eight devices, of three speeds or each of its own, and a model of seven billion parameters."""
    rng = np.random.default_rng(count)
    speeds = rng.choice((4.0, 2.0, 1.0), count) if alike else np.exp(rng.normal(size=count))
    devices = (Device(name=f"{i}", speed=float(s), host=f"{i // 8}", memory=80 * 10**9) for i, s in enumerate(speeds))
    work = Workload(
        batch_size=1024, microbatch=1, seq_len=4096, vocab_size=VOCAB, layers=32, d_model=4096, heads=32, kv_heads=8,
        head_dim=128, d_ff=11008, remat="layer", compute_bytes=2,
    )  # fmt: skip
    return Cluster(devices=tuple(devices), flops_per_speed=1e14), work


def planning_time(report: Report) -> list[Plan]:
    """Median of three plans for each number of devices."""
    plans = []
    for count, limit in COUNTS.items():
        for alike in (True, False):
            cluster, work = many_devices(count, alike)
            spent = []
            for _ in range(3):
                start = time.perf_counter()
                found = plan(cluster, work)
                spent.append(time.perf_counter() - start)
            kind = "three speeds" if alike else "a speed each"
            report.add(f"planning time, {count} devices, {kind}", statistics.median(spent), "s", at_most=limit)
            plans.append(found)
    return plans


def published(report: Report) -> list[Plan]:
    """Predicted gain over the best even plan on the clusters of the papers."""
    plans = []
    for name, (model, paper) in PUBLISHED.items():
        config = parse(["--config", str(EXAMPLES / f"{model}.toml")])
        found = plan(Cluster.from_toml(EXAMPLES / "clusters" / f"{name}.toml"), setup.workload(config, VOCAB))
        plans.append(found)
        if found.gain is not None:
            report.add(f"{name}, gain over the best even plan (paper: {paper})", found.gain, "x")
    return plans


def against_even_plans(report: Report, plans: list[Plan]) -> None:
    """The planner over the best even plan, wherever one fits in memory."""
    ratios = [p.step_seconds / p.even_step_seconds for p in plans if p.even_step_seconds is not None]
    report.add(f"step over the best even plan, worst of {len(ratios)}", max(ratios), "x", at_most=1.0)


def main() -> None:
    """Run the comparisons and print them."""
    given = flags(__doc__)
    report = Report("planner")
    plans = against_all_plans(report, 40 if given.quick else 200)
    plans += planning_time(report)
    plans += published(report)
    against_even_plans(report, plans)
    report.show(as_json=given.json)


if __name__ == "__main__":
    main()
