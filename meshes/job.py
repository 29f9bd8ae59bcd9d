"""The processes of a job: how they meet, what they tell each other, and how all end when one does.

They meet through `jax.distributed`; small values travel through its key-value store, which lives in the first process.
JAX is first imported when there are others to meet.
"""

import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

from meshes import strict_json
from meshes.cluster import digest
from meshes.environment import Seat
from meshes.errors import UsageError
from meshes.watch import Loss, Process, Watch

PATIENCE = 300.0  # seconds to wait for the others before the first step: their data may take longer to load
TIMEOUT = 2 * int(PATIENCE)  # of JAX, which would abort: we say so before
REMIND = 15.0  # seconds after which a process says that it waits for others
BLAME = 45.0  # seconds in which the watch finds the process because of which a collective failed
NOTICE = 3.0  # seconds that the first process stays, so that the others can still be told


class JobError(RuntimeError):
    """Another process of the job was lost.

    Args:
        message: names it.
        code: exit code for this process.
    """

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


class _Store:
    """The key-value store of `jax.distributed`."""

    def __init__(self) -> None:
        from jax._src.distributed import global_state  # the store has no public name

        self.client: Any = global_state.client

    def put(self, key: str, value: str) -> None:
        """Write a value, over an older one."""
        self.client.key_value_set(f"lopsided/{key}", value, allow_overwrite=True)

    def first(self, key: str, value: str) -> str:
        """Write a value unless there is one; the value that stands."""
        try:
            self.client.key_value_set(f"lopsided/{key}", value)
        except RuntimeError as error:
            if "ALREADY_EXISTS" not in str(error):
                raise
        return str(self.client.key_value_try_get(f"lopsided/{key}"))

    def all(self, prefix: str) -> dict[str, str]:
        """All values whose keys begin so, by the rest of the key."""
        found = self.client.key_value_dir_get(f"lopsided/{prefix}")
        return {key.rpartition("/")[2]: value for key, value in found}


@dataclass(eq=False)
class Job:
    """This process among the processes of its job; alone, every method does what needs no other.

    Args:
        number, count: of this process, and of all.
        processes: who they are.
        program: name in messages.
    """

    number: int = 0
    count: int = 1
    processes: tuple[Process, ...] = ()
    program: str = "train.py"
    _store: _Store | None = None
    _watch: Watch | None = None
    _stop_after: int | None = None

    @property
    def alone(self) -> bool:
        """Whether it is the only process."""
        return self._store is None

    def exchange(self, what: str, value: Any) -> list[Any]:
        """The JSON values of all processes, in order.

        Args:
            what: unique in the run; the same in all processes.
            value: of this process.

        Raises:
            JobError: a process was lost, or did not answer in time.
        """
        if self._store is None:
            return [value]
        self._store.put(f"exchange/{what}/{self.number}", json.dumps(value))
        began = time.monotonic()
        while len(found := self._store.all(f"exchange/{what}/")) < self.count:
            if time.monotonic() - began > PATIENCE:
                late = [str(p) for p in self.processes if str(p.number) not in found] or ["a process"]
                raise JobError(f"no word from {', '.join(late)} about {what} for {PATIENCE:.0f} s")
            time.sleep(0.02)
        return [json.loads(found[str(number)]) for number in range(self.count)]

    def agree(self, what: str, value: Any) -> None:
        """Refuse to go on if the processes differ in a JSON value.

        Raises:
            UsageError: names the first difference.
            JobError: a process was lost.
        """
        if len({*self.exchange(f"digest of {what}", digest(value))}) == 1:
            return
        first, *others = self.exchange(what, value)
        for process, other in zip(self.processes[1:], others, strict=True):
            for where, here, there in strict_json.differences(first, other):
                raise UsageError(
                    f"the processes were started with different {what}: {where} is {here!r} in {self.processes[0]} and"
                    f" {there!r} in {process}: start all with the same"
                )

    def from_first(self, what: str, value: Any) -> Any:
        """The JSON value of the first process."""
        return self.exchange(what, value)[0]

    def name_devices(self, names: list[str]) -> None:
        """Let messages name the devices of each process."""
        named = zip(self.processes, names, strict=True)
        self.processes = tuple(replace(process, devices=devices) for process, devices in named)
        if self._watch is not None:
            self._watch.processes = self.processes

    def mark(self) -> None:
        """The main thread has come a step further."""
        if self._watch is not None:
            self._watch.mark()

    def working_alone(self) -> AbstractContextManager[None]:
        """Work of this process that the others wait for, however long it takes."""
        return nullcontext() if self._watch is None else self._watch.alone()

    def stop_after(self, step: int, asked: int) -> tuple[int, int] | None:
        """Agree on the last step, and on the signal that ended the run; None while nobody asked.

        A process knows the request before it starts the step after the one at which it was made, and no process is
        more than two steps ahead of another: three steps later all know.

        Args:
            step: steps started.
            asked: signal that this process got, or 0.
        """
        if self._store is None:
            return (step, asked) if asked else None
        if asked:
            said = self._store.first("stop/at", json.dumps([step + 3, asked]))
        else:
            found = self._store.all("stop/")
            if not found:
                return None
            said = found["at"]
        at, by = json.loads(said)
        return at, by

    def explain(self, error: Exception) -> None:
        """After an error, leave; if it came from another process that was lost, end with a message that names it."""
        if self._watch is None:
            return
        if _of_a_collective(error):
            self._watch.wait(BLAME)  # which ends this process if it finds one
        self.leave(_line(error), 1)

    def leave(self, message: str = "", code: int = 0) -> None:
        """End the job for this process; a code that is not zero ends it for all others too.

        Args:
            message: why, in one line.
            code: exit code.
        """
        watch, self._watch = self._watch, None  # the first word is the last
        if watch is None:
            return
        watch.leave(message, code)
        watch.close()
        if not code:
            import jax

            jax.distributed.shutdown()
        elif self.number == 0:
            time.sleep(NOTICE)


def meet(seat: Seat, program: str = "train.py") -> Job:
    """Meet the other processes.

    Args:
        seat: of this process.
        program: name in messages.

    Raises:
        JobError: they could not be reached.
    """
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM, which ends a run in good order
    try:
        with _told_while_joining(seat, program):
            jax.distributed.initialize(seat.coordinator, seat.count, seat.number, initialization_timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise JobError(f"process {seat.number} of {seat.count} could not join the job: {reason}") from error
    job = Job(number=seat.number, count=seat.count, program=program, _store=_Store())
    found = job.exchange("processes", asdict(Process.here(seat.number)))
    job.processes = tuple(Process(**about) for about in found)
    job._watch = Watch(_Store(), job.processes, seat.number, lambda loss: _end(job, loss))
    job._watch.start()
    _speak_when_jax_aborts(job)
    return job


@contextmanager
def _told_while_joining(seat: Seat, program: str) -> Iterator[None]:
    """JAX waits for the other processes without a word, deaf to signals, and aborts when it has waited long enough."""
    joined = threading.Event()

    def tell() -> None:
        if joined.wait(REMIND):
            return
        others = f"{program}: process {seat.number} of {seat.count} waits for the others at {seat.coordinator}"
        _say(f"{others}, {PATIENCE:.0f} s at most")
        if not joined.wait(PATIENCE - REMIND):
            _say(f"{others} no longer: start all {seat.count}, and see what those that ended say")
            os._exit(1)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in handlers:
        signal.signal(number, signal.SIG_DFL)
    threading.Thread(target=tell, daemon=True).start()
    try:
        yield
    finally:
        joined.set()
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _end(job: Job, loss: Loss) -> None:
    """End this process at once: its main thread may wait in a collective for ever."""
    _say(f"{job.program}: {loss.message}: {job.processes[job.number]} ends too")
    if job.number == 0:
        time.sleep(NOTICE)
    os._exit(loss.code)


def _of_a_collective(error: Exception) -> bool:
    """Whether JAX raised it while a program ran, as it does when a connection to another process breaks."""
    return type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError")


def _say(line: str) -> None:
    sys.stdout.flush()
    os.write(2, (line + "\n").encode())


_handlers: list[Callable[[int], None]] = []  # C keeps no reference


def _speak_when_jax_aborts(job: Job) -> None:
    """JAX aborts as soon as the first process is gone; say who is, and end with an exit code."""

    @ctypes.CFUNCTYPE(None, ctypes.c_int)
    def aborted(_: int) -> None:
        first = job.processes[0]
        known = "died" if first.gone else "is gone, or another process is"
        _say(f"{job.program}: {first} {known}: {job.processes[job.number]} ends too")
        os._exit(1)

    _handlers.append(aborted)
    ctypes.CDLL(None).signal(signal.SIGABRT, aborted)


@contextmanager
def member(job: Job, start: Callable[[Job], None] = lambda _: None) -> Iterator[Job]:
    """Leave the job at the end; an error tells the others.

    Args:
        job: of which this process is a member.
        start: what is done first.
    """
    try:
        start(job)
        yield job
    except UsageError as error:
        job.leave(_line(error), 2)
        raise
    except JobError as error:
        job.leave(_line(error), error.code)
        raise
    except SystemExit as error:
        job.leave("it was told to stop", error.code if isinstance(error.code, int) else 1)
        raise
    except KeyboardInterrupt:
        job.leave("it was interrupted", 128 + signal.SIGINT)
        raise
    except Exception as error:
        job.explain(error)
        raise
    job.leave()


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__
