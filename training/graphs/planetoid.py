"""Citation graphs in the raw files of Planetoid: ind.NAME.x, tx, allx, y, ty, ally, graph and test.index."""

from __future__ import annotations

import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from meshes.errors import UsageError
from training.graphs import checks
from training.graphs.build import build
from training.graphs.graph import Graph, GraphSet

FILES = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
VALID = 500  # vertices after those of train


def name_in(folder: Path) -> str | None:
    """NAME of the files in a folder; None where there are none.

    Errors:
        UsageError: files of several names.
    """
    names = sorted({path.name.split(".")[1] for path in folder.glob("ind.*.*")})
    if len(names) > 1:
        raise UsageError(f"{folder} has the data sets {', '.join(names)}: give a folder with one of them")
    return names[0] if names else None


def planetoid(folder: Path, name: str, seed: int) -> Graph | GraphSet:
    """Read the files with the split that they are known by.

    Train are the vertices of `y`, valid the 500 after them (all that `ally` has, where it has fewer), test those of
    `test.index`. Edges are kept as `graph` lists them, which is in both directions. Vertices between the test ids that
    the files do not describe have no label and features of 0, and rows of `ally` or `ty` without a class no label.

    Errors:
        UsageError: a file is missing, cut off, or does not fit the others.
    """
    paths = {key: folder / f"ind.{name}.{key}" for key in FILES}
    for path in paths.values():
        if not path.is_file():
            raise UsageError(f"{path} is missing: a Planetoid folder has {', '.join(f'ind.{name}.{k}' for k in FILES)}")
    x, tx, allx = (_features(paths[key]) for key in ("x", "tx", "allx"))
    y, ty, ally = (_one_hot(paths[key]) for key in ("y", "ty", "ally"))
    test = _test_ids(paths["test.index"], len(allx))
    _agree(paths["y"], y, paths["x"], x)
    _agree(paths["ally"], ally, paths["allx"], allx)
    _agree(paths["ty"], ty, paths["tx"], tx)
    _agree(paths["tx"], tx, paths["test.index"], test)
    vertices = max(len(allx), int(test.max(initial=-1)) + 1)
    features = np.zeros((vertices, allx.shape[1]), np.float32)
    _put(paths["tx"], features, test, tx, "features")
    features[: len(allx)] = allx
    one_hot = np.zeros((vertices, ally.shape[1]), np.float32)
    _put(paths["ty"], one_hot, test, ty, "classes")
    one_hot[: len(ally)] = ally
    labels = np.where(one_hot.any(axis=1), one_hot.argmax(axis=1), -1).astype(np.int32)
    senders, receivers = _edges(paths["graph"])
    for ends in (senders, receivers):
        checks.ids(str(paths["graph"]), ends, vertices, "vertex")
    valid = np.arange(len(y), min(len(y) + VALID, len(ally)))
    return build(
        str(folder / f"ind.{name}"),
        {"senders": senders, "receivers": receivers, "features": features},
        vertices=vertices,
        labels=(labels, tuple(map(str, range(ally.shape[1])))),
        split=(np.arange(len(y)), valid[labels[valid] >= 0], test[labels[test] >= 0]),
        seed=seed,
    )


def _agree(path: Path, rows: np.ndarray, other: Path, wanted: np.ndarray) -> None:
    if len(rows) != len(wanted):
        raise UsageError(f"{path} has {len(rows)} rows, but {other} has {len(wanted)}: get the files again")


class _Rows:
    """What a pickled sparse matrix of scipy holds, without scipy's own classes, which have moved."""

    data: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray
    _shape: tuple[int, int]

    def dense(self) -> np.ndarray:
        return csr_array((self.data, self.indices, self.indptr), shape=self._shape).toarray()


class _Unpickler(pickle.Unpickler):
    """Arrays, sparse rows and dictionaries of lists, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("scipy.sparse") and name in ("csr_matrix", "csr_array"):
            return _Rows
        if name == "defaultdict":
            return defaultdict
        if name in ("list", "object", "dict") and module in ("__builtin__", "builtins"):
            return {"list": list, "object": object, "dict": dict}[name]
        numpy_parts = {"numpy": "numpy", "numpy.core.multiarray": "numpy._core.multiarray"}
        if name in ("ndarray", "dtype", "_reconstruct", "scalar") and module in (*numpy_parts, *numpy_parts.values()):
            return super().find_class(numpy_parts.get(module, module), name)
        if name in ("_reconstructor", "__newobj__") and module in ("copy_reg", "copyreg"):
            return super().find_class("copyreg", name)
        if (module, name) == ("_codecs", "encode"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no such file needs")


def _unpickle(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            return _Unpickler(file, encoding="latin1").load()
    except Exception as error:  # bytes that are no pickle may raise anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"{path} is not a readable pickle of Planetoid: {reason}; get the file again") from None


def _features(path: Path) -> np.ndarray:
    found = _unpickle(path)
    try:
        array = found.dense() if isinstance(found, _Rows) else np.asarray(found)
    except (AttributeError, ValueError) as error:
        raise UsageError(f"{path} is not a sparse matrix: {error}; get the file again") from None
    return _table(path, array)


def _one_hot(path: Path) -> np.ndarray:
    return _table(path, np.asarray(_unpickle(path)))


def _table(path: Path, array: np.ndarray) -> np.ndarray:
    if array.ndim != 2:
        raise UsageError(f"{path} has shape {array.shape}, but a table of rows is wanted: get the file again")
    return checks.real_numbers(str(path), array)


def _test_ids(path: Path, first: int) -> np.ndarray:
    found: dict[int, int] = {}
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    for line, text in enumerate(lines, start=1):
        if not text.strip().isdecimal() or int(text) < first or int(text) > checks.MOST:
            raise UsageError(f"{path}, line {line}: {text!r} is not a vertex from {first} on: get the file again")
        if int(text) in found:
            raise UsageError(f"{path}, line {line}: vertex {text} stands in line {found[int(text)]} too: leave one out")
        found[int(text)] = line
    return np.array(list(found), np.int64)


def _put(path: Path, table: np.ndarray, at: np.ndarray, rows: np.ndarray, what: str) -> None:
    if rows.shape[1] != table.shape[1]:
        raise UsageError(f"{path} has {rows.shape[1]} {what}, but the other files {table.shape[1]}: get it again")
    table[at] = rows


def _edges(path: Path) -> tuple[np.ndarray, np.ndarray]:
    found = _unpickle(path)
    try:
        senders = np.repeat(np.array([*found.keys()]), [len(ends) for ends in found.values()])
        receivers = np.array([end for ends in found.values() for end in ends])
    except (AttributeError, TypeError, ValueError):
        raise UsageError(f"{path} is not a dictionary of lists of neighbours: get the file again") from None
    if not len(senders):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return checks.whole_numbers(str(path), senders), checks.whole_numbers(str(path), receivers)
