"""Every mistake on the real command line: exit code 2 and one line that names the values and the remedy."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command_line import TINY, copy, refuse, tiny, train

from training import setup
from training.config import parse


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that the mistakes below name."""
    folder = tmp_path_factory.mktemp("inputs")
    texts = {
        "unknown.toml": "stpes = 3",
        "table.toml": "[optimizer]\nlr = 0.1",
        "typed.toml": 'steps = "three"',
        "listed.toml": "speeds = 4",
        "broken.toml": "steps = = 3",
        "empty.txt": "",
        "short.txt": "ab",
        "ids.json": '{"dtype": "uint16", "vocab_size": 50}',
        "odd.bin": "abc",
        "typo.cluster": "[[devices]]\nspede = 1.0",
        "none.cluster": "devices = []",
        "zero.cluster": "[[devices]]\nspeed = 0.0",
        "nan.cluster": "[[devices]]\nspeed = nan",
        "two.cluster": "[[devices]]\nspeed = 3.0\n[[devices]]\nspeed = 1.0",
        "words.json": "not a plan",
        "list.json": "[1, 2]",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "folder").mkdir()
    for name, array in {
        "ids.npy": np.arange(4000, dtype=np.uint16) % 50,
        "outside.npy": np.where(np.arange(4000) == 1234, 77, 3).astype(np.uint16),
        "negative.npy": np.where(np.arange(4000) == 12, -1, 3).astype(np.int32),
        "float.npy": np.zeros(4000),
        "square.npy": np.zeros((50, 50), np.uint16),
        "none.npy": np.zeros(0, np.uint16),
    }.items():
        np.save(folder / name, array)
    (folder / "cut.npy").write_bytes((folder / "ids.npy").read_bytes()[:40])
    (folder / "ids.bin").write_bytes(bytes(4000))
    (folder / "other.json").unlink(missing_ok=True)
    config = parse(TINY)
    plan = setup.make_plan(config, setup.find_cluster(config)[0], 257)
    plan.save(folder / "plan.json")
    spoiled = json.loads(plan.to_json())
    spoiled["tokens"][0][0] += 1
    (folder / "sum.json").write_text(json.dumps(spoiled))
    (folder / "parts.json").write_text(plan.to_json()[:-40])
    return folder


# name: (flags, what stderr says); {inputs} is the folder above, {run} the run directory.
MISTAKES = {
    "unknown flag": ("--kv-head 2", r"unknown flag '--kv-head': did you mean '--kv-heads'\?"),
    "unknown flag of other programs": ("--learning-rate 0.1", r"unknown flag '--learning-rate': did you mean '--lr'\?"),
    "unknown flag like nothing": ("--zzzzzz", r"unknown flag '--zzzzzz': --help lists"),
    "a value without a flag": ("steps", "unexpected argument 'steps'"),
    "unknown key": ("--config {inputs}/unknown.toml", r"unknown key 'stpes': did you mean 'steps'\?"),
    "a table of keys": ("--config {inputs}/table.toml", r"\[optimizer\] is a table: write its keys at the top level"),
    "a key of the wrong type": ("--config {inputs}/typed.toml", "steps = 'three': expected a whole number"),
    "a list that is none": ("--config {inputs}/listed.toml", "speeds = 4: expected values with commas"),
    "a file that is no TOML": ("--config {inputs}/broken.toml", "broken.toml is not a TOML file"),
    "a missing configuration": ("--config {inputs}/gone.toml", "gone.toml: No such file"),
    "a flag of the wrong type": ("--steps ten", "--steps ten: expected a whole number"),
    "a flag without its value": ("--steps", "--steps needs a value: expected a whole number"),
    "a word that is no choice": ("--dtype float16", "--dtype float16: expected one of float32, bfloat16"),
    "too few speeds": ("--devices 4 --speeds 2,1", "--speeds has 2, but --devices is 4: give as many values"),
    "too few memories": ("--speeds 2,1 --memory 1GB", "--speeds has 2, --memory has 1, but one value for each device"),
    "speed zero": ("--speeds 4,0", "--speeds: device 1 has speed 0; .* leave the device out"),
    "speed below zero": ("--speeds=-1,4", "--speeds: device 0 has speed -1; .* leave the device out"),
    "speed NaN": ("--speeds 4,nan", "--speeds 4,nan: expected values .* finite number"),
    "speed infinite": ("--speeds 4,inf", "--speeds 4,inf: expected values .* finite number"),
    "memory zero": ("--devices 1 --memory 0GB", "--memory 0GB: expected values"),
    "no devices": ("--devices 0", "--devices 0: must be at least 1"),
    "no steps": ("--steps 0", "--steps 0: must be at least 1"),
    "no learning rate": ("--lr 0", "--lr 0: must be above 0 and below 3e.38"),
    "a learning rate beyond float32": ("--lr 1e39", "--lr 1e.39: must be above 0 and below 3e.38"),
    "learning rate NaN": ("--lr nan", "--lr nan: expected a finite number"),
    "a seed below zero": ("--seed -1", "--seed -1: must be at least 0"),
    "heads no multiple": ("--heads 6 --kv-heads 4 --d-model 24", "--heads 6 is not a multiple of --kv-heads 4: use"),
    "width no multiple": ("--d-model 20 --heads 8 --kv-heads 4", "--d-model 20 is not a multiple of --heads 8: use"),
    "an odd head": ("--d-model 6", "heads of width 3; .* use --d-model 8"),
    "batch no multiple": ("--batch-size 5", "--batch-size 5 is not a multiple of --microbatch 2: use --microbatch 1"),
    "a row of one token": ("--seq-len 1", "--seq-len 1: must be at least 2"),
    "a row longer than the data": ("--seq-len 2000000000", "has [0-9]+ tokens, but a row of --seq-len 2000000000"),
    "a row that fits nowhere": ("--seq-len 65536 --memory 9MB,9MB", "no plan fits in memory: .* 9000000 .*: use"),
    "a model that fits nowhere": ("--d-model 4096 --memory 1MB,1MB", "no plan fits in memory: .* 1000000 .*: use"),
    "groups that do not divide": ("--devices 4 --speeds 3,2,1,1 --data-groups 3", "3 data groups .* 4 devices .*: use"),
    "a hybrid of two": ("--attention hybrid", "hybrid attention needs at least 3 devices .* are 2: use"),
    "a hybrid of one head": (
        "--attention hybrid --devices 4 --speeds 3,2,1,1 --heads 1",
        "hybrid attention needs at least 2 heads, the model has 1: use",
    ),
    "a ring of heads": ("--attention head --kv ring", "--kv ring needs --attention context, not head: change"),
    "devices told twice": ("--cluster {inputs}/two.cluster", "two.cluster already describes the devices: leave out"),
    "missing data": ("--data {inputs}/gone.txt", "--data .*gone.txt: no such file or directory"),
    "empty data": ("--data {inputs}/empty.txt", "--data .*empty.txt is empty: give a file with text"),
    "a folder without text": ("--data {inputs}/folder", "--data .*folder has no text files: give"),
    "data too short": ("--data {inputs}/short.txt", "short.txt has 3 tokens, but a row of --seq-len 32 needs 33: give"),
    "ids that are numbers with a point": (
        "--data {inputs}/float.npy --vocab-size 50",
        "float.npy has dtype float64; token ids are integers: save it as",
    ),
    "ids in a square": ("--data {inputs}/square.npy --vocab-size 50", r"has shape \(50, 50\); .*: save array.reshape"),
    "no ids": ("--data {inputs}/none.npy --vocab-size 50", "none.npy is empty"),
    "a file that was cut": ("--data {inputs}/cut.npy", "cut.npy is not a .npy file of integers"),
    "ids of unknown width": ("--data {inputs}/odd.bin --vocab-size 50", "odd.bin: .*: give --token-dtype"),
    "half an id": (
        "--data {inputs}/odd.bin --vocab-size 50 --token-dtype uint16",
        "odd.bin has 3 bytes, not a multiple of 2",
    ),
    "ids of two widths": (
        "--data {inputs}/ids.bin --token-dtype uint8",
        "--token-dtype uint8, but .* says dtype uint16",
    ),
    "a width for text": ("--data {inputs}/short.txt --token-dtype uint8", "short.txt is text: leave it out"),
    "ids without a vocabulary": ("--data {inputs}/outside.npy", "outside.npy holds token ids: give --vocab-size"),
    "ids outside the vocabulary": (
        "--data {inputs}/outside.npy --vocab-size 50",
        r"id 77 at position 1234 is outside the vocabulary of 50 \(0 to 49\): give",
    ),
    "ids below zero": (
        "--data {inputs}/negative.npy --vocab-size 50",
        "id -1 at position 12 is outside .* 50 .*: give",
    ),
    "a vocabulary too small for text": (
        "--vocab-size 100",
        "--vocab-size 100 is too small for text, which has 257 ids",
    ),
    "a sample of ids": ("--data {inputs}/ids.npy --sample x", "--sample 'x' is text, but --data .* leave --sample out"),
    "a missing cluster": ("--cluster {inputs}/gone.cluster", "cluster file .*gone.cluster does not exist: check"),
    "a cluster with a typing error": ("--cluster {inputs}/typo.cluster", "unknown key 'spede': did you mean 'speed'"),
    "a cluster of nothing": ("--cluster {inputs}/none.cluster", "no devices: write at least one"),
    "a cluster that stands still": ("--cluster {inputs}/zero.cluster", "speed is 0.0: write a positive finite number"),
    "a cluster of NaN": ("--cluster {inputs}/nan.cluster", "speed is nan: write a positive finite number"),
    "a missing plan": ("--plan {inputs}/gone.json", "plan file .*gone.json does not exist: check"),
    "a plan that is no JSON": ("--plan {inputs}/words.json", "words.json is not JSON .*: make it with --plan-out"),
    "a plan that was cut": ("--plan {inputs}/parts.json", "parts.json is not JSON .*: make it with --plan-out"),
    "a plan that is a list": ("--plan {inputs}/list.json", r"list.json is \[1, 2\]: it must be an object"),
    "a plan that does not add up": ("--plan {inputs}/sum.json", "tokens of data group 0 sum to 33, a row has 32"),
    "a plan for another cluster": (
        "--plan {inputs}/plan.json --speeds 2,1",
        "made for another cluster: devices.0..speed is 3.0 in the plan and 2.0 here: run what it was made for, or plan",
    ),
    "a plan for more devices": ("--plan {inputs}/plan.json --devices 3 --speeds none", "number of devices is 2 .* 3"),
    "a plan for another model": (
        "--plan {inputs}/plan.json --d-model 32",
        "made for another workload: d_model is 16 in the plan and 32 here: run",
    ),
    "a plan and a wish": (
        "--plan {inputs}/plan.json --attention head",
        "--plan .* already fixes --attention: leave out",
    ),
    "a run directory that is a file": ("--run-dir {inputs}/ids.npy", "--run-dir .*ids.npy is not a directory: name"),
    "a run directory in a file": ("--run-dir {inputs}/ids.npy/run", "--run-dir .*ids.npy is not a directory: name"),
    "checkpoints in a file": (
        "--checkpoint-dir {inputs}/ids.npy",
        "--checkpoint-dir .*ids.npy is not a directory: name",
    ),
    "a plan onto a directory": ("--plan-out {inputs}/folder", "--plan-out .*folder: it is a directory: name a file"),
    "a plan into nowhere": ("--plan-out {inputs}/gone/plan.json", "--plan-out .*: no such directory: name a file"),
    "resume from nowhere": ("--resume must --run-dir none", "--resume must needs to know where: give --checkpoint-dir"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_before_jax_starts(
    name: str, without_jax: dict[str, str], inputs: Path, tmp_path: Path
) -> None:
    flags, says = MISTAKES[name]
    refuse(without_jax, tiny(flags, inputs=inputs, run=tmp_path / "run"), says, tmp_path, inputs)


def test_a_run_without_a_mistake_would_start_jax(without_jax: dict[str, str], tmp_path: Path) -> None:
    """The twin: without a mistake the same environment does not get that far."""
    done = train(without_jax, *tiny("", run=tmp_path / "run"))
    assert done.returncode == 1 and "JAX was imported" in done.stderr


def spoil(path: str, text: str | None) -> Callable[[Path], None]:
    """Write a file below a run directory, or remove what is there."""

    def change(run: Path) -> None:
        target = run / "checkpoints" / path
        if text is None:
            shutil.rmtree(target) if target.is_dir() else target.unlink()
        else:
            target.parent.mkdir(exist_ok=True, parents=True)
            target.write_text(text)

    return change


def nothing(run: Path) -> None:
    """Leave a run as it is."""


def bare(run: Path) -> None:
    """Leave only the metrics of a run."""
    shutil.rmtree(run / "checkpoints")


# name: (flags, what stderr says, what happened to the finished run before)
NOT_RESUMED: dict[str, tuple[str, str, Callable[[Path], None]]] = {
    "another width": (
        "--steps 9 --d-model 32",
        r"7 is of another model: params/embed/embedding is float32\[257,16\] there and float32\[257,32\] here: use",
        nothing,
    ),
    "more layers": ("--steps 9 --layers 2", r"7 is of another model: .* there and float32\[2,.* here: use", nothing),
    "an untied embedding": ("--steps 9 --no-tied-embedding", "another model: .*head.* is absent there", nothing),
    "another seed": ("--steps 9 --seed 1", "--seed 1, but the checkpoint has 0, .*: give --seed 0", nothing),
    "another length": ("--steps 9 --seq-len 16", "--seq-len 16, but the checkpoint has 32, .*: give", nothing),
    "other data": ("--steps 9 --data train.py", "trained on Python's .*, but --data is train.py .*: give", nothing),
    "fewer steps": ("--steps 6", "--steps 6, but the checkpoint has 7 already: give more --steps", nothing),
    "never, though used": ("--resume never", "--resume never, but .*checkpoints holds step 7: name", nothing),
    "never, though run": ("--resume never", "--resume never, but .* another run's metrics.jsonl: name", bare),
    "must, though empty": ("--resume must", "--resume must, but .*checkpoints holds no checkpoint: give", bare),
    "a number that is no checkpoint": ("--steps 9", "99 is no checkpoint .*: remove it", spoil("99/note", "")),
    "garbage beside the arrays": (
        "--steps 9",
        "checkpoint .*7 is damaged .*: remove it",
        spoil("7/about/metadata", "?"),
    ),
    "another program's values": ("--steps 9", "7 is damaged .no data, .*: remove it", spoil("7/about/metadata", "[]")),
    "lost arrays": ("--steps 9", "checkpoint .*7 is damaged .*: remove it", spoil("7/state", None)),
    "half the arrays": ("--steps 9", "checkpoint .*7 is damaged .*: remove it", spoil("7/state/ocdbt.process_0", None)),
    "a garbage manifest": ("--steps 9", "7 is damaged .*: remove it", spoil("7/state/manifest.ocdbt", "garbage")),
}


@pytest.mark.parametrize("name", NOT_RESUMED)
def test_what_cannot_be_resumed_is_one_line(
    name: str, finished: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    flags, says, change = NOT_RESUMED[name]
    run = copy(finished, tmp_path)
    change(run)
    refuse(environment, tiny(flags, run=run), says, tmp_path)
