"""The loop: batches in, metrics out, checkpoints beside; ends cleanly on a signal and loudly on a bad number."""

import importlib.metadata
import json
import math
import platform
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from meshes.plan import Plan
from training import optimizer
from training.batches import Dealer
from training.checkpoint import Checkpoints
from training.config import TrainConfig
from training.data import EvalBatches, TrainStream
from training.evaluation import held_out_loss
from training.metrics import MetricsFile, Reporter
from training.step import Program, State


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
        plan: who does what.
        program: what is compiled.
        stream: batches of training rows.
        batches: rows held out.
        checkpoints: where the state goes.
        state: stored arrays after `done` steps.
        done: steps already done.
        reporter: for people.
        stop: whether to end early.
    """

    config: TrainConfig
    plan: Plan
    program: Program
    stream: TrainStream
    batches: EvalBatches
    checkpoints: Checkpoints
    state: State
    done: int
    reporter: Reporter
    stop: Stop
    _pending: tuple[int, dict[str, jax.Array]] | None = field(default=None, init=False)
    _clock: float = field(default=0.0, init=False)

    def run(self) -> None:
        """Train to the last step, or until asked to stop; evaluate and save on the way.

        Raises:
            TrainingError: the loss or the gradient is not finite; nothing of it is saved.
            CheckpointError: a checkpoint could not be written.
        """
        config, work = self.config, self.plan.workload
        self.dealer = Dealer(self.program.mesh, self.program.tiling, work.microbatch, self.plan.microbatches)
        self._step, self._evaluate = self.program.train_step(), self.program.eval_step()
        rate = optimizer.schedule(config.schedule, config.lr, config.warmup, config.steps)
        self._rates = jax.device_get(jax.jit(jax.vmap(rate))(np.arange(config.steps)))
        self.metrics, self.evaluations = (self._lines(name) for name in ("metrics.jsonl", "evaluations.jsonl"))
        tables, counts = self.program.tables, self.dealer.device_counts
        start, self._clock = self.done, time.monotonic()
        saved = start
        ahead = self.stream.prefetch(self.done, config.steps - self.done, self.dealer.my_rows)
        files = (closing(file) for file in (ahead, self.metrics, self.evaluations, self.checkpoints))
        with ExitStack() as stack, jax.transfer_guard("disallow"):
            for file in files:
                stack.enter_context(file)
            for rows in ahead:
                batch = self.dealer(rows)
                self.state, metrics = self._step(self.state, batch, counts, tables)
                self.done += 1
                self._report((self.done, metrics))
                if config.save_every and self.done % config.save_every == 0:
                    saved = self._save()
                if config.eval_every and self.done % config.eval_every == 0:
                    self._held_out()
                if self.stop.signal:
                    break
            self._report(None)
            if self.done > saved:
                self._save()
            evaluated = self.done == start or (config.eval_every and self.done % config.eval_every == 0)
            if not self.stop.signal and not evaluated:
                self._held_out()

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
        now = time.monotonic()
        seconds, self._clock = now - self._clock, now
        tokens = int(metrics["tokens"])
        if tokens and not all(math.isfinite(metrics[name]) for name in ("loss", "grad_norm")):
            raise TrainingError(
                f"step {step}: loss {metrics['loss']:g}, gradient norm {metrics['grad_norm']:g}: not finite; nothing of"
                f" this step is saved: lower --lr ({self.config.lr:g}) or look at the data"
            )
        loss = metrics["loss"] if tokens else math.nan
        if not tokens:
            self.reporter.say(f"step {step}: no target has weight, the gradient is zero")
        self.metrics.write(
            step=step,
            loss=loss,
            grad_norm=metrics["grad_norm"],
            learning_rate=float(self._rates[step - 1]),
            tokens=tokens,
            step_seconds=seconds,
            tokens_per_second=tokens / seconds,
        )
        self.reporter.step(step, loss, tokens / seconds)

    def _save(self) -> int:
        """Save what is known to be good."""
        self._report(None)
        about = {
            "step": self.done,
            "data": self.stream.state(self.done),
            "config": self.config.to_dict(),
            "plan": json.loads(self.plan.to_json()),
        }
        self.checkpoints.save(self.done, self.state, self.program, about)
        self._clock = time.monotonic()
        return self.done

    def _held_out(self) -> None:
        """Evaluate, unless a signal comes in between: what has been trained is saved first."""
        self._report(None)
        args = (self._evaluate, self.state["params"], self.program.tables, self.dealer, self.batches)
        loss = held_out_loss(*args, stop=lambda: bool(self.stop.signal))
        if loss is None:
            return
        if not math.isfinite(loss):
            raise TrainingError(
                f"step {self.done}: held-out loss {loss:g}: not finite: lower --lr ({self.config.lr:g}) or look at the"
                " data"
            )
        self.evaluations.write(step=self.done, loss=loss, rows=self.batches.row_count)
        self.reporter.say(f"step {self.done:>6}  held-out loss {loss:.4f} over {self.batches.row_count} rows")
        self._clock = time.monotonic()


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
