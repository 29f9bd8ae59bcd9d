"""What a run tells: metrics.jsonl for programs, a progress line for people."""

import json
import math
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class MetricsFile:
    """One JSON object a line; lines after the resumed step are dropped, so that each step stands once.

    Args:
        path: file to write; its directory exists. None writes nothing.
        done: steps that are kept from an earlier part of the run.
    """

    def __init__(self, path: Path | None, done: int) -> None:
        self._file: TextIO | None = None
        if path is None:
            return
        kept = [line for line in _lines(path) if _step(line) <= done] if done else []
        beside = path.with_suffix(".tmp")  # a process that is killed here loses no lines
        beside.write_text("".join(line + "\n" for line in kept))
        beside.replace(path)
        self._file = path.open("a")

    def write(self, **values: Any) -> None:
        """Append one line; numbers that are not finite become null."""
        if self._file is None:
            return
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
        self._file.write(json.dumps(finite) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _step(line: str) -> float:
    """Step of a line; a line that a killed process left half written belongs to no step."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf


class Reporter:
    """Lines every few steps, and a progress bar below them on a terminal.

    Args:
        steps: all steps of the run.
        done: steps already done.
        every: steps between plain lines.
        show: whether this process reports.
    """

    def __init__(self, steps: int, done: int, every: int, show: bool) -> None:
        self.every, self.show, self.done, self.steps = every, show, done, steps
        self.console = Console(highlight=False, soft_wrap=True)
        self._first: tuple[int, float] | None = None  # a step, and when it was done: compilation lies before it
        columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
        self._bar = Progress(*columns, console=self.console, disable=not (show and self.console.is_terminal))
        self._task = self._bar.add_task("compiling", total=steps, completed=done)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """A line for people."""
        if self.show:
            self.console.print(text, markup=False)

    def step(self, step: int, loss: float, rate: str) -> None:
        """A step is done."""
        said = f"loss {loss:.4f}  {rate}"
        self._bar.update(self._task, completed=step, description=said)
        if not (step == 1 or step % self.every == 0 or step == self.steps):
            return
        self.say(f"step {step:>6}/{self.steps}  {said}{self._left(step)}")

    def _left(self, step: int) -> str:
        """Time to the end at the pace since the first step of this process."""
        first, since = self._first or (step, time.monotonic())
        self._first = (first, since)
        if step == first:
            return ""
        return f"  {_duration((time.monotonic() - since) / (step - first) * (self.steps - step))} left"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
