"""What tests of graph files share: reading, refusing, and ways to spoil files."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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


def text(content: bytes) -> Write:
    return lambda path: path.write_bytes(content)


def packed(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.write("".join(f"{line}\n" for line in lines))


def without(name: str) -> Write:
    return lambda folder: (folder / name).unlink()


def cut(name: str) -> Write:
    def write(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:-9])

    return write


def lines(name: str, *content: str) -> Write:
    return lambda folder: packed(folder / name, *content)


def refused(path: Path, message: str) -> str:
    """Reading ends with one line that says so."""
    with pytest.raises(UsageError, match=message) as raised:
        load(path, 0)
    assert "\n" not in str(raised.value)
    return str(raised.value)
