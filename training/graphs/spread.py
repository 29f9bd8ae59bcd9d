"""What every way of spreading a graph has: the arrays of every device, and what a network is given inside a step.

Legend: D devices, N own rows, R relations, A all vertices, F features.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from models.gnn.config import GnnConfig
from models.gnn.layout import Rows
from sharding.hops import GraphLayout
from sharding.placement import Placement
from training.graphs import checks
from training.graphs.graph import Graph, GraphSet


@dataclass(frozen=True, eq=False, kw_only=True)
class Named:
    """One array for every device, and the names of its axes.

    Args:
        parts: an array for each device; equal but for the axes that differ.
        axes: their names, as in signatures.
    """

    parts: tuple[np.ndarray, ...]
    axes: str

    def stacked(self) -> np.ndarray:
        """[1, D, ...], zeros where a device has less than another."""
        shape = tuple(np.max([part.shape for part in self.parts], axis=0))
        return np.stack([widened(part, shape) for part in self.parts])[None]


def widened(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The array with zeros at the end of its axes."""
    return np.pad(array, [(0, wide - size) for size, wide in zip(array.shape, shape, strict=True)])


Tree = Mapping[str, Any]


class Spread(Protocol):
    """A way of spreading a graph over devices."""

    @property
    def sizes(self) -> dict[str, np.ndarray]:
        """Of the axes that differ between devices, [1, D] each."""

    @property
    def named(self) -> Tree:
        """A tree of `Named`: what each device has."""

    @property
    def common(self) -> Tree:
        """A tree of arrays that every device has whole."""

    @property
    def dealt(self) -> Mapping[str, str]:
        """Axes of the arrays that come with each batch, by name."""

    @property
    def tables(self) -> Tree:
        """Index tables of exchanges, [1, D, ...]."""

    def enter(self, placement: Placement, own: Tree, common: Tree, key: jax.Array) -> "Entry":
        """What a network is given, from a device's own arrays, at the extents of their axes, and the common ones."""

    def rows(self) -> list[np.ndarray]:
        """Numbers of what each device has outputs for; -1 is padding."""

    def notes(self) -> list[str]:
        """Lines for people: padding, if there is any."""


class Entry(NamedTuple):
    """What a network is given.

    Args:
        layout: where edges are.
        features: of the rows before the first hop, [N, F].
        labels: of the outputs, for training; -1 or NaN is none.
        loss: sum and weight [2] of the loss of the outputs, where it is not one of labels.
    """

    layout: GraphLayout
    features: jax.Array
    labels: jax.Array
    loss: Callable[[jax.Array], jax.Array] | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Part:
    """A graph as a network reads it.

    Args:
        graph: read from disk.
        config: of the network, which may see all relations as one.
    """

    graph: Graph | GraphSet
    config: GnnConfig

    def __post_init__(self) -> None:
        checks.to_int32(self.graph.name, "numbers of vertices", np.array([self.graph.vertices]))

    @cached_property
    def relations(self) -> np.ndarray:
        """Relation of each edge that the network tells apart, int32 [E]."""
        return self.graph.relations if self.config.typed else np.zeros(self.graph.edges, np.int32)

    @cached_property
    def degree(self) -> np.ndarray:
        """Edges that arrive at each vertex, float32 [A, R]."""
        degree = self.graph.degree
        return degree if self.config.typed else degree.sum(axis=1, keepdims=True, dtype=np.float32)

    def facts(self, ids: Sequence[np.ndarray]) -> dict[str, Named]:
        """Degree, kind, number, features and labels of each device's rows; -1 is padding."""
        graph = self.graph
        train = training_labels(graph, np.arange(graph.vertices))
        take = {
            "degree": (self.degree, "N R", 0),
            "kind": (graph.kinds, "N", 0),
            "id": (np.arange(graph.vertices, dtype=np.int32), "N", -1),
            "features": (graph.features, "N F", 0),
            "labels": (train, "N", -1 if train.dtype.kind == "i" else np.nan),
        }
        return {
            name: Named(parts=tuple(_rows(array, at, none) for at in ids), axes=axes)
            for name, (array, axes, none) in take.items()
        }


def training_labels(graph: Graph | GraphSet, ids: np.ndarray) -> np.ndarray:
    """Labels to train on of vertices or graphs; -1 or NaN where there is none."""
    labels = graph.labels
    if labels is None:
        return np.full(len(ids), -1, np.int32)
    train = np.full_like(labels, -1 if labels.dtype.kind == "i" else np.nan)
    train[graph.train] = labels[graph.train]
    return train[ids]


def _rows(array: np.ndarray, ids: np.ndarray, none: Any) -> np.ndarray:
    out = array[np.maximum(ids, 0)]
    out[ids < 0] = none
    return out


def of_rows(arrays: Tree) -> Rows:
    """Facts of rows from named arrays."""
    return Rows(arrays["degree"], arrays["kind"], arrays["id"])


def whole(view: Any, _: int) -> Any:
    """A view that is made of its arrays alone."""
    return view


def padding_note(share: float) -> str:
    """How much of the buckets is padding, for people."""
    return f"edges in buckets by degree, {share:.1%} of their slots padding"
