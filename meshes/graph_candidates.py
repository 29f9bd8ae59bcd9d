"""Ways to spread a graph network's step over devices, planned and even, with what each should cost.

NumPy only. Legend: arrays are [M devices].
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from meshes.graph_costs import (
    Costs,
    Portions,
    batch_portions,
    feature_portions,
    sample_portions,
    vertex_portions,
)
from meshes.graph_plan import GraphParallel
from meshes.memory import largest
from meshes.minimax import even as even_shares
from meshes.minimax import shares_minimax
from meshes.partition import Edges, Parts, partition, rebalance

REPAIRS = 4  # partitions tried with less and less on devices that lack memory
SPARE = 0.98  # of a limit that the next partition aims at
EVERY = 16  # devices up to which every number of the fastest is tried


@dataclass(frozen=True, eq=False)
class Candidate:
    """One way to spread a step.

    Args:
        parallel: the way.
        even: equal shares, whatever the devices.
        dealt: units of each device by name: `vertices`, `lanes`, `seeds`, `graphs`, and `targets` of a partition.
        portions: what that makes each device do.
        compute: seconds of each device in each phase [phases, M].
        communication: seconds.
        needed: bytes by what they are for.
        short: bytes that all devices lack.
        alike: whether all devices have the same sizes.
        owner: of each vertex, of a partition.
    """

    parallel: GraphParallel
    even: bool
    dealt: dict[str, np.ndarray]
    portions: Portions
    compute: np.ndarray
    communication: float
    needed: dict[str, np.ndarray]
    short: float
    alike: bool
    owner: np.ndarray | None = field(default=None, repr=False)

    @property
    def step(self) -> float:
        """Predicted seconds: every phase waits for its slowest device."""
        return float(self.compute.max(axis=1).sum()) + self.communication

    @property
    def order(self) -> tuple[float, float]:
        """Sorts candidates: those that fit first, then the fastest."""
        return self.short, self.step


def candidates(costs: Costs, parallel: GraphParallel, edges: Edges | None, seed: int) -> list[Candidate]:
    """Even and planned ways of one kind.

    Args:
        costs: of the cluster and workload.
        parallel: the kind.
        edges: of the graph; needed by `vertex` on several devices.
        seed: of partitions.
    """
    if parallel == "vertex":
        return [_alone(costs)] if len(costs.curves) == 1 else _by_vertex(costs, edges, seed) if edges else []
    return [*(_by_feature(costs) if parallel == "feature" else _by_unit(costs, parallel))]


def owners_of(costs: Costs, edges: Edges, targets: np.ndarray, seed: int) -> np.ndarray:
    """The owners that a partition with these targets comes to, int32 [N]: METIS, then moves."""
    return _balanced(costs, edges, targets, _cut(costs, edges, targets, seed))[0]


def _alone(costs: Costs) -> Candidate:
    """The whole graph on one device."""
    work = costs.workload
    whole, none = np.array([[work.edges]]), np.zeros((1, 1), np.int64)
    vertices = np.array([work.vertices])
    parts = Parts(vertices, np.array([work.train_vertices]), whole[0], whole, none, none)
    return _partitioned(costs, vertices, parts, np.zeros(work.vertices, np.int32), even=True)


def _by_vertex(costs: Costs, edges: Edges, seed: int) -> list[Candidate]:
    targets = np.array(even_shares(costs.workload.vertices, len(costs.curves)))
    owner = _cut(costs, edges, targets, seed)
    found = [_partitioned(costs, targets, Parts.of(edges, owner, len(targets)), owner, even=True)]
    for used in _subsets(costs):
        best = min(found, key=lambda candidate: candidate.order)
        if best.short or _least_step(costs, edges, used) < best.step:
            found += _planned(costs, edges, used, seed)
    if min(found, key=lambda candidate: candidate.order).even:  # moves from there are never worse
        owner, parts = _balanced(costs, edges, targets, owner)
        found.append(_partitioned(costs, targets, parts, owner, even=False))
    return found


def _planned(costs: Costs, edges: Edges, used: np.ndarray, seed: int) -> Iterator[Candidate]:
    """Partitions in proportion to what devices do in a second; less for those that lack memory, until all fit."""
    work = costs.workload
    each = _rates(costs) @ _vertex_work(costs, edges).mean(axis=0)
    caps = used * _caps(costs, work.vertices, lambda vertices: _spread(costs, vertices))
    for _ in range(REPAIRS):
        targets = _dealt(work.vertices, each, caps, costs.rates("fixed"))
        if targets is None:
            return
        owner, parts = _balanced(costs, edges, targets, _cut(costs, edges, targets, seed))
        made = _partitioned(costs, targets, parts, owner, even=False)
        yield made
        if not made.short:
            return
        room = np.minimum(SPARE * costs.limit / sum(made.needed.values()), 1)
        caps = np.minimum(caps, np.floor(targets * room if costs.specialized else targets.max() * room.min()))
        caps = caps.astype(np.int64)


def _by_feature(costs: Costs) -> Iterator[Candidate]:
    """Lanes by the cost of aggregation, rows by the cost of dense work; whichever memory binds first, too."""
    work, devices = costs.workload, len(costs.curves)
    none = np.zeros(devices, np.int64)

    def made(vertices: np.ndarray, lanes: np.ndarray, even: bool) -> Candidate:
        portions = feature_portions(work, vertices, lanes)
        return _candidate(costs, "feature", even, {"vertices": vertices, "lanes": lanes}, portions)

    def lanes_of(used: np.ndarray, vertices: np.ndarray) -> np.ndarray | None:
        caps = _caps(costs, work.heads, lambda lanes: feature_portions(work, vertices, lanes))
        return _dealt(work.heads, costs.rates("edge"), caps * used)

    def rows_of(used: np.ndarray, lanes: np.ndarray) -> np.ndarray | None:
        caps = _caps(costs, work.vertices, lambda vertices: feature_portions(work, vertices, lanes))
        return _dealt(work.vertices, costs.rates("vertex"), caps * used, costs.rates("fixed"))

    yield made(np.array(even_shares(work.vertices, devices)), np.array(even_shares(work.heads, devices)), True)
    for used in _subsets(costs):
        lanes = lanes_of(used, none)
        vertices = None if lanes is None else rows_of(used, lanes)
        if lanes is None or vertices is None:
            vertices = rows_of(used, none)
            lanes = None if vertices is None else lanes_of(used, vertices)
        if lanes is not None and vertices is not None:
            yield made(vertices, lanes, False)


def _by_unit(costs: Costs, parallel: GraphParallel) -> Iterator[Candidate]:
    """Seeds or small graphs, whole."""
    work, devices = costs.workload, len(costs.curves)
    name, total = ("seeds", work.seeds) if parallel == "sample" else ("graphs", work.graphs)
    portions_of = sample_portions if parallel == "sample" else batch_portions
    one = portions_of(work, np.ones(devices, np.int64))
    fixed = costs.rates("fixed")
    each = costs.each_for_itself().compute(one)[0] - fixed
    units = np.array(even_shares(total, devices))
    yield _candidate(costs, parallel, True, {name: units}, portions_of(work, units))
    caps = _caps(costs, total, lambda units: portions_of(work, units))
    for used in _subsets(costs):
        dealt = _dealt(total, each, caps * used, fixed)
        if dealt is not None:
            yield _candidate(costs, parallel, False, {name: dealt}, portions_of(work, dealt))


def _partitioned(costs: Costs, targets: np.ndarray, parts: Parts, owner: np.ndarray, *, even: bool) -> Candidate:
    portions = vertex_portions(costs.workload, parts)
    return _candidate(costs, "vertex", even, {"targets": targets, "vertices": parts.vertices}, portions, owner)


def _candidate(
    costs: Costs,
    parallel: GraphParallel,
    even: bool,
    dealt: dict[str, np.ndarray],
    portions: Portions,
    owner: np.ndarray | None = None,
) -> Candidate:
    """A candidate with its predictions; parts of a graph are never alike."""
    alike = parallel != "vertex" and all(len(set(units.tolist())) == 1 for units in dealt.values())
    needed = costs.bytes(portions)
    return Candidate(
        parallel=parallel,
        even=even,
        dealt=dealt,
        portions=portions,
        compute=costs.compute(portions, alike=alike),
        communication=costs.communication(portions),
        needed=needed,
        short=costs.shortage(needed),
        alike=alike,
        owner=owner,
    )


def _subsets(costs: Costs) -> Iterator[np.ndarray]:
    """All devices, then ever fewer of the fastest: a slow or far one may cost more than it brings."""
    order = np.argsort(costs.rates("vertex") + costs.rates("edge"), kind="stable")
    count = len(order)
    while count:
        used = np.zeros(len(order), np.int64)
        used[order[:count]] = 1
        yield used
        count = count - 1 if count <= EVERY else count // 2


def _least_step(costs: Costs, edges: Edges, used: np.ndarray) -> float:
    """Seconds that a partition over some devices takes at least: perfect shares, no halos."""
    each = _rates(costs) @ _vertex_work(costs, edges).sum(axis=0)
    return costs.slowdown() / float((used / each).sum())


def _caps(costs: Costs, total: int, portions_of: Callable[[np.ndarray], Portions]) -> np.ndarray:
    """Most units that the memory of each device holds; of all devices, in one switched program [M]."""
    own = costs.each_for_itself()

    def needed(units: np.ndarray) -> np.ndarray:
        return np.sum([*own.bytes(portions_of(units)).values()], axis=0)

    caps = np.maximum(largest(total, costs.limit, needed), 0)
    return caps if costs.specialized else np.full_like(caps, caps.min())


def _dealt(total: int, seconds: np.ndarray, caps: np.ndarray, fixed: np.ndarray | None = None) -> np.ndarray | None:
    """Units by the seconds that each takes; None if the caps cannot hold them."""
    if caps.sum() < total:
        return None
    begin = None if fixed is None else fixed.tolist()
    return np.array(shares_minimax(total, (1 / seconds).tolist(), caps.tolist(), begin), np.int64)


def _spread(costs: Costs, vertices: np.ndarray) -> Portions:
    """Vertices with average numbers of edges and no halos."""
    work, none = costs.workload, np.zeros_like(vertices)
    edges = -(-vertices * work.edges // work.vertices)
    pairs = np.zeros((len(vertices), len(vertices)), np.int64)
    return vertex_portions(work, Parts(vertices, none, edges, pairs, pairs, pairs))


def _rates(costs: Costs) -> np.ndarray:
    """Seconds of a vertex, of an edge and of a training vertex on each device [M, 3]."""
    return np.stack([costs.rates(name) for name in ("vertex", "edge", "train")], axis=1)


def _vertex_work(costs: Costs, edges: Edges) -> np.ndarray:
    """What a vertex brings to do [N, 3]: itself, its arriving edges, and whether it is trained on."""
    vertices = costs.workload.vertices
    degree = np.bincount(edges.receivers, minlength=vertices)
    train = np.zeros(vertices) if edges.train is None else edges.train
    return np.stack([np.ones(vertices), degree, train], axis=1)


def _cut(costs: Costs, edges: Edges, targets: np.ndarray, seed: int) -> np.ndarray:
    """METIS's owners; a vertex weighs what it costs the devices together."""
    weights = _vertex_work(costs, edges) * (_rates(costs) * targets[:, None]).sum(axis=0)
    return partition(edges.senders, edges.receivers, len(weights), targets.tolist(), weights, seed)


def _balanced(costs: Costs, edges: Edges, targets: np.ndarray, owner: np.ndarray) -> tuple[np.ndarray, Parts]:
    """Owners after moves between the devices that have a target."""

    def cost(parts: Parts) -> tuple[float, np.ndarray]:
        portions = vertex_portions(costs.workload, parts)
        seconds = costs.compute(portions)[0] + costs.communication(portions)
        return costs.shortage(costs.bytes(portions)), seconds

    rates = np.where(targets[:, None] > 0, _rates(costs), np.inf)
    return rebalance(edges, owner, _vertex_work(costs, edges), rates, cost)
