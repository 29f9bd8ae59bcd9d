"""The loop: batches in, metrics out, checkpoints beside; ends cleanly on a signal and loudly on a bad number."""

import importlib.metadata
import json
import math
import platform
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from meshes import control
from meshes.errors import UsageError
from meshes.job import Job
from meshes.plan import Plan
from sharding import agreement
from training import optimizer
from training.checkpoint import Checkpoints
from training.comparison import Comparer
from training.config import TrainConfig
from training.feed import Feed
from training.metrics import MetricsFile, Reporter
from training.trainable import State, Trainable


class TrainingError(RuntimeError):
    """The run cannot go on; its last good checkpoint stands."""


@dataclass
class Stop:
    """A request to stop, from SIGTERM or Ctrl-C: the step is finished and saved, then the program ends."""

    signal: int = 0

    @property
    def exit_code(self) -> int:
        """128 + the signal, as shells have it; 0 without one."""
        return 128 + self.signal if self.signal else 0


@contextmanager
def stopping() -> Iterator[Stop]:
    """Turn the first SIGTERM or SIGINT into a request; a second one ends the process at once."""
    stop = Stop()

    def ask(number: int, _: Any) -> None:
        stop.signal = number
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(eq=False)
class Training:
    """A run from its first (or resumed) step to its last.

    Args:
        config: the flags, directories resolved.
        job: this process among those of the run.
        plan: who does what.
        program: what is compiled.
        feed: batches and what is held out.
        checkpoints: where the state goes.
        state: stored arrays after `done` steps.
        done: steps already done.
        reporter: for people.
        comparer: measures beside the steps; None where devices share cores, so that it would say nothing.
        stop: whether to end early.
    """

    config: TrainConfig
    job: Job
    plan: Plan
    program: Trainable
    feed: Feed
    checkpoints: Checkpoints
    state: State
    done: int
    reporter: Reporter
    comparer: Comparer | None
    stop: Stop
    _pending: tuple[int, dict[str, jax.Array]] | None = field(default=None, init=False)
    _clock: float = field(default=0.0, init=False)
    _seconds: list[float] = field(default_factory=list, init=False)

    def run(self) -> None:
        """Train to the last step, or until asked to stop; evaluate and save on the way.

        Raises:
            TrainingError: the loss or the gradient is not finite; nothing of it is saved.
            CheckpointError: a checkpoint could not be written.
        """
        config = self.config
        rate = optimizer.schedule(config.schedule, config.lr, config.warmup, config.steps)
        self._rates = jax.device_get(jax.jit(jax.vmap(rate))(np.arange(config.steps)))
        self.metrics, self.evaluations = (self._lines(name) for name in ("metrics.jsonl", "evaluations.jsonl"))
        start = saved = self.done
        ahead = self.feed.prefetch(self.done, config.steps - self.done)
        files = (closing(file) for file in (ahead, self.metrics, self.evaluations, self.checkpoints))
        with ExitStack() as stack, jax.transfer_guard("disallow"):
            for file in files:
                stack.enter_context(file)
            for host in ahead:
                batch = self.feed.place(host)
                if self.done == start:
                    self._compile(batch)
                self.state, metrics = self._step(self.state, batch, *self.feed.rest)
                self.done += 1
                self.job.mark()
                self._report((self.done, metrics))
                if config.save_every and self.done % config.save_every == 0:
                    saved = self._save()
                if config.eval_every and self.done % config.eval_every == 0:
                    self._held_out()
                if self._last():
                    break
            self._report(None)
            if self.done > saved:
                self._save()
            if not self.stop.signal:
                self._compare_at_end()
            evaluated = self.done == start or (config.eval_every and self.done % config.eval_every == 0)
            if not self.stop.signal and not evaluated:
                self._held_out()
            control.throttle(False)

    def _compile(self, batch: Any) -> None:
        """Compile the programs, and make sure that all processes will run the same collectives."""
        self._step = self.program.train_step().lower(self.state, batch, *self.feed.rest).compile()
        compiled = {"training step": self._step, **self.feed.compile(self.state, batch)}
        if not self.job.alone:
            for name, program in compiled.items():
                agree(self.job, name, agreement.collectives(program))
        if self.comparer is not None:
            self.comparer.prepare()
        self.job.exchange("compiled", True)
        control.throttle(True)
        self._clock = time.monotonic()

    def _last(self) -> bool:
        """Whether the run ends with this step because a process was asked to stop."""
        last = self.job.stop_after(self.done, self.stop.signal)
        if last is not None:
            self.stop.signal = last[1]
        return last is not None and self.done >= last[0]

    def _lines(self, name: str) -> MetricsFile:
        """A file of the run directory, written by the first process."""
        assert self.config.run_dir is not None, "directories are resolved"
        return MetricsFile(self.config.run_dir / name if jax.process_index() == 0 else None, self.done)

    def _report(self, latest: tuple[int, dict[str, jax.Array]] | None) -> None:
        """Fetch the step before, which the devices have ended while the latest was being prepared."""
        pending, self._pending = self._pending, latest
        if pending is None:
            return
        step, metrics = pending[0], {name: float(value) for name, value in jax.device_get(pending[1]).items()}
        self.job.mark()
        now = time.monotonic()
        seconds, self._clock = now - self._clock, now
        self._seconds.append(seconds)
        weight, unit = int(metrics["weight"]), self.feed.unit
        if weight and not all(math.isfinite(metrics[name]) for name in ("loss", "grad_norm")):
            raise TrainingError(
                f"step {step}: loss {metrics['loss']:g}, gradient norm {metrics['grad_norm']:g}: not finite; nothing of"
                f" this step is saved: lower --lr ({self.config.lr:g}) or look at the data"
            )
        loss = metrics["loss"] if weight else math.nan
        if not weight:
            self.reporter.say(f"step {step}: no target has weight, the gradient is zero")
        self.metrics.write(
            step=step,
            loss=loss,
            grad_norm=metrics["grad_norm"],
            learning_rate=float(self._rates[step - 1]),
            **{unit: weight, "step_seconds": seconds, f"{unit}_per_second": weight / seconds},
            **self._compared(step),
        )
        self.reporter.step(step, loss, f"{weight / seconds:,.0f} {unit}/s")

    def _compared(self, step: int) -> dict[str, Any]:
        """Every so many steps, what the plan predicted and what is measured now."""
        every = self.config.compare_every
        if self.comparer is None or not every or step % every:
            return {}
        found = self.comparer.compare(f"at step {step}", statistics.median(self._seconds))
        self._seconds.clear()
        self._clock = time.monotonic()
        return {"plan": asdict(found)}

    def _compare_at_end(self) -> None:
        """Tell how the plan came true."""
        seconds = self._seconds[1:] or self._seconds
        if self.comparer is None or not seconds:
            return
        for line in self.comparer.compare("at the end", statistics.median(seconds)).lines():
            self.reporter.say(line)

    def _save(self) -> int:
        """Save what is known to be good."""
        self._report(None)
        about = {
            "step": self.done,
            "data": self.feed.state(self.done),
            "config": self.config.to_dict(),
            "plan": json.loads(self.plan.to_json()),
        }
        with self.job.working_alone():
            self.checkpoints.save(self.done, self.state, self.program, about)
        self._clock = time.monotonic()
        return self.done

    def _held_out(self) -> None:
        """Evaluate, unless a signal comes in between: what has been trained is saved first."""
        self._report(None)
        found = self.feed.evaluate(self.state, lambda: self.job.alone and bool(self.stop.signal))
        if found is None:
            return
        if not math.isfinite(loss := found.values["loss"]):
            raise TrainingError(
                f"step {self.done}: held-out loss {loss:g}: not finite: lower --lr ({self.config.lr:g}) or look at the"
                " data"
            )
        self.evaluations.write(step=self.done, **found.values)
        self.reporter.say(f"step {self.done:>6}  {found.said}")
        self._clock = time.monotonic()


def agree(job: Job, name: str, mine: tuple[agreement.Collective, ...]) -> None:
    """Refuse to run a program whose collectives differ between processes: it would hang.

    Raises:
        UsageError: names the first collective that differs.
    """
    if len({*job.exchange(f"digest of the collectives of the {name}", agreement.digest(mine))}) == 1:
        return
    found = job.exchange(f"collectives of the {name}", agreement.to_json(mine))
    lists = {str(p): agreement.from_json(t) for p, t in zip(job.processes, found, strict=True)}
    if difference := agreement.first_difference(lists):
        raise UsageError(f"{name}: {difference}")


def write_records(run_dir: Path, config: TrainConfig, plan: Plan) -> None:
    """The configuration, the plan and the versions, beside the metrics.

    Raises:
        OSError: the directory or a file cannot be written.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "config.toml").write_text(config.to_toml())
    plan.save(run_dir / "plan.json")
    packages = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")
    versions = {name: importlib.metadata.version(name) for name in packages}
    (run_dir / "versions.json").write_text(json.dumps({"python": platform.python_version(), **versions}, indent=2))
