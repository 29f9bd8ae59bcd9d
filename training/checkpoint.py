"""Checkpoints: logical, unpadded, independent of the plan; asynchronous; written by orbax.

Arrays whose cut axis divides are saved from the devices as they are. The others are cropped on the host, one after
another, and padded again for the plan that restores them.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from meshes.errors import UsageError
from sharding import rules
from sharding.rules import Storage, path_name
from training.quiet import quieten
from training.trainable import State, Trainable, put

ABOUT = Path("about", "metadata")  # where orbax puts the JSON values in the directory of a step
KEPT = ("data", "config", "plan", "shapes")  # what they must hold
REMOVE = "remove it to go on from the one before"


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
        """Step of the newest complete checkpoint, or None.

        An older one may be in parts, by a process that was ended while it removed it.

        Raises:
            UsageError: the newest thing with a number for a name is no checkpoint.
        """
        if not self.directory.is_dir():
            return None
        numbered = [path for path in self.directory.iterdir() if path.name.isdecimal()]
        newest = max(numbered, key=lambda path: int(path.name), default=None)
        if newest is None:
            return None
        if not (newest / ABOUT).is_file():
            raise UsageError(f"{newest} is no checkpoint of this program: remove it, or give another --checkpoint-dir")
        return int(newest.name)

    def about(self, step: int) -> dict[str, Any]:
        """What was saved beside the arrays: position in the data, configuration, plan, shapes.

        Raises:
            UsageError: it cannot be read.
        """
        path = self.directory / str(step)
        try:
            about = json.loads((path / ABOUT).read_text())
        except (OSError, ValueError) as error:
            raise UsageError(f"checkpoint {path} is damaged ({_one_line(error)}): {REMOVE}") from None
        if not isinstance(about, dict) or not all(isinstance(about.get(key), dict) for key in KEPT):
            raise UsageError(f"checkpoint {path} is damaged (no {', '.join(KEPT)} in {ABOUT}): {REMOVE}")
        return about

    def save(self, step: int, state: State, program: Trainable, about: dict[str, Any]) -> None:
        """Start saving; the previous save must have ended well.

        Args:
            step: number of steps done.
            state: stored arrays.
            program: knows how they are stored.
            about: JSON values to save beside them.

        Raises:
            CheckpointError: a value is not finite, this save could not start, or the one before it failed.
        """
        self._check_finite(step, state)
        logical = rules.apply(_leave, program.stored, state)
        about = {**about, "shapes": shapes(program.logical)}
        args = ocp.args.Composite(state=ocp.args.StandardSave(logical), about=ocp.args.JsonSave(about))
        try:
            saving = self._open().save(step, args=args)
        except Exception as error:
            raise CheckpointError(f"cannot save step {step} in {self.directory}: {_one_line(error)}") from error
        if not saving:
            raise CheckpointError(f"cannot save step {step} in {self.directory}: it holds a later step")

    def wait(self) -> None:
        """Block until the last save is on disk.

        Raises:
            CheckpointError: it failed.
        """
        if self._manager is not None:
            self._finish(self._manager.wait_until_finished)

    def close(self) -> None:
        """Wait and release orbax's threads.

        Raises:
            CheckpointError: the last save failed.
        """
        if self._manager is not None:
            self.wait()
            self._finish(self._manager.close)

    def check(self, step: int, program: Trainable) -> None:
        """Raise a UsageError if a checkpoint is of another model."""
        check_shapes(self.directory / str(step), self.about(step)["shapes"], shapes(program.logical))

    def restore(self, step: int, program: Trainable) -> State:
        """The state of a checkpoint, stored for this program's mesh.

        Raises:
            UsageError: the checkpoint is of another model, or damaged.
        """
        self.check(step, program)
        wanted = rules.apply(_expect, program.stored, program.logical, program.shardings)
        args = ocp.args.Composite(state=ocp.args.StandardRestore(wanted))
        try:
            logical = self._open().restore(step, args=args)["state"]
        except Exception as error:
            path = self.directory / str(step)
            raise UsageError(f"checkpoint {path} is damaged ({_one_line(error)}): {REMOVE}") from error
        return rules.apply(_enter, program.stored, logical, program.shardings)

    def _finish(self, finish: Callable[[], None]) -> None:
        try:
            finish()
        except Exception as error:
            raise CheckpointError(f"cannot save in {self.directory}: {_one_line(error)}") from error

    def _check_finite(self, step: int, state: State) -> None:
        """A step whose loss was finite may still leave values that are not."""
        for path, finite in jax.tree_util.tree_leaves_with_path(jax.device_get(_all_finite(state))):
            if not finite:
                raise CheckpointError(f"step {step} is not saved: {path_name(path)} is not finite: lower --lr")

    def _open(self) -> ocp.CheckpointManager:
        if self._manager is None:
            quieten()
            options = ocp.CheckpointManagerOptions(
                max_to_keep=self.keep,
                create=True,
                enable_async_checkpointing=True,
                async_options=ocp.AsyncOptions(create_directories_asynchronously=False),  # else a failure is waited for
                cleanup_tmp_directories=True,
            )
            self._manager = ocp.CheckpointManager(self.directory, options=options)
        return self._manager


@jax.jit
def _all_finite(state: State) -> Any:
    """Whether every value of an array is finite, for each array of a state."""
    return jax.tree.map(lambda leaf: jnp.all(jnp.isfinite(leaf)), state)


def shapes(logical: Any) -> dict[str, str]:
    """Shape and dtype of every logical array by path, such as "float32[4,128]"."""
    leaves = jax.tree_util.tree_leaves_with_path(logical)
    return {path_name(path): f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]" for path, leaf in leaves}


def check_shapes(checkpoint: Path, saved: dict[str, str], wanted: dict[str, str]) -> None:
    """Raise a UsageError that names the first array in which a checkpoint and a model differ."""
    for name in sorted({*saved, *wanted}, key=lambda name: (not name.startswith("params/"), name)):
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
    """What an exception says; of a long text the two ends, of which the last one names the cause."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 400 else f"{text[:100]} ... {text[-300:]}"
