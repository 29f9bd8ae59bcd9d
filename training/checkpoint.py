"""Checkpoints: logical, unpadded, independent of the plan; asynchronous; written by orbax.

Arrays whose cut axis divides are saved from the devices as they are. The others are cropped on the host, one after
another, and padded again for the plan that restores them.
"""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from meshes.errors import UsageError
from sharding import rules
from sharding.rules import Storage, path_name
from training.step import Program, put

State = dict[str, Any]


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read."""


class Checkpoints:
    """The checkpoints of a run.

    Args:
        directory: made when the first checkpoint is saved.
        keep: newest checkpoints to keep.
    """

    def __init__(self, directory: Path, keep: int) -> None:
        self.directory = directory.absolute()
        self.keep = keep
        self._manager: ocp.CheckpointManager | None = None

    @property
    def latest(self) -> int | None:
        """Step of the newest complete checkpoint, or None."""
        if not self.directory.is_dir():
            return None
        found = [int(p.name) for p in self.directory.iterdir() if p.name.isdecimal() and (p / "about").is_dir()]
        return max(found, default=None)

    def about(self, step: int) -> dict[str, Any]:
        """What was saved beside the arrays: position in the data, configuration, plan, shapes."""
        try:
            return json.loads((self.directory / str(step) / "about" / "metadata").read_text())
        except (OSError, ValueError) as error:
            raise UsageError(f"checkpoint {self.directory / str(step)} cannot be read ({error}): remove it") from None

    def save(self, step: int, state: State, program: Program, about: dict[str, Any]) -> None:
        """Start saving; the previous save must have ended well.

        Args:
            step: number of steps done.
            state: stored arrays.
            program: knows how they are stored.
            about: JSON values to save beside them.

        Raises:
            CheckpointError: this save could not start, or the one before it failed.
        """
        logical = rules.apply(_leave, program.stored, state)
        about = {**about, "shapes": shapes(program.logical)}
        args = ocp.args.Composite(state=ocp.args.StandardSave(logical), about=ocp.args.JsonSave(about))
        try:
            self._open().save(step, args=args)
        except Exception as error:
            raise CheckpointError(f"cannot save step {step} in {self.directory}: {_one_line(error)}") from error

    def wait(self) -> None:
        """Block until the last save is on disk.

        Raises:
            CheckpointError: it failed.
        """
        if self._manager is None:
            return
        try:
            self._manager.wait_until_finished()
        except Exception as error:
            raise CheckpointError(f"cannot save in {self.directory}: {_one_line(error)}") from error

    def close(self) -> None:
        """Wait and release orbax's threads."""
        if self._manager is not None:
            self.wait()
            self._manager.close()

    def check(self, step: int, program: Program) -> None:
        """Raise a UsageError if a checkpoint is of another model."""
        check_shapes(self.directory / str(step), self.about(step).get("shapes", {}), shapes(program.logical))

    def restore(self, step: int, program: Program) -> State:
        """The state of a checkpoint, stored for this program's mesh.

        Raises:
            UsageError: the checkpoint is of another model.
        """
        self.check(step, program)
        wanted = rules.apply(_expect, program.stored, program.logical, program.shardings)
        args = ocp.args.Composite(state=ocp.args.StandardRestore(wanted))
        logical = self._open().restore(step, args=args)["state"]
        return rules.apply(_enter, program.stored, logical, program.shardings)

    def _open(self) -> ocp.CheckpointManager:
        if self._manager is None:
            options = ocp.CheckpointManagerOptions(max_to_keep=self.keep, create=True, enable_async_checkpointing=True)
            self._manager = ocp.CheckpointManager(self.directory, options=options)
        return self._manager


def shapes(logical: Any) -> dict[str, str]:
    """Shape and dtype of every logical array by path, such as "float32[4,128]"."""
    leaves = jax.tree_util.tree_leaves_with_path(logical)
    return {path_name(path): f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]" for path, leaf in leaves}


def check_shapes(checkpoint: Path, saved: dict[str, str], wanted: dict[str, str]) -> None:
    """Raise a UsageError that names the first array in which a checkpoint and a model differ."""
    for name in sorted({*saved, *wanted}):
        if saved.get(name) != wanted.get(name):
            raise UsageError(
                f"checkpoint {checkpoint} is of another model: {name} is {saved.get(name, 'absent')} there and"
                f" {wanted.get(name, 'absent')} here: use the model's own flags, another --checkpoint-dir, or"
                " --resume never with an empty one"
            )


def _leave(storage: Storage, leaf: jax.Array) -> Any:
    """What orbax is given for a stored array."""
    if storage.stored_shape == storage.shape:
        return leaf
    if leaf.is_fully_addressable:
        return np.array(storage.crop(np.asarray(jax.device_get(leaf))))
    return np.array(storage.crop(multihost_utils.process_allgather(leaf, tiled=True)))


def _expect(storage: Storage, leaf: Any, sharding: Any) -> Any:
    """What orbax is asked for: an array on the devices where it divides, else one on the host."""
    if storage.stored_shape == storage.shape:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
    return np.empty(leaf.shape, leaf.dtype)


def _enter(storage: Storage, leaf: Any, sharding: Any) -> jax.Array:
    """A restored array as it is stored."""
    return leaf if isinstance(leaf, jax.Array) else put(storage.pad(leaf, np), sharding)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
