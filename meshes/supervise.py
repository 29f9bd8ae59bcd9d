"""Processes of a launcher while they run: their output in one stream, their failures, and the signals that end them."""

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import IO, TextIO

from meshes import leftovers
from meshes.throttle import GroupMemory, Share, WatchedMemory

STOPPING = (signal.SIGINT, signal.SIGTERM)
WATCH_INTERVAL = 0.1  # seconds between looks at memory that no control group limits
LAST_GRACE = 5.0  # seconds from SIGTERM to SIGKILL


@dataclass(kw_only=True, eq=False)
class Child:
    """A process that was started, in a session of its own.

    Args:
        number: from 0.
        label: its devices.
        process: with pipes for both outputs.
        control: what `meshes.control` in the process speaks to.
        share: of the cores; None is unlimited.
        memory: None is unlimited.
    """

    number: int
    label: str
    process: subprocess.Popen[bytes]
    control: socket.socket
    share: Share | None = None
    memory: GroupMemory | WatchedMemory | None = None
    too_large: str = ""
    ending: bool = False
    streams: list["_Lines"] = field(default_factory=list)

    def __str__(self) -> str:
        return f"process {self.number} ({self.label})"

    def throttle(self, on: bool) -> None:
        """Put its share of the cores in force, or lift it."""
        if self.share is not None:
            self.share.throttle(on)

    def kill(self) -> None:
        """End it and its children at once."""
        self.throttle(False)
        leftovers.kill(self.process.pid)


class Signals:
    """SIGINT and SIGTERM, kept until they are read; a context, for the main thread."""

    def __enter__(self) -> "Signals":
        self.wake, self._write = socket.socketpair()
        for end in (self.wake, self._write):
            end.setblocking(False)
        self._fd_before = signal.set_wakeup_fd(self._write.fileno())
        self._before = {number: signal.signal(number, lambda *_: None) for number in STOPPING}
        return self

    def read(self) -> list[int]:
        """Those that came since the last call."""
        try:
            return [number for number in self.wake.recv(64) if number in STOPPING]
        except BlockingIOError:
            return []

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd_before)
        self.wake.close()
        self._write.close()


class Supervisor:
    """Waits until all children have ended.

    Args:
        children: running.
        signals: of this process.
        grace: seconds that the others have when one fails.
    """

    def __init__(self, children: Sequence[Child], signals: Signals, grace: float) -> None:
        self.running, self.signals, self.grace = [*children], signals, grace
        self.failed: int | None = None  # exit code of the first that failed
        self.stopped_by: int | None = None  # the signal that was forwarded
        self.next_blow: tuple[float, int] | None = None  # when the others get which signal
        self.selector = selectors.DefaultSelector()
        self._watch(signals.wake, self._on_signal)
        for child in children:
            self._watch_child(child)

    def run(self) -> int:
        """The exit code: of the first that failed, 128 + the signal that ended the run, or 0."""
        while self.running:
            watching = any(isinstance(child.memory, WatchedMemory) for child in self.running)
            wait = WATCH_INTERVAL if watching else None
            if self.next_blow is not None:
                wait = min(wait or self.grace, max(0.0, self.next_blow[0] - time.monotonic()))
            for key, _ in self.selector.select(wait):
                if key.fd in self.selector.get_map():  # what came before may have ended its process
                    key.data()
            self._check_memory()
            self._check_time()
        self.selector.close()
        if self.failed is not None:
            return self.failed
        return 0 if self.stopped_by is None else 128 + self.stopped_by

    def _watch(self, source: "IO[bytes] | socket.socket | int", action: Callable[[], None]) -> None:
        self.selector.register(source, selectors.EVENT_READ, action)

    def _watch_child(self, child: Child) -> None:
        for pipe, to in ((child.process.stdout, sys.stdout), (child.process.stderr, sys.stderr)):
            assert pipe is not None
            lines = _Lines(pipe, child.label, to)
            child.streams.append(lines)
            self._watch(pipe, lambda lines=lines: self._on_output(lines))  # type: ignore[misc]
        self._watch(child.control, lambda: self._on_request(child))
        end = os.pidfd_open(child.process.pid)
        self._watch(end, lambda: self._on_end(child, end))

    def _on_output(self, lines: "_Lines") -> None:
        lines.read()
        if lines.ended:
            self.selector.unregister(lines.pipe)

    def _on_request(self, child: Child) -> None:
        try:
            words = child.control.recv(16).split()
            if words:
                child.throttle(words[-1] == b"on")
                child.control.send(b"ok\n")
        except ConnectionError:
            words = []
        if not words:  # the process has closed its end
            self.selector.unregister(child.control)

    def _on_end(self, child: Child, end: int) -> None:
        os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOWAIT)  # its number stays its own for now
        child.kill()
        for lines in child.streams:
            if not lines.ended:
                self.selector.unregister(lines.pipe)
                lines.drain()
            lines.pipe.close()
        self.selector.unregister(end)
        os.close(end)
        if child.control in self.selector.get_map():
            self.selector.unregister(child.control)
        child.control.close()
        self.running.remove(child)
        self._judge(child, child.process.wait())

    def _judge(self, child: Child, code: int) -> None:
        asked = () if self.stopped_by is None else (-self.stopped_by, 128 + self.stopped_by)
        if code == 0 or code in asked or (child.ending and not child.too_large):
            return
        how = f"was killed by signal {-code} ({_name(-code)})" if code < 0 else f"ended with exit code {code}"
        why = child.too_large or (child.memory.exceeded() if child.memory is not None else "")
        _say(f"{child} {how}{f', {why}' if why else ''}")
        if self.failed is None and self.stopped_by is None:
            self.failed = code if code > 0 else 128 - code
        if self.next_blow is None:
            self.next_blow = (time.monotonic() + self.grace, signal.SIGTERM)

    def _on_signal(self) -> None:
        for number in self.signals.read():
            again = self.stopped_by is not None
            self.stopped_by = self.stopped_by or number
            for child in self.running:
                child.throttle(False)  # so that it can save
                if again:
                    child.ending = True
                    child.kill()
                else:
                    child.process.send_signal(number)

    def _check_memory(self) -> None:
        for child in self.running:
            if isinstance(child.memory, WatchedMemory) and not child.too_large:
                child.too_large = child.memory.exceeded()
                if child.too_large:
                    child.kill()

    def _check_time(self) -> None:
        if self.next_blow is None or time.monotonic() < self.next_blow[0] or not self.running:
            return
        number = self.next_blow[1]
        if number == signal.SIGTERM:
            _say(f"{', '.join(map(str, self.running))} still run{'s' * (len(self.running) == 1)}: ended by SIGTERM")
            self.next_blow = (time.monotonic() + LAST_GRACE, signal.SIGKILL)
        else:
            self.next_blow = None
        for child in self.running:
            child.ending = True
            child.throttle(False)
            if number == signal.SIGTERM:
                child.process.send_signal(number)
            else:
                child.kill()


class _Lines:
    """Copies whole lines from a pipe, each with a label."""

    def __init__(self, pipe: IO[bytes], label: str, to: TextIO) -> None:
        self.pipe, self.label, self.to = pipe, label, to
        self.rest, self.ended = b"", False
        os.set_blocking(pipe.fileno(), False)

    def read(self) -> bool:
        """Copy what there is now; whether there was any."""
        try:
            found = os.read(self.pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return False
        self.ended = not found
        *lines, self.rest = (self.rest + found).split(b"\n")
        if self.ended and self.rest:
            lines.append(self.rest)
        if lines:
            self.to.write("".join(f"[{self.label}] {line.decode(errors='replace')}\n" for line in lines))
            self.to.flush()
        return bool(found)

    def drain(self) -> None:
        """Copy all there is, after the process has ended."""
        while self.read():
            pass
        if not self.ended and self.rest:  # somebody else still holds the pipe
            self.to.write(f"[{self.label}] {self.rest.decode(errors='replace')}\n")
            self.to.flush()


def _say(message: str) -> None:
    print(f"launch: {message}", file=sys.stderr, flush=True)


def _name(number: int) -> str:
    return signal.Signals(number).name if number in {*signal.Signals} else "unknown"
