"""The standard library as a graph: what its edges are, that the task does not leak, and what baselines reach."""

import ast
import dataclasses
import os
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from meshes.errors import UsageError
from training.graphs import Graph, GraphSet, baselines, features_alone, load, majority
from training.graphs import standard_library as library
from training.graphs.source_code import FUNCTION, RELATIONS, Definition, Sources, words

ROOT = Path(ast.__file__).parent


@pytest.fixture(scope="module")
def sources() -> Sources:
    return library._read(ROOT)


@pytest.fixture(scope="module")
def graph(sources: Sources) -> Graph:
    return library._graph(sources, 0, ROOT)


# Edges.

TEXTS = {
    "pack": "from .inner import *\nfrom .inner import helper as h",
    "pack.inner": """
        import pack.other as o
        from pack import h as again
        class Base:
            def shared(self): pass
        class Child(Base):
            def run(self):
                self.shared(); self.run(); o.far(); missing(); x.shared()
        def helper():
            def local(): helper()
            local(); local(); Child(); again(); pack.other.far()
        """,
    "pack.other": """
        import pack
        def far():
            from . import inner
            inner.Child.run(None); pack.helper(); pack.h()
        class Loop(Loop.Inner): pass
        """,
}


def test_names_are_resolved_as_far_as_the_text_allows() -> None:
    found = Sources()
    for name, text in TEXTS.items():
        found.read(name, name == "pack", ast.parse(textwrap.dedent(text)))

    def title(definition: Definition) -> str:
        return definition.name if definition.parent is None else f"{title(definition.parent)}:{definition.name}"

    titles = [title(definition) for definition in found.definitions]
    edges = [(RELATIONS[relation], titles[sender], titles[receiver]) for sender, receiver, relation in found.edges()]
    inner = "pack.inner"
    assert [edge[1:] for edge in edges if edge[0] == "call"] == [
        (f"{inner}:Child:run", f"{inner}:Base:shared"),
        (f"{inner}:Child:run", f"{inner}:Child:run"),
        (f"{inner}:Child:run", "pack.other:far"),
        *[(f"{inner}:helper", f"{inner}:helper:local")] * 2,
        (f"{inner}:helper", f"{inner}:Child"),
        (f"{inner}:helper", f"{inner}:helper"),
        (f"{inner}:helper:local", f"{inner}:helper"),
        ("pack.other:far", f"{inner}:Child:run"),
        *[("pack.other:far", f"{inner}:helper")] * 2,
    ]
    assert [edge[1:] for edge in edges if edge[0] == "inheritance"] == [(f"{inner}:Child", f"{inner}:Base")]
    assert [edge[1:] for edge in edges if edge[0] == "import"] == [
        ("pack", inner), ("pack", inner), (inner, "pack.other"), (inner, "pack"), ("pack.other", "pack"),
        ("pack.other:far", inner),
    ]  # fmt: skip
    assert len([edge for edge in edges if edge[0] == "containment"]) == len(titles) - len(TEXTS)


def test_identifiers_are_taken_apart() -> None:
    assert words("readHTTPHeader_2") == ("read", "http", "header") and words("_x_") == ()


# The task.


def test_it_is_a_graph_of_the_size_and_kinds_that_are_told(graph: Graph) -> None:
    assert 10_000 < graph.vertices < 40_000 and len(graph.classes) == library.CLASSES
    assert {"asyncio", "email", "xml", "multiprocessing"} < set(graph.classes)
    assert all(np.count_nonzero(graph.relations == relation) > 500 for relation in range(len(RELATIONS)))
    assert graph.labels is not None and set(graph.kinds[graph.labels >= 0]) == {FUNCTION}
    for part in (graph.train, graph.valid, graph.test):
        assert set(graph.labels[part]) == set(range(library.CLASSES))
    assert len(graph.test) > 500 and sum(map(len, (graph.train, graph.valid, graph.test))) == (graph.labels >= 0).sum()


def files(sources: Sources, ids: np.ndarray) -> set[str]:
    return {sources.definitions[vertex].module.name for vertex in ids}


def test_no_file_is_in_two_parts(graph: Graph, sources: Sources) -> None:
    parts = [files(sources, part) for part in (graph.train, graph.valid, graph.test)]
    assert all(parts) and not parts[0] & parts[1] and not parts[0] & parts[2] and not parts[1] & parts[2]
    rng = np.random.default_rng(0).permutation(np.concatenate([graph.train, graph.test]))
    assert files(sources, rng[: len(rng) // 2]) & files(
        sources, rng[len(rng) // 2 :]
    )  # the twin: functions dealt alone


def test_no_vertex_or_containment_joins_files(graph: Graph, sources: Sources) -> None:
    home = np.array([hash(definition.module.name) for definition in sources.definitions])
    across = home[graph.senders] != home[graph.receivers]
    assert not across[graph.relations == RELATIONS.index("containment")].any()
    assert across[graph.relations == RELATIONS.index("call")].any()
    assert set(graph.kind_names) == {"module", "class", "function"}


def test_features_do_not_hold_the_path() -> None:
    """What a vertex is called by its path changes nothing in its features; what it uses does."""

    def row(name: str, text: str) -> np.ndarray:
        found = Sources()
        found.read(name, False, ast.parse(text))
        return library._features(found.definitions)[-1]

    plain = "def f(reader): reader.parse(value)"
    named = "def f(reader): reader.parse(value, mail_box, Mailboxes)"
    assert (row("mail.box", plain) == row("mail.box", named)).all()
    assert (row("mail.box", plain) == row("other", plain)).all()
    assert (row("other", plain) != row("other", named)).any()
    assert (row("other", f"import mailbox\n{plain}") == row("other", plain)).all()


def test_it_is_split_by_seed(graph: Graph, sources: Sources) -> None:
    assert library._graph(sources, 0, ROOT).fingerprint == graph.fingerprint
    other = library._graph(sources, 1, ROOT)
    assert (other.features == graph.features).all() and not np.array_equal(other.train, graph.train)


def test_it_is_the_same_in_every_process(tmp_path: Path) -> None:
    """What is told apart by hashes of text must not depend on a process's own seed of hashes."""
    package(tmp_path)
    code = (
        "import pathlib, training.graphs.standard_library as library;"
        f"print(library.standard_library(0, pathlib.Path({str(tmp_path)!r})).fingerprint)"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code], cwd=Path(__file__).parents[3], env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True, check=True, text=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert said == {library.standard_library(0, tmp_path).fingerprint + "\n"}


def package(root: Path) -> None:
    """A package of four files that parse and one that does not."""
    (root / "pack").mkdir()
    for name in "abcd":
        (root / "pack" / f"{name}.py").write_text(f"def {name}(first, second): return first.third(second, fourth)")
    (root / "pack" / "bad.py").write_text("def (")


def test_sources_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no packages with 4 files of functions or more under .*: give --data"):
        library.standard_library(0, tmp_path)


def test_what_does_not_parse_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    graph = load(None, 0)
    assert graph.vertices == 8 and graph.classes == ("pack",)
    assert [len(part) for part in (graph.train, graph.valid, graph.test)] == [2, 1, 1]


# Baselines.


def test_neighbours_help_beyond_features_alone(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds of means over neighbours under the same regression: a graph network has something to learn."""
    monkeypatch.setattr(baselines, "RIDGES", (0.1,))
    both = np.concatenate([graph.senders, graph.receivers]), np.concatenate([graph.receivers, graph.senders])
    adjacency = scipy.sparse.csr_array((np.ones(len(both[0])), both), shape=(graph.vertices, graph.vertices))
    adjacency = adjacency + scipy.sparse.eye_array(graph.vertices)
    mean = scipy.sparse.diags_array(1 / adjacency.sum(axis=1)) @ adjacency
    once = mean @ graph.features
    near = np.concatenate([graph.features, unit(once), unit(mean @ once)], axis=1).astype(np.float32)
    alone = features_alone(graph)
    assert alone > majority(graph) + 0.1
    assert features_alone(dataclasses.replace(graph, features=near)) > alone + 0.1


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6)


def small(features: np.ndarray, labels: np.ndarray, classes: tuple[str, ...]) -> Graph:
    none, third = np.zeros(0, np.int64), np.arange(0, len(labels), 3)
    return Graph(
        name="x",
        senders=none,
        receivers=none,
        relations=np.zeros(0, np.int32),
        edge_features=np.zeros((0, 0), np.float32),
        kinds=np.zeros(len(labels), np.int32),
        features=features,
        labels=labels,
        classes=classes,
        train=third,
        valid=third + 1,
        test=third + 2,
    )


def test_baselines_of_classes() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(300, 3)).astype(np.float32)
    labels = (features[:, 0] > 0.5).astype(np.int32) + (features[:, 1] > 1).astype(np.int32)
    graph = small(features, labels, ("a", "b", "c"))
    assert majority(graph) == np.mean(labels[2::3] == 0) and features_alone(graph) > majority(graph) + 0.1
    noise = dataclasses.replace(graph, features=rng.normal(size=(300, 3)).astype(np.float32))
    assert features_alone(noise) < majority(graph) + 0.05


def test_baselines_of_values() -> None:
    features = np.random.default_rng(0).normal(size=(90, 2)).astype(np.float32)
    graph = small(features, features[:, 0] * 3 + 1, ())
    expected = np.abs(graph.features[2::3, 0] * 3 + 1 - (graph.features[::3, 0] * 3 + 1).mean()).mean()
    assert majority(graph) == pytest.approx(expected, rel=1e-5) and features_alone(graph) < 1e-2


def test_baselines_of_many_graphs() -> None:
    graph = small(np.arange(18, dtype=np.float32)[:, None], np.zeros(18, np.int32), ("a",))
    fields = {spec.name: getattr(graph, spec.name) for spec in dataclasses.fields(graph)}
    parts = {"train": np.array([0, 1]), "valid": np.array([2]), "test": np.array([3, 4])}
    sizes = {"n_node": np.array([4, 4, 5, 4, 1]), "n_edge": np.zeros(5, np.int64)}
    means = np.array([1.5, 5.5, 10, 14.5, 17], np.float32)
    graphs = GraphSet(**fields | parts | sizes | {"labels": means, "classes": ()})
    assert features_alone(graphs) < 2e-2 < majority(graphs)


def test_logistic_regression_is_at_its_minimum() -> None:
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(size=(40, 3)), rng.integers(0, 3, 40)

    def loss(weights: np.ndarray) -> float:
        scores = inputs @ weights
        chosen = scores[np.arange(40), labels] - np.log(np.exp(scores).sum(axis=1))
        return float(-chosen.mean() + 0.05 * (weights**2).sum())

    found = baselines.logistic(inputs, labels, 3, 0.1)
    assert all(loss(found) < loss(found + 0.01 * rng.normal(size=found.shape)) for _ in range(20))
    assert loss(found) < loss(np.zeros_like(found)) - 1e-3
