"""What has to be computed on graphs: sizes of the network, of the graph and of a step, and what follows from them.

Legend: D model width, F input features, K outputs.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Literal, NamedTuple

from meshes.cluster import digest
from meshes.errors import UsageError

Level = Literal["vertex", "graph"]


MODELS = ("gcn", "sage", "gat", "gin", "graphnet", "rgcn", "hgt")
MAY_BE_ZERO = ("edges", "train_vertices", "hidden", "seeds", "graphs")


class Work(NamedTuple):
    """What one layer of a model does, in units of the model width D.

    Args:
        vertex: products with a D x D matrix for each vertex.
        edge: such products for each edge.
        sources: rows of D numbers that a vertex offers along its outgoing edges.
        targets: rows that a vertex brings to its arriving edges.
        results: rows that come out of the aggregation of a vertex.
    """

    vertex: float
    edge: float = 0.0
    sources: int = 1
    targets: int = 0
    results: int = 1

    @property
    def exchanged(self) -> tuple[int, ...]:
        """Rows of a vertex that move between own rows and own lanes: sources, targets, results."""
        return self.sources, self.targets, self.results


@dataclass(frozen=True, kw_only=True)
class GraphWorkload:
    """One training step on one graph, on samples of it, or on a batch of small graphs.

    Args:
        model: one of `MODELS`.
        layers: of message passing.
        width: numbers of a vertex between layers, D.
        heads: lanes that the width is cut into.
        features: input numbers of a vertex, F.
        classes: outputs of a vertex or graph, K.
        vertices, edges: of the whole graph, or of the average graph where there are many small ones.
        train_vertices: that have a label to train on.
        relations, kinds: types of edges, and of vertices.
        bases: matrices that the relations of `rgcn` share.
        aggregate: how `sage` joins neighbours.
        hidden: inner width of the perceptrons of `gin` and `graphnet`; 0 is the width.
        level: whether vertices or whole small graphs have labels.
        graphs: small graphs of a step, with level `graph`.
        seeds: vertices that a step samples around; 0 is the whole graph.
        ends: vertices that each seed stands for: one, or the ends of a pair and those without an edge to the first.
        fanouts: neighbours sampled of each vertex, hop by hop from the seeds outwards; one for each layer.
        compute_bytes: bytes of a number in the compute dtype; parameters, gradients and moments take 4.
        remat: `layer` keeps only each layer's input for the backward.
    """

    model: str
    layers: int
    width: int
    heads: int
    features: int
    classes: int
    vertices: int
    edges: int
    train_vertices: int = 0
    relations: int = 1
    kinds: int = 1
    bases: int = 1
    aggregate: Literal["mean", "max"] = "mean"
    hidden: int = 0
    level: Level = "vertex"
    graphs: int = 0
    seeds: int = 0
    ends: int = 1
    fanouts: tuple[int, ...] = ()
    compute_bytes: int = 4
    remat: Literal["none", "layer"] = "none"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in MAY_BE_ZERO else 1
            if field.type is int and (type(value) is not int or value < least):
                raise UsageError(f"{field.name} is {value!r}: it must be a whole number, {least} or more")
        choices = {
            "model": MODELS,
            "aggregate": ("mean", "max"),
            "level": ("vertex", "graph"),
            "remat": ("none", "layer"),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise UsageError(f"{name} is {getattr(self, name)!r}: it is one of {', '.join(known)}")
        if self.width % self.heads:
            raise UsageError(f"width {self.width} is not a multiple of heads {self.heads}: change one of them")
        if self.train_vertices > self.vertices:
            raise UsageError(f"{self.train_vertices} training vertices in a graph of {self.vertices}")
        self._check_step()

    def _check_step(self) -> None:
        """What a step takes: the whole graph, seeds with fan-outs, or small graphs."""
        if bool(self.seeds) != bool(self.fanouts):
            raise UsageError(f"{self.seeds} seeds with fan-outs {self.fanouts}: give both, or neither")
        if self.fanouts and len(self.fanouts) != self.layers:
            raise UsageError(f"{len(self.fanouts)} fan-outs {self.fanouts} for {self.layers} layers: give one for each")
        if any(type(fanout) is not int or fanout < 1 for fanout in self.fanouts):
            raise UsageError(f"fan-outs are {self.fanouts}: each must be a whole number, 1 or more")
        if (self.level == "graph") != bool(self.graphs):
            raise UsageError(f"{self.graphs} graphs a step with level {self.level}: only small graphs come in numbers")
        if self.level == "graph" and self.seeds:
            raise UsageError(f"{self.seeds} seeds with level graph: small graphs are not sampled")

    @cached_property
    def network(self) -> str:
        """Digest of the network without the graph and the step: names what a device was measured with."""
        sizes = ("vertices", "edges", "train_vertices", "level", "graphs", "seeds", "ends", "fanouts")
        return digest({key: value for key, value in asdict(self).items() if key not in sizes})

    @cached_property
    def work(self) -> Work:
        """What a layer does."""
        inner = (self.hidden or self.width) / self.width
        typed = 4 * self.kinds + 2 * self.relations / self.heads  # all kinds' matrices, and C x C ones of relations
        return {
            "gcn": Work(vertex=1),
            "sage": Work(vertex=2),
            "gat": Work(vertex=1),
            "gin": Work(vertex=2 * inner),
            "graphnet": Work(vertex=3 * inner, edge=4 * inner, targets=1),
            "rgcn": Work(vertex=1 + self.bases, results=self.relations),
            "hgt": Work(vertex=typed, sources=2, targets=self.relations, results=self.relations),
        }[self.model]

    @property
    def adds_up(self) -> bool:
        """Whether messages are plain sums, which the device of the senders may add up before they travel."""
        return self.model in ("gcn", "gin", "rgcn") or (self.model == "sage" and self.aggregate == "mean")

    @property
    def layer_parameters(self) -> int:
        """Matrices, what scores and mixes them, a norm and a bias."""
        matrices = round((self.work.vertex + self.work.edge) * self.width**2)
        small = {"rgcn": self.relations * self.bases, "gat": 2 * self.width}
        return matrices + small.get(self.model, 0) + 3 * self.width

    @property
    def parameters(self) -> int:
        """All parameters: layers, input and output."""
        outer = (self.features + 1) * self.width + (self.width + 1) * self.classes
        return self.layers * self.layer_parameters + outer

    @property
    def input_flops(self) -> float:
        """Forward FLOPs of one vertex's features: 2 F D."""
        return 2.0 * self.features * self.width

    @property
    def layer_flops(self) -> float:
        """Forward FLOPs of one vertex in one layer: 2 D^2 for each matrix."""
        return 2.0 * self.work.vertex * self.width**2

    @property
    def output_flops(self) -> float:
        """Forward FLOPs of one vertex's outputs: 2 D K."""
        return 2.0 * self.width * self.classes

    @property
    def vertex_flops(self) -> float:
        """Forward FLOPs of one vertex in the whole network: 2 F D + layers x 2 w D^2 + 2 D K, with w matrices."""
        return self.input_flops + self.layers * self.layer_flops + self.output_flops

    @property
    def train_flops(self) -> float:
        """Forward FLOPs of the loss of one training vertex: about five for each output."""
        return 5.0 * self.classes

    @property
    def edge_flops(self) -> float:
        """Forward FLOPs of one edge in the whole network: layers x 2 w D^2, with w matrices on edges."""
        return 2.0 * self.layers * self.work.edge * self.width**2

    @property
    def edge_bytes(self) -> float:
        """Bytes that one edge moves in the forward of the whole network.

        layers x 2 s D numbers: each of s rows of the source, and one of the target where it brings any, is gathered
        once and added or compared once.
        """
        return 2.0 * self.layers * self.row_bytes * (self.work.sources + min(self.work.targets, 1))

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of D numbers."""
        return self.width * self.compute_bytes

    @property
    def halo_bytes(self) -> int:
        """Bytes of one halo row in one layer: s rows of D numbers, as many as a vertex offers as a source."""
        return self.work.sources * self.row_bytes

    @property
    def seed_rows(self) -> int:
        """Rows that the sample around one seed reads: the product of (1 + fan-out) over the hops, for each end."""
        return self.ends * math.prod(1 + fanout for fanout in self.fanouts)

    @property
    def seed_vertices(self) -> float:
        """Dense work of one seed, in vertices of the whole network.

        Features are read in every row of the sample; the layer k hops away from the seeds computes the product of
        (1 + fan-out) over the hops before it.
        """
        layers = self.layer_flops * sum(rows for rows, _ in self._hops())
        flops = self.input_flops * self.seed_rows + layers + self.ends * self.output_flops
        return flops / self.vertex_flops

    @property
    def seed_edges(self) -> float:
        """Edges of one seed over all hops, in edges of the whole network: a hop is one layer of `layers`."""
        return sum(rows * fanout for rows, fanout in self._hops()) / self.layers

    def _hops(self) -> Iterator[tuple[int, int]]:
        """Target rows and fan-out of each hop around one seed."""
        rows = self.ends
        for fanout in self.fanouts:
            yield rows, fanout
            rows *= 1 + fanout
