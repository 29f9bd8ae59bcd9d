"""Reading graphs from what people have on disk, and what is wrong with it."""

import gzip
import os
import pickle
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest
import scipy.sparse

from meshes.errors import UsageError
from training.graphs import Graph, GraphSet, load

Write = Callable[[Path], Any]


def one(path: Path, seed: int = 0) -> Graph:
    found = load(path, seed)
    assert isinstance(found, Graph)
    return found


def many(path: Path) -> GraphSet:
    found = load(path, 0)
    assert isinstance(found, GraphSet)
    return found


def ends(graph: Graph | GraphSet) -> list[tuple[int, int]]:
    return [*zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)]


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


# Arrays in one file.

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


def text(content: bytes) -> Write:
    return lambda path: path.write_bytes(content)


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
    with pytest.raises(UsageError, match=message) as raised:
        load(tmp_path / "g.npz", 0)
    assert "\n" not in str(raised.value) and "g.npz" in str(raised.value)


# Folders of OGB.


def packed(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.write("".join(f"{line}\n" for line in lines))


def ogb_csv(folder: Path) -> None:
    """Four vertices, the last without a label; 0 -> 1 twice, a loop at 2."""
    raw, split = folder / "raw", folder / "split" / "time"
    packed(raw / "edge.csv.gz", "0,1", "0,1", "2,2")
    packed(raw / "num-node-list.csv.gz", "4")
    packed(raw / "num-edge-list.csv.gz", "3")
    packed(raw / "node-feat.csv.gz", "0.5,1", "1,2", "3,4", "5,6")
    packed(raw / "node-label.csv.gz", "0", "1", "1", '""')
    for part, vertex in (("train", "0"), ("valid", "2"), ("test", "1")):
        packed(split / f"{part}.csv.gz", vertex)


def ogb_binary(folder: Path) -> None:
    ogb_csv(folder)
    for path in (folder / "raw").iterdir():
        path.unlink()
    whole: dict[str, Any] = {
        "num_nodes_list": ids(4),
        "num_edges_list": ids(3),
        "edge_index": np.array([[0, 0, 2], [1, 1, 2]]),
    }
    features = np.array([[0.5, 1], [1, 2], [3, 4], [5, 6]], np.float32)
    np.savez(folder / "raw" / "data.npz", **whole, node_feat=features, node_year=np.zeros((4, 1)))
    np.savez(folder / "raw" / "node-label.npz", node_label=np.array([[0], [1], [1], [np.nan]]))


def ogb_graphs(folder: Path) -> None:
    """Three graphs: 0 -> 1; one vertex; a loop at the second of two vertices."""
    raw = folder / "raw"
    packed(raw / "edge.csv.gz", "0,1", "1,1")
    packed(raw / "num-node-list.csv.gz", "2", "1", "2")
    packed(raw / "num-edge-list.csv.gz", "1", "0", "1")
    packed(raw / "node-feat.csv.gz", "1", "2", "3", "4", "5")
    packed(raw / "edge-feat.csv.gz", "7,8", "9,10")
    packed(raw / "graph-label.csv.gz", "0.5", "1", "-2")
    for part, graph in (("train", "0"), ("valid", "1"), ("test", "2")):
        packed(folder / "split" / "scaffold" / f"{part}.csv.gz", graph)


@pytest.mark.parametrize("write", [ogb_csv, ogb_binary])
def test_ogb_nodes(tmp_path: Path, write: Write) -> None:
    write(tmp_path)
    graph = one(tmp_path)
    assert ends(graph) == [(0, 1), (0, 1), (2, 2)] and graph.features[:, 1].tolist() == [1, 2, 4, 6]
    assert graph.labels is not None and graph.labels.tolist() == [0, 1, 1, -1] and graph.classes == ("0", "1")
    assert (graph.train.tolist(), graph.valid.tolist(), graph.test.tolist()) == ([0], [2], [1])


def test_ogb_csv_and_binary_are_the_same_graph(tmp_path: Path) -> None:
    ogb_csv(tmp_path / "a")
    ogb_binary(tmp_path / "b")
    assert one(tmp_path / "a").fingerprint == one(tmp_path / "b").fingerprint
    packed(tmp_path / "a" / "raw" / "edge.csv.gz", "0,1", "1,0", "2,2")
    assert one(tmp_path / "a").fingerprint != one(tmp_path / "b").fingerprint


def test_ogb_graphs(tmp_path: Path) -> None:
    ogb_graphs(tmp_path)
    graphs = many(tmp_path)
    assert ends(graphs) == [(0, 1), (4, 4)] and graphs.n_node.tolist() == [2, 1, 2] and graphs.task == "regression"
    assert graphs.labels is not None and graphs.labels.tolist() == [0.5, 1, -2]
    assert graphs.edge_features.tolist() == [[7, 8], [9, 10]]


def test_ogb_without_features_has_a_column_of_ones(tmp_path: Path) -> None:
    ogb_csv(tmp_path)
    (tmp_path / "raw" / "node-feat.csv.gz").unlink()
    assert one(tmp_path).features.tolist() == [[1.0]] * 4


def without(name: str) -> Write:
    return lambda folder: (folder / name).unlink()


def cut(name: str) -> Write:
    def write(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:-9])

    return write


def lines(name: str, *content: str) -> Write:
    return lambda folder: packed(folder / name, *content)


BAD_OGB: list[tuple[Write, Write, str]] = [
    (ogb_csv, without("raw/edge.csv.gz"), "raw/edge.csv.gz is missing"),
    (ogb_csv, without("raw/num-node-list.csv.gz"), "raw/num-node-list.csv.gz is missing"),
    (ogb_csv, without("raw/node-label.csv.gz"), "raw has neither node-label.csv.gz nor graph-label.csv.gz"),
    (ogb_csv, without("split/time/valid.csv.gz"), "split/time/valid.csv.gz is missing"),
    (ogb_csv, cut("raw/edge.csv.gz"), "raw/edge.csv.gz is not a readable csv.gz of numbers: Compressed file ended"),
    (ogb_csv, cut("raw/node-feat.csv.gz"), "raw/node-feat.csv.gz is not a readable"),
    (ogb_csv, cut("split/time/train.csv.gz"), "split/time/train.csv.gz is not a readable"),
    (
        ogb_csv,
        lambda folder: (folder / "raw/edge.csv.gz").write_bytes(b"0,1"),
        "edge.csv.gz is not .* Not a gzipped file",
    ),
    (
        ogb_csv,
        lines("raw/edge.csv.gz", "0,1", "0,1"),
        "edge.csv.gz: edge_index has 2 rows, but the graphs of .* have 3",
    ),
    (
        ogb_csv,
        lines("raw/edge.csv.gz", "0,1", "0,4", "1,1"),
        r"edge.csv.gz, row 1: vertex 4 does not exist, .* \(0 to 3\)",
    ),
    (
        ogb_csv,
        lines("raw/edge.csv.gz", "0,1", "0,x", "1,1"),
        "edge.csv.gz is not .* could not convert string 'x' to int64 at row 1",
    ),
    (ogb_csv, lines("raw/edge.csv.gz", "0,1", "0,1.5", "1,1"), "edge.csv.gz is not .*'1.5' to int64 at row 1"),
    (ogb_csv, lines("raw/edge.csv.gz", "0", "0", "1"), "edge.csv.gz has 1 columns, wanted 2"),
    (
        ogb_csv,
        lines("raw/node-feat.csv.gz", "1,2", "1", "1,2", "1,2"),
        "node-feat.csv.gz is not .* columns changed from 2 to 1",
    ),
    (
        ogb_csv,
        lines("raw/node-feat.csv.gz", "1", "1", "1"),
        "node-feat.csv.gz: node_feat has 3 rows, but the graphs of .* have 4",
    ),
    (ogb_csv, lines("raw/node-feat.csv.gz", "1", "1", "nan", "1"), "features: nan in row 2, column 0"),
    (ogb_csv, lines("raw/node-label.csv.gz", "0", "1"), r"labels has shape \(2,\), wanted \[4\]"),
    (ogb_csv, lines("raw/node-label.csv.gz", "0,1", "1,1", "0,0", "1,1"), "node-label.csv.gz has shape .* one label"),
    (ogb_csv, lines("raw/node-label.csv.gz", "a b", "1", "1", "1"), "node-label.csv.gz is not a readable csv.gz"),
    (ogb_csv, lines("raw/num-node-list.csv.gz"), "num-node-list.csv.gz: num_nodes_list wants a number"),
    (
        ogb_csv,
        lines("raw/num-node-list.csv.gz", "2", "2"),
        "num-node-list.csv.gz and .* of different numbers of graphs",
    ),
    (ogb_csv, lines("split/time/train.csv.gz"), "no training vertex"),
    (ogb_csv, lines("split/time/train.csv.gz", "9"), "train: vertex 9 at position 0 does not exist"),
    (ogb_csv, lines("split/time/train.csv.gz", "3"), "train: vertex 3 has no label"),
    (ogb_csv, lines("split/random/train.csv.gz", "0"), r"split has 2 ways to split \(random, time\): keep one"),
    (ogb_csv, lines("split/time/split_dict.pt", "0"), "split_dict.pt is for PyTorch alone"),
    (
        ogb_graphs,
        lines("raw/edge.csv.gz", "0,1", "2,1"),
        r"edge.csv.gz, row 1: vertex 2 does not exist, its graph has 2",
    ),
    (ogb_graphs, without("raw/graph-label.csv.gz"), "raw has neither node-label.csv.gz nor graph-label.csv.gz"),
    (ogb_binary, without("raw/node-label.npz"), "raw has neither node-label.npz nor graph-label.npz"),
    (
        ogb_binary,
        lambda folder: np.savez(folder / "raw/data.npz", edge_index=ids(0)),
        "data.npz has no num_nodes_list, num_edges",
    ),
    (ogb_binary, cut("raw/data.npz"), "raw/data.npz is not a readable .npz file"),
]


@pytest.mark.parametrize(("write", "spoil", "message"), BAD_OGB)
def test_bad_ogb_folders_are_named(tmp_path: Path, write: Write, spoil: Write, message: str) -> None:
    write(tmp_path)
    spoil(tmp_path)
    with pytest.raises(UsageError, match=message) as raised:
        load(tmp_path, 0)
    assert "\n" not in str(raised.value) and str(tmp_path) in str(raised.value)


def ogb_typed(folder: Path) -> None:
    """Two authors, three papers with features and labels; papers cite papers, authors write papers."""
    raw = folder / "raw"
    packed(raw / "num-node-dict.csv.gz", "paper,author", "3,2")
    packed(raw / "triplet-type-list.csv.gz", "paper,cites,paper", "author,writes,paper")
    for name, edges in (("author___writes___paper", ["1,2"]), ("paper___cites___paper", ["0,1", "2,2"])):
        packed(raw / "relations" / name / "edge.csv.gz", *edges)
        packed(raw / "relations" / name / "num-edge-list.csv.gz", str(len(edges)))
    packed(raw / "node-feat" / "paper" / "node-feat.csv.gz", "1,2", "3,4", "5,6")
    packed(raw / "node-label" / "paper" / "node-label.csv.gz", "0", "1", "0")
    for part, vertex in (("train", "0"), ("valid", "2"), ("test", "1")):
        packed(folder / "split" / "time" / "paper" / f"{part}.csv.gz", vertex)


def test_ogb_with_types(tmp_path: Path) -> None:
    ogb_typed(tmp_path)
    graph = one(tmp_path)
    assert graph.kind_names == ("author", "paper") and graph.kinds.tolist() == [0, 0, 1, 1, 1]
    assert graph.relation_names == ("author writes paper", "paper cites paper") and graph.relations.tolist() == [
        0,
        1,
        1,
    ]
    assert ends(graph) == [(1, 4), (2, 3), (4, 4)] and graph.features[:, 0].tolist() == [0, 0, 1, 3, 5]
    assert graph.labels is not None and graph.labels.tolist() == [-1, -1, 0, 1, 0]
    assert (graph.train.tolist(), graph.valid.tolist(), graph.test.tolist()) == ([2], [4], [3])


CITES = "raw/relations/paper___cites___paper"

BAD_TYPED: list[tuple[Write, str]] = [
    (without("raw/num-node-dict.csv.gz"), "num-node-dict.csv.gz is missing"),
    (without(f"{CITES}/edge.csv.gz"), "cites___paper/edge.csv.gz is missing"),
    (without("raw/node-label/paper/node-label.csv.gz"), r"node-label has labels of 0 kinds \(none\)"),
    (cut("raw/num-node-dict.csv.gz"), "num-node-dict.csv.gz is not a readable csv.gz"),
    (lines("raw/num-node-dict.csv.gz", "paper,author", "3"), "num-node-dict.csv.gz wants a row of kinds"),
    (
        lines("raw/triplet-type-list.csv.gz", "paper,cites,book"),
        "'paper,cites,book' is no relation between author, paper",
    ),
    (lines(f"{CITES}/edge.csv.gz", "0,1"), "edge.csv.gz has 1 rows, but num-edge-list.csv.gz says 2"),
    (lines(f"{CITES}/edge.csv.gz", "0,1", "0,3"), "edge.csv.gz, row 1: vertex 3 does not exist, paper has 3"),
    (lines(f"{CITES}/edge.csv.gz", "0", "1"), "edge.csv.gz has 1 columns, wanted 2"),
    (
        lines("raw/node-feat/author/node-feat.csv.gz", "1", "2"),
        r"paper/node-feat.csv.gz has shape \(3, 2\), wanted \[3, 1\]",
    ),
    (lines("raw/node-label/paper/node-label.csv.gz", "1"), "node-label.csv.gz has 1 rows, but there are 3 of paper"),
    (without("split/time/paper/test.csv.gz"), "time/paper/test.csv.gz is missing"),
]


@pytest.mark.parametrize(("spoil", "message"), BAD_TYPED)
def test_bad_typed_folders_are_named(tmp_path: Path, spoil: Write, message: str) -> None:
    ogb_typed(tmp_path)
    spoil(tmp_path)
    with pytest.raises(UsageError, match=message) as raised:
        load(tmp_path, 0)
    assert "\n" not in str(raised.value)


# Planetoid.


def planetoid_files(folder: Path) -> None:
    """Two vertices to train on, two more described, tests 6 and 4; 5 is described by nothing."""
    rows = {"x": np.eye(2, 3), "allx": np.eye(4, 3), "tx": np.array([[6.0, 0, 0], [4, 0, 0]])}
    for key, table in rows.items():
        (folder / f"ind.tiny.{key}").write_bytes(pickle.dumps(scipy.sparse.csr_matrix(table), protocol=2))
    classes: dict[str, Any] = {
        "y": np.eye(2, dtype=np.int32),
        "ally": np.eye(2, dtype=np.int32)[[0, 1, 0, 1]],
        "ty": np.eye(2)[[1, 0]],
    }
    for key, table in classes.items():
        (folder / f"ind.tiny.{key}").write_bytes(pickle.dumps(table, protocol=2))
    lists = defaultdict(list, {0: [1, 1], 1: [0, 0], 6: [4], 4: [6], 2: [2]})
    (folder / "ind.tiny.graph").write_bytes(pickle.dumps(lists, protocol=2))
    (folder / "ind.tiny.test.index").write_text("6\n4\n")


@pytest.mark.parametrize("inside", [".", "raw"])
def test_planetoid(tmp_path: Path, inside: str) -> None:
    (tmp_path / inside).mkdir(exist_ok=True)
    planetoid_files(tmp_path / inside)
    graph = one(tmp_path)
    assert graph.vertices == 7 and graph.labels is not None and graph.labels.tolist() == [0, 1, 0, 1, 0, -1, 1]
    assert graph.features[:, 0].tolist() == [1, 0, 0, 0, 4, 0, 6]
    assert ends(graph) == [(0, 1), (0, 1), (1, 0), (1, 0), (6, 4), (4, 6), (2, 2)]
    assert (graph.train.tolist(), graph.valid.tolist(), graph.test.tolist()) == ([0, 1], [2, 3], [4, 6])
    assert graph.arrivals[5].tolist() == [0]


class Command:
    """What a file must not be able to run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("false",)


def pickled(key: str, content: Any) -> Write:
    return lambda folder: (folder / f"ind.tiny.{key}").write_bytes(pickle.dumps(content, protocol=2))


BAD_PLANETOID: list[tuple[Write, str]] = [
    (without("ind.tiny.ty"), "ind.tiny.ty is missing: a Planetoid folder has ind.tiny.x,"),
    (cut("ind.tiny.allx"), "ind.tiny.allx is not a readable pickle"),
    (lambda folder: (folder / "ind.tiny.graph").write_bytes(b""), "ind.tiny.graph is not a readable pickle"),
    (pickled("graph", Command()), "ind.tiny.graph is not .* names (posix|nt).system, which no such file needs"),
    (pickled("graph", [1, 2]), "ind.tiny.graph is not a dictionary of lists"),
    (pickled("graph", {0: [7]}), r"ind.tiny.graph: vertex 7 at position 0 does not exist, there are 7 \(0 to 6\)"),
    (pickled("graph", {0: [0.5]}), "ind.tiny.graph has dtype float64, but ids are integers"),
    (pickled("y", np.eye(3)), "ind.tiny.y has 3 rows, but .*ind.tiny.x has 2"),
    (pickled("tx", np.eye(2, 5)), "ind.tiny.tx has 5 features, but the other files 3"),
    (pickled("tx", np.ones((1, 3))), "ind.tiny.ty has 2 rows, but .*ind.tiny.tx has 1"),
    (pickled("ty", np.eye(2, 3)), "ind.tiny.ty has 3 classes, but the other files 2"),
    (pickled("allx", np.full((4, 3), np.nan)), "ind.tiny.allx: nan in row 0, column 0"),
    (pickled("ally", np.ones(4)), r"ind.tiny.ally has shape \(4,\), but a table"),
    (
        lambda folder: (folder / "ind.tiny.test.index").write_text("6\n3\n"),
        "test.index, line 2: '3' is not a vertex from 4",
    ),
    (
        lambda folder: (folder / "ind.tiny.test.index").write_text("6\n6\n"),
        "test.index, line 2: vertex 6 stands in line 1",
    ),
    (lambda folder: (folder / "ind.other.x").write_text(""), "has the data sets other, tiny"),
]


@pytest.mark.parametrize(("spoil", "message"), BAD_PLANETOID)
def test_bad_planetoid_folders_are_named(tmp_path: Path, spoil: Write, message: str) -> None:
    planetoid_files(tmp_path)
    spoil(tmp_path)
    with pytest.raises(UsageError, match=message) as raised:
        load(tmp_path, 0)
    assert "\n" not in str(raised.value)


# networkx.


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
    with pytest.raises(UsageError, match=message) as raised:
        load(tmp_path / "g.graphml", 0)
    assert "\n" not in str(raised.value)


def test_karate_club() -> None:
    graph = one(Path("karate"))
    assert (graph.vertices, graph.edges) == (34, 156) and graph.classes == ("Mr. Hi", "Officer")
    assert graph.features.shape == (34, 34) and len(graph.train) == 22
    assert (graph.arrivals[0, 0], graph.arrivals[33, 0]) == (16, 17)
