"""Folders of Planetoid, and what is wrong with them."""

import os
import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from graph_files import Write, cut, ends, one, refused, without


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
    refused(tmp_path, message)
