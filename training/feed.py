"""What a run is fed with, whatever the data: batches for steps, and an evaluation of what is held out."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from training.trainable import State

Stop = Callable[[], bool]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Numbers from an evaluation.

    Args:
        values: by name, for the file of evaluations; `loss` is among them.
        said: the same for people.
    """

    values: Mapping[str, float]
    said: str


class Feed(Protocol):
    """Data of a run, dealt by its plan."""

    @property
    def unit(self) -> str:
        """What the loss is a mean over, in the plural: tokens, vertices, graphs."""

    @property
    def rest(self) -> tuple[Any, ...]:
        """Arguments of every step after the batch, on the devices."""

    def prefetch(self, first: int, steps: int) -> Generator[Any, None, None]:
        """Host values of the batches of steps, in order, made ahead of time; to be closed."""

    def place(self, host: Any) -> Any:
        """Device arrays of a batch."""

    def state(self, step: int) -> dict[str, Any]:
        """The place in the data after so many steps: JSON values for a checkpoint."""

    def compile(self, state: State, batch: Any) -> dict[str, Any]:
        """Compile what evaluates, given a batch; the compiled programs by name."""

    def evaluate(self, state: State, stop: Stop) -> Evaluation | None:
        """Evaluate what is held out; None if stopped."""
