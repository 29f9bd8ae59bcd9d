"""A graph network on a graph or on many small ones: from the data to a plan, a program and a feed. Imports no JAX."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from meshes.cluster import Cluster
from meshes.errors import PlanError, UsageError
from meshes.graph_costs import GraphCurve
from meshes.graph_plan import GraphPlan
from meshes.graph_planner import owners as owners_of
from meshes.graph_planner import plan_graph
from meshes.graph_workload import GraphWorkload
from meshes.job import Job
from meshes.minimax import shares_minimax
from meshes.partition import Edges
from meshes.table import count
from training import setup
from training.config import TrainConfig
from training.graphs import baselines
from training.graphs.graph import Graph, GraphSet, both_ways
from training.graphs.links import JUDGED, Links, chance, split
from training.graphs.load import load

if TYPE_CHECKING:
    import jax

    from training.comparison import Comparer
    from training.graphs.batch import BatchSpread
    from training.graphs.feed import GraphFeed, Order
    from training.graphs.spread import Part, Spread
    from training.graphs.step import GraphProgram
    from training.metrics import Reporter
    from training.segments import Run
    from training.trainable import State


class Graphs:
    """A `training.subject.Subject`.

    Args:
        config: the flags.

    Raises:
        UsageError: the data cannot be used.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.curves: tuple[GraphCurve, ...] | None = None
        data = load(config.data, config.seed)
        self.links = _links(config, data)
        if self.links is not None:
            data = self.links.graph
        elif data.labels is None or not len(data.train):
            raise UsageError(f"{data.name} has nothing to train on: give labels, and some of them to train")
        self.data: Graph | GraphSet = both_ways(data) if isinstance(data, Graph) and config.edges == "both" else data

    @property
    def fingerprint(self) -> str:
        """Of the data."""
        return self.data.fingerprint

    @property
    def notes(self) -> Sequence[str]:
        """Sizes of the data."""
        data = self.data
        of = data if self.links is None else self.links
        parts = f"{len(of.train):,} to train on, {len(of.valid):,} held out, {len(of.test):,} for the test"
        parts = parts if self.links is None else f"pairs with an edge: {parts}"
        size = f"{data.vertices:,} vertices, {data.edges:,} edges of {count(len(data.relation_names), 'type')}"
        many = f"{data.graphs:,} graphs, " if isinstance(data, GraphSet) else ""
        return [f"{data.name}: {many}{size}, {data.features.shape[1]} features; {parts}"]

    @cached_property
    def workload(self) -> GraphWorkload:
        """What a step has to compute."""
        config, data = self.config, self.data
        whole = isinstance(data, Graph)
        mean = {"vertices": data.vertices, "edges": data.edges}
        if isinstance(data, GraphSet):
            mean = {name: max(1, round(count / data.graphs)) for name, count in mean.items()}
        sampled = whole and bool(config.fanouts)
        seeds = min(config.seeds, len(data.train)) if self.links is None else self._pairs
        return GraphWorkload(
            model=config.model,
            layers=config.layers,
            width=config.d_model,
            heads=config.heads,
            features=data.features.shape[1],
            classes=self.outputs,
            **mean,
            train_vertices=len(data.train) if whole else 0,
            relations=len(data.relation_names) if config.model in ("rgcn", "hgt") else 1,
            kinds=len(data.kind_names),
            bases=config.bases,
            aggregate=config.aggregate,
            hidden=config.d_ff,
            level="vertex" if whole else "graph",
            graphs=0 if whole else config.batch_size,
            seeds=seeds if sampled else 0,
            ends=1 if self.links is None else 2 + config.negatives,
            fanouts=tuple(config.fanouts or ()) if sampled else (),
            compute_bytes={"float32": 4, "bfloat16": 2}[config.dtype],
            remat=config.remat,
        )

    @property
    def outputs(self) -> int:
        """Classes, or one value, or the channels of an embedding."""
        return max(1, len(self.data.classes)) if self.links is None else self.config.d_model

    @property
    def _pairs(self) -> int:
        """Pairs with an edge in a step."""
        assert self.links is not None
        return min(self.config.links, len(self.links.train))

    def plan(self, cluster: Cluster, owners: Sequence[int] = ()) -> GraphPlan:
        """The plan of `--plan`, or the planner's."""
        config = self.config
        if config.plan is not None:
            plan = GraphPlan.load(config.plan)
            plan.check(cluster, self.workload)
            return plan
        apart = bool(owners) and len(set(owners)) == len(owners)
        placement = "specialized" if apart and config.placement == "auto" else config.placement
        edges = self.edges if isinstance(self.data, Graph) else None
        return plan_graph(
            cluster,
            self.workload,
            parallel=config.graph_parallel,
            graph=edges,
            costs=self.curves,
            placement=placement,
            seed=config.seed,
        )

    def measured(self, job: Job, cluster: Cluster, devices: "list[jax.Device]") -> tuple[Cluster, Sequence[str]]:
        """The cluster with measured speeds, if `--profile` wants them; the curves are kept for plans."""
        if not setup.wants_profile(self.config, job, cluster, devices):
            return cluster, ()
        from training import kept
        from training.graphs import profile

        work = self.workload

        def measure() -> profile.GraphProfile:
            return profile.profile(job, cluster, devices, work, self._network)

        name = kept.key(cluster, devices, f"{work.network} {work.vertices} {work.edges}")
        found = kept.once(job, name, profile.GraphProfile, measure, again=self.config.profile == "always")
        self.curves = found.curves
        speeds = ", ".join(f"{device.name} {device.speed:g}" for device in found.cluster.devices)
        return found.cluster, (f"measured speeds: {speeds}",)

    def program(
        self, plan: GraphPlan, devices: "list[jax.Device]", done: int = 0, place: dict[str, Any] | None = None
    ) -> "GraphProgram":
        """The step of the graph network."""
        import jax.numpy as jnp

        from meshes.mesh import make_mesh
        from sharding.collectives import better_direct
        from sharding.placement import Placement
        from training import optimizer
        from training.graphs.step import GraphProgram
        from training.program import mesh_places

        config = self.config
        mesh = make_mesh([list(range(len(devices)))], devices)
        spread, direct = self._spread(plan, devices, done, place), better_direct(devices)
        places = mesh_places(mesh)
        rate = optimizer.schedule(config.schedule, config.lr, config.warmup, config.steps)
        try:
            placement = Placement(_mode(plan, spread.sizes), spread.sizes, places)
        except ValueError as error:
            raise PlanError(f"--placement {plan.placement}: {error}") from None
        return GraphProgram(
            config=self._network,
            spread=spread,
            task=self.data.task,
            seed=config.seed,
            direct=direct,
            mesh=mesh,
            placement=placement,
            optimizer=optimizer.adamw(rate, config.weight_decay, config.clip_norm),
            dtype=jnp.dtype(config.dtype),
        )

    def about(self, program: "GraphProgram") -> Sequence[str]:
        """The size of the model and how it is stored."""
        from training.program import describe

        return [*describe(program), *program.spread.notes()]

    def feed(
        self, program: "GraphProgram", plan: GraphPlan, done: int, place: dict[str, Any] | None
    ) -> "GraphFeed[Any]":
        """Batches from the first step on, or from a checkpoint's place."""
        from training.graphs.feed import GraphFeed
        from training.graphs.link_feed import LinkFeed, PairOrder

        order = self._order(plan, done, place)
        if self.links is None:
            return GraphFeed(program, self.data, order, _costs(plan))
        pairs = PairOrder(links=self.links, order=order, negatives=self.config.negatives)
        return LinkFeed(program, self.data, pairs, _costs(plan))

    def comparer(self, job: Job, plan: GraphPlan, devices: "list[jax.Device]") -> "Comparer | None":
        """What times devices apart from each other; None for emulated ones of one process, which share its cores."""
        from training.comparison import Comparer

        if job.alone and devices[0].platform == "cpu":
            return None
        return Comparer(job, plan, devices, lambda number: self.segments(plan, number, devices[number]))

    def segments(self, plan: GraphPlan, number: int, device: "jax.Device") -> "list[tuple[Run, int]]":
        """What times a device, by its number in the cluster: a step on a random graph as large as its share."""
        from training.graphs import profile

        vertices, edges = (round(size) for size in plan.size(number))
        return [(profile.segment(self._network, device, max(vertices, 1), edges), 1)] if vertices + edges else []

    def finish(self, program: "GraphProgram", feed: "GraphFeed[Any]", state: "State", reporter: "Reporter") -> None:
        """Metrics on the test part, beside what is reached without a network."""
        count = len(feed.held("test"))
        if not count:
            return
        found = feed.score(state, "test")
        assert found is not None
        said = "  ".join(f"{key} {value:.4f}" for key, value in found.items())
        reporter.say(f"test  {said} over {count} {feed.unit}")
        reporter.say(self._without_network(feed))

    def _without_network(self, feed: "GraphFeed[Any]") -> str:
        from training.graphs.link_feed import LinkFeed

        data = self.data
        if isinstance(feed, LinkFeed):
            alone = feed.without_network("test")
            return (
                f"without a network, test roc_auc: 0.5000 by chance, {alone['roc_auc']:.4f} by features alone;"
                f" mrr among {JUDGED}: {chance(JUDGED):.4f} by chance, {alone['mrr']:.4f} by features alone"
            )
        measure = "accuracy" if data.classes else "mean absolute error"
        return (
            f"without a network, test {measure}: {baselines.majority(data):.4f} by the commonest value,"
            f" {baselines.features_alone(data):.4f} by features alone"
        )

    @cached_property
    def _network(self) -> Any:
        from models.gnn.config import GnnConfig

        config, data = self.config, self.data
        return GnnConfig(
            model=config.model,  # type: ignore[arg-type]
            layers=config.layers,
            width=config.d_model,
            heads=config.heads,
            hidden=config.d_ff,
            inputs=data.features.shape[1],
            outputs=self.outputs,
            level=self.workload.level,
            relations=len(data.relation_names),
            kinds=len(data.kind_names),
            bases=config.bases,
            aggregate=config.aggregate,
            edge_features=data.edge_features.shape[1],
            dropout=config.dropout,
            remat=config.remat,
        )

    @cached_property
    def edges(self) -> Edges:
        """The edges of one graph, for the planner."""
        data = self.data
        train = np.zeros(data.vertices, bool)
        train[data.train] = True
        relations = data.relations if self.config.model in ("rgcn", "hgt") else None
        return Edges(data.senders, data.receivers, relations, train)

    def _order(self, plan: GraphPlan, done: int, place: dict[str, Any] | None) -> "Order":
        from training.graphs.feed import Order

        size = sum(plan.seeds) if plan.parallel == "sample" else sum(plan.graphs)
        data, ids = self.data, self.data.train
        if self.links is not None:
            size, ids = self._pairs, np.arange(len(self.links.train))
        order = Order(ids=ids, size=size, seed=self.config.seed, fingerprint=data.fingerprint, name=data.name)
        return order if place is None else order.resumed(place, done)

    def _spread(
        self, plan: GraphPlan, devices: "list[jax.Device]", done: int, place: dict[str, Any] | None
    ) -> "Spread":
        from sharding.collectives import better_direct
        from training.graphs.feature import FeatureSpread
        from training.graphs.halo import Halo
        from training.graphs.paired import PairedSpread
        from training.graphs.sample import SampleSpread
        from training.graphs.spread import Part
        from training.graphs.vertex import VertexSpread
        from training.program import RAGGED_BACKENDS

        part = Part(graph=self.data, config=self._network)
        forms = {"ragged": devices[0].platform in RAGGED_BACKENDS, "direct": better_direct(devices)}
        if plan.parallel == "vertex":
            owner = owners_of(plan, self.edges)
            vertex = VertexSpread(halo=Halo(part=part, owner=owner, devices=len(devices), **forms))
            return vertex if self.links is None else PairedSpread(graph=vertex, lanes=self._lanes(plan), **forms)
        if plan.parallel == "feature":
            feature = FeatureSpread(part=part, vertices=plan.vertices, lanes=plan.lanes, **forms)
            return feature if self.links is None else PairedSpread(graph=feature, lanes=plan.lanes, **forms)
        if plan.parallel == "sample":
            ends = plan.workload.ends
            seeds = tuple(ends * own for own in plan.seeds)
            return SampleSpread(part=part, seeds=seeds, fanouts=plan.workload.fanouts, ends=ends)
        return self._batches(part, plan, done, place)

    def _lanes(self, plan: GraphPlan) -> tuple[int, ...]:
        """Lanes in which the devices of a vertex plan score pairs: as their vertices."""
        heads = self.config.heads
        return shares_minimax(
            heads, [max(1, own) for own in plan.vertices], [heads * bool(own) for own in plan.vertices]
        )

    def _batches(self, part: "Part", plan: GraphPlan, done: int, place: dict[str, Any] | None) -> "BatchSpread":
        """Room for every batch of the run, evaluations included."""
        from training.graphs.batch import fitted
        from training.graphs.feed import partly_dealt

        data, order, costs = self.data, self._order(plan, done, place), _costs(plan)
        assert isinstance(data, GraphSet)

        def deals() -> Iterator[list[np.ndarray]]:
            for step in range(done, self.config.steps):
                yield partly_dealt(data, order.batch(step), plan.graphs, costs)
            for ids in (data.train, data.valid, data.test):
                for start in range(0, len(ids), order.size):
                    yield partly_dealt(data, ids[start : start + order.size], plan.graphs, costs)

        return fitted(part, data, deals(), plan.graphs)


def _links(config: TrainConfig, data: Graph | GraphSet) -> Links | None:
    """The pairs to predict, if `--task` or the data want links."""
    if config.task == "labels" or (config.task == "auto" and (data.labels is not None or isinstance(data, GraphSet))):
        return None
    if isinstance(data, GraphSet):
        raise UsageError(f"--task links is for one graph, {data.name} has {data.graphs}: use --task labels")
    return split(data, config.seed)


def _costs(plan: GraphPlan) -> tuple[float, float]:
    """Of a vertex and of an edge, by which small graphs are dealt."""
    return plan.curves[0].vertex, plan.curves[0].edge


def _mode(plan: GraphPlan, sizes: dict[str, np.ndarray]) -> Any:
    """How local work runs: parts of equal shares still differ in edges."""
    if plan.placement in ("single", "specialized"):
        return plan.placement
    alike = all(len(np.unique(size)) == 1 for size in sizes.values())
    return "uniform" if alike and plan.placement == "uniform" else "switched"
