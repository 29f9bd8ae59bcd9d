"""Runs that are stopped, killed, diverge or cannot save: nothing is lost, and nothing ends as if all were well."""

import json
import os
import re
import resource
import shutil
import signal
import time
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from command_line import PATIENCE, complete, copy, freeze, losses, steps, succeed, tiny, train, training, wait_for

# Signals. The same steps, so that the schedule is the same.
LONG = "--steps 600 --log-every 100 --eval-every 0 --eval-rows 1"


@pytest.fixture(scope="module")
def straight(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses of a run that nobody disturbs."""
    run = tmp_path_factory.mktemp("straight") / "run"
    succeed(environment, *tiny(LONG, run=run))
    assert len(losses(run)) == 600
    return losses(run)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_the_step_and_a_resume_goes_on_from_it(
    number: signal.Signals, straight: dict[int, float], environment: dict[str, str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with training(environment, *tiny(LONG, run=run)) as process:
        wait_for(lambda: len(losses(run)) > 5, process)
        process.send_signal(number)
        said, error = process.communicate(timeout=PATIENCE)
    assert (process.returncode, error) == (128 + number, "")
    last = len(losses(run))
    assert 5 < last < 600 and steps(run / "checkpoints") == [last]
    assert f"stopped by signal {int(number)} after step {last}, which is saved" in said
    said = succeed(environment, *tiny(LONG + " --resume must", run=run))
    assert f"resumed after step {last}" in said
    assert losses(run) == straight


def test_a_signal_before_the_first_step_is_not_missed(environment: dict[str, str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    with training(environment, *tiny(LONG, run=run)) as process:
        wait_for((run / "plan.json").exists, process)
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=PATIENCE)
    assert (process.returncode, error) == (143, "")
    assert steps(run / "checkpoints") == list(losses(run))[-1:]


def test_a_signal_does_not_wait_for_the_end_of_an_evaluation(environment: dict[str, str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    with training(environment, *tiny("--steps 9 --eval-every 1 --eval-rows 0", run=run)) as process:
        wait_for(lambda: losses(run), process)
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=PATIENCE)
    assert (process.returncode, error) == (143, "")
    last = len(losses(run))
    assert last < 9 and steps(run / "checkpoints") == [last]
    evaluated = [json.loads(line)["step"] for line in (run / "evaluations.jsonl").read_text().splitlines()]
    assert last not in evaluated


def test_a_signal_while_nothing_is_running_yet(without_jax: dict[str, str], tmp_path: Path) -> None:
    """Before there is anything to save the exit code is the same."""
    slow = tmp_path / "slow"
    os.mkfifo(slow)  # reading the configuration waits here
    with training(without_jax, *tiny("--config {slow}", run=tmp_path / "run", slow=slow)) as process:
        writer = slow.open("w")  # once the program has opened it too
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
        writer.close()
    assert process.returncode == 143


# Kills.


def state_of(checkpoints: Path) -> tuple[bool, bool]:
    """Whether a save is under way, and whether a removal is."""
    names = [path for path in checkpoints.iterdir()]
    return any("tmp" in p.name for p in names), any(p.name.isdecimal() and not complete(p) for p in names)


@pytest.mark.long
def test_at_every_instant_there_is_a_complete_checkpoint(
    straight: dict[int, float], environment: dict[str, str], tmp_path: Path
) -> None:
    run, instants, copies = tmp_path / "run", 60, {}
    rng = np.random.default_rng(0)
    with training(environment, *tiny(LONG + " --save-every 1 --keep 1", run=run)) as process:
        wait_for(lambda: steps(run / "checkpoints"), process)
        for _ in range(instants):
            freeze(process)
            assert steps(run / "checkpoints"), list((run / "checkpoints").iterdir())
            kind = state_of(run / "checkpoints")
            if kind not in copies:
                copies[kind] = shutil.copytree(run, tmp_path / f"copy{len(copies)}")
            process.send_signal(signal.SIGCONT)
            time.sleep(rng.uniform(0.0, 0.03))
        process.kill()
    assert len(copies) > 1
    for killed in (run, *copies.values()):
        [last] = steps(killed / "checkpoints")[-1:]
        end = f"--steps 600 --log-every 100 --eval-every 0 --eval-rows 1 --save-every {600 - last}"
        said = succeed(environment, *tiny(end + " --resume must --keep 1", run=killed))
        assert f"resumed after step {last}" in said
        assert losses(killed) == straight
        assert [path.name for path in (killed / "checkpoints").iterdir()] == ["600"]


def values(checkpoint: Path) -> list[np.ndarray]:
    """Every array of a checkpoint."""
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        return [np.asarray(leaf) for leaf in jax.tree.leaves(reader.restore(checkpoint / "state"))]


@pytest.mark.filterwarnings("ignore:Sharding info not provided")  # as it was saved will do
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--lr 1e30", r"step 9: loss .*, gradient norm nan: not finite; .* lower --lr \(1e\+30\) or look at the data"),
        ("--lr 1e30 --weight-decay 1e30", r"step 8 is not saved: params/embed/embedding is not finite: lower --lr"),
    ],
)
def test_a_diverging_run_stops_and_saves_nothing_of_it(
    flags: str, says: str, finished: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    run = copy(finished, tmp_path)
    done = train(environment, *tiny(f"--steps 12 --warmup 0 --save-every 1 {flags}", run=run))
    assert done.returncode == 1
    assert re.fullmatch(rf"train\.py: .*{says}.*\n", done.stderr), done.stderr
    left = steps(run / "checkpoints")
    assert set(left) >= {5, 7} and left[-1] < 9
    for step in left:
        arrays = values(run / "checkpoints" / str(step))
        assert len(arrays) > 20 and all(np.isfinite(array).all() for array in arrays)


def test_a_checkpoint_directory_that_becomes_a_file_is_an_error(environment: dict[str, str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    checkpoints = run / "checkpoints"
    with training(environment, *tiny("--steps 100000 --save-every 1", run=run)) as process:
        wait_for(lambda: steps(checkpoints), process)
        freeze(process)
        checkpoints.rename(tmp_path / "aside")
        checkpoints.write_text("")
        process.send_signal(signal.SIGCONT)
        _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert re.fullmatch(rf"train\.py: cannot save .*{re.escape(str(checkpoints))}.*Not a directory.*\n", error), error
    assert steps(tmp_path / "aside")


def test_a_full_disk_is_an_error_and_the_checkpoint_before_stays(
    finished: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    """Files of at most 4 KB stand for a full disk."""
    run = copy(finished, tmp_path)
    with training(environment, *tiny("--steps 100000 --save-every 1", run=run)) as process:
        wait_for(lambda: steps(run / "checkpoints")[-1] > 8, process)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (4096, 4096))
        _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert re.fullmatch(rf"train\.py: cannot save .*{re.escape(str(run))}.*File too large.*\n", error), error
    last = steps(run / "checkpoints")[-1]
    said = succeed(environment, *tiny(f"--steps {last + 1} --resume must", run=run))
    assert f"resumed after step {last}" in said
