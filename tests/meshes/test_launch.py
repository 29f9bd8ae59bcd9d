"""The launcher: output in whole lines, failures and signals, and that nothing is left behind. Children use no JAX."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from meshes import launch as launch_module
from meshes import leftovers, network, supervise
from meshes.cluster import Cluster, Device, Limits
from meshes.errors import UsageError
from meshes.launch import launch, main
from meshes.leftovers import Janitor

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0  # seconds; all takes less than one, on a machine that is not busy
ME = "import os, signal, sys, time\nme = int(os.environ['JAX_PROCESS_ID'])\n"
SAVES = """
def save(number, _):
    print("saved", flush=True)
    sys.exit(128 + number)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, save)
print("ready", os.getpid(), flush=True)
time.sleep(600)
"""
IGNORES = SAVES.replace("    sys.exit(128 + number)\n", "")
LAUNCHER = """
import sys
from meshes.cluster import Cluster, Device, Limits
from meshes.launch import launch
devices = tuple(Device(name=name, process=i, limits=Limits(cpu_share=0.5)) for i, name in enumerate(("fast", "slow")))
sys.exit(launch([sys.executable, "-S", "-c", sys.argv[1]], Cluster(devices=devices)))
"""


@pytest.fixture
def environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("JAX_", "CUDA_"))}
    return kept | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}


def cluster(*names: str, **fields: Any) -> Cluster:
    """A process for each device."""
    return Cluster(devices=tuple(Device(name=name, process=i, **fields) for i, name in enumerate(names)))


def children(script: str, *names: str, **how: Any) -> int:
    """The exit code of a script in a process for each name."""
    return launch([sys.executable, "-S", "-c", ME + script], cluster(*names), **how)


@contextmanager
def launched(script: str, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A launcher with two processes, in a session of its own; ended at the latest when the context ends."""
    command = [sys.executable, "-c", LAUNCHER, ME + script]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def ready(process: subprocess.Popen[str], count: int = 2) -> list[int]:
    """Wait until so many processes say that they are, with a number each; the numbers."""
    assert process.stdout is not None
    return [int(process.stdout.readline().split()[-1]) for _ in range(count)]


def gone(pids: list[int]) -> bool:
    return not any(stat and stat[0] != "Z" for stat in map(leftovers._stat, pids))


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


def groups_of(launcher: int) -> list[Path]:
    """Control groups and namespaces of a launcher."""
    places = [Path("/sys/fs/cgroup"), leftovers.NAMESPACES]
    return [path for place in places for path in place.rglob(f"{leftovers.PREFIX}-{launcher}-*")]


def test_whole_lines_with_the_devices_names(capsys: pytest.CaptureFixture[str]) -> None:
    script = """
for i in range(50):
    for part in (f"{i} ", "a" * 3000, " z\\n"):
        os.write(1 + i % 2, part.encode())
os.write(1, b"caf\\xc3\\xa9 and no end")
"""
    assert children(script, "fast", "slow") == 0
    said = capsys.readouterr()
    for stream, numbers in ((said.out, range(0, 50, 2)), (said.err, range(1, 50, 2))):
        for name in ("fast", "slow"):
            lines = [line for line in stream.splitlines() if line.startswith(f"[{name}] ")]
            wanted = [f"[{name}] {i} {'a' * 3000} z" for i in numbers]
            assert lines == wanted + ([f"[{name}] café and no end"] if stream is said.out else [])
        assert all(line.startswith(("[fast] ", "[slow] ")) for line in stream.splitlines())


def test_processes_on_cpus_do_not_interrupt_each_other(
    capsys: pytest.CaptureFixture[str], environment: dict[str, str]
) -> None:
    assert children("print(os.sched_getscheduler(0) == os.SCHED_BATCH)", "fast", "slow", environment=environment) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == ["[fast] True", "[slow] True"]


def test_each_process_learns_its_place(capsys: pytest.CaptureFixture[str], environment: dict[str, str]) -> None:
    devices = [Device(name=f"d{i}", process=i // 3, limits=Limits(cpu_share=1.5) if i == 3 else None) for i in range(4)]
    names = ["COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID", "NUM_CPU_DEVICES", "PLATFORMS"]
    script = f"print(*(os.environ['JAX_' + name] for name in {names}), os.environ['NPROC'])"
    command = [sys.executable, "-S", "-c", ME + script]
    assert launch(command, Cluster(devices=tuple(devices)), environment=environment) == 0
    first, second = sorted(capsys.readouterr().out.splitlines())
    assert re.fullmatch(r"\[d0\.\.d2\] 127\.0\.0\.1:\d+ 2 0 3 cpu 3", first)
    assert re.fullmatch(r"\[d3\] 127\.0\.0\.1:\d+ 2 1 1 cpu 2", second)
    assert first.split()[1] == second.split()[1]


def test_each_process_sees_its_own_gpus(capsys: pytest.CaptureFixture[str], environment: dict[str, str]) -> None:
    del environment["JAX_PLATFORMS"]
    gpus = environment | {"CUDA_VISIBLE_DEVICES": "2,5,7"}
    script = "print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ.get('JAX_PLATFORMS'))"
    three = Cluster(devices=tuple(Device(name=f"g{i}", process=i // 2) for i in range(3)))
    assert launch([sys.executable, "-S", "-c", ME + script], three, environment=gpus) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == ["[g0,g1] 2,5 None", "[g2] 7 None"]
    with pytest.raises(UsageError, match=r"4 devices and this machine 3 GPUs: describe those, or emulate .*=cpu"):
        launch(["true"], cluster(*"abcd"), environment=gpus)
    with pytest.raises(UsageError, match="link_rate cannot slow down GPUs"):
        launch(["true"], cluster("a", limits=Limits(link_rate=1e6)), environment=gpus)


def test_the_first_failure_is_named_and_returned(capsys: pytest.CaptureFixture[str]) -> None:
    script = "if me: sys.exit(3)\ntime.sleep(0.5)\nprint('lost process 1')\nsys.exit(4)"
    assert children(script, "fast", "slow") == 3
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        "launch: process 1 (slow) ended with exit code 3",
        "launch: process 0 (fast) ended with exit code 4",
    ]
    assert said.out == "[fast] lost process 1\n"


def test_others_are_ended_when_one_is_killed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "LAST_GRACE", 0.2)
    script = "if me == 2: os.kill(os.getpid(), signal.SIGKILL)\nif me: signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    assert children(script + "time.sleep(600)", "a", "b", "c", grace=0.3) == 128 + 9
    assert capsys.readouterr().err.splitlines() == [
        "launch: process 2 (c) was killed by signal 9 (SIGKILL)",
        "launch: process 0 (a), process 1 (b) still run: ended by SIGTERM",
    ]


def test_a_command_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(["/does/not/exist"], cluster("a")) == 127
    assert "[a] sh: " in capsys.readouterr().err


def test_children_of_a_process_end_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    script = "pid = os.fork()\nif not pid: time.sleep(600)\nprint(pid)"
    assert children(script, "a", "b") == 0
    pids = [int(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    wait_for(lambda: gone(pids))
    assert len(pids) == 2


def test_more_cores_than_there_are() -> None:
    with pytest.raises(
        UsageError, match=r"device fast: cpu_share 4096 is more than the \d+ cores of this machine: wri"
    ):
        launch(["true"], cluster("fast", limits=Limits(cpu_share=4096.0)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_every_process_save(number: signal.Signals, environment: dict[str, str]) -> None:
    with launched(SAVES, environment) as launcher:
        pids = ready(launcher)
        launcher.send_signal(number)
        out, err = launcher.communicate(timeout=PATIENCE)
    assert (launcher.returncode, err) == (128 + number, "")
    assert sorted(out.splitlines()) == ["[fast] saved", "[slow] saved"]
    assert gone(pids) and not groups_of(launcher.pid)


def test_a_second_signal_kills(environment: dict[str, str]) -> None:
    with launched(IGNORES, environment) as launcher:
        pids = ready(launcher)
        launcher.send_signal(signal.SIGINT)
        assert launcher.stdout is not None
        assert sorted(launcher.stdout.readline() for _ in pids) == ["[fast] saved\n", "[slow] saved\n"]
        assert not gone(pids[:1]) and not gone(pids[1:])  # the twin: one signal is not enough
        launcher.send_signal(signal.SIGINT)
        _, err = launcher.communicate(timeout=PATIENCE)
    assert (launcher.returncode, err) == (130, "")
    assert gone(pids) and not groups_of(launcher.pid)


def test_a_process_that_cannot_save_is_named(environment: dict[str, str]) -> None:
    with launched(SAVES.replace("128 + number", "5 if me else 143"), environment) as launcher:
        ready(launcher)
        launcher.send_signal(signal.SIGTERM)
        _, err = launcher.communicate(timeout=PATIENCE)
    assert (launcher.returncode, err) == (143, "launch: process 1 (slow) ended with exit code 5\n")


def test_a_killed_launcher_leaves_nothing(environment: dict[str, str]) -> None:
    forks = "\nos.fork()\n"  # children of the processes are not left either
    with launched(forks + IGNORES, environment) as launcher:
        pids = ready(launcher, 4)
        launcher.kill()
        launcher.communicate(timeout=PATIENCE)  # the janitor holds stderr until it is done
    assert launcher.returncode == -signal.SIGKILL and len({*pids}) == 4
    wait_for(lambda: gone(pids))
    wait_for(lambda: not groups_of(launcher.pid))


def test_a_session_number_that_is_used_again_is_left_alone() -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as other:
        leftovers.remove("session", f"{other.pid}:1")
        assert not gone([other.pid])
        leftovers.remove("session", leftovers.session(other.pid))
        assert other.wait() == -signal.SIGKILL


def test_nothing_runs_on_when_nobody_reads(train: Path, environment: dict[str, str]) -> None:
    train.write_text("import time\nwhile True:\n    print('x' * 1000)\n    time.sleep(0.01)\n")
    script = "import sys\nfrom meshes import launch\nlaunch.TRAIN = sys.argv[1]\nsys.exit(launch.main(sys.argv[2:]))"
    command = [sys.executable, "-c", script, str(train), "--processes", "2", "--"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as launcher:
        assert launcher.stdout is not None and launcher.stdout.readline().startswith("[process")
        launcher.stdout.close()
        assert launcher.wait(PATIENCE) == 141
        assert launcher.stderr is not None and launcher.stderr.read() == ""


COMMAND_LINES: dict[str, tuple[list[str], str]] = {
    "nothing": ([], "one of the arguments --cluster --processes is required: flags of train.py come after --"),
    "no_flags": (["--processes", "2"], "no -- and flags of train.py: flags of train.py come after --"),
    "missing": (["--cluster", "none.toml", "--"], "cluster file none.toml does not exist: check the path"),
    "both": (["--cluster", "a", "--processes", "2", "--"], "not allowed with argument --cluster"),
    "zero": (["--processes", "0", "--"], "--processes is '0': write a whole number, 1 or more"),
    "text": (["--processes", "two", "--"], "--processes is 'two': write a whole number, 1 or more"),
    "early": (["--processes", "2", "--steps", "5"], "unrecognized arguments: --steps 5: flags of train.py come after"),
}


@pytest.mark.parametrize("name", COMMAND_LINES)
def test_mistakes_are_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv, message = COMMAND_LINES[name]
    assert main(argv) == 2
    said = capsys.readouterr()
    assert said.out == "" and re.fullmatch(rf"launch: .*{re.escape(message)}.*\n", said.err)


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program instead of train.py that says how it is started."""
    path = tmp_path / "train.py"
    path.write_text(
        "import os, sys\nfrom meshes import control\n"
        "control.throttle(True)\nprint(os.environ['NPROC'], *sys.argv[1:])\n"
    )
    monkeypatch.setattr(launch_module, "TRAIN", path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    return path


def test_flags_reach_the_program(train: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = train.parent / "cluster.toml"
    file.write_text('[[devices]]\nname = "a"\ncount = 2\ncpu_share = 1.5\ndevices_per_process = 2\n')
    for argv, said in {
        ("--processes", "2", "--", "--steps", "3"): ["[process0] 1 --steps 3", "[process1] 1 --steps 3"],
        ("--processes", "1", "--"): ["[process0] 1"],
        ("--cluster", f"{file}", "--", "--steps", "--"): [f"[a0,a1] 2 --cluster {file} --steps --"],
        ("--cluster", f"{file}", "--", "--cluster=b"): ["[a0,a1] 2 --cluster=b"],
        ("--cluster", f"{file}", "--", "--cluster", "b"): ["[a0,a1] 2 --cluster b"],
        ("--no-throttle", "--cluster", f"{file}", "--", "--cluster", "b"): ["[a0,a1] 2 --cluster b"],
    }.items():
        assert main(argv) == 0
        assert sorted(capsys.readouterr().out.splitlines()) == said


def test_a_slow_link_is_slow_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """5 MB at 10 MB/s take half a second at least, but for what passes in a burst; unthrottled they do not."""
    script = """
import socket
address = os.environ["JAX_COORDINATOR_ADDRESS"].rsplit(":", 1)
if me:
    for _ in range(1000):
        try:
            link = socket.create_connection(address)
            break
        except OSError:
            time.sleep(0.01)
    link.sendall(bytes(5_000_000))
else:
    server = socket.create_server(("", int(address[1])))
    link, _ = server.accept()
    print(socket.gethostname(), address[0])
    began, size = time.monotonic(), 0
    while got := len(link.recv(1 << 16)):
        size += got
    print(size, time.monotonic() - began)
"""
    command = [sys.executable, "-S", "-c", ME + script]
    limited = cluster("a", "b", limits=Limits(link_rate=1e7))
    try:
        with Janitor() as janitor:
            network.build([None], janitor)
    except UsageError as missing:
        with pytest.raises(UsageError, match=re.escape(str(missing)[:20])):
            launch(command, limited)
        return
    assert launch(command, limited) == 0
    (_, name, address), (_, size, seconds) = map(str.split, capsys.readouterr().out.splitlines())
    assert name == address == "10.77.0.1" and int(size) == 5_000_000 and float(seconds) > 0.9 * 0.5
    assert not [*leftovers.NAMESPACES.glob(f"{leftovers.PREFIX}-{os.getpid()}-*")]
    for _ in range(5):  # of which one will not meet a machine so busy that it takes as long without a limit
        assert launch(command, limited, throttle=False) == 0
        seconds = capsys.readouterr().out.split()[-1]
        if float(seconds) < 0.9 * 0.5:
            break
    assert float(seconds) < 0.9 * 0.5


def test_a_link_that_cannot_be_slowed_down_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 1000)
        with pytest.raises(UsageError, match="link_rate needs network namespaces, and root's rights to make them: rem"):
            launch(["true"], cluster("a", limits=Limits(link_rate=1e6)))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match=r"and ip and tc and nsenter and unshare \(Debian: iproute2, util-linux\)"):
        launch(["true"], cluster("a", limits=Limits(link_rate=1e6)))
