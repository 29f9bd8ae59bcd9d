"""Folders of OGB, and what is wrong with them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph_files import Write, cut, ends, ids, lines, many, one, packed, refused, without


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
    assert str(tmp_path) in refused(tmp_path, message)


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
    refused(tmp_path, message)
