"""Graph networks on the real command line: runs, resumes, mistakes."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from command_line import losses, metrics, succeed, train

SMALL = "--layers 2 --d-model 8 --heads 4 --d-ff 8 --warmup 2 --eval-every 0"
FOUR = "--speeds .004,.002,.001,.001"  # slow enough that a small graph is cut at all


def flags(given: str, run: Path) -> list[str]:
    """With a small network."""
    return [*shlex.split(f"{SMALL} {given}"), "--run-dir", str(run)]


def save(path: Path, **changes: object) -> Path:
    """A graph of two rings as an .npz."""
    rng, count = np.random.default_rng(0), 40
    ends = np.arange(count)
    arrays: dict[str, object] = {
        "senders": np.concatenate([ends, ends]),
        "receivers": np.concatenate([(ends + 1) % count, (ends + 7) % count]),
        "features": rng.normal(size=(count, 4)).astype(np.float32),
        "labels": (ends // 10).astype(np.int32),
    }
    np.savez(path, **{name: value for name, value in {**arrays, **changes}.items() if value is not None})
    return path


@pytest.mark.long
def test_the_karate_club_trains_on_four_devices(environment: dict[str, str], tmp_path: Path) -> None:
    said = succeed(environment, *flags(f"--model gcn --data karate --steps 12 {FOUR}", tmp_path / "run"))
    for expected in ("34 vertices", "vertex parallelism", "by the commonest value", "held-out loss", "test  loss"):
        assert expected in said
    found = metrics(tmp_path / "run")
    assert found[-1]["loss"] < found[0]["loss"]
    assert {"vertices", "vertices_per_second"} <= set(found[0])
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert sum(count > 0 for count in plan["vertices"]) > 1


@pytest.mark.long
def test_links_of_the_karate_club_on_four_devices(environment: dict[str, str], tmp_path: Path) -> None:
    said = succeed(environment, *flags(f"--model gcn --task links --data karate --steps 12 {FOUR}", tmp_path / "run"))
    for expected in ("pairs with an edge: 62 to train on", "vertex parallelism", "by chance", "held-out loss", "mrr"):
        assert expected in said
    found = metrics(tmp_path / "run")
    assert found[-1]["loss"] < found[0]["loss"] and found[0]["pairs"] == 2 * 62


WAYS = [
    "--graph-parallel vertex",
    "--graph-parallel sample --fanouts 3,2 --seeds 8",
    "--graph-parallel feature --task links --links 20",
    "--graph-parallel sample --fanouts 3,2 --task links --links 20 --negatives 2",
]


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_a_resume_on_other_devices_goes_on(way: str, environment: dict[str, str], tmp_path: Path) -> None:
    given = f"--model sage --dropout 0.2 --data {save(tmp_path / 'graph.npz')} {way} --seed 3"
    succeed(environment, *flags(f"{given} --steps 8 {FOUR}", tmp_path / "straight"))
    succeed(environment, *flags(f"{given} --steps 8 --save-every 4 --keep 9 {FOUR}", tmp_path / "again"))
    assert losses(tmp_path / "again") == losses(tmp_path / "straight")  # bit for bit
    checkpoints = tmp_path / "again" / "checkpoints"
    for newer in checkpoints.glob("8*"):
        newer.rename(tmp_path / newer.name)
    other = f"--speeds .003,.002 --checkpoint-dir {checkpoints} --resume must"
    succeed(environment, *flags(f"{given} --steps 8 {other}", tmp_path / "other"))
    straight = {step: loss for step, loss in losses(tmp_path / "straight").items() if step > 4}
    assert losses(tmp_path / "other") == pytest.approx(straight, rel=1e-5)


@pytest.mark.long
def test_small_graphs_train_in_batches(environment: dict[str, str], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n_node = rng.integers(2, 6, 30)
    starts = np.cumsum(n_node) - n_node
    n_edge = 2 * n_node
    base = np.repeat(starts, n_edge)
    ends = base + (rng.random((2, len(base))) * np.repeat(n_node, n_edge)).astype(np.int64)
    np.savez(
        tmp_path / "small.npz",
        senders=ends[0],
        receivers=ends[1],
        n_node=n_node,
        n_edge=n_edge,
        features=rng.normal(size=(n_node.sum(), 4)).astype(np.float32),
        labels=rng.normal(size=30).astype(np.float32),
    )
    given = f"--model graphnet --data {tmp_path / 'small.npz'} --batch-size 8 --steps 6 {FOUR}"
    said = succeed(environment, *flags(given, tmp_path / "run"))
    assert "batch parallelism" in said and "mae" in said and "padding" in said
    other = given.replace("--batch-size 8 --steps 6", "--batch-size 11 --steps 9")  # batches that were not foreseen
    assert "resumed after step 6" in succeed(environment, *flags(f"{other} --resume must", tmp_path / "run"))


BAD = {
    "more parts than vertices": ("--data {graph} --devices 41", "41 devices for 40 vertices"),
    "no such data": ("--data {graph}.gone", "no such file"),
    "fan-outs": ("--data {graph} --fanouts 3", "--fanouts has 1 values for --layers 2"),
    "sample without fan-outs": ("--data {graph} --graph-parallel sample", "needs --fanouts"),
    "features of samples": ("--data {graph} --graph-parallel feature --fanouts 3,3", "leave one of them out"),
    "batch of one graph": ("--data {graph} --graph-parallel batch", "batch"),
    "dropout": ("--data {graph} --dropout 1", "--dropout 1: must be at least 0 and below 1"),
    "width and heads": ("--data {graph} --d-model 9", "--d-model 9 is not a multiple of --heads 4"),
    "links of labels": ("--data {graph} --model transformer --task links", "--task: for graph networks"),
    "no negatives": ("--data {graph} --task links --negatives 0", "--negatives 0"),
    "picture": ("--data {graph} --plan-picture a.png", "--plan-picture a.png"),
    "states of edges in lanes": ("--data {graph} --model graphnet --graph-parallel feature", "use vertex"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_one_line_and_code_2(case: str, environment: dict[str, str], tmp_path: Path) -> None:
    given, expected = BAD[case]
    words = f"{given} --steps 2".format(graph=save(tmp_path / "graph.npz"))
    model = "" if "--model" in words else "--model gcn"
    done = train(environment, *shlex.split(f"{model} {SMALL}"), *shlex.split(words), "--run-dir", str(tmp_path / "run"))
    assert done.returncode == 2 and expected in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"senders": np.array([0, 99])}, "99"),
        ({"features": np.full((40, 4), np.nan, np.float32)}, "nan"),
        ({"features": np.zeros((39, 4), np.float32)}, "39"),
        ({"train": np.zeros(0, np.int64), "valid": np.arange(5), "test": np.arange(5, 9)}, "train"),
    ],
)
def test_unfit_data_are_refused(
    changes: dict[str, object], expected: str, environment: dict[str, str], tmp_path: Path
) -> None:
    if "senders" in changes:
        changes = {**changes, "receivers": np.array([0, 1])}
    data = save(tmp_path / "graph.npz", **changes)
    done = train(environment, *flags(f"--model gcn --data {data}", tmp_path / "run"))
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert expected in done.stderr.lower() and "graph.npz" in done.stderr
