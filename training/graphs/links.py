"""Links to predict: pairs of vertices with an edge, some of them held out, and pairs without.

A graph network gives each vertex an embedding; a pair's score is the product of its ends' embeddings, the same in both
directions. So pairs have no direction here: edges both ways and duplicates between two vertices are one pair, and self
loops are none. Legend: P pairs, M negatives of a pair, A all vertices, K channels.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from meshes.errors import UsageError
from training.graphs.graph import Graph
from training.graphs.metrics import mrr, roc_auc

HELD_OUT = (0.1, 0.1)  # share of the pairs in valid and in test
JUDGED = 50  # negatives that each held-out pair is ranked among
DRAWS = 20  # tries for a vertex without an edge, before all of them are listed


@dataclass(frozen=True, kw_only=True, eq=False)
class Links:
    """Pairs to predict in one graph.

    Args:
        graph: without the edges of pairs that are held out, and without labels.
        train, valid, test: pairs, the first vertex of each drawn by seed, int64 [P, 2].
        seed: of draws.
    """

    graph: Graph
    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    seed: int

    def drawn(self, pairs_P2: np.ndarray, count: int, draw: tuple[int, ...], *, held_out: bool = False) -> np.ndarray:
        """Vertices that the first vertex of each pair has no edge to, uniformly, int64 [P, count].

        Edges of train count, and those held out only if so asked: training may not know of them.

        Args:
            pairs_P2: pairs.
            count: vertices for each.
            draw: numbers that tell this draw from others.
        """
        rng, total = np.random.default_rng((self.seed, *draw)), self.graph.vertices
        first = np.repeat(pairs_P2[:, 0], count)
        known = self._every if held_out else self._known
        found, wrong = np.zeros(len(first), np.int64), np.arange(len(first))
        for _ in range(DRAWS):
            found[wrong] = rng.integers(0, total, len(wrong))
            linked = _among(_keys(first[wrong], found[wrong], total), known)
            wrong = wrong[linked | (first[wrong] == found[wrong])]
            if not len(wrong):
                break
        for at in wrong:  # those whose first vertex has an edge to nearly all others
            others = np.arange(total)
            free = ~_among(_keys(first[at], others, total), known) & (others != first[at])
            found[at] = rng.choice(others[free])
        return found.reshape(len(pairs_P2), count)

    @cached_property
    def _known(self) -> np.ndarray:
        return np.sort(_keys(self.train[:, 0], self.train[:, 1], self.graph.vertices))

    @cached_property
    def _every(self) -> np.ndarray:
        pairs = np.concatenate([self.train, self.valid, self.test])
        return np.sort(_keys(pairs[:, 0], pairs[:, 1], self.graph.vertices))


def split(graph: Graph, seed: int) -> Links:
    """Hold out a tenth of the pairs for choosing and a tenth for testing, drawn by seed.

    Raises:
        UsageError: fewer than three pairs of different vertices have an edge, or a vertex has one to all others.
    """
    low, high = np.minimum(graph.senders, graph.receivers), np.maximum(graph.senders, graph.receivers)
    apart = low != high
    keys = low * graph.vertices + high
    pairs = np.unique(keys[apart])
    if len(pairs) < 3:
        raise UsageError(
            f"{graph.name}: {len(pairs)} pairs of different vertices have an edge: links need three or more, to train"
            " on, to choose by and to test with"
        )
    ends = np.stack(np.divmod(pairs, graph.vertices), axis=1)
    _check_others(graph, ends)
    rng = np.random.default_rng((seed, 1))
    order = rng.permutation(len(pairs))
    ends = np.where((rng.random(len(pairs)) < 0.5)[:, None], ends, ends[:, ::-1])
    sizes = [max(1, round(share * len(pairs))) for share in HELD_OUT]
    valid, test, train = np.split(order, np.cumsum(sizes))
    kept, none = ~apart | _among(keys, np.sort(pairs[train])), np.zeros(0, np.int64)
    shown = replace(
        graph,
        senders=graph.senders[kept],
        receivers=graph.receivers[kept],
        relations=graph.relations[kept],
        edge_features=graph.edge_features[kept],
        labels=None,
        classes=(),
        train=none,
        valid=none,
        test=none,
    )
    parts = {"train": train, "valid": valid, "test": test}
    return Links(graph=shown, seed=seed, **{name: ends[np.sort(of)] for name, of in parts.items()})


def _check_others(graph: Graph, pairs_P2: np.ndarray) -> None:
    """Refuse a graph in which a vertex has no other to be told from."""
    neighbours = np.bincount(pairs_P2.ravel(), minlength=graph.vertices)
    if (most := int(neighbours.max())) == graph.vertices - 1:
        raise UsageError(
            f"{graph.name}: vertex {int(neighbours.argmax())} has edges to all {most} others, so that no pair without"
            " an edge can be drawn for it: leave it out, or predict labels"
        )


def judged(rows_AK: np.ndarray, pairs_P2: np.ndarray, others_PM: np.ndarray) -> dict[str, float]:
    """Loss and metrics of products of rows.

    Args:
        rows_AK: embeddings, or any rows, of all vertices.
        pairs_P2: pairs that have an edge.
        others_PM: vertices that the first of each pair has none to.
    """
    wide = rows_AK.astype(np.float64)
    first_PK, scale = wide[pairs_P2[:, 0]], wide.shape[1] ** -0.5
    positive_P = scale * np.sum(first_PK * wide[pairs_P2[:, 1]], axis=1)
    columns = [scale * np.sum(first_PK * wide[others], axis=1) for others in others_PM.T]
    negative_PM = np.stack(columns, axis=1)
    losses = np.logaddexp(0, -positive_P).sum() + np.logaddexp(0, negative_PM[:, 0]).sum()
    truth = np.repeat([True, False], [positive_P.size, negative_PM.size])
    return {
        "loss": float(losses / (2 * len(pairs_P2))),
        "roc_auc": roc_auc(np.concatenate([positive_P, negative_PM.ravel()]), truth),
        "mrr": mrr(positive_P, negative_PM),
    }


def chance(others: int) -> float:
    """Mean reciprocal rank of a pair among so many others, by chance: (1 + 1/2 + ... + 1/(n + 1)) / (n + 1)."""
    return float(np.mean(1 / np.arange(1, others + 2)))


def features_alone(links: Links, pairs_P2: np.ndarray, others_PM: np.ndarray) -> Mapping[str, float]:
    """Metrics of the cosine of the vertices' features, less their mean."""
    features = links.graph.features.astype(np.float64)
    centred: Any = features - features.mean(axis=0)
    length = np.linalg.norm(centred, axis=1, keepdims=True)
    return judged(centred / np.where(length > 0, length, 1), pairs_P2, others_PM)


def _keys(a: np.ndarray, b: np.ndarray, vertices: int) -> np.ndarray:
    return np.minimum(a, b) * vertices + np.maximum(a, b)


def _among(keys: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    """Which keys stand in an ordered array; bool."""
    if not len(ordered):
        return np.zeros(len(keys), bool)
    place = np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)
    return ordered[place] == keys
