"""Measures what vertices, edges and messages cost each device: steps of the network on small graphs, and links."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import optax
from scipy.optimize import nnls

from meshes import control
from meshes.cluster import Cluster
from meshes.graph_costs import GraphCurve, estimated
from meshes.graph_workload import GraphWorkload
from meshes.job import Job
from meshes.mesh import make_mesh
from meshes.stopwatch import timed
from models.gnn.config import GnnConfig
from sharding.placement import Placement
from training.graphs.graph import Graph
from training.graphs.halo import Halo
from training.graphs.spread import Part
from training.graphs.step import GraphProgram
from training.graphs.vertex import VertexSpread
from training.link_profile import Exchanges, linked
from training.segments import Run

VERTICES = 4096  # of the largest graph that is timed, at most
DEGREE = 64  # of its densest, at most


@dataclass(frozen=True, kw_only=True)
class GraphProfile:
    """What was measured.

    Args:
        cluster: the devices with speeds on this workload, the links with theirs.
        curves: of each device.
    """

    cluster: Cluster
    curves: tuple[GraphCurve, ...]


def profile(
    job: Job, cluster: Cluster, devices: Sequence[jax.Device], workload: GraphWorkload, config: GnnConfig
) -> GraphProfile:
    """Measure all devices at the same time, each in its own process.

    Args:
        job: this process among the others, which all call this.
        cluster, devices: in the same order.
        workload: what will be planned.
        config: the same network.
    """
    here = [n for n, device in enumerate(devices) if device.process_index == jax.process_index()]
    sizes = list(_sizes(workload))
    runs = {n: [segment(config, devices[n], *size) for size in sizes] for n in here}
    exchanges = Exchanges.prepared(cluster, devices, workload.vertices * workload.width)
    job.exchange("graph profile compiled", True)
    control.throttle(True)
    mine = {str(n): [timed(run).seconds for run in some] for n, some in runs.items()}
    found: dict[str, list[float]] = {}
    for part in job.exchange("graph profile", mine):
        found |= part
    links, own = exchanges.measured(job)
    control.throttle(False)
    guesses = estimated(cluster, workload)
    made = tuple(_fitted(guess, sizes, found[str(n)], own[n].rows) for n, guess in enumerate(guesses))
    rates = [1 / (curve.vertex * workload.vertices + curve.edge * max(workload.edges, 1)) for curve in made]
    speeds = [float(f"{rate / min(rates):.4g}") for rate in rates]
    faster = tuple(replace(device, speed=speed) for device, speed in zip(cluster.devices, speeds, strict=True))
    measured = replace(linked(cluster, links), devices=faster, declared=True)
    return GraphProfile(cluster=measured, curves=made)


def _sizes(workload: GraphWorkload) -> Iterator[tuple[int, int]]:
    """Vertices and edges of the graphs that are timed: sparse and dense, large and small."""
    most = max(64, min(VERTICES, workload.vertices))
    degree = min(DEGREE, max(2, round(2 * workload.edges / workload.vertices)))
    for vertices in (most // 4, most):
        for edges in (vertices, vertices * degree):
            yield vertices, edges


def segment(config: GnnConfig, device: jax.Device, vertices: int, edges: int) -> Run:
    """A step of one device on a random graph, compiled; the optimizer is left out.

    Args:
        config: the network.
        device: that runs it.
        vertices, edges: of the graph.
    """
    rng = np.random.default_rng(0)
    graph = Graph(
        name="profile",
        senders=rng.integers(0, vertices, edges),
        receivers=rng.integers(0, vertices, edges),
        features=rng.normal(size=(vertices, config.inputs)).astype(np.float32),
        relations=rng.integers(0, config.relations, edges).astype(np.int32),
        kinds=rng.integers(0, config.kinds, vertices).astype(np.int32),
        edge_features=np.zeros((edges, config.edge_features), np.float32),
        labels=rng.integers(0, config.outputs, vertices).astype(np.int32),
        relation_names=tuple(map(str, range(config.relations))),
        kind_names=tuple(map(str, range(config.kinds))),
        classes=tuple(map(str, range(config.outputs))),
        train=np.arange(vertices),
    )
    network = replace(config, level="vertex")
    spread = VertexSpread(
        halo=Halo(part=Part(graph=graph, config=network), owner=np.zeros(vertices, np.int32), devices=1)
    )
    program = GraphProgram(
        config=network,
        spread=spread,
        task="classification",
        mesh=make_mesh([[0]], [device]),
        placement=Placement("single", spread.sizes),
        optimizer=optax.identity(),
    )
    state = program.init(jax.random.key(0))
    inputs: tuple[Any, ...] = (state["params"], state["step"], {}, *program.inputs)
    compiled = program.gradient_step().lower(*inputs).compile()
    return lambda: jax.block_until_ready(compiled(*inputs))


def _fitted(guess: GraphCurve, sizes: Sequence[tuple[int, int]], seconds: Sequence[float], byte: float) -> GraphCurve:
    """The curve through the samples; halos as they were guessed, in units of edges."""
    rows = np.array([(1.0, vertices, edges) for vertices, edges in sizes]) / np.array(seconds)[:, None]
    scale = np.linalg.norm(rows, axis=0)
    fixed, vertex, edge = nnls(rows / scale, np.ones(len(rows)))[0] / scale
    least = min(seconds) / sum(max(sizes))  # noise may hide a part: no work is free
    vertex, edge = max(float(vertex), 1e-3 * least), max(float(edge), 1e-3 * least)
    halo = guess.halo * edge / guess.edge
    return GraphCurve(network=guess.network, fixed=float(fixed), vertex=vertex, edge=edge, halo=halo, byte=byte)
