"""Runs on the real command line: what they say, what they leave, and how they go on."""

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import contents, copy, losses, metrics, steps, succeed, tiny

from meshes.plan import Plan
from training.config import parse

METRICS = ["step", "loss", "grad_norm", "learning_rate", "tokens", "step_seconds", "tokens_per_second"]


def test_a_run_leaves_metrics_configuration_plan_versions_and_checkpoints(finished: Path) -> None:
    run = finished / "run"
    lines = metrics(run)
    assert [list(line) for line in lines] == [METRICS] * 7
    assert [line["step"] for line in lines] == list(range(1, 8))
    assert all(np.isfinite(list(line.values())).all() for line in lines)
    assert {line["tokens"] for line in lines} == {4 * 32}
    assert steps(run / "checkpoints") == [5, 7]  # the last step too, though it is no multiple
    evaluations = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    assert [line["step"] for line in evaluations] == [3, 6, 7]
    assert {"python", "jax", "flax", "optax", "orbax-checkpoint", "grain"} <= set(
        json.loads((run / "versions.json").read_text())
    )
    assert (run / "plan.json").read_bytes() == (finished / "run.json").read_bytes()
    assert Plan.load(run / "plan.json").placement == "switched"
    assert {path.name for path in run.iterdir()} == {
        "metrics.jsonl", "evaluations.jsonl", "config.toml", "plan.json", "versions.json", "checkpoints"
    }  # fmt: skip


def test_a_run_says_what_it_does(finished: Path) -> None:
    said = (finished / "said").read_text()
    for expected in ("2 devices in 1 data group", "switched placement", "parameters: 5,696", "step      7/7  loss"):
        assert expected in said
    assert "held-out loss" in said and f"run directory: {finished / 'run'}" in said
    assert "--warmup 20 is more than --steps 7: the learning rate ends at" in said


def test_the_saved_configuration_gives_the_run_again(
    finished: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    saved = finished / "run" / "config.toml"
    flags = [f"--{name}={tmp_path / value}" for name, value in (("run-dir", "run"), ("plan-out", "plan.json"))]
    again = parse(["--config", str(saved), *flags, f"--checkpoint-dir={tmp_path / 'saved'}"])
    assert again.speeds == (3.0, 1.0) and again.steps == 7 and again.sample == ""
    succeed(environment, "--config", str(saved), *flags, f"--checkpoint-dir={tmp_path / 'saved'}")
    assert losses(tmp_path / "run") == losses(finished / "run")
    assert steps(tmp_path / "saved") == [5, 7]


def test_a_saved_plan_is_used_again(finished: Path, environment: dict[str, str], tmp_path: Path) -> None:
    succeed(environment, *tiny("--plan {plan} --steps 7", run=tmp_path / "run", plan=finished / "run.json"))
    assert (tmp_path / "run" / "plan.json").read_bytes() == (finished / "run.json").read_bytes()
    assert losses(tmp_path / "run") == losses(finished / "run")


def test_plan_only_prints_the_plan_and_writes_nothing(without_jax: dict[str, str], tmp_path: Path) -> None:
    said = succeed(without_jax, *tiny("--plan-only", run=tmp_path / "run"))
    assert "2 devices in 1 data group" in said and "Predicted step" in said
    assert not contents(tmp_path)


def test_help_names_units_and_defaults(without_jax: dict[str, str]) -> None:
    said = succeed({**without_jax, "COLUMNS": "200"}, "--help")
    for expected in ("GB is 10^9 bytes", "Tokens in a row", "(default: 0.003)", "4,2,1,1", "--resume auto|never|must"):
        assert expected in said


def test_a_sample_is_printed(finished: Path, environment: dict[str, str], tmp_path: Path) -> None:
    run = copy(finished, tmp_path)
    said = succeed(environment, *tiny("--steps 7 --sample hello", run=run))
    assert "resumed after step 7" in said and "sample:\nhello" in said
    assert losses(run) == losses(finished / "run")


def test_changed_flags_of_the_optimizer_are_told(finished: Path, environment: dict[str, str], tmp_path: Path) -> None:
    run = copy(finished, tmp_path)
    said = succeed(environment, *tiny("--steps 9 --lr 0.001 --clip-norm 0", run=run))
    assert "resumed after step 7" in said
    for expected in ("--lr: 0.001 from here on, 0.003 before", "--steps: 9 from here on, 7 before", "--clip-norm: 0.0"):
        assert expected in said
    lines = metrics(run)
    assert [line["step"] for line in lines] == list(range(1, 10))
    assert lines[8]["learning_rate"] == pytest.approx(0.001 * 9 / 20)
