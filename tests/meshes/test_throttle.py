"""Shares of cores and limits on memory: by control groups where they are permitted, and without them everywhere."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from meshes import control, leftovers, throttle
from meshes.cluster import Cluster, Device, Limits
from meshes.launch import launch
from meshes.leftovers import Janitor
from meshes.throttle import DutyCycle, Group, GroupMemory, Quota

ROOT = Path(__file__).parents[2]
MECHANISMS = {"groups": True, "signals": False}
TRIES = 10  # others may want our cores meanwhile; then a share is not reached, and the nearest of some tries counts
MEASURE = f"""
import contextlib, os, pathlib, sys
with contextlib.suppress(OSError):  # go first, where that is permitted and not done by a group's weight
    os.nice(-15)
    pathlib.Path("/proc/self/autogroup").write_text("-15")
from meshes import control, throttle
share, threads = float(sys.argv[1]), int(sys.argv[2])
control.throttle(True)
for _ in range({TRIES}):
    found = throttle.achieved(1.0, threads)
    print(found)
    if abs(found / share - 1) < 0.05:
        break
"""
ON_AND_OFF = f"""
from meshes import control, throttle
def shares(on, tries):
    control.throttle(on)
    return [throttle.achieved(0.2) for _ in range(tries)]
# On a busy machine a launcher that wakes late lets a process overrun, and pays that back in the next moments.
print(min(shares(True, 3)), max(shares(False, {TRIES})), min(shares(True, 3)))
"""
FILL = """
import time
held = [bytearray(b"x") * 10_000_000 for _ in range(20)]
print("filled")
time.sleep({sleep})
"""


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")


def run(script: str, limits: Limits, *argv: object, cgroups: bool = True) -> int:
    """The exit code of a script in one process."""
    command = [sys.executable, "-S", "-c", script, *map(str, argv)]
    return launch(command, Cluster(devices=(Device(name="a", limits=limits),)), cgroups=cgroups)


@pytest.mark.parametrize("cgroups", MECHANISMS.values(), ids=MECHANISMS)
@pytest.mark.parametrize(("share", "threads"), [(0.2, 1), (0.33, 1), (0.33, 3), (0.5, 1)])
def test_the_share_is_achieved(share: float, threads: int, cgroups: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Within 5 %."""
    assert run(MEASURE, Limits(cpu_share=share), share, threads, cgroups=cgroups) == 0
    found = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert min(abs(one / share - 1) for one in found) < 0.05, found


@pytest.mark.parametrize("cgroups", MECHANISMS.values(), ids=MECHANISMS)
def test_a_process_is_slow_only_while_it_asks(cgroups: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ON_AND_OFF, Limits(cpu_share=0.1), cgroups=cgroups) == 0
    slow, whole, slow_again = map(float, capsys.readouterr().out.split()[1:])
    assert max(slow, slow_again) < 0.13 < whole


@pytest.mark.parametrize("cgroups", MECHANISMS.values(), ids=MECHANISMS)
def test_a_process_that_needs_too_much_memory_is_ended(cgroups: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(FILL.format(sleep=60), Limits(memory=100_000_000), cgroups=cgroups) == 128 + 9
    said = capsys.readouterr().err
    numbers = r"for its memory: (it used \d+ MB, )?process_memory is 100 MB"
    assert re.fullmatch(rf"launch: process 0 \(a\) was killed by signal 9 \(SIGKILL\), (probably )?{numbers}\n", said)


@pytest.mark.parametrize("cgroups", MECHANISMS.values(), ids=MECHANISMS)
def test_a_process_that_fits_is_left_alone(cgroups: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(FILL.format(sleep=0.3), Limits(memory=400_000_000), cgroups=cgroups) == 0
    assert capsys.readouterr() == ("[a] filled\n", "")


def test_without_a_launcher_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.delenv(control.VARIABLE, raising=False)
    monkeypatch.setattr(os, "write", lambda *args: asked.append(args))
    control.throttle(True)
    assert not asked


def test_a_process_may_end_without_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    ask = f"import os\nos.write(int(os.environ['{control.VARIABLE}']), b'on\\n')\nos._exit(0)"
    assert run(ask, Limits(cpu_share=0.5)) == run(ask, Limits(cpu_share=0.5), cgroups=False) == 0
    assert capsys.readouterr() == ("", "")


def test_a_launcher_that_is_gone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.pipe()
    os.close(theirs)
    sink = os.open(os.devnull, os.O_RDWR)
    try:
        monkeypatch.setenv(control.VARIABLE, str(sink))
        with pytest.raises(ConnectionError, match="the launcher is gone"):
            control.throttle(True)
    finally:
        os.close(ours)
        os.close(sink)


def test_groups_of_dead_launchers_are_removed_and_others_stay(tmp_path: Path) -> None:
    own = leftovers.name("0")
    pid, started = own.split("-")[1:3]
    with subprocess.Popen(["true"]) as dead:
        pass
    stale = [f"lopsided-{dead.pid}-{started}-0", f"lopsided-{pid}-1-0"]
    kept = [own, "lopsided-cluster", "another"]
    for name in (*stale, *kept):
        (tmp_path / name).mkdir()
    leftovers.remove_stale("group", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*kept}


def test_a_stale_group_is_removed_at_the_next_start() -> None:
    """Where groups are not permitted, none is made either."""
    with Janitor() as janitor:
        group = Group.make("cpu", "x", janitor)
        if group is not None:
            stale = group.path.with_name(f"lopsided-{os.getpid()}-1-0")
            stale.mkdir()
            again = Group.make("cpu", "x", janitor)
            assert again is not None and not stale.exists() and group.path.exists()
    assert group is None or not group.path.exists()


def test_groups_are_found_in_either_version(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("3:cpu,cpuacct:/docker/me/here\n2:memory:/\n0::/user/me\n")
    (tmp_path / "mountinfo").write_text(
        "30 25 0:26 / /proc rw - proc proc rw\n"
        "31 25 0:27 /docker/me /sys/cpu rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
        "32 25 0:28 / /sys/memory rw - cgroup cgroup rw,memory\n"
        "33 25 0:29 / /sys/unified rw - cgroup2 cgroup2 rw,nsdelegate\n"
    )
    second = [(Path("/sys/unified/user/me"), True), (Path("/sys/unified/user"), True)]
    assert [*throttle._parents("cpu", tmp_path)] == [(Path("/sys/cpu/here"), False), *second]
    assert [*throttle._parents("memory", tmp_path)] == [(Path("/sys/memory"), False), *second]
    assert [*throttle._parents("cpu", tmp_path / "none")] == []


def test_limits_as_the_kernel_reads_them(tmp_path: Path) -> None:
    first, second = Group(tmp_path / "1", unified=False), Group(tmp_path / "2", unified=True)
    for group, swap in ((first, "memory.memsw.limit_in_bytes"), (second, "memory.swap.max")):
        group.path.mkdir()
        (group.path / swap).touch()
        GroupMemory(group, 4096)
        Quota(group, 0.33).throttle(True)
        group.join(7)
    read = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.glob("*/*")}
    assert read == {
        "1/memory.limit_in_bytes": "4096",
        "1/memory.memsw.limit_in_bytes": "4096",
        "1/cpu.cfs_period_us": "5000",
        "1/cpu.cfs_quota_us": "1650",
        "1/cpu.shares": "10240",
        "1/cgroup.procs": "7",
        "2/memory.max": "4096",
        "2/memory.swap.max": "0",
        "2/cpu.max": "1650 5000",
        "2/cpu.weight": "1000",
        "2/cgroup.procs": "7",
    }
    Quota(first, 0.33).throttle(False)
    Quota(second, 0.01).throttle(True)  # a quota under 1 ms is refused by the kernel
    assert [(first.path / f"cpu.{file}").read_text() for file in ("cfs_quota_us", "shares")] == ["-1", "1024"]
    assert (second.path / "cpu.max").read_text() == "1000 100000"
    Quota(second, 0.5).throttle(False)
    assert [(second.path / f"cpu.{file}").read_text() for file in ("max", "weight")] == ["max 5000", "100"]


def test_what_a_period_leaves_is_not_lost(tmp_path: Path) -> None:
    """A quota and a burst never contradict each other on the way: the kernel would refuse that."""
    for unified, file in ((False, "cpu.cfs_burst_us"), (True, "cpu.max.burst")):
        group = Group(tmp_path / file, unified=unified)
        group.path.mkdir()
        (group.path / file).write_text("0")
        Quota(group, 0.33).throttle(True)
        assert (group.path / file).read_text() == "1650"
        Quota(group, 0.33).throttle(False)
        assert (group.path / file).read_text() == "0"


def test_processes_keep_to_cores_that_hold_their_shares() -> None:
    assert throttle.packed([0.8, 0.4, 0.2, 0.2], 2) == [0, 1, 1, 1]
    assert throttle.packed([0.2, 0.4, 0.2, 0.8], 2) == [1, 1, 1, 0]
    assert throttle.packed([0.8, 0.4, 0.2, 0.2], 1) is None
    assert throttle.packed([1.5, 0.5], 2) is None
    assert throttle.packed([0.5, None], 8) is None


def test_a_process_is_pinned_while_its_share_is_in_force() -> None:
    class Nothing:
        def throttle(self, on: bool) -> None:
            """No share."""

    before, core = os.sched_getaffinity(0), max(os.sched_getaffinity(0))
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        pinned = throttle.Pinned(Nothing(), process.pid, core)
        pinned.throttle(True)
        assert os.sched_getaffinity(process.pid) == {core}
        pinned.throttle(False)
        assert os.sched_getaffinity(process.pid) == before
        process.kill()
    pinned.throttle(True)  # of a process that has ended


@pytest.mark.parametrize(("unified", "file"), [(False, "memory.oom_control"), (True, "memory.events")])
def test_a_group_tells_that_its_memory_was_full(unified: bool, file: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
    memory = GroupMemory(Group(tmp_path, unified), 4096)
    assert memory.exceeded() == ""
    (tmp_path / file).write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert memory.exceeded() == "probably for its memory: process_memory is 4.1 KB"


def test_a_duty_cycle_ends_with_its_process() -> None:
    with subprocess.Popen(["sleep", "0.1"], start_new_session=True) as process:
        duty = DutyCycle(process.pid, 0.001)
        duty.throttle(True)
        assert process.wait() == 0
    duty.throttle(False)
    assert not [thread for thread in threading.enumerate() if "DutyCycle" in thread.name or "_run" in thread.name]
