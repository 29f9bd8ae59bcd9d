"""Makes a process slow and small: a share of the cores and a limit on memory.

By control groups where they may be written. Elsewhere the share is a duty cycle of SIGSTOP and SIGCONT, and memory is
watched; `docs/design/003-throttling.md` has what was measured.
"""

import hashlib
import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from meshes import leftovers
from meshes.leftovers import Janitor
from meshes.units import format_bytes

GROUP_PERIOD = 0.005  # seconds in which a group gets its share; the kernel deals in slices of 5 ms
DUTY_PERIOD = 0.02  # seconds of one duty cycle
_LEAST_QUOTA = 0.001  # seconds a period, the least that the kernel takes
_TICK = 0.001  # seconds between looks at a process on duty
_MEMBERS = 1.0  # seconds between looks for its children


class Group:
    """A control group for one controller, `cpu` or `memory`, of either version."""

    def __init__(self, path: Path, unified: bool) -> None:
        self.path, self.unified = path, unified

    @staticmethod
    def make(controller: str, part: object, janitor: Janitor) -> "Group | None":
        """A new group below this process's own (or, in version 2, beside it); None where that is not permitted."""
        for parent, unified in _parents(controller):
            path = parent / leftovers.name(part)
            try:
                leftovers.remove_stale("group", parent)
                if unified and controller not in (parent / "cgroup.subtree_control").read_text().split():
                    (parent / "cgroup.subtree_control").write_text(f"+{controller}")
                path.mkdir(exist_ok=True)
            except OSError:
                continue
            janitor.remember("group", path)
            group = Group(path, unified)
            if os.access(path / group.knob(controller), os.W_OK):
                return group
        return None

    def knob(self, controller: str) -> str:
        """The file that holds the controller's limit."""
        names = {"cpu": ("cpu.cfs_quota_us", "cpu.max"), "memory": ("memory.limit_in_bytes", "memory.max")}
        return names[controller][self.unified]

    def write(self, file: str, value: object) -> None:
        """Set one of the group's files."""
        (self.path / file).write_text(str(value))

    def join(self, pid: int) -> None:
        """Move a process, and the children that it will have, into the group."""
        self.write("cgroup.procs", pid)

    def killed(self) -> int:
        """How many processes were killed because the group's memory was full."""
        text = (self.path / ("memory.events" if self.unified else "memory.oom_control")).read_text()
        counts = dict(line.split() for line in text.splitlines())
        return int(counts.get("oom_kill", 0))


class Share(Protocol):
    """A share of the cores, in force or not."""

    def throttle(self, on: bool) -> None:
        """Put the share in force, or lift it."""


class Quota:
    """A share enforced by a control group.

    What it may use it shall get, however many others want the cores: the group's weight is ten processes', and what it
    did not come to use in one period it may use in the next, where the kernel knows bursts.

    Args:
        group: that the process is in.
        cores: the share.
    """

    def __init__(self, group: Group, cores: float) -> None:
        self.group, self.cores = group, cores

    def throttle(self, on: bool) -> None:
        """Put the share in force, or lift it."""
        period = math.ceil(1e6 * max(GROUP_PERIOD, _LEAST_QUOTA / self.cores))
        quota = round(self.cores * period)
        if self.group.unified:
            self.group.write("cpu.weight", 1000 if on else 100)
            self._burst("cpu.max.burst", 0)  # is never more than the quota
            self.group.write("cpu.max", f"{quota if on else 'max'} {period}")
            self._burst("cpu.max.burst", quota if on else 0)
        else:
            self.group.write("cpu.shares", 10240 if on else 1024)
            self.group.write("cpu.cfs_period_us", period)
            self._burst("cpu.cfs_burst_us", 0)
            self.group.write("cpu.cfs_quota_us", quota if on else -1)
            self._burst("cpu.cfs_burst_us", quota if on else 0)

    def _burst(self, file: str, microseconds: int) -> None:
        if (self.group.path / file).exists():
            self.group.write(file, microseconds)


class Pinned:
    """A share whose process keeps to one core while it is in force.

    A scheduler that moves processes about would let two of them meet on a core while another is idle.

    Args:
        share: of the process.
        leader: of the session that the process is.
        core: its number.
    """

    def __init__(self, share: Share, leader: int, core: int) -> None:
        self.share, self.leader, self.core = share, leader, core
        self._all = os.sched_getaffinity(0)

    def throttle(self, on: bool) -> None:
        """Put the share in force, or lift it."""
        for thread in leftovers.threads(self.leader):
            with suppress(OSError):  # it has ended
                os.sched_setaffinity(thread, {self.core} if on else self._all)
        self.share.throttle(on)


def packed(shares: Sequence[float | None], cores: int) -> list[int] | None:
    """A core for each share, so that no core is promised to more than all of its time; None where that is not found.

    Args:
        shares: of a core; None is unlimited.
        cores: how many there are.
    """
    load, place = [0.0] * cores, [0] * len(shares)
    for number, share in sorted(enumerate(shares), key=lambda item: -(item[1] or math.inf)):
        core = load.index(min(load))
        load[core] += share or math.inf
        place[number] = core
    return place if max(load) < 1 + 1e-9 else None


class DutyCycle:
    """A share enforced by stopping a process group whenever it has used what it was due.

    The CPU time is measured, so the share holds for any number of threads. What the process leaves unused is lost, as
    under a control group, but for one period's worth.

    Args:
        leader: of the process group.
        cores: the share.
    """

    def __init__(self, leader: int, cores: float) -> None:
        self.leader, self.cores = leader, cores
        self._lifted = threading.Event()
        self._thread: threading.Thread | None = None

    def throttle(self, on: bool) -> None:
        """Put the share in force, or lift it."""
        if on and self._thread is None:
            self._lifted.clear()
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        elif not on and self._thread is not None:
            self._lifted.set()
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        due = self.cores * DUTY_PERIOD  # CPU seconds a period
        usage = _Usage(self.leader)
        credit, most, before, stopped = due, 2 * due, time.monotonic(), False
        while not self._lifted.is_set():
            now = time.monotonic()
            credit += self.cores * (now - before) - usage.since()
            before = now
            if stopped and credit >= due:
                stopped, most = False, max(2 * due, credit)  # if we wake it late it shall not lose by that
                self._signal(signal.SIGCONT)
            elif not stopped and credit <= 0:
                stopped = True
                self._signal(signal.SIGSTOP)
            if not stopped:
                credit = min(credit, most)
            self._lifted.wait(max((due - credit) / self.cores, _TICK) if stopped else _TICK)
        if stopped:
            self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self.leader, number)
        except ProcessLookupError:  # it has ended
            self._lifted.set()


class GroupMemory:
    """A limit on memory enforced by a control group.

    Args:
        group: that the process is in.
        limit: bytes.
    """

    def __init__(self, group: Group, limit: int) -> None:
        self.group, self.limit = group, limit
        group.write(group.knob("memory"), limit)
        swap, most = ("memory.swap.max", 0) if group.unified else ("memory.memsw.limit_in_bytes", limit)
        if (group.path / swap).exists():
            group.write(swap, most)

    def exceeded(self) -> str:
        """Why the process was killed for its memory; empty if it was not."""
        if not self.group.killed():
            return ""
        return f"probably for its memory: process_memory is {format_bytes(self.limit)}"


class WatchedMemory:
    """A limit on memory kept by looking now and then.

    Args:
        leader: of the process group.
        limit: bytes.
    """

    def __init__(self, leader: int, limit: int) -> None:
        self.leader, self.limit = leader, limit

    def exceeded(self) -> str:
        """Why the process is to be killed, or was, for its memory; empty if it is not."""
        used = sum(_resident(pid) for pid in leftovers.members(self.leader, "group"))
        if used <= self.limit:
            return ""
        return f"for its memory: it used {format_bytes(used)}, process_memory is {format_bytes(self.limit)}"


def achieved(seconds: float, threads: int = 1) -> float:
    """The share of the cores that this process gets when it wants all: CPU time over time of a busy loop.

    Args:
        seconds: how long to measure; many periods of 10 ms.
        threads: as many as the share has cores, rounded up.
    """
    end = time.monotonic() + seconds
    workers = [threading.Thread(target=_busy, args=(end,)) for _ in range(threads)]
    began, used = time.monotonic(), time.process_time()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return (time.process_time() - used) / (time.monotonic() - began)


def _busy(end: float) -> None:
    block = bytes(100_000)  # hashing it takes well under a millisecond, and no lock
    while time.monotonic() < end:
        hashlib.sha256(block).digest()


class _Usage:
    """CPU time of a process group."""

    def __init__(self, leader: int) -> None:
        self.leader = leader
        self._seen: dict[int, float] = {}
        self._looked = -math.inf

    def since(self) -> float:
        """CPU seconds used since the last call; of a process that is new, none."""
        if time.monotonic() - self._looked > _MEMBERS:
            found = leftovers.members(self.leader, "group")
            self._seen = {pid: self._seen.get(pid, _cpu_time(pid)) for pid in found}
            self._looked = time.monotonic()
        now = {pid: _cpu_time(pid) for pid in self._seen}
        used = sum(max(0.0, spent - self._seen[pid]) for pid, spent in now.items())
        self._seen = now
        return used


def _cpu_time(pid: int) -> float:
    """CPU seconds of all threads of a process so far: Linux' clock of that process, exact to the nanosecond."""
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:  # it has ended
        return 0.0


def _resident(pid: int) -> int:
    """Bytes of a process in memory."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0)


def _parents(controller: str, proc: Path = Path("/proc/self")) -> Iterator[tuple[Path, bool]]:
    """Directories where a group with this controller may be made, and whether they are of version 2."""
    try:
        own = [line.split(":", 2) for line in (proc / "cgroup").read_text().splitlines()]
        mounts = [line.split() for line in (proc / "mountinfo").read_text().splitlines()]
    except OSError:
        return
    for _, controllers, path in own:
        for words in mounts:
            root, point, (kind, _, options) = words[3], Path(words[4]), words[words.index("-") + 1 :][:3]
            if kind == "cgroup" and controller in controllers.split(",") and controller in options.split(","):
                yield _below(point, root, path), False
            if kind == "cgroup2" and not controllers:
                here = _below(point, root, path)
                yield here, True
                if here != point:
                    yield here.parent, True


def _below(point: Path, root: str, path: str) -> Path:
    """A group's directory, where only the part of the tree from `root` on is mounted."""
    return point / (path.removeprefix(root) if root != "/" else path).lstrip("/")
