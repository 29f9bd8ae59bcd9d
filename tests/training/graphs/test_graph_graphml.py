"""GraphML and the karate club, and what is wrong with them."""

from pathlib import Path
from typing import Any

import networkx
import pytest
from graph_files import Write, ends, one, refused, text


def drawn(directed: bool) -> Any:
    graph = networkx.MultiDiGraph() if directed else networkx.MultiGraph()
    for vertex, label in (("a", "x"), ("b", "y"), ("c", None)):
        said = {} if label is None else {"label": label, "split": "train"}
        graph.add_node(vertex, size=1.5, age=2, kind="person" if vertex == "a" else "dog", **said)
    graph.add_edges_from([("a", "b"), ("a", "b"), ("c", "c")], relation="likes", weight=0.5)
    return graph


@pytest.mark.parametrize("directed", [True, False])
def test_graphml(tmp_path: Path, directed: bool) -> None:
    networkx.write_graphml(drawn(directed), tmp_path / "g.graphml")
    graph = one(tmp_path / "g.graphml")
    there = [(0, 1), (0, 1), (2, 2)]
    assert ends(graph) == (there if directed else [(0, 1), (1, 0), (0, 1), (1, 0), (2, 2)])
    assert graph.features.tolist() == [[2, 1.5]] * 3 and graph.edge_features.tolist() == [[0.5]] * graph.edges
    assert graph.kind_names == ("dog", "person") and graph.kinds.tolist() == [1, 0, 0]
    assert graph.relation_names == ("likes",) and graph.classes == ("x", "y") and graph.train.tolist() == [0, 1]
    assert graph.labels is not None and graph.labels.tolist() == [0, 1, -1]


def changed(**vertex: Any) -> Write:
    """The file with other attributes of vertex b."""

    def write(path: Path) -> None:
        graph = drawn(True)
        graph.nodes["b"].update(vertex)
        networkx.write_graphml(graph, path)

    return write


def lacking(path: Path) -> None:
    graph = drawn(True)
    del graph.nodes["b"]["size"]
    networkx.write_graphml(graph, path)


BAD_GRAPHML: list[tuple[Write, str]] = [
    (text(b"<graphml><graph>"), "g.graphml is not readable GraphML"),
    (text(b"<svg></svg>"), "g.graphml is not readable GraphML: file not successfully read as graphml"),
    (lambda path: networkx.write_graphml(networkx.DiGraph(), path), "g.graphml is empty: it has 0 vertices"),
    (changed(city="Bern"), "g.graphml: vertex 'a' has nothing for 'city', but a feature is a number"),
    (changed(split="dev"), "g.graphml: vertex 'b' has split 'dev': wanted train, valid, test"),
    (changed(size=float("nan")), "g.graphml: features: nan in row 1, column 1"),
    (lacking, "g.graphml: vertex 'b' has nothing for 'size'"),
]


@pytest.mark.parametrize(("write", "message"), BAD_GRAPHML)
def test_bad_graphml_is_named(tmp_path: Path, write: Write, message: str) -> None:
    write(tmp_path / "g.graphml")
    refused(tmp_path / "g.graphml", message)


def test_karate_club() -> None:
    graph = one(Path("karate"))
    assert (graph.vertices, graph.edges) == (34, 156) and graph.classes == ("Mr. Hi", "Officer")
    assert graph.features.shape == (34, 34) and len(graph.train) == 22
    assert (graph.arrivals[0, 0], graph.arrivals[33, 0]) == (16, 17)
