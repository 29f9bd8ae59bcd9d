"""Graphs in .npz files, and what is wrong with them."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from graph_files import Write, ends, ids, many, one, refused, text

EDGES: dict[str, Any] = {"senders": ids(0, 0, 2, 2), "receivers": ids(1, 1, 0, 2)}
MORE = {"features": np.eye(4, dtype=np.float32), "labels": ids(0, 1, 0, -1), "train": ids(1, 0), "test": ids(2)}


def npz(**arrays: Any) -> Write:
    return lambda path: np.savez(path, **arrays)


def test_edge_lists(tmp_path: Path) -> None:
    types = {"relations": ids(0, 1, 1, 0), "relation_names": np.array(["a", "b"]), "kinds": ids(0, 0, 1, 0)}
    npz(**EDGES, **MORE, **types, classes=np.array(["x", "y"]), edge_features=np.ones((4, 2)))(tmp_path / "g.npz")
    graph = one(tmp_path / "g.npz")
    assert ends(graph) == [(0, 1), (0, 1), (2, 0), (2, 2)] and graph.vertices == 4
    assert graph.train.tolist() == [0, 1] and graph.valid.tolist() == [] and graph.test.tolist() == [2]
    assert (
        graph.classes == ("x", "y") and graph.relation_names == ("a", "b") and graph.kind_names == ("kind 0", "kind 1")
    )
    assert graph.edge_features.shape == (4, 2) and graph.edge_features.dtype == np.float32


def test_what_a_file_does_not_tell(tmp_path: Path) -> None:
    npz(edge_index=np.stack([EDGES["senders"], EDGES["receivers"]]), vertices=6)(tmp_path / "g.npz")
    graph = one(tmp_path / "g.npz")
    assert graph.vertices == 6 and graph.features.tolist() == [[1.0]] * 6 and graph.edge_features.shape == (4, 0)
    assert graph.labels is None and graph.relations.tolist() == [0] * 4 and not len(graph.train)


def test_splits_are_drawn_where_there_are_none(tmp_path: Path) -> None:
    npz(**EDGES, labels=np.linspace(0, 1, 10))(tmp_path / "g.npz")
    graph = one(tmp_path / "g.npz")
    assert graph.task == "regression" and [len(graph.train), len(graph.valid), len(graph.test)] == [6, 2, 2]
    assert graph.fingerprint == one(tmp_path / "g.npz").fingerprint != one(tmp_path / "g.npz", 1).fingerprint


def test_masks_and_names_of_classes(tmp_path: Path) -> None:
    mask = np.array([True, False, True, False])
    npz(**EDGES, labels=np.array(["b", "a", "a", ""]), train=mask)(tmp_path / "g.npz")
    graph = one(tmp_path / "g.npz")
    assert graph.classes == ("a", "b") and graph.train.tolist() == [0, 2]
    assert graph.labels is not None and graph.labels.tolist() == [1, 0, 0, -1]


def test_compressed_rows_and_edge_lists_are_the_same_graph(tmp_path: Path) -> None:
    rows = scipy.sparse.csr_array((np.ones(4), (EDGES["senders"], EDGES["receivers"])), shape=(4, 4))
    npz(senders=ids(0, 2, 2), receivers=ids(1, 0, 2), vertices=4)(tmp_path / "list.npz")
    rows.sum_duplicates()
    weighted = [2.0, 1.0, 1.0]
    assert rows.data.tolist() == weighted
    scipy.sparse.save_npz(tmp_path / "rows.npz", rows)
    graph = one(tmp_path / "rows.npz")
    assert ends(graph) == ends(one(tmp_path / "list.npz")) and graph.edge_features[:, 0].tolist() == weighted
    attributes = scipy.sparse.csr_array(np.eye(4, 3))
    sparse = {f"attr_{key}": getattr(attributes, key) for key in ("data", "indices", "indptr", "shape")}
    adjacency = {f"adj_{key}": getattr(rows, key) for key in ("indices", "indptr", "shape")}
    npz(**adjacency, **sparse, adj_data=np.ones(3), labels=ids(0, 0, 1, 1), class_names=["x", "y"])(tmp_path / "n.npz")
    graph = one(tmp_path / "n.npz")
    assert ends(graph) == [(0, 1), (2, 0), (2, 2)] and graph.edge_features.shape == (3, 0)
    assert (graph.features == np.eye(4, 3)).all() and graph.classes == ("x", "y")


def test_many_graphs_in_a_file(tmp_path: Path) -> None:
    npz(senders=ids(0, 2), receivers=ids(1, 3), n_node=ids(2, 2, 1), n_edge=ids(1, 1, 0), labels=ids(0, 1, 0))(
        tmp_path / "g.npz"
    )
    graphs = many(tmp_path / "g.npz")
    assert (
        graphs.graphs == 3
        and graphs.vertices == 5
        and sorted([*graphs.train, *graphs.valid, *graphs.test]) == [0, 1, 2]
    )


def cut_npz(path: Path) -> None:
    np.savez_compressed(path, **EDGES, features=np.random.default_rng(0).normal(size=(4, 500)))
    path.write_bytes(path.read_bytes()[:-300])


def spoiled_npz(path: Path) -> None:
    np.savez_compressed(path, **EDGES, features=np.random.default_rng(0).normal(size=(4, 500)))
    found = bytearray(path.read_bytes())
    found[len(found) // 2] ^= 0xFF
    path.write_bytes(found)


BAD_FILES: list[tuple[Write, str]] = [
    (lambda path: None, "g.npz: no such file or folder; give a folder of OGB"),
    (text(b""), "g.npz is empty: it has 0 bytes"),
    (text(b"senders"), "g.npz is no graph that is known: it begins with b'senders'"),
    (lambda path: os.mkfifo(path), "g.npz is neither a file nor a folder"),
    (lambda path: path.mkdir(), "g.npz is no graph that is known"),
    (text(b"PK\x03\x04 and no more"), "g.npz is not a readable .npz file"),
    (cut_npz, "g.npz is not a readable .npz file"),
    (spoiled_npz, "g.npz is not a readable .npz file"),
    (npz(**EDGES, labels=np.array([None, 1])), "g.npz is not a readable .npz file: Object arrays"),
    (
        npz(features=np.ones((2, 2))),
        "g.npz has the keys features, but edges are wanted: senders and receivers, or edge_index",
    ),
    (npz(**EDGES, feature=np.ones((4, 2))), "g.npz: unknown key 'feature': did you mean 'features'"),
    (npz(**EDGES), "g.npz does not say how many vertices there are"),
    (npz(**EDGES, vertices=2), r"g.npz: senders: vertex 2 at position 2 does not exist, there are 2 \(0 to 1\)"),
    (npz(**EDGES, vertices=0), "g.npz is empty: it has 0 vertices|senders: vertex 0 at position 0 does not exist"),
    (
        npz(senders=ids(0), receivers=np.array([0.5]), vertices=2),
        "g.npz: receivers has dtype float64, but ids are integers",
    ),
    (
        npz(senders=ids(0), receivers=ids(0, 1), vertices=2),
        r"g.npz: receivers has shape \(2,\), wanted \[1\] for the edges",
    ),
    (npz(edge_index=np.zeros((3, 2), int), vertices=2), "g.npz: edge_index"),
    (
        npz(senders=np.array([2**63], np.uint64), receivers=ids(0), vertices=2),
        "senders: 9223372036854775808 is larger than int64",
    ),
    (npz(**EDGES, features=np.ones(4)), r"g.npz: features has shape \(4,\), wanted \[4, any\] for the vertices"),
    (
        npz(**EDGES, features=np.ones((4, 2)), labels=ids(0, 1)),
        r"labels has shape \(2,\), wanted \[4\] for the vertices",
    ),
    (npz(**EDGES, features=np.array([["a"]] * 4)), "g.npz: features has dtype <U1, but numbers are wanted"),
    (npz(**EDGES, features=np.diag([1, 1, np.nan, 1])), "g.npz: features: nan in row 2, column 2"),
    (npz(**EDGES, features=np.full((4, 1), 1e39)), r"g.npz: features: 1e\+39 in row 0, column 0: .* finite in float32"),
    (npz(**EDGES, labels=ids(0, 1, 5, 0), classes=["a", "b"]), "g.npz: labels: label 5 at position 2 is outside the 2"),
    (npz(**EDGES, labels=ids(0, -2, 0, 0)), "g.npz: labels: label -2 at position 1"),
    (
        npz(**EDGES, labels=np.array(["a", "z", "", ""]), classes=["a"]),
        "labels: 'z' at position 1 is none of the classes a",
    ),
    (npz(**EDGES, labels=np.zeros((4, 2), int)), r"g.npz: labels has shape \(4, 2\), but a row has one label"),
    (npz(**EDGES, labels=ids(-1, -1, -1, -1)), "g.npz: no training vertex: train has 0 of 4"),
    (npz(**EDGES, **MORE | {"train": ids()}), "g.npz: no training vertex"),
    (npz(**EDGES, **MORE | {"train": ids(3)}), "g.npz: train: vertex 3 has no label"),
    (npz(**EDGES, **MORE | {"train": np.array([0.0])}), "g.npz: train has dtype float64, but ids are integers"),
    (npz(**EDGES, **MORE | {"train": np.ones(3, bool)}), r"g.npz: train has shape \(3,\), wanted \[4\]"),
    (npz(**EDGES, **MORE, relations=ids(0, 0, 0, -1)), "g.npz: relations: relation -1 at position 3"),
    (npz(**EDGES, **MORE, relations=ids(0, 0, 0)), r"g.npz: relations has shape \(3,\), wanted \[4\]"),
    (
        npz(indptr=ids(0, 2, 1, 4), indices=ids(0, 0, 0, 0)),
        "g.npz: indptr has 1 at position 2: it must rise from 0 to the 4",
    ),
    (npz(indptr=ids(0, 2, 3), indices=ids(0, 0, 0, 0)), "g.npz: indptr has 3 at position 2"),
    (npz(indptr=ids(0, 1), indices=ids(0), format=np.array(b"csc")), "g.npz has format b'csc', but rows are wanted"),
    (npz(**EDGES, attr_indptr=ids(0)), "g.npz has no attr_data, which sparse features need"),
    (npz(**EDGES, n_node=ids(4)), "g.npz has one of n_node and n_edge"),
]


@pytest.mark.parametrize(("write", "message"), BAD_FILES)
def test_bad_files_are_named(tmp_path: Path, write: Write, message: str) -> None:
    write(tmp_path / "g.npz")
    assert "g.npz" in refused(tmp_path / "g.npz", message)
