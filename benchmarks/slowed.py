"""Plans timed in processes that really are slowed down: each side of a comparison in turn, in one and the same run.

`timed` starts this file once for each device of a cluster; what the processes measured comes back as JSON.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
from rows import random_rows

from meshes import control, environment, mesh, strict_json
from meshes.cluster import Cluster
from meshes.graph_costs import GraphCurve
from meshes.graph_plan import GraphPlan
from meshes.job import Job, meet, member
from meshes.launch import launch
from meshes.plan import Plan
from sharding import messages
from training import link_profile, profile, program, setup
from training.batches import Dealer
from training.config import TrainConfig, parse
from training.data import Rows
from training.graphs import profile as graph_profile
from training.graphs.subject import Graphs
from training.trainable import Trainable

VOCAB = 257
REST = 0.05  # seconds before a step, in which every process' quota is filled again


def timed(cluster: Cluster, config: TrainConfig, plans: Mapping[str, Plan | GraphPlan], rounds: int) -> dict[str, Any]:
    """Seconds of every plan's steps, [rounds], the plans taken in turn.

    Args:
        cluster: the processes and their limits.
        config: the model and the batch; of a graph network, the data too.
        plans: by name; specialized placement.
        rounds: steps of each plan that are timed.

    Returns:
        By name: `seconds` of each round; `loss` of the first step; `cpu` seconds of a step in each process.
    """
    about = {"config": config.to_toml(), "plans": {name: plan.to_json() for name, plan in plans.items()}}
    return _launched(cluster, {"what": "time", "rounds": rounds, **about})


def profiled(cluster: Cluster, config: TrainConfig) -> Cluster:
    """The cluster with measured curves and links."""
    found = _launched(cluster, {"what": "profile", "config": config.to_toml(), "cluster": asdict(cluster)})
    measured: Cluster = strict_json.decode(profile.Profile, found, "profile").cluster
    return measured


def graph_profiled(cluster: Cluster, config: TrainConfig) -> tuple[Cluster, tuple[GraphCurve, ...]]:
    """The cluster with measured links, and what vertices and edges of a graph network cost each device."""
    about = {"what": "graph profile", "config": config.to_toml(), "cluster": asdict(cluster)}
    found = _launched(cluster, about)
    made = strict_json.decode(graph_profile.GraphProfile, found, "graph profile")
    return made.cluster, made.curves


def exchanged(cluster: Cluster, sizes: Sequence[int], between: float, rounds: int) -> dict[str, float]:
    """Seconds of an all-gather or reduce-scatter, with work between them, beyond the work of the slowest device.

    Args:
        cluster: the processes and their limits.
        sizes: rows of the pieces of each device, see `sharding.messages`.
        between: seconds of work.
        rounds: of which the median is taken; ways and sizes alternate.

    Returns:
        By way, `ring` or `direct`, and size: "ring 8".
    """
    about = {"sizes": list(sizes), "between": between, "rounds": rounds}
    found: dict[str, float] = _launched(cluster, {"what": "exchange", **about})
    return found


def _launched(cluster: Cluster, about: dict[str, Any]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder, "given.json"), Path(folder, "found.json")
        given.write_text(json.dumps(about))
        root = str(Path(__file__).parents[1])
        env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": root}
        stdout = os.dup(1)
        os.dup2(2, 1)  # what the processes say is no result
        try:
            code = launch([sys.executable, __file__, str(given), str(found)], cluster, environment=env)
        finally:
            os.dup2(stdout, 1)
        if code:
            raise RuntimeError(f"the processes ended with exit code {code}")
        return json.loads(found.read_text())


def _main(given: str, found: str) -> None:
    """One process."""
    about = json.loads(Path(given).read_text())
    mesh.prepare(None)
    seat = environment.find(os.environ)
    assert seat is not None, "started by the launcher"
    with member(meet(seat)) as job:
        devices = mesh.find(None)
        if about["what"] == "exchange":
            result: Any = _exchange(job, devices, about)
        else:
            run = {"time": _time, "profile": _profile, "graph profile": _graph_profile}[about["what"]]
            result = run(job, _config(given, about["config"]), devices, about)
        if job.number == 0:
            Path(found).write_text(json.dumps(result))


def _config(given: str, text: str) -> TrainConfig:
    path = Path(f"{given}.{os.getpid()}.toml")
    path.write_text(text)
    return parse(["--config", str(path)])


def _exchange(job: Job, devices: list[jax.Device], about: dict[str, Any]) -> dict[str, float]:
    ways = {"ring": False, "direct": True}
    turns = {
        f"{way} {rows}": messages.exchanging(devices, rows, direct=direct)
        for rows in about["sizes"]
        for way, direct in ways.items()
    }
    alone = messages.working(devices[jax.process_index()])
    job.exchange("compiled", True)
    control.throttle(True)
    work = link_profile.Load.of(alone, about["between"])
    found: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(about["rounds"]):
        for name, run in turns.items():
            job.exchange(f"round {number} {name}", True)
            found[name].append(link_profile.per_message(run, work.units).seconds)
    control.throttle(False)
    busiest = max(job.exchange("work", work.took.seconds))
    return {name: statistics.median(seconds) - busiest for name, seconds in found.items()}


def _profile(job: Job, config: TrainConfig, devices: list[jax.Device], about: dict[str, Any]) -> dict[str, Any]:
    cluster = strict_json.decode(Cluster, about["cluster"], "cluster")
    work = setup.workload(config, VOCAB)
    return asdict(profile.profile(job, cluster, devices, work, program.segments(config, VOCAB, len(devices))))


def _graph_profile(job: Job, config: TrainConfig, devices: list[jax.Device], about: dict[str, Any]) -> dict[str, Any]:
    cluster = strict_json.decode(Cluster, about["cluster"], "cluster")
    subject = Graphs(replace(config, profile="always"))
    found, _ = subject.measured(job, cluster, devices)
    assert subject.curves is not None
    return asdict(graph_profile.GraphProfile(cluster=found, curves=subject.curves))


def _time(job: Job, config: TrainConfig, devices: list[jax.Device], about: dict[str, Any]) -> dict[str, Any]:
    side = Side if config.model == "transformer" else GraphSide
    sides = {name: side(config, text, devices) for name, text in about["plans"].items()}
    losses = {name: side.step() for name, side in sides.items()}
    job.exchange("compiled", True)
    control.throttle(True)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    cpu: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(about["rounds"]):
        for name in list(sides)[:: -1 if number % 2 else 1]:
            job.exchange(f"round {number} {name}", True)
            time.sleep(REST)
            start, before = time.perf_counter(), time.process_time()
            sides[name].step()
            seconds[name].append(time.perf_counter() - start)
            cpu[name].append(time.process_time() - before)
    control.throttle(False)
    mine = {name: statistics.median(cpu[name]) for name in sides}
    everyone = job.exchange("cpu", mine)
    return {
        name: {"seconds": seconds[name], "loss": losses[name], "cpu": [cpu[name] for cpu in everyone]} for name in sides
    }


class Side:
    """One plan, compiled."""

    def __init__(self, config: TrainConfig, plan: str, devices: list[jax.Device]) -> None:
        made = Plan.from_json(plan)
        built = program.build(config, made, devices, VOCAB)
        dealer = Dealer(built.mesh, built.tiling, made.workload.microbatch, made.microbatches)
        rows = random_rows(dealer.rows, config.seq_len, VOCAB)
        self._compile(
            built, dealer(Rows(*(array[dealer.my_rows] for array in rows))), dealer.device_counts, built.tables
        )

    def _compile(self, built: Trainable, *inputs: Any) -> None:
        self.state, self.inputs = built.init(jax.random.key(0)), inputs
        self.compiled = built.train_step().lower(self.state, *inputs).compile()

    def step(self) -> float:
        """Run a step to its end; its loss."""
        self.state, metrics = jax.block_until_ready(self.compiled(self.state, *self.inputs))
        return float(metrics["loss"])


class GraphSide(Side):
    """One plan of a graph network, compiled."""

    def __init__(self, config: TrainConfig, plan: str, devices: list[jax.Device]) -> None:
        subject, made = Graphs(config), GraphPlan.from_json(plan)
        built = subject.program(made, devices)
        feed = subject.feed(built, made, 0, None)
        self._compile(built, feed.place(feed.order.batch(0)), *feed.rest)


if __name__ == "__main__":
    _main(*sys.argv[1:])
