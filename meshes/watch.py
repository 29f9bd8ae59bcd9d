"""Watches the other processes of a job, so that none waits for one that will never answer. No JAX.

Every process shows a sign of life every few seconds: a growing number, how far its main thread has come, and whether
it is at work alone. A process is lost if it says so itself, if its process is gone from this machine, if it stops
showing signs, or if it alone keeps all others from going on.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from meshes import leftovers

PERIOD = 1.0  # seconds between signs of life
SILENT = 20.0  # without a sign of life, a process is lost
STUCK = 40.0  # without progress of anyone, the one that is behind is lost; or STUCK_STEPS of the longest step so far
STUCK_STEPS = 10.0


class Store(Protocol):
    """What all processes of a job can read and write."""

    def put(self, key: str, value: str) -> None:
        """Write a value, over an older one."""

    def all(self, prefix: str) -> dict[str, str]:
        """All values whose keys begin so, by the rest of the key."""


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process of a job.

    Args:
        number: in the job, from 0.
        host, machine, pid: where it runs; `machine` is equal where process numbers mean the same.
        devices: their names, once they are known.
    """

    number: int
    host: str
    machine: str
    pid: int
    devices: str = ""

    @staticmethod
    def here(number: int) -> "Process":
        """This process."""
        return Process(number=number, host=socket.gethostname(), machine=_machine(), pid=os.getpid())

    def __str__(self) -> str:
        devices = f"{self.devices}, " if self.devices else ""
        return f"process {self.number} ({devices}pid {self.pid} on {self.host})"

    @property
    def gone(self) -> bool:
        """Whether it ran on this machine and is no more."""
        return self.machine == _machine() and self.machine != "" and not leftovers.lives(self.pid)


@dataclass(frozen=True, kw_only=True)
class Sign:
    """A sign of life.

    Args:
        beat: grows with every sign.
        mark: how far the main thread has come.
        alone: it is at work that no other process waits for in a collective, such as saving.
    """

    beat: int
    mark: int
    alone: bool


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Why this process must end.

    Args:
        message: names the process that was lost.
        code: exit code for this process.
    """

    message: str
    code: int = 1


class Watch:
    """Shows this process's signs of life and looks for those of the others.

    Args:
        store: shared by all.
        processes: of the job, in order.
        number: of this one.
        lost: called once, in the thread of the watch, with the first loss.
    """

    def __init__(self, store: Store, processes: tuple[Process, ...], number: int, lost: Callable[[Loss], None]) -> None:
        self.store, self.processes, self.number, self.lost = store, processes, number, lost
        self._mark, self._alone, self._beat = 0, 0, 0
        self._signs: dict[int, tuple[Sign, float]] = {}
        self._moved, self._longest = time.monotonic(), 0.0
        self._marks: tuple[int, ...] = ()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End; the others no longer expect signs of life."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def wait(self, seconds: float) -> None:
        """Give the watch time to find who was lost."""
        self._thread.join(seconds)

    def mark(self) -> None:
        """The main thread has come a step further."""
        self._mark += 1

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Work that the others wait for, however long it takes."""
        self._alone += 1
        try:
            yield
        finally:
            self._alone -= 1

    def leave(self, message: str, code: int) -> None:
        """Tell the others that this process ends, and why; an empty message is a good end."""
        self.store.put(f"left/{self.number}", json.dumps({"message": message, "code": code}))

    def look(self, now: float) -> Loss | None:
        """Show a sign of life and look around once.

        Args:
            now: seconds of a clock that only goes forward.
        """
        self._beat += 1
        sign = Sign(beat=self._beat, mark=self._mark, alone=bool(self._alone))
        try:
            self.store.put(f"alive/{self.number}", json.dumps(asdict(sign)))
            left = {int(k): json.loads(v) for k, v in self.store.all("left/").items()}
            alive = {int(k): Sign(**json.loads(v)) for k, v in self.store.all("alive/").items()}
        except Exception as error:  # whatever the store raises, it is in the first process
            return self._store_gone(error)
        return self._left(left) or self._silent(alive, left, now) or self._stuck(alive, left, now)

    def _store_gone(self, error: Exception) -> Loss:
        return Loss(message=f"{self.processes[0]}, which holds the job together, is gone ({type(error).__name__})")

    def _left(self, left: dict[int, Any]) -> Loss | None:
        for number, said in sorted(left.items()):
            if said["code"] and number != self.number:
                return Loss(message=f"{self.processes[number]} ended: {said['message']}", code=said["code"])
        return None

    def _silent(self, alive: dict[int, Sign], left: dict[int, Any], now: float) -> Loss | None:
        for process in self.processes:
            number = process.number
            if number == self.number or number in left:
                continue
            if process.gone:
                return Loss(message=f"{process} died")
            sign, since = self._signs.get(number, (None, now))
            if alive.get(number) != sign or number not in self._signs:
                self._signs[number] = (alive.get(number) or Sign(beat=0, mark=0, alone=False), now)
            elif now - since > SILENT:
                return Loss(message=f"{process} died, hangs or is cut off: no sign of life for {now - since:.0f} s")
        return None

    def _stuck(self, alive: dict[int, Sign], left: dict[int, Any], now: float) -> Loss | None:
        """One is behind the others, nobody has moved for long, and it is not at work alone."""
        here = [alive[p.number] for p in self.processes if p.number in alive and p.number not in left]
        marks = tuple(sign.mark for sign in here)
        if marks != self._marks:
            self._longest = max(self._longest, now - self._moved)
            self._marks, self._moved = marks, now
        patience = max(STUCK, STUCK_STEPS * self._longest)
        waited = now - self._moved
        if waited < patience or min(marks) == max(marks) or any(sign.alone for sign in here):
            return None
        behind = min((p for p in self.processes if p.number in alive), key=lambda p: alive[p.number].mark)
        if behind.number == self.number:
            return None
        return Loss(message=f"{behind} hangs: all others have waited for it for {waited:.0f} s")

    def _run(self) -> None:
        while not self._stop.is_set():
            loss = self.look(time.monotonic())
            if loss is not None and not self._stop.is_set():
                self.lost(loss)
                return
            self._stop.wait(PERIOD)


def _machine() -> str:
    """Names the space in which process numbers mean the same; empty where that is unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
