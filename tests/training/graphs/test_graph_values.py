"""What a graph holds, refuses, and does with edges and vertices out of the ordinary."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from meshes.errors import UsageError
from training.graphs import Graph, GraphSet, both_ways, checks, labelled, splits


def plain(**other: Any) -> dict[str, Any]:
    """Six vertices: 0 -> 1 twice, 1 -> 2, a loop at 3, 4 without edges, 5 without a label."""
    return {
        "name": "six",
        "senders": np.array([0, 0, 1, 3, 5], np.int64),
        "receivers": np.array([1, 1, 2, 3, 0], np.int64),
        "relations": np.array([0, 1, 0, 1, 1], np.int32),
        "relation_names": ("likes", "knows"),
        "kinds": np.zeros(6, np.int32),
        "features": np.arange(12, dtype=np.float32).reshape(6, 2),
        "edge_features": np.arange(5, dtype=np.float32)[:, None],
        "labels": np.array([0, 1, 0, 1, 0, -1], np.int32),
        "classes": ("a", "b"),
        "train": np.array([0, 1], np.int64),
        "valid": np.array([2], np.int64),
        "test": np.array([3, 4], np.int64),
    } | other


def small(**other: Any) -> dict[str, Any]:
    """The same vertices and edges as three graphs, of which the second has no vertices."""
    parts = {"train": np.array([0], np.int64), "valid": np.array([1], np.int64), "test": np.array([2], np.int64)}
    sizes = {"n_node": np.array([3, 0, 3], np.int64), "n_edge": np.array([3, 0, 2], np.int64)}
    ends = {"receivers": np.array([1, 1, 2, 3, 3], np.int64)}
    return plain(labels=np.array([0, 1, 0], np.int32), **parts, **sizes, **ends) | other


def test_edges_are_kept_as_they_were_read() -> None:
    graph = Graph(**plain())
    assert (graph.vertices, graph.edges, graph.task) == (6, 5, "classification")
    assert graph.arrivals.tolist() == [[0, 1], [1, 1], [1, 0], [0, 1], [0, 0], [0, 0]]
    assert graph.arrivals.dtype == np.int64 and graph.degree.dtype == np.float32
    assert (graph.degree == graph.arrivals).all()
    assert labelled(graph.labels if graph.labels is not None else np.zeros(0)).tolist() == [True] * 5 + [False]


def test_values_without_label_are_nan() -> None:
    graph = Graph(**plain(labels=np.array([1, 2, 3, 4, 5, np.nan], np.float32), classes=()))
    assert graph.task == "regression" and graph.labels is not None
    assert labelled(graph.labels).tolist() == [True] * 5 + [False]


def test_links_need_no_labels() -> None:
    none = np.zeros(0, np.int64)
    assert Graph(**plain(labels=None, classes=(), train=none, valid=none, test=none)).labels is None


def test_both_ways_adds_relations_of_their_own() -> None:
    graph = both_ways(Graph(**plain()))
    assert graph.relation_names == ("likes", "knows", "likes reversed", "knows reversed")
    assert graph.senders.tolist() == [0, 0, 1, 3, 5, 1, 1, 2, 3, 0]
    assert graph.receivers.tolist() == [1, 1, 2, 3, 0, 0, 0, 1, 3, 5]
    assert graph.relations.tolist() == [0, 1, 0, 1, 1, 2, 3, 2, 3, 3] and graph.relations.dtype == np.int32
    assert graph.edge_features[:, 0].tolist() == [0, 1, 2, 3, 4] * 2
    assert graph.arrivals[:, :2].sum() == graph.arrivals[:, 2:].sum() == 5


@pytest.mark.parametrize("changed", ["senders", "relations", "features", "edge_features", "labels", "classes", "kinds"])
def test_fingerprint_is_of_all_content_but_the_name(changed: str) -> None:
    graph = Graph(**plain(kind_names=("x", "y"), classes=("a", "b", "c")))
    assert graph.fingerprint == dataclasses.replace(graph, name="other").fingerprint
    value = getattr(graph, changed)
    other: Any = ("b", "a", "c") if isinstance(value, tuple) else np.roll(value, 1, axis=0)
    if changed == "kinds":
        other = np.array([1, 0, 0, 0, 0, 0], np.int32)
    if changed == "labels":
        other = np.array([2, 1, 0, 1, 0, -1], np.int32)
    assert graph.fingerprint != dataclasses.replace(graph, **{changed: other}).fingerprint


def test_many_graphs_are_numbered_through() -> None:
    graphs = GraphSet(**small(senders=np.array([0, 0, 1, 3, 5], np.int64)))
    assert graphs.graphs == 3
    assert graphs.node_starts.tolist() == [0, 3, 3, 6] and graphs.edge_starts.tolist() == [0, 3, 3, 5]


def test_both_ways_keeps_small_graphs_apart() -> None:
    graphs = both_ways(GraphSet(**small()))
    assert isinstance(graphs, GraphSet) and graphs.n_edge.tolist() == [6, 0, 4]
    assert graphs.senders.tolist() == [0, 0, 1, 1, 1, 2, 3, 5, 3, 3]
    assert graphs.receivers.tolist() == [1, 1, 2, 0, 0, 1, 3, 3, 3, 5]
    assert graphs.relations.tolist() == [0, 1, 0, 2, 3, 2, 1, 1, 3, 3]


BAD = [
    ({"senders": np.array([0, 0, 1, 9, 5])}, r"six: senders: vertex 9 at position 3 does not exist, there are 6 \(0"),
    ({"receivers": np.array([-1, 0, 1, 3, 5])}, "six: receivers: vertex -1 at position 0 does not exist"),
    ({"senders": np.array([0, 0, 1, 3, 5], np.int32)}, "six: senders has dtype int32, wanted int64"),
    ({"receivers": np.array([1])}, r"six: receivers has shape \(1,\), wanted \[5\] for the edges"),
    ({"features": np.zeros((6,), np.float32)}, r"six: features has shape \(6,\), wanted \[6, any\]"),
    ({"features": np.zeros((6, 0), np.float32)}, "six: features has shape .* one column or more"),
    ({"features": np.full((6, 1), np.nan, np.float32)}, "six: features: nan in row 0, column 0"),
    ({"edge_features": np.full((5, 1), np.inf, np.float32)}, "six: edge features: inf in row 0"),
    ({"relations": np.array([0, 0, 0, 0, 2], np.int32)}, "six: relations: relation 2 at position 4 does not exist"),
    ({"kinds": np.ones(6, np.int32)}, "six: kinds: kind 1 at position 0 does not exist"),
    (
        {"labels": np.array([0, 1, 2, 0, 0, 0], np.int32)},
        r"six: labels: label 2 at position 2 is outside the 2 classes",
    ),
    ({"labels": np.array([0, 1], np.int32)}, r"six: labels has shape \(2,\), wanted \[6\] for the vertices"),
    ({"train": np.zeros(0, np.int64)}, "six: no training vertex: train has 0 of 6"),
    ({"test": np.array([5])}, "six: test: vertex 5 has no label"),
    ({"test": np.array([6])}, "six: test: vertex 6 at position 0 does not exist"),
    ({"test": np.array([1, 3])}, "six: vertex 1 stands twice in train and test"),
    ({"features": np.zeros((0, 2), np.float32)}, "six is empty: it has 0 vertices and 5 edges"),
]


@pytest.mark.parametrize(("other", "message"), BAD)
def test_what_is_no_graph_is_refused(other: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        Graph(**plain(**other))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"n_node": np.array([3, 0, 2])}, "six: n_node sums to 5, but there are 6 vertices"),
        ({"n_edge": np.array([3, 0, 3])}, "six: n_edge sums to 6, but there are 5 edges"),
        ({"n_node": np.array([7, -4, 3])}, "six: n_node"),
        ({"senders": np.array([0, 0, 4, 3, 5])}, "six: sender 4 of edge 2 is a vertex of graph 2, .* to graph 0"),
        ({"labels": np.zeros(6, np.int32)}, r"six: labels has shape \(6,\), wanted \[3\] for the graphs"),
        ({"train": np.zeros(0, np.int64)}, "six: no training graph"),
    ],
)
def test_what_are_no_small_graphs_is_refused(other: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        GraphSet(**small(**other))


def test_numbers_beyond_int32_are_refused_instead_of_wrapped() -> None:
    starts = np.array([0, 2**31 - 1], np.int64)
    assert checks.to_int32("x", "edges", starts).tolist() == starts.tolist()
    with pytest.raises(UsageError, match=r"x: edges reach 2,147,483,648, but devices count to 2,147,483,647: cut"):
        checks.to_int32("x", "edges", starts + 1)


def test_splits_are_drawn_by_seed_and_class() -> None:
    labels = np.repeat(np.arange(-1, 3), [7, 1, 10, 50]).astype(np.int32)
    train, valid, test = splits.at_random(labels, 3)
    assert sorted([*train, *valid, *test]) == list(range(7, 68))
    assert np.bincount(labels[train]).tolist() == [1, 6, 30] and np.bincount(labels[test]).tolist() == [0, 2, 10]
    assert (np.diff(train) > 0).all()
    assert all((a == b).all() for a, b in zip(splits.at_random(labels, 3), (train, valid, test), strict=True))
    assert not np.array_equal(splits.at_random(labels, 4)[0], train)


def test_values_are_split_as_one() -> None:
    values = np.array([np.nan, *np.linspace(0, 1, 10)], np.float32)
    assert [len(part) for part in splits.at_random(values, 0)] == [6, 2, 2]


@pytest.mark.parametrize("sizes", [[5, 1, 1], [1, 1, 100], [10] * 10, [3, 9, 27, 81]])
def test_groups_are_dealt_whole(sizes: list[int]) -> None:
    parts = splits.by_group(np.array(sizes), 0)
    assert set(parts) == {0, 1, 2} and (parts == splits.by_group(np.array(sizes), 0)).all()
