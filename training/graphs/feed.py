"""What the steps of a graph network are fed with, and metrics on vertices or graphs that are held out."""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, Literal, Protocol, TypeVar

import jax
import numpy as np

from training.data.stream import check_identity, prefetch, shuffled
from training.feed import Evaluation, Stop
from training.graphs import metrics
from training.graphs.batch import BatchSpread, dealt
from training.graphs.graph import Graph, GraphSet
from training.graphs.sample import SampleSpread
from training.graphs.spread import widened
from training.graphs.step import OWN, GraphProgram, gathered
from training.trainable import State, on_mesh, put, put_pieces

Held = Literal["train", "valid", "test"]
Pieces = Callable[[int], dict[str, np.ndarray]]  # the arrays of a device, by its number


@dataclass(frozen=True, kw_only=True)
class Order:
    """Which training vertices or graphs make the batch of a step: a function of seed and step alone.

    Args:
        ids: to train on.
        size: of a batch; 0 is the whole graph in every step.
        seed: of the order.
        fingerprint, name: of the data.
        first_step, seen: steps done before this run, and ids seen in them.
    """

    ids: np.ndarray
    size: int
    seed: int
    fingerprint: str
    name: str
    first_step: int = 0
    seen: int = 0

    @cached_property
    def _shuffled(self) -> Any:
        return shuffled(len(self.ids), self.seed)

    def start(self, step: int) -> int:
        """How many ids come before those of a step."""
        return self.seen + (step - self.first_step) * self.size

    def batch(self, step: int) -> np.ndarray:
        """The ids of a step, counted from 0."""
        start = self.start(step)
        return np.array([self.ids[self._shuffled[start + place]] for place in range(self.size)], np.int64)

    def state(self, step: int) -> dict[str, Any]:
        """What a checkpoint keeps after so many steps."""
        return {"seen": self.start(step), **self._identity}

    def resumed(self, state: Mapping[str, Any], step: int) -> "Order":
        """The order that goes on from a checkpoint's state.

        Raises:
            UsageError: the data or the seed differ from the checkpoint's.
        """
        check_identity(state, self._identity)
        return replace(self, first_step=step, seen=int(state["seen"]))

    @property
    def _identity(self) -> dict[str, Any]:
        return {"seed": self.seed, "fingerprint": self.fingerprint, "data": self.name}


class Batches(Protocol):
    """What makes the batches of steps."""

    @property
    def size(self) -> int:
        """Of a batch; 0 is the whole graph."""

    def batch(self, step: int) -> np.ndarray:
        """Host values of a step, counted from 0."""

    def state(self, step: int) -> dict[str, Any]:
        """What a checkpoint keeps after so many steps."""


AnyOrder = TypeVar("AnyOrder", bound=Batches)


@dataclass(eq=False)
class GraphFeed(Generic[AnyOrder]):
    """A `training.feed.Feed` of one graph, of seeds in it, or of small graphs.

    Args:
        program: what runs.
        data: the graph, or the graphs.
        order: of training vertices or graphs.
        costs: of a vertex and of an edge, by which small graphs are dealt.
    """

    program: GraphProgram
    data: Graph | GraphSet
    order: AnyOrder
    costs: tuple[float, float] = (1.0, 1.0)
    _run: Any = field(default=None, init=False)

    @property
    def unit(self) -> str:
        """What has labels."""
        return "graphs" if isinstance(self.data, GraphSet) else "vertices"

    @property
    def rest(self) -> tuple[Any, ...]:
        """Graph arrays of the devices, and of all."""
        return self.program.inputs

    def prefetch(self, first: int, steps: int) -> Generator[np.ndarray, None, None]:
        """Ids of the batches of steps."""
        return prefetch(self.order.batch, first, steps)

    def place(self, host: np.ndarray) -> dict[str, jax.Array]:
        """Device arrays of a batch."""
        spread = self.program.spread
        if isinstance(spread, SampleSpread):
            return self._put(seeds(spread, host))
        if isinstance(spread, BatchSpread):
            assert isinstance(self.data, GraphSet)
            deal = dealt(self.data, host, spread.graphs, self.costs)
            return self._put(lambda device: spread.padded(device, deal[device]))
        return {}

    def state(self, step: int) -> dict[str, Any]:
        """The place in the data after so many steps."""
        return self.order.state(step)

    def compile(self, state: State, batch: Any) -> dict[str, Any]:
        """Compile what gives outputs."""
        step = self._zero
        self._run = self.program.output_step().lower(state["params"], step, batch, *self.rest).compile()
        return {"evaluation": self._run}

    def evaluate(self, state: State, stop: Stop) -> Evaluation | None:
        """Metrics on what is held out for validation, else on training."""
        part: Held = "valid" if len(self.held("valid")) else "train"
        values = self.score(state, part, stop)
        if values is None:
            return None
        said, count = "  ".join(f"{key} {value:.4f}" for key, value in values.items()), len(self.held(part))
        name = "held-out" if part == "valid" else "training"
        return Evaluation(values={**values, self.unit: count}, said=f"{name} {said} over {count} {self.unit}")

    def held(self, part: Held) -> np.ndarray:
        """What a part of the data holds."""
        ids: np.ndarray = getattr(self.data, part)
        return ids

    def score(self, state: State, part: Held, stop: Stop = lambda: False) -> dict[str, float] | None:
        """Exact metrics on a part of the data; None if stopped."""
        ids = self.held(part)
        outputs = self.outputs(state, ids, stop)
        if outputs is None:
            return None
        labels = self.data.labels
        assert labels is not None
        return scores(outputs, labels[ids], len(self.data.classes))

    def outputs(self, state: State, ids: np.ndarray, stop: Stop = lambda: False) -> np.ndarray | None:
        """Outputs of vertices or graphs [ids, K], on every process."""
        if self._run is None:  # nothing was trained
            self.compile(state, self.place(self.order.batch(0)))
        room = self._room
        if not room:
            out = self._run(state["params"], self._zero, self.place(self.order.batch(0)), *self.rest)
            return gathered(self.program, out, self.data.vertices)[ids]
        parts = []
        for start in range(0, len(ids), room):
            if stop():
                return None
            parts.append(self._of_batch(state, ids[start : start + room]))
        return np.concatenate(parts)

    @property
    def _room(self) -> int:
        """Vertices or graphs that have outputs at once; 0 is all."""
        spread = self.program.spread
        if isinstance(spread, SampleSpread):
            return sum(spread.seeds)
        return sum(spread.graphs) if isinstance(spread, BatchSpread) else 0

    def _of_batch(self, state: State, ids: np.ndarray) -> np.ndarray:
        spread, size = self.program.spread, self._room
        padded = np.concatenate([ids, np.full(size - len(ids), -1)])
        if isinstance(spread, SampleSpread):
            batch = self._put(seeds(spread, padded))
            out = self._run(state["params"], self._zero, batch, *self.rest)
            return gathered(self.program, out, size)[: len(ids)]
        assert isinstance(spread, BatchSpread) and isinstance(self.data, GraphSet)
        deal = partly_dealt(self.data, ids, spread.graphs, self.costs)
        batch = self._put(lambda device: spread.padded(device, deal[device]))
        out = gathered(self.program, self._run(state["params"], self._zero, batch, *self.rest), size)
        starts = np.cumsum((0, *spread.graphs))
        places = np.concatenate([start + np.arange(len(own)) for start, own in zip(starts, deal, strict=False)])
        back = np.argsort(np.concatenate(deal), kind="stable")
        inverse = np.argsort(np.argsort(ids, kind="stable"), kind="stable")
        return out[places][back][inverse]

    @cached_property
    def _zero(self) -> jax.Array:
        return put(np.zeros((), np.int32), on_mesh(self.program.mesh, jax.P()))

    def _put(self, pieces: Pieces) -> dict[str, jax.Array]:
        """Arrays [1, D, ...], each process making the pieces of its own devices."""
        spread, sharding = self.program.spread, on_mesh(self.program.mesh, OWN)
        devices, sizes = self.program.mesh.size, spread.sizes
        here = jax.process_index()
        mine = {m: pieces(m) for m, d in enumerate(self.program.mesh.devices[0]) if d.process_index == here}
        example = next(iter(mine.values()))
        out = {}
        for name, axes in spread.dealt.items():
            own = example[name].shape
            shape = tuple(int(sizes[a].max()) if a in sizes else n for a, n in zip(axes.split(), own, strict=True))

            def piece(index: Any, name: str = name, shape: tuple[int, ...] = shape) -> np.ndarray:
                return widened(mine[index[1].start or 0][name], shape)[None, None]

            out[name] = put_pieces((1, devices, *shape), sharding, piece)
        return out


def scores(outputs: np.ndarray, labels: np.ndarray, classes: int) -> dict[str, float]:
    """Loss and metrics of outputs.

    Args:
        outputs: [ids, K].
        labels: [ids]; class or value.
        classes: their number; 0 is regression.
    """
    if not len(labels):
        return {"loss": math.nan}
    if not classes:
        errors = outputs[:, 0].astype(np.float64) - labels
        return {"loss": float(np.mean(errors**2)), "mae": metrics.mae(outputs[:, 0], labels)}
    wide = outputs.astype(np.float64)
    top = wide.max(axis=1, keepdims=True)
    log_sums = np.log(np.exp(wide - top).sum(axis=1)) + top[:, 0]
    predicted = wide.argmax(axis=1)
    found = {
        "loss": float(np.mean(log_sums - wide[np.arange(len(labels)), labels])),
        "accuracy": metrics.accuracy(predicted, labels),
        "macro_f1": metrics.macro_f1(predicted, labels),
    }
    if classes == 2 and 0 < labels.sum() < len(labels):
        found["roc_auc"] = metrics.roc_auc(wide[:, 1] - wide[:, 0], labels == 1)
    return found


def partly_dealt(graph: GraphSet, ids: np.ndarray, counts: Sequence[int], costs: Sequence[float]) -> list[np.ndarray]:
    """As `dealt`, for a batch that may not be full."""
    if len(ids) == sum(counts):
        return dealt(graph, ids, counts, costs)
    stops = np.minimum(np.cumsum(counts), len(ids))
    return np.split(ids, stops[:-1])


def seeds(spread: SampleSpread, ids: np.ndarray) -> Pieces:
    """Each device's seeds, with their places in the batch."""

    def piece(device: int) -> dict[str, np.ndarray]:
        places = spread.rows()[device]
        seeds = np.where(places >= 0, ids[np.maximum(places, 0)], -1)
        return {"seeds": seeds.astype(np.int32), "places": places.astype(np.int32)}

    return piece
