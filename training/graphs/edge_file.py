"""Graphs in `.npz` files: edge lists, or compressed sparse rows."""

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from meshes.errors import UsageError, check_keys
from training.graphs import checks, splits
from training.graphs.build import build, numbered
from training.graphs.graph import Graph, GraphSet

SHARED = ("features", "labels", "relations", "kinds", "edge_features", "n_node", "n_edge", "train", "valid", "test")
NAMES = ("classes", "relation_names", "kind_names")
EDGES = ("senders", "receivers", "edge_index", "vertices")
ROWS = ("indptr", "indices", "data", "shape", "format")
PREFIXED = (*(f"{prefix}_{part}" for prefix in ("adj", "attr") for part in ROWS[:4]), "class_names")
LEFT_OUT = ("_is_array", "node_names", "attr_names", "metadata", "idx_to_node", "idx_to_attr", "idx_to_class")

Arrays = dict[str, np.ndarray]


def edge_file(path: Path, seed: int) -> Graph | GraphSet:
    """Read a graph, or many (with `n_node` and `n_edge`), from named arrays.

    Edges are `senders` and `receivers` [E], or `edge_index` [2, E], or `indptr` and `indices`, a row for each sender,
    as scipy.sparse.save_npz writes them (or `adj_indptr` and so on); weights beside them that are not all 1 become an
    edge feature. Optional are `features` [N, F] (or sparse: `attr_data`, `attr_indices`, `attr_indptr`, `attr_shape`),
    `labels` [N] (integers: classes, text: names of classes, floats: values), `classes`, `relations` [E], `kinds` [N],
    `relation_names`, `kind_names`, `edge_features` [E, A], and `train`, `valid`, `test` (ids or masks). An edge list
    with neither features, kinds nor labels says how many vertices there are: `vertices`.

    Errors:
        UsageError: unreadable, keys that are missing or unknown, arrays that do not fit.
    """
    arrays = read(path)
    check_keys(arrays, (*SHARED, *NAMES, *EDGES, *ROWS, *PREFIXED), str(path))
    arrays = _plain(str(path), arrays)
    vertices = _vertices(str(path), arrays)
    labels = None
    if "labels" in arrays:
        labels = numbered(f"{path}: labels", arrays["labels"], _names(arrays, "classes"))
    names = {key: found for key in NAMES[1:] if (found := _names(arrays, key))}
    split = _split(str(path), arrays, len(labels[0]) if labels else vertices)
    return build(str(path), arrays, vertices=vertices, labels=labels, split=split, names=names, seed=seed)


def read(path: Path) -> Arrays:
    """All arrays of an `.npz` file that are read at all.

    Errors:
        UsageError: it is no such file, cut off, or has pickled objects.
    """
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            return {key: file[key] for key in file.files if key not in LEFT_OUT}
    except (OSError, ValueError, EOFError, KeyError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        reason = str(error).splitlines()[0] if str(error) else "it is cut off"
        raise UsageError(f"{path} is not a readable .npz file: {reason}; write it with numpy.savez") from None


def _plain(name: str, arrays: Arrays) -> Arrays:
    """The same graph as `senders`, `receivers` and dense `features`."""
    found = {key.removeprefix("adj_"): array for key, array in arrays.items()}
    if "class_names" in found:
        found["classes"] = found.pop("class_names")
    if "attr_indptr" in found:
        found["features"] = _dense(name, found)
    if "edge_index" in found:
        checks.shape(f"{name}: edge_index", found["edge_index"].T, (len(found["edge_index"].T), 2), "edges")
        found["senders"], found["receivers"] = found["edge_index"]
    if "indptr" in found and "indices" in found:
        found |= _from_rows(name, found)
    _need(name, found)
    return found


def _need(name: str, arrays: Arrays) -> None:
    if "senders" not in arrays or "receivers" not in arrays:
        raise UsageError(
            f"{name} has the keys {', '.join(sorted(arrays)) or 'of no array'}, but edges are wanted: senders and"
            " receivers, or edge_index, or indptr and indices"
        )
    if ("n_node" in arrays) != ("n_edge" in arrays):
        raise UsageError(f"{name} has one of n_node and n_edge: many graphs need both, one graph neither")


def _from_rows(name: str, arrays: Arrays) -> Arrays:
    indptr, indices = (checks.whole_numbers(f"{name}: {key}", arrays[key]) for key in ("indptr", "indices"))
    if arrays.get("format", np.array(b"csr")).item() not in (b"csr", "csr"):
        raise UsageError(f"{name} has format {arrays['format'].item()}, but rows are wanted: convert it with tocsr()")
    wrong = np.flatnonzero(np.diff(indptr) < 0)
    if not len(indptr) or indptr[0] != 0 or indptr[-1] != len(indices) or len(wrong):
        at = int(wrong[0]) + 1 if len(wrong) else (0 if not len(indptr) or indptr[0] else len(indptr) - 1)
        value = indptr[at] if len(indptr) else "nothing"
        raise UsageError(
            f"{name}: indptr has {value} at position {at}: it must rise from 0 to the {len(indices)} indices; mend it"
        )
    found = {"senders": np.repeat(np.arange(len(indptr) - 1), np.diff(indptr)), "receivers": indices}
    found["vertices"] = np.array(len(indptr) - 1)
    weights = arrays.get("data")
    if weights is not None and "edge_features" not in arrays and (weights != 1).any():
        found["edge_features"] = weights[:, None]
    return found


def _dense(name: str, arrays: Arrays) -> np.ndarray:
    try:
        parts = tuple(arrays[f"attr_{key}"] for key in ("data", "indices", "indptr"))
        return csr_array(parts, shape=tuple(map(int, arrays["attr_shape"]))).astype(np.float32).toarray()
    except KeyError as error:
        raise UsageError(f"{name} has no {error.args[0]}, which sparse features need: add it") from None
    except ValueError as error:
        raise UsageError(f"{name}: attr_data, attr_indices, attr_indptr, attr_shape do not fit: {error}") from None


def _vertices(name: str, arrays: Arrays) -> int:
    many = "n_node" in arrays
    for key in ("features", "kinds", *(() if many else ("labels",))):
        if key in arrays:
            return len(np.atleast_1d(arrays[key]))
    if many:
        return int(arrays["n_node"].sum())
    if "vertices" not in arrays:
        raise UsageError(f"{name} does not say how many vertices there are: add features, labels or vertices")
    return int(checks.whole_numbers(f"{name}: vertices", arrays["vertices"]))


def _names(arrays: Mapping[str, np.ndarray], key: str) -> tuple[str, ...] | None:
    return tuple(map(str, arrays[key])) if key in arrays else None


def _split(name: str, arrays: Arrays, count: int) -> splits.Split | None:
    """Ids of the three parts; None where the file has none of them, empty where it lacks one."""
    given = {key: arrays[key] for key in ("train", "valid", "test") if key in arrays}
    if not given:
        return None
    train, valid, test = (_ids(name, key, given.get(key), count) for key in ("train", "valid", "test"))
    return train, valid, test


def _ids(name: str, key: str, array: np.ndarray | None, count: int) -> np.ndarray:
    if array is None:
        return np.zeros(0, np.int64)
    if array.dtype.kind == "b":
        checks.shape(f"{name}: {key}", array, (count,), "masked")
        return np.flatnonzero(array)
    return array
