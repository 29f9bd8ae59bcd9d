"""The way through the house: who imports whom, where sharding is spoken of, and that everything public is explained."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("meshes", "sharding", "models", "training")
FILES = [path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py"))] + [ROOT / "train.py"]

# Package: packages of ours that it may import besides itself.
MAY_IMPORT = {
    "meshes": set(),
    "sharding": {"meshes"},
    "models": set(),
    "training": {"meshes", "sharding", "models"},
    "train.py": {"meshes", "training"},
    "meshes/profile.py": {"training"},  # a program, like train.py
}
WITHOUT_JAX = [path for path in FILES if path.parent.name == "meshes" and path.name not in ("mesh.py", "job.py")]
NO_JAX = {"jax", "jaxlib", "flax", "optax", "orbax", "grain"}

COLLECTIVES = {
    "shard_map", "axis_index", "NamedSharding", "psum", "psum_scatter", "all_gather", "ppermute", "pshuffle",
    "all_to_all", "ragged_all_to_all", "pmean", "pmax", "pmin", "pbroadcast", "pcast", "reduce_scatter",
    "with_sharding_constraint",
}  # fmt: skip
SPEAK_OF_SHARDING = (
    "sharding/",
    "meshes/mesh.py",
    "training/trainable.py",
    "training/step.py",
    "training/graphs/step.py",
)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imported(tree: ast.AST) -> Iterator[str]:
    """Names of the packages that a file imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "relative" if node.level else str(node.module).partition(".")[0]


def words(tree: ast.AST) -> Iterator[str]:
    """Every name that a file uses: variables, attributes, what it imports and defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield from node.name.split(".")
            yield node.asname or ""
        elif isinstance(node, ast.keyword):
            yield node.arg or ""


def wrong_imports(name: str, tree: ast.AST) -> set[str]:
    """Packages of ours that a file must not import."""
    package = name.partition("/")[0]
    allowed = MAY_IMPORT[package] | MAY_IMPORT.get(name, set())
    return set(imported(tree)) & ({*PACKAGES, "train", "relative"} - {package} - allowed)


def unexplained(tree: ast.Module) -> Iterator[str]:
    """Public modules, classes, functions and methods without a docstring."""
    if not ast.get_docstring(tree):
        yield "the module"
    for node in tree.body:
        yield from _unexplained(node, "")


def _unexplained(node: ast.AST, within: str) -> Iterator[str]:
    if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
        return
    if not ast.get_docstring(node):
        yield within + node.name
    if isinstance(node, ast.ClassDef):
        for inner in node.body:
            yield from _unexplained(inner, f"{within}{node.name}.")


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_go_one_way(path: Path) -> None:
    assert not wrong_imports(name_of(path), ast.parse(path.read_text()))


@pytest.mark.parametrize("path", WITHOUT_JAX, ids=name_of)
def test_meshes_know_no_jax(path: Path) -> None:
    assert not set(imported(ast.parse(path.read_text()))) & NO_JAX


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_sharding_is_spoken_of_in_few_places(path: Path) -> None:
    if not name_of(path).startswith(SPEAK_OF_SHARDING):
        assert not set(words(ast.parse(path.read_text()))) & COLLECTIVES


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_what_is_public_is_explained(path: Path) -> None:
    assert not list(unexplained(ast.parse(path.read_text())))


def test_a_wrong_file_would_be_seen() -> None:
    """The twin: each of the checks finds what it is there for."""
    bad = ast.parse(
        "def f(x):\n    from sharding.rules import apply\n    return lax.psum(x, 'seq')\nclass A:\n    def b(self): ..."
    )
    assert wrong_imports("models/bad.py", bad) == {"sharding"}
    assert wrong_imports("training/bad.py", bad) == set()
    assert wrong_imports("meshes/bad.py", ast.parse("from . import x\nimport training.loop")) == {
        "relative",
        "training",
    }
    assert COLLECTIVES & set(words(bad)) == {"psum"}
    assert COLLECTIVES & set(words(ast.parse("from jax.lax import ppermute as p"))) == {"ppermute"}
    assert list(unexplained(bad)) == ["the module", "f", "A", "A.b"]


def test_every_file_is_looked_at() -> None:
    assert len(FILES) > 40 and {path.parent.name for path in FILES} >= {*PACKAGES, "data"}
