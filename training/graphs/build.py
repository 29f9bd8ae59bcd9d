"""From the arrays that a file holds to a graph: types that it does not tell, labels, and splits."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from meshes.errors import UsageError
from training.graphs import checks, splits
from training.graphs.graph import Graph, GraphSet

Labels = tuple[np.ndarray, tuple[str, ...]]  # as a graph holds them, and names of classes


def build(
    name: str,
    arrays: Mapping[str, np.ndarray],
    *,
    vertices: int,
    labels: Labels | None,
    split: splits.Split | None = None,
    names: Mapping[str, tuple[str, ...]] | None = None,
    seed: int = 0,
) -> Graph | GraphSet:
    """A graph, or a set of small ones if there are `n_node` and `n_edge`.

    What is not there: features are one column of ones, relations and kinds all of one type, edge features none.

    Args:
        name: file, for messages.
        arrays: `senders` and `receivers`, and any other arrays of `Graph` and `GraphSet`.
        vertices: their number.
        labels: and names of classes; None if there are none.
        split: ids of train, valid and test; where None, drawn from what has a label.
        names: `relation_names` and `kind_names`.
        seed: of the draw.

    Errors:
        UsageError: whatever does not fit together.
    """
    for key in ("senders", "receivers"):
        checks.shape(f"{name}: {key}", arrays[key], (None,), "edges")
    ends = {key: checks.whole_numbers(f"{name}: {key}", arrays[key]) for key in ("senders", "receivers")}
    edges = len(ends["senders"])
    features = arrays.get("features", np.ones((vertices, 1), np.float32))
    edge_features = arrays.get("edge_features", np.zeros((edges, 0), np.float32))
    relations, relation_names = _types(name, "relation", arrays, names or {}, np.zeros(edges, np.int64))
    kinds, kind_names = _types(name, "kind", arrays, names or {}, np.zeros(vertices, np.int64))
    checks.shape(f"{name}: features", features, (vertices, None), "vertices")
    checks.shape(f"{name}: edge_features", edge_features, (edges, None), "edges")
    train, valid, test = _split(name, labels, split, seed)
    common: dict[str, Any] = {
        **ends,
        "features": checks.real_numbers(f"{name}: features", features),
        "edge_features": checks.real_numbers(f"{name}: edge_features", edge_features),
        "relations": relations,
        "kinds": kinds,
        "relation_names": relation_names,
        "kind_names": kind_names,
        "labels": labels[0] if labels else None,
        "classes": labels[1] if labels else (),
        "train": train,
        "valid": valid,
        "test": test,
    }
    if "n_node" not in arrays:
        return Graph(name=name, **common)
    common |= {key: checks.whole_numbers(f"{name}: {key}", arrays[key]) for key in ("n_node", "n_edge")}
    return GraphSet(name=name, **common)


def numbered(where: str, array: np.ndarray, names: tuple[str, ...] | None = None) -> Labels:
    """Labels of a file: integers are class ids (-1: none), text is names of classes ("": none), floats are values to
    predict (NaN: none).

    Args:
        where: file and array, for messages.
        array: one label a row, [N] or [N, 1].
        names: of the classes; by default the numbers up to the largest, or the names that occur.

    Errors:
        UsageError: several labels a row, or another type.
    """
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise UsageError(f"{where} has shape {array.shape}, but a row has one label: keep one column of them")
    if array.dtype.kind == "U":
        return _named(where, array, names)
    if array.dtype.kind == "f":
        return checks.real_numbers(where, array, missing=True), ()
    numbers = checks.whole_numbers(where, array)
    classes = names or tuple(map(str, range(max(int(numbers.max(initial=0)), 0) + 1)))
    checks.labels(where, numbers, len(classes))
    return numbers.astype(np.int32), classes


def _named(where: str, array: np.ndarray, names: tuple[str, ...] | None) -> Labels:
    found = names or tuple(sorted({*array.tolist()} - {""}))
    numbers = {name: number for number, name in enumerate(found)} | {"": -1}
    for at, text in enumerate(array.tolist()):
        if text not in numbers:
            raise UsageError(f"{where}: {text!r} at position {at} is none of the classes {', '.join(found)}: mend it")
    return np.array([numbers[text] for text in array.tolist()], np.int32), found


def _types(
    name: str, what: str, arrays: Mapping[str, np.ndarray], names: Mapping[str, tuple[str, ...]], untyped: np.ndarray
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Type of each edge or vertex, int32, and the names of the types."""
    where = f"{name}: {what}s"
    numbers = checks.whole_numbers(where, arrays.get(f"{what}s", untyped))
    given = names.get(f"{what}_names") or tuple(f"{what} {i}" for i in range(max(int(numbers.max(initial=0)), 0) + 1))
    checks.ids(where, numbers, len(given), what)
    return numbers.astype(np.int32), given


def _split(name: str, labels: Labels | None, split: splits.Split | None, seed: int) -> splits.Split:
    if split is None:
        return splits.at_random(labels[0] if labels else np.zeros(0, np.float32), seed)
    parts = zip(("train", "valid", "test"), split, strict=True)
    train, valid, test = (np.sort(checks.whole_numbers(f"{name}: {part}", ids)) for part, ids in parts)
    return train, valid, test
