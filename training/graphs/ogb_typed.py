"""Folders of the Open Graph Benchmark with types of vertices and edges in files of their own, like ogbn-mag."""

from pathlib import Path

import numpy as np

from meshes.errors import UsageError
from training.graphs.build import Labels, build
from training.graphs.graph import Graph, GraphSet
from training.graphs.ogb_tables import labels_of, split_of, table, texts


def ogb_typed(folder: Path, seed: int) -> Graph | GraphSet:
    """Read one graph with typed vertices and edges.

    Vertices are numbered kind by kind and edges relation by relation, both in order of names; a relation is named
    `head relation tail`. Kinds without features have features of 0. Labels are those of the one kind that has any.

    Errors:
        UsageError: a file is missing, cut off, or does not fit the others.
    """
    raw = folder / "raw"
    sizes = _sizes(raw / "num-node-dict.csv.gz")
    firsts = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
    triplets = _triplets(raw / "triplet-type-list.csv.gz", sizes)
    edges = [
        _edges(raw / "relations" / "___".join(triplet) / "edge.csv.gz", triplet, sizes, firsts) for triplet in triplets
    ]
    ends = np.concatenate(edges)
    kind, labels = _labels(raw / "node-label", sizes, firsts)
    split = split_of(folder / "split", kind)
    return build(
        str(folder),
        {
            "senders": ends[:, 0],
            "receivers": ends[:, 1],
            "relations": np.repeat(np.arange(len(edges)), [len(found) for found in edges]),
            "kinds": np.repeat(np.arange(len(sizes)), [*sizes.values()]),
            **_features(raw / "node-feat", sizes, firsts),
        },
        vertices=sum(sizes.values()),
        labels=labels,
        split=None if split is None else (split[0] + firsts[kind], split[1] + firsts[kind], split[2] + firsts[kind]),
        names={"kind_names": tuple(sizes), "relation_names": tuple(" ".join(triplet) for triplet in triplets)},
        seed=seed,
    )


def _sizes(path: Path) -> dict[str, int]:
    """Vertices of each kind, in order of names."""
    rows = texts(path)
    if len(rows) != 2 or len(rows[0]) != len(rows[1]) or not all(number.isdecimal() for number in rows[1]):
        raise UsageError(f"{path} wants a row of kinds and a row of their numbers of vertices: get the data set again")
    return {kind: int(number) for kind, number in sorted(zip(*rows, strict=True))}


def _triplets(path: Path, sizes: dict[str, int]) -> list[tuple[str, ...]]:
    found = sorted(tuple(row) for row in texts(path))
    for triplet in found:
        if len(triplet) != 3 or triplet[0] not in sizes or triplet[2] not in sizes:
            raise UsageError(f"{path}: {','.join(triplet)!r} is no relation between {', '.join(sizes)}: mend it")
    if not found:
        raise UsageError(f"{path} has no relations: get the data set again")
    return found


def _edges(path: Path, triplet: tuple[str, ...], sizes: dict[str, int], firsts: dict[str, int]) -> np.ndarray:
    """Edges of a relation, numbered through all kinds; int64 [edges, 2]."""
    found = table(path, np.int64)
    if found.size and found.shape[1] != 2:
        raise UsageError(f"{path} has {found.shape[1]} columns, wanted 2: sender and receiver")
    found = found.reshape(-1, 2)
    told = int(table(path.with_name("num-edge-list.csv.gz"), np.int64).sum())
    if len(found) != told:
        raise UsageError(f"{path} has {len(found)} rows, but num-edge-list.csv.gz says {told}: get the data set again")
    for column, kind in ((0, triplet[0]), (1, triplet[2])):
        bad = np.flatnonzero((found[:, column] < 0) | (found[:, column] >= sizes[kind]))
        if len(bad):
            value = found[bad[0], column]
            raise UsageError(f"{path}, row {bad[0]}: vertex {value} does not exist, {kind} has {sizes[kind]}: mend it")
    return found + np.array([firsts[triplet[0]], firsts[triplet[2]]])


def _features(folder: Path, sizes: dict[str, int], firsts: dict[str, int]) -> dict[str, np.ndarray]:
    """Features of all kinds, none if no kind has any."""
    paths = {kind: folder / kind / "node-feat.csv.gz" for kind in sizes}
    found = {kind: table(path, np.float64) for kind, path in paths.items() if path.exists()}
    if not found:
        return {}
    width = next(iter(found.values())).shape[1]
    features = np.zeros((sum(sizes.values()), width), np.float32)
    for kind, rows in found.items():
        if rows.shape != (sizes[kind], width):
            raise UsageError(
                f"{paths[kind]} has shape {rows.shape}, wanted [{sizes[kind]}, {width}]: a row for each {kind}, as wide"
                " as the others"
            )
        features[firsts[kind] : firsts[kind] + len(rows)] = rows
    return {"features": features}


def _labels(folder: Path, sizes: dict[str, int], firsts: dict[str, int]) -> tuple[str, Labels]:
    """The kind that has labels, and the labels of all vertices."""
    paths = {kind: folder / kind / "node-label.csv.gz" for kind in sizes}
    having = [kind for kind, path in paths.items() if path.exists()]
    if len(having) != 1:
        raise UsageError(f"{folder} has labels of {len(having)} kinds ({', '.join(having) or 'none'}): one is wanted")
    kind = having[0]
    found, classes = labels_of(paths[kind], table(paths[kind], np.float64, empty=True))
    if len(found) != sizes[kind]:
        raise UsageError(f"{paths[kind]} has {len(found)} rows, but there are {sizes[kind]} of {kind}: get it again")
    labels = np.full(sum(sizes.values()), -1 if classes else np.nan, found.dtype)
    labels[firsts[kind] : firsts[kind] + len(found)] = found
    return kind, (labels, classes)
