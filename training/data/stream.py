"""Which rows make the batch of a step: a function of seed and step alone, whoever asks and how often.

The rows of an epoch are shuffled, epochs follow each other without a gap, and batches are cut from that endless order.
The place in it is counted in rows, so that a run goes on with another batch size from the rows it has not seen.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from meshes.errors import UsageError
from training.data.packing import PADDING, PackedRows, Rows

BUFFERED = 2  # batches that are ready ahead of time

T = TypeVar("T")
Numbers = Sequence[int] | np.ndarray


class TrainStream:
    """The batches of a training run.

    Args:
        source: rows for training.
        seed: of the order, 0 to 2**32 - 1.
        batch_size: rows in a step, over the whole mesh.
        start_step: the first step that this stream gives.
        start_row: rows seen before that step; None: `start_step` batches of this size.
    """

    def __init__(
        self, source: PackedRows, *, seed: int, batch_size: int, start_step: int = 0, start_row: int | None = None
    ) -> None:
        self.source = source
        self.seed = seed
        self.batch_size = batch_size
        self.start_step = start_step
        self.start_row = start_step * batch_size if start_row is None else start_row
        self._order = shuffled(len(source), seed)

    def rows(self, step: int, numbers: Numbers) -> Rows:
        """Rows of the batch of a step.

        Args:
            step: at least `start_step`.
            numbers: which rows of the batch, 0 to batch_size - 1, in any order: what this process's devices need.
        """
        return self.source.take(self.row_ids(step, numbers))

    def row_ids(self, step: int, numbers: Numbers) -> np.ndarray:
        """Numbers of those rows in the source, int64."""
        first = self.seen(step)
        return np.array([self._order[first + int(n)] for n in _numbers(numbers, self.batch_size)], np.int64)

    def seen(self, step: int) -> int:
        """Rows seen before a step."""
        if step < self.start_step:
            raise IndexError(f"step {step} is before {self.start_step}, where this stream starts")
        return self.start_row + (step - self.start_step) * self.batch_size

    def epoch(self, step: int) -> int:
        """The epoch, from 0, in which the batch of a step begins."""
        return self.seen(step) // len(self.source)

    def state(self, step: int) -> dict[str, Any]:
        """What a checkpoint keeps after `step` steps: JSON values."""
        return {"rows_seen": self.seen(step), **_identity(self.source, self.seed)}

    def prefetch(self, first: int, steps: int, numbers: Numbers) -> Generator[Rows, None, None]:
        """Rows of the steps from `first` on, in order, made ahead of time by a thread.

        Close the generator to stop early; the thread ends with it.
        """
        return prefetch(lambda step: self.rows(step, numbers), first, steps)


def shuffled(count: int, seed: int) -> Any:
    """Numbers below `count`, each once an epoch, epochs without end; by place in that order."""
    import grain  # which imports JAX: not before the devices are set up

    return grain.MapDataset.range(count).shuffle(seed=seed).repeat()


def resume(source: PackedRows, state: dict[str, Any], *, seed: int, batch_size: int, step: int) -> TrainStream:
    """The stream that goes on from a checkpoint's state, after `step` steps.

    Errors:
        UsageError: the data, the seed or the length of rows differ from the checkpoint's.
    """
    check_state(source, state, seed=seed)
    return TrainStream(source, seed=seed, batch_size=batch_size, start_step=step, start_row=int(state["rows_seen"]))


def check_state(source: PackedRows, state: dict[str, Any], *, seed: int) -> None:
    """Refuse a checkpoint whose order of rows this data set does not have."""
    check_identity(state, _identity(source, seed))


def check_identity(state: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse a checkpoint's place in data that are not these or come in another order.

    Args:
        state: what the checkpoint keeps.
        now: the fingerprint and the name of the data, and flags that fix the order.

    Raises:
        UsageError: names the first difference.
    """
    if state.get("fingerprint") != now["fingerprint"]:
        raise UsageError(
            f"the checkpoint was trained on {state.get('data')} (fingerprint {state.get('fingerprint')}), but --data is"
            f" {now['data']} (fingerprint {now['fingerprint']}): give the same data, or begin anew with --resume never"
        )
    for key, value in now.items():
        if key not in ("fingerprint", "data") and state.get(key) != value:
            flag = f"--{key.replace('_', '-')}"
            raise UsageError(
                f"{flag} {value}, but the checkpoint has {state.get(key)}, which fixes the order of the data:"
                f" give {flag} {state.get(key)}, or begin anew with --resume never"
            )


def _identity(source: PackedRows, seed: int) -> dict[str, Any]:
    return {"seed": seed, "seq_len": source.seq_len, "fingerprint": source.fingerprint, "data": source.name}


@dataclass(frozen=True, kw_only=True, eq=False)
class EvalBatches:
    """Held-out rows, each once, in batches; the last one is filled up with rows of weight 0.

    Args:
        source: rows held out.
        batch_size: rows in a batch, over the whole mesh.
        limit: at most so many rows, spread evenly over all; 0: all.
    """

    source: PackedRows
    batch_size: int
    limit: int = 0

    @property
    def row_count(self) -> int:
        """Rows that are evaluated."""
        return min(self.limit, len(self.source)) if self.limit else len(self.source)

    def __len__(self) -> int:
        return -(-self.row_count // self.batch_size)

    def rows(self, batch: int, numbers: Numbers) -> Rows:
        """Rows of a batch, as in `TrainStream.rows`."""
        if not 0 <= batch < len(self):
            raise IndexError(f"batch {batch} of {len(self)}")
        at = batch * self.batch_size + _numbers(numbers, self.batch_size)
        spread = at * len(self.source) // self.row_count
        return self.source.take(np.where(at < self.row_count, spread, PADDING))

    def prefetch(self, numbers: Numbers) -> Generator[Rows, None, None]:
        """Rows of all batches, as in `TrainStream.prefetch`."""
        return prefetch(lambda batch: self.rows(batch, numbers), 0, len(self))


def _numbers(numbers: Numbers, batch_size: int) -> np.ndarray:
    wanted = np.asarray(numbers, np.int64)
    if wanted.size and not (wanted.min() >= 0 and wanted.max() < batch_size):
        raise IndexError(f"rows {wanted.tolist()} of a batch of {batch_size}")
    return wanted


def prefetch(make: Callable[[int], T], first: int, count: int) -> Generator[T, None, None]:
    """`make(first)`, `make(first + 1)`, ... in order, `count` of them, made ahead of time by one thread."""
    import grain

    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=BUFFERED)
    ahead: Iterator[T] = iter(grain.MapDataset.range(first, first + count).map(make).to_iter_dataset(options))
    try:
        yield from ahead
    finally:
        ahead.close()  # type: ignore[attr-defined]
