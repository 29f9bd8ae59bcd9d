"""Graphs in GraphML files, and what networkx holds."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import networkx
import numpy as np

from meshes.errors import UsageError
from training.graphs import splits
from training.graphs.build import Labels, build, numbered
from training.graphs.graph import Graph, GraphSet

PARTS = ("train", "valid", "test")


def graphml(path: Path, seed: int) -> Graph | GraphSet:
    """Read a GraphML file.

    Of a vertex, `label` is what is predicted (text or whole numbers: a class, other numbers: a value; absent: no
    label), `kind` its type, `split` one of train, valid and test, and every other attribute a feature, in the order
    of their names. Of an edge, `relation` is its type and every other attribute an edge feature. Edges without a
    direction go both ways; a self loop stands once. Without `split` the parts are drawn by seed.

    Errors:
        UsageError: not GraphML, an attribute that is no number or not everywhere.
    """
    try:
        found = networkx.read_graphml(path, force_multigraph=True)
    except Exception as error:  # the parsers of XML and of values raise what they like
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"{path} is not readable GraphML: {reason}; write it with networkx.write_graphml") from None
    return from_networkx(str(path), found, seed)


def from_networkx(name: str, graph: Any, seed: int) -> Graph | GraphSet:
    """The graph that a networkx graph describes, as in `graphml`; vertices in its order.

    Errors:
        UsageError: an attribute that is no number or not everywhere, a `split` of another name.
    """
    nodes, edges = [*graph.nodes(data=True)], _directed(graph)
    at = {node: number for number, (node, _) in enumerate(nodes)}
    features = _numbers(name, "vertex", nodes, ("label", "kind", "split"))
    kinds, kind_names = _typed([str(said.get("kind", "vertex")) for _, said in nodes])
    relations, relation_names = _typed([str(said.get("relation", "edge")) for _, said in edges])
    ends = np.array([(at[sender], at[receiver]) for (sender, receiver), _ in edges], np.int64).reshape(-1, 2)
    arrays = {"senders": ends[:, 0], "receivers": ends[:, 1], "kinds": kinds, "relations": relations}
    arrays["edge_features"] = _numbers(name, "edge", edges, ("relation", "id"))
    if features.shape[1]:
        arrays["features"] = features
    return build(
        name,
        arrays,
        vertices=len(nodes),
        labels=_labels(name, [said.get("label") for _, said in nodes]),
        split=_split(name, nodes),
        names={"kind_names": kind_names, "relation_names": relation_names},
        seed=seed,
    )


def _directed(graph: Any) -> list[tuple[tuple[Any, Any], dict[str, Any]]]:
    found = [((sender, receiver), said) for sender, receiver, said in graph.edges(data=True)]
    if graph.is_directed():
        return found
    return [
        edge
        for ends, said in found
        for edge in ([(ends, said), (ends[::-1], said)] if ends[0] != ends[1] else [(ends, said)])
    ]


def _numbers(name: str, of: str, rows: Sequence[tuple[Any, dict[str, Any]]], other: Iterable[str]) -> np.ndarray:
    """Attributes that are features, float64 [rows, attributes]."""
    columns = sorted({key for _, said in rows for key in said} - {*other})
    table = np.empty((len(rows), len(columns)))
    for row, (what, said) in enumerate(rows):
        for column, key in enumerate(columns):
            value = said.get(key)
            if not isinstance(value, int | float):
                shown = "nothing" if value is None else repr(value)
                raise UsageError(f"{name}: {of} {what!r} has {shown} for {key!r}, but a feature is a number: mend it")
            table[row, column] = value
    return table


def _typed(names: list[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    found, numbers = np.unique(np.array(names, np.str_), return_inverse=True)
    return numbers.astype(np.int64), tuple(found.tolist())


def _labels(name: str, said: list[Any]) -> Labels | None:
    given = [value for value in said if value is not None]
    if not given:
        return None
    if all(isinstance(value, float) for value in given):
        array = np.array([np.nan if value is None else value for value in said], np.float32)
    else:
        array = np.array(["" if value is None else str(value) for value in said])
    return numbered(f"{name}: label", array)


def _split(name: str, nodes: Sequence[tuple[Any, dict[str, Any]]]) -> splits.Split | None:
    said = [attributes.get("split") for _, attributes in nodes]
    for (node, _), part in zip(nodes, said, strict=True):
        if part not in (None, *PARTS):
            raise UsageError(f"{name}: vertex {node!r} has split {part!r}: wanted {', '.join(PARTS)} or none")
    if not any(said):
        return None
    train, valid, test = (np.array([at for at, it in enumerate(said) if it == part], np.int64) for part in PARTS)
    return train, valid, test
