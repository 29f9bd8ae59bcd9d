"""The example clusters can be planned as their comments say, and what they have is uneven enough to gain by it."""

import shlex
from pathlib import Path

import pytest

from training import setup
from training.config import parse

ROOT = Path(__file__).parents[1]
PUBLISHED = sorted((ROOT / "examples" / "clusters").glob("h*_*.toml"))


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_the_command_in_a_cluster_file_plans(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (command,) = [line for line in path.read_text().splitlines() if line.startswith("# python train.py")]
    config = parse(shlex.split(command)[3:])
    assert config.plan_only and config.cluster == path.relative_to(ROOT)
    cluster, devices = setup.find_cluster(config)
    found = setup.make_plan(config, cluster, vocab_size=257)
    assert not devices and found.gain is not None and found.gain > 1.05


def test_there_are_published_clusters() -> None:
    assert {path.stem.partition("_")[0] for path in PUBLISHED} == {"hap", "hexiseq"} and len(PUBLISHED) == 5
