"""Checkpoints: a resumed run is the run that went on, on the same devices bit for bit, on others within rounding."""

import dataclasses
import functools
import json
import shlex
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshes.job import Job
from meshes.plan import Plan
from sharding import rules
from training import program, setup
from training.batches import Dealer
from training.checkpoint import CheckpointError, Checkpoints
from training.config import TrainConfig, parse, resolve
from training.data import EvalBatches, PackedRows, TrainStream, load, resume, split
from training.loop import Stop, Training
from training.metrics import Reporter
from training.rows_feed import RowsFeed
from training.step import Program

FLAGS = shlex.split(
    "--layers 2 --d-model 24 --heads 6 --kv-heads 2 --d-ff 40 --seq-len 17 --batch-size 4 --microbatch 2 --warmup 2"
    " --schedule constant --keep 40"
)
VOCABULARY = 257
EIGHT = "--speeds 4,4,2,2,1,1,1,1 --data-groups 2 --attention context"
OTHERS = {
    6: "--speeds 3,2,2,1,1,1 --data-groups 2 --attention context",
    5: "--speeds 5,3,1,1,0.5 --data-groups 1 --attention context",
    3: "--speeds 3,2,1 --data-groups 1 --attention head",
}
LOSS = 1e-5  # relative, of the steps after a resume on other devices


class Once:
    """A step that is compiled once, whoever asks."""

    def __init__(self, step: Any) -> None:
        self.step, self.compiled = step, None

    def lower(self, *args: Any) -> "Once":
        self.compiled = self.compiled or self.step.lower(*args).compile()
        return self

    def compile(self) -> Any:
        return self.compiled


class Compiled(Program):
    """A program whose step is compiled once for all runs of this file, and that does not evaluate."""

    @functools.cached_property
    def _step(self) -> Any:
        return Once(super().train_step())

    def train_step(self) -> Any:
        return self._step

    def eval_step(self) -> Any:
        return Once(jax.jit(lambda *_: (1.0, 1.0)))


@functools.cache
def settings(devices: str) -> tuple[TrainConfig, Any, Compiled]:
    """Configuration, plan and program of some devices."""
    config = parse([*FLAGS, *devices.split()])
    cluster, _ = setup.find_cluster(config)
    plan = setup.make_plan(config, cluster, VOCABULARY)
    built = program.build(config, plan, jax.devices()[: len(cluster.devices)], VOCABULARY)
    fields = {field.name: getattr(built, field.name) for field in dataclasses.fields(built)}
    return config, plan, Compiled(**fields)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[PackedRows, PackedRows]:
    """Ten rows for training, so that a batch of four begins the second epoch in the third step."""
    text = tmp_path_factory.mktemp("data") / "text.txt"
    text.write_bytes(np.random.default_rng(0).integers(97, 123, 183).astype(np.uint8).tobytes())
    train, held_out = split(load(text), 17)
    assert len(train) == 10
    return train, held_out


def run(
    directory: Path, steps: int, rows: tuple[PackedRows, PackedRows], devices: str = EIGHT, **changes: Any
) -> list[float]:
    """Train to a step, from the newest checkpoint of a directory if there is one; losses of all steps."""
    config, plan, built = settings(devices)
    config = resolve(dataclasses.replace(config, steps=steps, run_dir=directory, **changes))
    directory.mkdir(exist_ok=True)
    checkpoints = Checkpoints(directory / "checkpoints", config.keep)
    done, place, _ = setup._begin(config, checkpoints)
    state = checkpoints.restore(done, built) if done else built.init(jax.random.key(0))
    feed = feed_of(built, plan, rows, stream_of(rows, done, place))
    with Reporter(steps, done, 1000, show=False) as reporter:
        Training(config, Job(), plan, built, feed, checkpoints, state, done, reporter, None, Stop()).run()
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, steps + 1))
    return [json.loads(line)["loss"] for line in lines]


def stream_of(rows: tuple[PackedRows, PackedRows], done: int, place: dict[str, Any] | None) -> TrainStream:
    """The batches from a place on."""
    if place is None:
        return TrainStream(rows[0], seed=0, batch_size=4)
    return resume(rows[0], place, seed=0, batch_size=4, step=done)


def feed_of(built: Program, plan: Plan, rows: tuple[PackedRows, PackedRows], stream: TrainStream) -> RowsFeed:
    """A feed that evaluates one row."""
    dealer = Dealer(built.mesh, built.tiling, plan.workload.microbatch, plan.microbatches)
    return RowsFeed(built, dealer, stream, EvalBatches(source=rows[1], batch_size=4, limit=1))


def arrays(directory: Path, step: int, devices: str = EIGHT) -> Any:
    """Logical arrays of a checkpoint, restored on some devices."""
    built = settings(devices)[2]
    state = Checkpoints(directory / "checkpoints", 1).restore(step, built)
    return rules.apply(lambda s, leaf: np.asarray(s.crop(leaf)), built.stored, state)


def same(a: Any, b: Any) -> bool:
    """Whether two trees hold the same bits."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes() for x, y in pairs)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory, rows: tuple[PackedRows, PackedRows]) -> tuple[Path, list[float]]:
    """Twenty steps that nobody disturbs, each of them saved."""
    folder = tmp_path_factory.mktemp("straight")
    return folder, run(folder, 20, rows, save_every=1)


Straight = tuple[Path, list[float]]
Rows = tuple[PackedRows, PackedRows]


def test_ten_and_ten_steps_are_twenty_bit_for_bit(straight: Straight, rows: Rows, tmp_path: Path) -> None:
    assert run(tmp_path, 10, rows) == straight[1][:10]
    assert run(tmp_path, 20, rows) == straight[1]
    assert same(arrays(tmp_path, 20), arrays(straight[0], 20))
    assert not same(arrays(tmp_path, 10), arrays(tmp_path, 20))  # the twin: the comparison sees a difference


def test_a_save_is_of_its_own_step_though_training_goes_on(straight: Straight, rows: Rows, tmp_path: Path) -> None:
    """The state is donated to the next step while it is written."""
    run(tmp_path, 6, rows)
    assert same(arrays(tmp_path, 6), arrays(straight[0], 6))


def test_a_resume_in_the_third_epoch_goes_on_with_its_rows(straight: Straight, rows: Rows, tmp_path: Path) -> None:
    config, _, _ = settings(EIGHT)
    assert run(tmp_path, 6, rows) == straight[1][:6]
    done, place, _ = setup._begin(
        dataclasses.replace(config, run_dir=tmp_path), Checkpoints(tmp_path / "checkpoints", 3)
    )
    stream = stream_of(rows, done, place)
    whole = TrainStream(rows[0], seed=config.seed, batch_size=4)
    assert done == 6 and [stream.epoch(step) for step in (6, 7, 8)] == [2, 2, 3]
    for step in range(6, 12):
        np.testing.assert_array_equal(stream.row_ids(step, range(4)), whole.row_ids(step, range(4)))
    assert run(tmp_path, 9, rows) == straight[1][:9]


def test_another_batch_size_goes_on_after_the_rows_seen(straight: Straight, rows: Rows) -> None:
    about = Checkpoints(straight[0] / "checkpoints", 1).about(3)
    stream = resume(rows[0], about["data"], seed=0, batch_size=6, step=3)
    whole = TrainStream(rows[0], seed=0, batch_size=1)
    expected = np.concatenate([whole.row_ids(row, [0]) for row in range(12, 24)])
    np.testing.assert_array_equal(np.concatenate([stream.row_ids(step, range(6)) for step in (3, 4)]), expected)


@pytest.mark.long
@pytest.mark.parametrize("devices", OTHERS)
def test_a_resume_on_other_devices_goes_on(devices: int, straight: Straight, rows: Rows, tmp_path: Path) -> None:
    config, plan, built = settings(OTHERS[devices])
    assert built.mesh.size == devices and len({share for group in plan.tokens for share in group}) > 1
    saved = Checkpoints(straight[0] / "checkpoints", 1)
    assert same(arrays(straight[0], 6, OTHERS[devices]), arrays(straight[0], 6))
    checkpoints = Checkpoints(tmp_path / "checkpoints", 1)
    stream = resume(rows[0], saved.about(6)["data"], seed=0, batch_size=4, step=6)
    config = dataclasses.replace(config, steps=12, run_dir=tmp_path)
    feed = feed_of(built, plan, rows, stream)
    with Reporter(12, 6, 1000, show=False) as reporter:
        state = saved.restore(6, built)
        Training(config, Job(), plan, built, feed, checkpoints, state, 6, reporter, None, Stop()).run()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(7, 13))
    assert [line["loss"] for line in lines] == pytest.approx(straight[1][6:12], rel=LOSS)


def test_the_newest_checkpoints_are_kept_by_number(rows: Rows, tmp_path: Path) -> None:
    run(tmp_path, 7, rows)
    run(tmp_path, 12, rows, save_every=1, keep=3)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["10", "11", "12"]
    assert Checkpoints(tmp_path / "checkpoints", 3).latest == 12


def test_a_value_that_is_not_finite_is_not_saved(straight: Straight, tmp_path: Path) -> None:
    built = settings(EIGHT)[2]
    state = Checkpoints(straight[0] / "checkpoints", 1).restore(3, built)
    spoiled = jax.tree.map(lambda leaf: leaf, state)
    spoiled["params"]["layers"]["gate"]["kernel"] *= jnp.float32(jnp.inf)
    checkpoints = Checkpoints(tmp_path / "checkpoints", 1)
    with pytest.raises(CheckpointError, match="step 3 is not saved: params/layers/gate/kernel is not finite"):
        checkpoints.save(3, spoiled, built, {})
    checkpoints.save(3, state, built, {})
    checkpoints.close()
    assert checkpoints.latest == 3


def test_a_save_below_a_later_step_is_an_error(straight: Straight, tmp_path: Path) -> None:
    built = settings(EIGHT)[2]
    state = Checkpoints(straight[0] / "checkpoints", 1).restore(3, built)
    checkpoints = Checkpoints(tmp_path / "checkpoints", 3)
    checkpoints.save(5, state, built, {})
    checkpoints.wait()
    with pytest.raises(CheckpointError, match=r"cannot save step 3 in .*: it holds a later step"):
        checkpoints.save(3, state, built, {})
    checkpoints.close()
