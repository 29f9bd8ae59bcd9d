"""Pairs of vertices: what is held out is hidden, what is drawn has no edge, and metrics are those of the definition."""

from dataclasses import replace
from typing import Any

import graph_worlds as worlds
import numpy as np
import pytest

from meshes.errors import UsageError
from training.graphs.feed import Order
from training.graphs.graph import Graph
from training.graphs.link_feed import PairOrder
from training.graphs.links import chance, features_alone, judged, split

GRAPH = worlds.graph(vertices=40, hub=20)


def pairs_of(graph: Graph) -> set[tuple[int, int]]:
    """Pairs of different vertices with an edge."""
    ends = zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)
    return {(min(a, b), max(a, b)) for a, b in ends if a != b}


def ordered(pairs_P2: np.ndarray) -> set[tuple[int, int]]:
    return {(min(a, b), max(a, b)) for a, b in pairs_P2.tolist()}


def wired(ends: list[tuple[int, int]], vertices: int) -> Graph:
    """A graph of these edges."""
    edges = np.array(ends, np.int64).reshape(-1, 2)
    changes: dict[str, Any] = {"senders": edges[:, 0], "receivers": edges[:, 1]}
    changes |= {"relations": np.zeros(len(edges), np.int32), "edge_features": np.zeros((len(edges), 2), np.float32)}
    keep = GRAPH.features[:vertices], GRAPH.kinds[:vertices]
    none = {part: np.zeros(0, np.int64) for part in ("train", "valid", "test")}
    return replace(GRAPH, features=keep[0], kinds=keep[1], labels=None, classes=(), **changes, **none)


@pytest.mark.parametrize("seed", [0, 1])
def test_pairs_that_are_held_out_have_no_edge_left_in_either_direction(seed: int) -> None:
    links = split(GRAPH, seed)
    train, valid, test = (ordered(part) for part in (links.train, links.valid, links.test))
    assert train | valid | test == pairs_of(GRAPH) and len(train) + len(valid) + len(test) == len(pairs_of(GRAPH))
    assert pairs_of(links.graph) == train
    loops = np.sum(GRAPH.senders == GRAPH.receivers)
    assert np.sum(links.graph.senders == links.graph.receivers) == loops > 0  # are no pairs, and stay
    assert len(valid) == len(test) == round(len(pairs_of(GRAPH)) / 10)
    assert links.graph.labels is None and not len(links.graph.train)
    assert np.array_equal(split(GRAPH, seed).valid, links.valid)
    assert not np.array_equal(split(GRAPH, seed + 1).valid[:, 0], links.valid[:, 0])


def test_drawn_vertices_have_no_edge_and_follow_from_the_draw() -> None:
    links = split(GRAPH, 0)
    drawn = links.drawn(links.train, 9, (0, 5))
    assert drawn.shape == (len(links.train), 9)
    made = {(min(a, b), max(a, b)) for a, row in zip(links.train[:, 0], drawn, strict=True) for b in row}
    assert not made & ordered(links.train) and all(a != b for a, b in made)
    assert made & (ordered(links.valid) | ordered(links.test))  # training does not know of them
    judged_by = links.drawn(links.valid, 50, (2,), held_out=True)
    made = {(min(a, b), max(a, b)) for a, row in zip(links.valid[:, 0], judged_by, strict=True) for b in row}
    assert not made & pairs_of(GRAPH)
    assert np.array_equal(drawn, links.drawn(links.train, 9, (0, 5)))
    assert not np.array_equal(drawn, links.drawn(links.train, 9, (0, 6)))


def test_a_vertex_with_edges_to_all_but_one_gets_that_one() -> None:
    hub = wired([(0, other) for other in range(1, 39)] + [(1, 2), (3, 4)], 40)
    links = split(hub, 0)
    pairs = np.array([[0, 5]] * 40)
    assert set(links.drawn(pairs, 1, (1,), held_out=True).ravel()) == {39}


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (wired([(0, 1), (1, 0), (1, 2), (2, 2)], 10), "2 pairs of different vertices have an edge"),
        (wired([(0, 1), (0, 2), (0, 3)], 4), "vertex 0 has edges to all 3 others"),
        (wired([], 4), "0 pairs"),
    ],
)
def test_graphs_without_enough_to_predict_are_refused(graph: Graph, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        split(graph, 0)


def test_metrics_of_products() -> None:
    rows = np.array([[2.0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [3, 0, 0, 0], [-1, 0, 0, 0]], np.float32)
    pairs, others = np.array([[0, 1], [1, 2]]), np.array([[2, 3], [4, 2]])
    found = judged(rows, pairs, others)
    positive, negative = np.array([1.0, 0.0]), np.array([[0.0, 3.0], [-0.5, 0.0]])  # products over sqrt(4)
    right = np.logaddexp(0, -positive).sum() + np.logaddexp(0, negative[:, 0]).sum()
    assert found["loss"] == pytest.approx(right / 4)
    assert found["mrr"] == pytest.approx((1 / 2 + 1 / 1.5) / 2)  # behind one; level with one of two
    wins = [np.mean((p > negative) + (p == negative) / 2) for p in positive]  # over the negatives of all pairs
    assert found["roc_auc"] == pytest.approx(np.mean(wins))


def test_chance_and_features_alone() -> None:
    assert chance(1) == pytest.approx(0.75) and chance(2) == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    links = split(GRAPH, 0)
    others = links.drawn(links.test, 5, (3,), held_out=True)
    centred = GRAPH.features - GRAPH.features.mean(axis=0)
    unit = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    assert features_alone(links, links.test, others)["mrr"] == pytest.approx(judged(unit, links.test, others)["mrr"])


def test_a_batch_follows_from_its_place_and_a_resume_goes_on() -> None:
    links = split(GRAPH, 0)
    order = Order(ids=np.arange(len(links.train)), size=7, seed=0, fingerprint="f", name="n")
    pairs = PairOrder(links=links, order=order, negatives=3)
    assert pairs.size == 7 and pairs.batch(4).shape == (7, 5)
    assert ordered(pairs.batch(4)[:, :2]) <= ordered(links.train)
    resumed = pairs.resumed(pairs.state(3), 3)
    assert np.array_equal(resumed.batch(4), pairs.batch(4)) and not np.array_equal(pairs.batch(3), pairs.batch(4))
