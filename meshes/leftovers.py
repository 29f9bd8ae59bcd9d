"""What a launcher would leave behind: processes, control groups, network namespaces; and who removes it.

Run as a program this file is the janitor: a process that outlives the launcher by a moment. It reads what there is to
remove, one `KIND NAME` a line, until the launcher closes the pipe or is killed, and then removes it. For that it is in
a session of its own, deaf to Ctrl-C, and imports nothing of ours.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

PREFIX = "lopsided"
NAMESPACES = Path("/run/netns")
PATIENCE = 5.0  # seconds until a killed process must be gone

Kind = Literal["session", "group", "namespace"]


def name(part: object) -> str:
    """A name for a group or a namespace of this launcher, which tells later whether the launcher lives."""
    return f"{PREFIX}-{os.getpid()}-{_started(os.getpid())}-{part}"


def remove_stale(kind: Kind, folder: Path) -> None:
    """Remove groups or namespaces in a folder whose launcher, and its janitor, were killed. Who is in use stays."""
    for path in folder.glob(f"{PREFIX}-*"):
        words = path.name.split("-")
        if len(words) == 4 and _started(words[1]) != words[2]:
            _rmdir(path) if kind == "group" else remove(kind, path.name)


def members(leader: int, of: Literal["group", "session"] = "session") -> list[int]:
    """Processes that live in the process group or session that `leader` leads, itself included."""
    field = {"group": 2, "session": 3}[of]
    return [int(pid) for pid, stat in _stats() if stat[field] == str(leader) and stat[0] not in "ZX"]


def threads(leader: int) -> list[int]:
    """Numbers of the threads of the processes of a session."""
    found: list[int] = []
    for pid in members(leader):
        with suppress(OSError):  # it has ended
            found += [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    return found


def lives(pid: int) -> bool:
    """Whether a process runs; one that has ended and is not yet waited for does not."""
    return (_stat(pid) or "Z")[0] not in "ZX"


def session(leader: int) -> str:
    """What the janitor calls a session: its number, and when its leader started."""
    return f"{leader}:{_started(leader)}"


def kill(session: int) -> None:
    """Kill every process of a session."""
    for pid in members(session):
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # ended meanwhile, or changed its user
            continue


def remove(kind: Kind, what: str) -> None:
    """Remove a session, a control group or a network namespace; what is gone already is no error."""
    if kind == "session":
        _end_session(*what.split(":"))
    elif kind == "group":
        _until(lambda: _rmdir(Path(what)))
    elif (NAMESPACES / what).exists():
        subprocess.run(["ip", "netns", "delete", what], stderr=subprocess.DEVNULL, check=False)


class Janitor:
    """The launcher's end of the janitor; a context, at whose end all is removed."""

    def __enter__(self) -> "Janitor":
        command = [sys.executable, "-I", "-S", __file__]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )
        return self

    def remember(self, kind: Kind, what: object) -> None:
        """Have this removed at the end."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{kind} {what}\n".encode())
        self._process.stdin.flush()

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    """Remember until the launcher ends, then remove, processes before the groups and namespaces that they are in."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    lines = [line.rstrip("\n").partition(" ") for line in sys.stdin]
    for kind, _, what in sorted(lines, key=lambda line: line[0] != "session"):
        remove(kind, what)  # type: ignore[arg-type]


def _end_session(leader: str, started: str) -> None:
    """Kill a session, unless it ended long ago and its number is another's; while it has members it cannot be."""
    if _started(leader) in (None, started):
        kill(int(leader))
        _until(lambda: not members(int(leader)))


def _stats() -> Iterator[tuple[str, list[str]]]:
    """Number and /proc/PID/stat of every process, the words after its name: state, parent, group, session, ..."""
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and (stat := _stat(entry)):
            yield entry, stat


def _stat(pid: int | str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:  # ended meanwhile
        return []


def _started(pid: int | str) -> str | None:
    """When a process started, in clock ticks since boot; a number that is used again differs in it."""
    stat = _stat(pid)
    return stat[19] if stat else None


def _rmdir(path: Path) -> bool:
    """Remove a directory; whether it is gone."""
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:  # its processes are not all gone yet
        return False
    return True


def _until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not done() and time.monotonic() < end:
        time.sleep(0.01)


if __name__ == "__main__":
    main()
