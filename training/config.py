"""The configuration of a training run: one frozen value whose fields are the flags; imports no JAX."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from meshes.errors import UsageError
from training import flags
from training.checks import check
from training.options import (
    CheckpointFlags,
    DataFlags,
    DeviceFlags,
    EvaluationFlags,
    GraphFlags,
    ModelFlags,
    OptimizerFlags,
    PlanFlags,
    RunFlags,
)

DESCRIPTION = (
    "Train a model on devices that are not equal. Every flag may also stand in the TOML file of --config, with dashes"
    " or underscores; flags win over the file, the file over the defaults. Lists are one argument with commas. 'none'"
    " unsets a value that is none by default."
)


@dataclass(frozen=True, kw_only=True)
class _Form:
    """The sections in the order of the help."""

    run: RunFlags
    devices: DeviceFlags
    plan: PlanFlags
    model: ModelFlags
    graph: GraphFlags
    data: DataFlags
    optimizer: OptimizerFlags
    evaluation: EvaluationFlags
    checkpoint: CheckpointFlags


@dataclass(frozen=True, kw_only=True)
class TrainConfig(
    CheckpointFlags,
    EvaluationFlags,
    OptimizerFlags,
    DataFlags,
    GraphFlags,
    ModelFlags,
    PlanFlags,
    DeviceFlags,
    RunFlags,
):
    """Every flag of a training run; sizes are numbers of rows, tokens and features, memory is in bytes."""

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.d_model // self.heads

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values: paths as text, lists as lists, unset ones as None."""
        return {field.name: _json(getattr(self, field.name)) for field in dataclasses.fields(self)}

    def to_toml(self) -> str:
        """Text for `--config`, which gives this configuration again; unset fields and `config` are left out."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return flags.to_toml(_Form, values | {"config": None})


def parse(argv: Sequence[str], prog: str = "train.py") -> TrainConfig:
    """A valid configuration from a command line.

    Args:
        argv: the command line without the program's name; `--help` prints the help and exits.
        prog: the program's name in the help.

    Errors:
        UsageError: a mistake in a flag, in the file of `--config`, or in how they go together.
    """
    form = _read(argv, {}, prog)
    path = form.run.config
    if path is not None:
        values = flags.read_toml(_Form, path)
        if "config" in values:
            raise UsageError(f"{path}: 'config' is for the command line: a file names no other file")
        form = _read(argv, values, prog)
    return validate(TrainConfig(**flags.flatten(form)))


def validate(config: TrainConfig) -> TrainConfig:
    """The configuration itself, if its values go together.

    Errors:
        UsageError: what can be seen to be wrong without data, devices or JAX.
    """
    check(config)
    return config


def resolve(config: TrainConfig, now: datetime | None = None) -> TrainConfig:
    """Name the directories that were left unset: runs/DATE-TIME, and checkpoints in the run directory.

    Processes of one job must agree on the names: resolve in one of them, or give `--run-dir`.
    """
    run_dir = config.run_dir or _new_directory(Path("runs"), now or datetime.now())
    checkpoint_dir = config.checkpoint_dir or run_dir / "checkpoints"
    return dataclasses.replace(config, run_dir=run_dir, checkpoint_dir=checkpoint_dir)


def _read(argv: Sequence[str], values: Mapping[str, Any], prog: str) -> _Form:
    return flags.parse(_Form, argv, values, prog=prog, description=DESCRIPTION)


def _new_directory(parent: Path, now: datetime) -> Path:
    """A name that does not exist yet."""
    first = parent / now.strftime("%Y-%m-%d-%H%M%S")
    candidates = (first.with_name(f"{first.name}-{n}") if n else first for n in range(1000))
    free = next((path for path in candidates if not path.exists()), None)
    if free is None:
        raise UsageError(f"{first} and 999 more of its names exist: give --run-dir")
    return free


def _json(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
