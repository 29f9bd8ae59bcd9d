"""Flags, the TOML file and their mistakes."""

import dataclasses
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from meshes.errors import UsageError
from training import config as module
from training.config import TrainConfig, parse, resolve, validate
from training.flags import names
from training.kinds import Bytes


def toml(directory: Path, text: str) -> list[str]:
    path = directory / "run.toml"
    path.write_text(text)
    return ["--config", str(path)]


def test_no_flags_are_the_defaults() -> None:
    assert parse([]) == TrainConfig()


def test_every_field_is_a_flag_and_has_help() -> None:
    flags = names(module._Form)
    assert sorted(flags) == sorted(field.name for field in dataclasses.fields(TrainConfig))
    assert len(flags) == len(set(flags))


def test_help_lists_every_flag_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        parse(["--help"])
    text = capsys.readouterr().out
    for name in names(module._Form):
        assert f"--{name.replace('_', '-')}" in text
    assert "Peak learning rate. (default: 0.003)" in text
    assert "4,2,1,1" in text


def test_importing_the_configuration_imports_no_jax() -> None:
    code = "import sys, training.config, training.data; print({'jax', 'flax', 'grain'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout == "set()\n"


def test_dashes_and_underscores_are_one() -> None:
    assert parse(["--kv-heads", "2", "--d_model=64"]) == TrainConfig(kv_heads=2, d_model=64)


def test_lists_sizes_and_words() -> None:
    config = parse(["--speeds", "4,2, 1,.5", "--memory", "24GB,1.5GiB,100,2KB", "--data-groups", "2", "--no-plan-only"])
    assert config.speeds == (4.0, 2.0, 1.0, 0.5)
    assert config.memory == (24_000_000_000, 3 * 2**29, 100, 2000)
    assert config.data_groups == 2 and not config.plan_only
    assert parse(["--no-tied-embedding"]).tied_embedding is False
    assert parse(["--sample", "-- a"]).sample == "-- a"


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    file = toml(
        tmp_path, 'steps = 7\nwarmup=1\nkv-heads = 2\nspeeds = [4, 2.5]\nlr = 1\ndata_groups = 2\nmemory="1GB,2GB"'
    )
    config = parse([*file, "--steps", "9"])
    assert (config.steps, config.warmup, config.kv_heads, config.layers) == (9, 1, 2, TrainConfig().layers)
    assert (config.speeds, config.lr, config.data_groups) == ((4.0, 2.5), 1.0, 2)
    assert config.memory == (10**9, 2 * 10**9)
    assert isinstance(config.lr, float)


def test_a_flag_unsets_what_the_file_set(tmp_path: Path) -> None:
    file = toml(tmp_path, "speeds = [4, 2]\nclip_norm = 0.5")
    assert parse([*file, "--speeds", "none"]).speeds is None


def test_toml_gives_the_configuration_again(tmp_path: Path) -> None:
    argv = ["--speeds", "4,0.1,1e-7", "--memory", "3GB,2GB,1GB", "--sample", 'a "b"\n\té\x7f\\', "--lr", "1e-5"]
    config = parse([*argv, "--run-dir", "a b/c", "--no-tied-embedding", "--plan-only", "--attention", "head"])
    again = parse(toml(tmp_path, config.to_toml()))
    assert dataclasses.replace(again, config=None) == config
    assert again != config  # the twin: `config` itself differs


def test_dictionary_is_plain_json() -> None:
    values = parse(["--speeds", "2,1", "--run-dir", "r"]).to_dict()
    assert values["speeds"] == [2.0, 1.0] and values["run_dir"] == "r" and values["cluster"] is None


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--learning_rte", "0.1"], "unknown flag '--learning_rte': did you mean '--lr'"),
        (["--kv-head", "2"], "unknown flag '--kv-head': did you mean '--kv-heads'"),
        (["--zzzzzz"], "unknown flag '--zzzzzz': --help lists the flags"),
        (["steps"], "unexpected argument 'steps'"),
        (["--tied-embedding=False"], "unexpected argument 'False'.*--no-NAME"),
        (["--steps", "abc"], "--steps abc: expected a whole number"),
        (["--steps", "1.5"], "--steps 1.5: expected a whole number"),
        (["--steps"], "--steps needs a value: expected a whole number"),
        (["--steps", "--seed", "1"], "--steps needs a value"),
        (["--steps", "1", "2"], "--steps 1 2: takes one value, not 2"),
        (["--lr", "fast"], "--lr fast: expected a finite number"),
        (["--lr", "nan"], "--lr nan: expected a finite number"),
        (["--lr", "inf"], "--lr inf: expected a finite number"),
        (["--run-dir", ""], "--run-dir '': expected a path"),
        (["--dtype", "float16"], "--dtype float16: expected one of float32, bfloat16"),
        (["--data-groups", "two"], "--data-groups two: expected a whole number or auto"),
        (["--speeds", "4,x"], "--speeds 4,x: expected values with commas.*finite number, such as 4,2,1,1"),
        (["--speeds", "4,nan"], "--speeds 4,nan: expected"),
        (["--speeds", "4", "2"], "--speeds 4 2: takes one value"),
        (["--memory", "0GB,2GB"], "--memory 0GB,2GB: expected values.*each a positive size"),
        (["--memory=-1GB"], "--memory -1GB: expected values"),
        (["--memory", "24XB"], "--memory 24XB: expected values.*such as 24GB,12GB"),
        (["--memory", "1" + "0" * 400 + "GB"], "--memory 10+GB: expected values"),
    ],
)
def test_misread_flags(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse(argv)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num-layer = 4", "unknown key 'num-layer': did you mean 'layers'"),
        ("stpes = 4", "unknown key 'stpes': did you mean 'steps'"),
        ("qqqqqq = 4", "unknown key 'qqqqqq'$"),
        ('config = "a.toml"', "'config' is for the command line"),
        ("[optimizer]\nlr = 0.1", r"\[optimizer\] is a table: write its keys at the top level"),
        ("[model]\nlayers = 1", r"\[model\] is a table"),
        ('steps = "abc"', "steps = 'abc': expected a whole number"),
        ('steps = "4"', "steps = '4': expected a whole number"),
        ("steps = 4.0", "steps = 4.0: expected a whole number"),
        ("steps = true", "steps = True: expected a whole number"),
        ("tied-embedding = 1", "tied-embedding = 1: expected true or false"),
        ("run-dir = 1", "run-dir = 1: expected a path"),
        ("lr = nan", "lr = nan: expected a finite number"),
        ("speeds = 4", "speeds = 4: expected values"),
        ("speeds = []", r"speeds = \[\]: expected values"),
        ('speeds = [4, "x"]', r"speeds = \[4, 'x'\]: expected values"),
        ("memory = [1.5]", r"memory = \[1.5\]: expected values"),
        ("memory = [0, 5]", r"memory = \[0, 5\]: expected values"),
        ("kv = 1", "kv = 1: expected one of auto, gather, ring"),
        ("kv = []", r"kv = \[\]: expected one of auto, gather, ring"),
        ("kv_heads = 2\nkv-heads = 2", "'kv-heads' is given twice"),
        ("steps = ", "is not a TOML file: Invalid value"),
        ("\x00", "is not a TOML file"),
    ],
)
def test_misread_toml(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse(toml(tmp_path, text))
    assert "\n" not in str(caught.value) and "run.toml" in str(caught.value)


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--config .*none\.toml: No such file"):
        parse(["--config", str(tmp_path / "none.toml")])
    with pytest.raises(UsageError, match=r"--config .*: Is a directory"):
        parse(["--config", str(tmp_path)])
    (tmp_path / "latin.toml").write_bytes(b"sample = '\xe9'")
    with pytest.raises(UsageError, match="is not a TOML file"):
        parse(["--config", str(tmp_path / "latin.toml")])


BAD = [
    (["--heads", "6", "--kv-heads", "4"], "--heads 6 is not a multiple of --kv-heads 4: use --kv-heads 3 or 6"),
    (["--heads", "3", "--kv-heads", "2", "--d-model", "96"], "--heads 3 is not a multiple of --kv-heads 2"),
    (["--d-model", "100"], "--d-model 100 is not a multiple of --heads 8: use --heads 5 or 10"),
    (["--d-model", "24"], "heads of width 3; rotary positions need an even width: use --d-model 32"),
    (["--d-model", "1000000007", "--heads", "8"], "--d-model 1000000007 is not a multiple"),
    (["--batch-size", "16", "--microbatch", "5"], "16 is not a multiple of --microbatch 5: use --microbatch 4 or 8"),
    (["--batch-size", "4", "--microbatch", "8"], "4 is not a multiple of --microbatch 8: use --microbatch 4$"),
    (["--layers", "0"], "--layers 0: must be at least 1"),
    (["--d-ff", "-1"], "--d-ff -1: must be at least 1"),
    (["--seq-len", "1"], "--seq-len 1: must be at least 2"),
    (["--steps", "0"], "--steps 0: must be at least 1"),
    (["--steps", "3000000000"], "--steps 3000000000: must be at most"),
    (["--seed", "-1"], "--seed -1: must be at least 0"),
    (["--seed", "4294967296"], "--seed 4294967296: must be at most 4294967295"),
    (["--data-groups", "0"], "--data-groups 0: must be at least 1"),
    (["--devices", "0"], "--devices 0: must be at least 1"),
    (["--keep", "0"], "--keep 0: must be at least 1"),
    (["--lr", "0"], "--lr 0: must be above 0"),
    (["--lr=-1"], "--lr -1: must be above 0"),
    (["--clip-norm", "-1"], "--clip-norm -1: must be at least 0"),
    (["--speeds", "4,0,1"], "--speeds: device 1 has speed 0"),
    (["--speeds=-1,2"], "--speeds: device 0 has speed -1"),
    (["--devices", "4", "--speeds", "4,2,1"], "--speeds has 3, but --devices is 4"),
    (["--devices", "3", "--memory", "1GB"], "--memory has 1, but --devices is 3"),
    (["--speeds", "2,1", "--memory", "1GB"], "--speeds has 2, --memory has 1, but one value for each device"),
    (["--cluster", "c.toml", "--speeds", "2,1"], "--cluster c.toml already describes the devices: leave out --speeds"),
    (["--cluster", "c.toml", "--devices", "2"], "leave out --devices"),
    (["--plan", "p.json", "--attention", "head"], "--plan p.json already fixes --attention"),
    (["--plan", "p.json", "--data-groups", "2"], "--plan p.json already fixes --data-groups"),
    (["--kv", "ring", "--attention", "head"], "--kv ring needs --attention context, not head"),
    (["--resume", "must"], "--resume must needs to know where: give --checkpoint-dir"),
    (["--data", "ids.bin", "--sample", "x"], "--sample 'x' is text, but --data ids.bin holds token ids"),
]  # fmt: skip


@pytest.mark.parametrize(("argv", "message"), BAD)
def test_values_that_do_not_go_together(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse(argv)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "argv",
    [
        ["--heads", "6", "--kv-heads", "2", "--d-model", "96"],
        ["--warmup", "200"],
        ["--devices", "2", "--speeds", "2,1", "--memory", "2GB,1GB"],
        ["--plan", "p.json", "--speeds", "2,1"],
        ["--kv", "ring", "--attention", "context"],
        ["--resume", "must", "--run-dir", "r"],
        ["--data", "ids.bin", "--sample", ""],
        ["--seq-len", "2", "--batch-size", "1", "--microbatch", "1"],
    ],
)
def test_their_twins_are_accepted(argv: list[str]) -> None:
    assert isinstance(parse(argv), TrainConfig)


def test_values_made_in_python_are_checked_too() -> None:
    with pytest.raises(UsageError, match="device 1 has speed nan"):
        validate(TrainConfig(speeds=(1.0, float("nan"))))
    with pytest.raises(UsageError, match="--memory: device 0 has 0 bytes"):
        validate(TrainConfig(memory=(Bytes(0),)))
    with pytest.raises(UsageError, match="--lr inf: must be above 0"):
        validate(TrainConfig(lr=float("inf")))


def test_directories_are_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    now = datetime(2030, 1, 2, 3, 4, 5)
    config = resolve(TrainConfig(), now)
    assert config.run_dir == Path("runs/2030-01-02-030405")
    assert config.checkpoint_dir == config.run_dir / "checkpoints"
    assert resolve(config, now) == config
    config.run_dir.mkdir(parents=True)
    assert resolve(TrainConfig(), now).run_dir == Path("runs/2030-01-02-030405-1")
    assert resolve(TrainConfig(checkpoint_dir=Path("c")), now).checkpoint_dir == Path("c")
