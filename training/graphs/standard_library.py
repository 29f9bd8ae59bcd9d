"""Python's standard library as a graph: its modules, classes and functions, and what uses what."""

from __future__ import annotations

import ast
import hashlib
import os
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from meshes.errors import UsageError
from training.data.text import STDLIB_EXCLUDED
from training.graphs import splits
from training.graphs.graph import Graph
from training.graphs.source_code import FUNCTION, KINDS, RELATIONS, Definition, Sources, words

FEATURES = 128
CLASSES = 12  # packages to tell apart
FILES = 4  # with functions, that a package must have, so that it can be split by files


def standard_library(seed: int, root: Path | None = None) -> Graph:
    """Which package a function belongs to.

    Vertices are modules, classes and functions (methods too); relations are calls (caller to called), containment
    (container to contained), imports (the importing scope to the module) and inheritance (subclass to base).
    Features are signed hashed counts of the sub-words of the identifiers that a body uses, log(1 + count), of length 1.
    Labels are of functions of the 12 packages with most functions that have 4 files or more; all else has none.

    Whole files are dealt to train, valid and test, so that no label of a test function's file is seen in training. What
    is left to tell its package is what it uses and what it is connected to, as for a new file that somebody hands in.
    (Its features may reach training as a neighbour's, as in every task on one whole graph.) The label is not among the
    inputs either: sub-words of a module's dotted path, and words that contain the name of its package, are left out of
    the features of what stands in it; import statements make edges and no words; there is no vertex for a package,
    which would join train to test by the label itself. Two files of a package are neighbours only if one imports,
    calls or inherits from the other.

    Args:
        seed: of the split.
        root: folder of the sources; that of this Python by default, so that graphs differ between its versions.

    Errors:
        UsageError: no sources there.
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    return _graph(_read(root), seed, root)


def _read(root: Path) -> Sources:
    sources = Sources()
    for name, is_package, tree in _modules(root):
        sources.read(name, is_package, tree)
    return sources


def _graph(sources: Sources, seed: int, root: Path) -> Graph:
    functions = [definition for definition in sources.definitions if definition.kind == FUNCTION]
    classes = _packages(functions)
    if not classes:
        raise UsageError(f"no packages with {FILES} files of functions or more under {root}: give --data")
    labels = np.full(len(sources.definitions), -1, np.int32)
    for function in functions:
        if (package := _package(function)) in classes:
            labels[function.number] = classes.index(package)
    edges = np.array([*sources.edges()], np.int64).reshape(-1, 3)
    train, valid, test = _split(functions, labels, len(classes), seed)
    return Graph(
        name="Python's standard library",
        senders=edges[:, 0],
        receivers=edges[:, 1],
        relations=edges[:, 2].astype(np.int32),
        relation_names=RELATIONS,
        kinds=np.array([definition.kind for definition in sources.definitions], np.int32),
        kind_names=KINDS,
        features=_features(sources.definitions),
        edge_features=np.zeros((len(edges), 0), np.float32),
        labels=labels,
        classes=classes,
        train=train,
        valid=valid,
        test=test,
    )


def _modules(root: Path) -> Iterator[tuple[str, bool, ast.Module]]:
    """Dotted path, whether it is a package, and the syntax of each module that parses, in order of paths."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in set(folders) - STDLIB_EXCLUDED if name.isidentifier())
        for name in sorted(names):
            path = Path(folder, name)
            parts = path.relative_to(root).with_suffix("").parts
            tree = _parse(path) if path.suffix == ".py" and parts[-1].isidentifier() else None
            if tree is not None:
                is_package = parts[-1] == "__init__" and len(parts) > 1
                yield ".".join(parts[:-1] if is_package else parts), is_package, tree


def _parse(path: Path) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in strings
            return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


def _package(definition: Definition) -> str:
    return definition.module.name.partition(".")[0]


def _packages(functions: list[Definition]) -> tuple[str, ...]:
    """Packages to tell apart, those with most functions first."""
    sizes = Counter(map(_package, functions))
    files = Counter(name.partition(".")[0] for name in {function.module.name for function in functions})
    able = [package for package in sizes if files[package] >= FILES]
    return tuple(sorted(able, key=lambda package: (-sizes[package], package))[:CLASSES])


def _split(functions: list[Definition], labels: np.ndarray, classes: int, seed: int) -> splits.Split:
    """Deal the files of each package, so that each stands in every part."""
    parts: list[list[int]] = [[], [], []]
    for label in range(classes):
        members: dict[str, list[int]] = {}
        for function in functions:
            if labels[function.number] == label:
                members.setdefault(function.module.name, []).append(function.number)
        dealt = splits.by_group(np.array([len(file) for file in members.values()]), seed)
        for part, file in zip(dealt, members.values(), strict=True):
            parts[part].extend(file)
    train, valid, test = (np.sort(np.array(part, np.int64)) for part in parts)
    return train, valid, test


def _features(definitions: list[Definition]) -> np.ndarray:
    features = np.zeros((len(definitions), FEATURES), np.float32)
    for definition in definitions:
        path = definition.module.name.split(".")
        own = {word for part in path for word in words(part)}
        package = path[0].strip("_").lower()
        for word, count in definition.words.items():
            if word not in own and package not in word:
                column, sign = _hash(word)
                features[definition.number, column] += sign * np.log1p(count)
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.where(lengths > 0, lengths, 1)


@cache
def _hash(word: str) -> tuple[int, int]:
    """Column and sign of a word, the same in every process."""
    number = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest(), "little")
    return number % FEATURES, 1 if number >> 31 else -1
