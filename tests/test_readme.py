"""What the README and the examples promise is there: commands, flags, files, clusters."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from meshes import planner
from meshes.cluster import Cluster
from meshes.errors import UsageError
from training import setup
from training.config import parse

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
INSTALL = "python -m pip install -e . && python train.py"
TEST = "python -m pip install -e '.[test]' && python -m pytest"
CLUSTERS = sorted((ROOT / "examples" / "clusters").glob("*.toml"))
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
BYTES = 257  # tokens of text


def blocks(text: str, language: str = "") -> list[str]:
    """Contents of the fenced code blocks of one language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [content for name, content in found if name == language]


def notebook_lines(path: Path) -> list[str]:
    cells = json.loads(path.read_text())["cells"]
    return [line for cell in cells if cell["cell_type"] == "code" for line in "".join(cell["source"]).splitlines()]


def commands() -> list[str]:
    """Every line that starts the program, in the README and in the notebooks."""
    lines = [line for block in blocks(README) for line in block.splitlines()]
    lines += [line.lstrip("!") for path in NOTEBOOKS for line in notebook_lines(path)]
    return [line for line in lines if re.search(r"python (train\.py|-m meshes\.launch)", line) and "pip" not in line]


def arguments(command: str) -> list[str]:
    """Flags of train.py, however it is started."""
    words = shlex.split(command, comments=True)
    return words[words.index("--" if "meshes.launch" in words else "train.py") + 1 :]


def test_all_ways_to_start_are_looked_at() -> None:
    assert {line.split()[0].partition("=")[0] for line in commands()} >= {
        "python",
        "srun",
        "mpirun",
        "JAX_COORDINATOR_ADDRESS",
    }
    assert arguments("python -m meshes.launch --cluster c.toml -- --steps 1") == ["--steps", "1"]


@pytest.mark.parametrize("line", [INSTALL, TEST])
def test_the_two_lines_stand_in_code_blocks(line: str) -> None:
    assert [line] in [block.splitlines() for block in blocks(README)]


@pytest.mark.parametrize("command", commands())
def test_command_lines_parse(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert parse(arguments(command))


def test_a_wrong_command_line_would_be_seen() -> None:
    with pytest.raises(UsageError, match="unknown flag '--devcies': did you mean '--devices'"):
        parse(arguments("python train.py --devcies 4"))


def test_files_that_are_named_exist() -> None:
    linked = re.findall(r"\]\(([^):]+)\)", README)
    named = re.findall(r"\b(?:docs|examples|benchmarks|tests)/[\w./-]*\w", README)
    assert {"docs/lopsided.svg"} <= {*linked} and {"examples/colab.ipynb"} <= {*named}
    assert [path for path in (*linked, *named) if not (ROOT / path).exists()] == []


def test_every_benchmark_is_named() -> None:
    shared = {"gains.py", "report.py", "rows.py", "slowed.py", "exhaustive.py"}
    scripts = {path.name for path in (ROOT / "benchmarks").glob("*.py")} - shared
    assert scripts == set(re.findall(r"python benchmarks/(\w+\.py)", README))


@pytest.mark.parametrize("path", CLUSTERS, ids=lambda path: path.stem)
def test_example_clusters_plan(path: Path) -> None:
    cluster = Cluster.from_toml(path)
    plan = planner.plan(cluster, setup.workload(parse([]), BYTES))
    assert sorted(number for group in plan.order for number in group) == [*range(len(cluster.devices))]
    assert plan.even_step_seconds is not None and plan.step_seconds <= plan.even_step_seconds


def test_the_cluster_of_the_readme_loads(tmp_path: Path) -> None:
    (text,) = blocks(README, "toml")
    (tmp_path / "cluster.toml").write_text(text)
    cluster = Cluster.from_toml(tmp_path / "cluster.toml")
    assert len(cluster.devices) == sum(entry.get("count", 1) for entry in tomllib.loads(text)["devices"])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_valid_and_carry_no_output(path: Path) -> None:
    notebook = json.loads(path.read_text())
    assert notebook["nbformat"] == 4
    for cell in (cell for cell in notebook["cells"] if cell["cell_type"] == "code"):
        assert (cell["outputs"], cell["execution_count"]) == ([], None)
        python = "".join(line for line in cell["source"] if line[0] not in "!%")
        compile(python, path.name, "exec")
