"""Several processes, started as people start them: the numbers of one device; one message and no hang at a failure."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import PATIENCE, ROOT, losses, succeed

WORKER = ROOT / "tests" / "job_worker.py"
MODEL = shlex.split(
    "--layers 2 --d-model 32 --heads 4 --kv-heads 2 --d-ff 64 --seq-len 64 --batch-size 8 --microbatch 2"
    " --eval-rows 4 --sample= --warmup 2 --profile never"
)
PLANS = {
    "even": (2, "--speeds 1,1 --attention context --data-groups 1"),
    "context": (2, "--speeds 3,1 --attention context --data-groups 1 --placement specialized"),
    "ring": (2, "--speeds 3,1 --kv ring --data-groups 1 --placement specialized"),
    "switched": (3, "--speeds 3,1,1 --attention context --data-groups 1 --placement switched"),
    "head": (3, "--speeds 2,1,1 --attention head --data-groups 1 --placement specialized"),
    "hybrid": (4, "--speeds 4,2,1,1 --attention hybrid --data-groups 1 --placement specialized"),
    "data": (4, "--speeds 4,2,1,1 --data-groups 2 --attention context --placement specialized"),
}
STEPS = 10
LOSS = 1e-3  # of twenty fp32 steps, which sum in another order in every plan; the first is within 1e-5


def flags(plan: str, run: Path, more: str = "") -> list[str]:
    count, how = PLANS[plan]
    return [*MODEL, "--devices", str(count), *shlex.split(how), "--run-dir", str(run), *shlex.split(more)]


def launched(count: int, argv: list[str]) -> list[str]:
    """A command line that starts so many processes."""
    return [sys.executable, "-m", "meshes.launch", "--processes", str(count), "--", *argv]


def different(count: int, number: int, how: str, argv: list[str]) -> list[str]:
    """A command line that starts processes of which one differs."""
    code = (
        "import sys; from meshes.launch import launch, equal;"
        f"command = [sys.executable, {str(WORKER)!r}, '{number}', {how!r}, *sys.argv[1:]];"
        f"sys.exit(launch(command, equal('{count}')))"
    )
    return [sys.executable, "-c", code, *argv]


def run(environment: dict[str, str], command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


@pytest.fixture(scope="module")
def alone(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses of one device."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    succeed(environment, *MODEL, "--devices", "1", "--steps", str(STEPS), "--run-dir", str(folder))
    return losses(folder)


@pytest.mark.parametrize("plan", PLANS)
def test_processes_have_the_losses_of_one_device(
    plan: str, alone: dict[int, float], environment: dict[str, str], tmp_path: Path
) -> None:
    done = run(environment, launched(PLANS[plan][0], flags(plan, tmp_path / "run", f"--steps {STEPS}")))
    assert done.returncode == 0, done.stderr
    found = losses(tmp_path / "run")
    assert [*found] == [*alone]
    assert found[1] == pytest.approx(alone[1], rel=1e-5)
    assert found == pytest.approx(alone, rel=LOSS)
    assert "measured" not in done.stdout and "of the ideal" in done.stdout
    made = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert made["placement"] == ("switched" if plan == "switched" else "specialized")


def test_other_data_would_have_other_losses(
    alone: dict[int, float], environment: dict[str, str], tmp_path: Path
) -> None:
    """The twin: the tolerance tells one seed from another."""
    argv = flags("context", tmp_path / "run", f"--steps {STEPS} --seed 1")
    assert run(environment, launched(2, argv)).returncode == 0
    assert losses(tmp_path / "run") != pytest.approx(alone, rel=LOSS)


def test_mpirun_and_the_launcher_give_identical_losses(environment: dict[str, str], tmp_path: Path) -> None:
    """Open MPI is not among what pip installs: without it the test is left out, but where CI is set it fails."""
    if not shutil.which("mpirun"):
        assert "CI" not in os.environ, "no mpirun on this machine: install Open MPI (Debian: openmpi-bin)"
        pytest.skip("no mpirun on this machine: install Open MPI (Debian: openmpi-bin)")
    more = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "NPROC": "1"}
    argv = flags("switched", tmp_path / "mpi", f"--steps {STEPS}")
    mpi = ["mpirun", "-n", "3", "--oversubscribe", sys.executable, "train.py", *argv]
    done = run({**environment, **more}, mpi)
    assert done.returncode == 0, done.stderr
    argv = flags("switched", tmp_path / "launched", f"--steps {STEPS}")
    assert run(environment, launched(3, argv)).returncode == 0
    assert losses(tmp_path / "mpi") == losses(tmp_path / "launched")


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("flags=--speeds~2,1", r"different flags: speeds\[0\] is 3.0 in process 0 .* and 2.0 in process 1"),
        ("flags=--devices~3~--speeds~3,1,1", "different flags: devices is 2 in process 0 .* and 3 in process 1"),
        ("flags=--plan~{plan}", r"different plans: .*tokens.* is \d+ in process 0 .* and \d+ in process 1"),
        (
            "flags=--cluster~{cluster}",
            r"different devices: devices\[0\].speed is 3.0 in process 0 .* and 4.0 in process 1",
        ),
        ("program", "training step: the processes would not run the same collectives: number"),
    ],
)
def test_a_process_that_differs_is_refused(how: str, says: str, environment: dict[str, str], tmp_path: Path) -> None:
    argv = flags("context", tmp_path / "run", "--steps 2")
    if "{plan}" in how:
        good, other = tmp_path / "good.json", tmp_path / "other.json"
        succeed(environment, *argv, "--plan-only", "--plan-out", str(good))
        for flag in ("--attention", "--data-groups", "--placement"):
            at = argv.index(flag)
            del argv[at : at + 2]
        argv += ["--plan", str(good)]
        other.write_text(json.dumps(one_token_moved(json.loads(good.read_text()))))
        how = how.format(plan=other)
    if "{cluster}" in how:
        good, other = tmp_path / "good.toml", tmp_path / "other.toml"
        for path, speed in ((good, 3), (other, 4)):
            path.write_text(f'[[devices]]\nname = "d"\nspeed = {speed}\n[[devices]]\nname = "e"\nspeed = 1\n')
        for flag in ("--speeds", "--devices"):
            at = argv.index(flag)
            del argv[at : at + 2]
        argv += ["--cluster", str(good)]
        how = how.format(cluster=other)
    done = run(environment, different(2, 1, how, argv))
    assert done.returncode == 2, done
    lines = [line for line in done.stderr.splitlines() if "train.py: " in line]
    assert len(lines) == 2 and all(re.search(says, line) for line in lines), done.stderr
    assert not losses(tmp_path / "run")


def one_token_moved(plan: dict[str, Any]) -> dict[str, Any]:
    """Another plan of the same devices."""
    ((a, b),) = plan["tokens"]
    plan["tokens"] = [[a - 1, b + 1]]
    for tile, tokens in zip(plan["tiles"][0], (a - 1, b + 1), strict=True):
        tile["tokens"] = tokens
    return plan


def children(launcher: int) -> dict[str, int]:
    """Process ids by the number that the launcher gave them."""
    found = {}
    for entry in os.listdir("/proc"):
        try:
            environ = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
            parent = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        numbers = [v.partition(b"=")[2].decode() for v in environ if v.startswith(b"JAX_PROCESS_ID=")]
        if parent == launcher and numbers:
            found[numbers[0]] = int(entry)
    return found


@pytest.mark.parametrize(("victim", "with_what"), [("1", signal.SIGKILL), ("0", signal.SIGKILL), ("1", signal.SIGSTOP)])
def test_when_one_process_dies_or_hangs_the_others_name_it_and_end(
    victim: str, with_what: signal.Signals, environment: dict[str, str], tmp_path: Path
) -> None:
    argv = flags("switched", tmp_path / "run", "--steps 100000")
    command = launched(3, argv)
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as launcher:
        try:
            wait_for_steps(tmp_path / "run", launcher)
            pids = children(launcher.pid)
            os.kill(pids[victim], with_what)
            _, error = launcher.communicate(timeout=60)
        finally:
            launcher.kill()
    assert launcher.returncode not in (0, None)
    named = rf"train\.py: process {victim} \(d{victim}, pid {pids[victim]} on .*\) (died|is gone|hangs).*: process"
    assert len(re.findall(named, error)) == 2, error
    assert not [pid for pid in pids.values() if Path(f"/proc/{pid}").exists()]


def test_one_signal_to_one_process_saves_and_ends_all(environment: dict[str, str], tmp_path: Path) -> None:
    argv = flags("switched", tmp_path / "run", "--steps 100000")
    with subprocess.Popen(
        launched(3, argv), cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as launcher:
        try:
            wait_for_steps(tmp_path / "run", launcher)
            os.kill(children(launcher.pid)["1"], signal.SIGTERM)
            said, error = launcher.communicate(timeout=PATIENCE)
        finally:
            launcher.kill()
    assert launcher.returncode == 128 + signal.SIGTERM, error
    last = [*losses(tmp_path / "run")][-1]
    assert f"stopped by signal 15 after step {last}, which is saved" in said
    more = flags("switched", tmp_path / "run", f"--steps {last + 1} --resume must")
    assert run(environment, launched(3, more)).returncode == 0


def wait_for_steps(run_dir: Path, launcher: subprocess.Popen[str]) -> None:
    end = time.monotonic() + PATIENCE
    while not losses(run_dir):
        assert launcher.poll() is None, launcher.communicate()
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


JOINS = """
import sys
from meshes import job
from meshes.environment import Seat
job.PATIENCE, job.REMIND = float(sys.argv[2]), 1.0
job.meet(Seat(coordinator=sys.argv[1], count=2, number=0))
"""


def joining(environment: dict[str, str], patience: float) -> subprocess.Popen[str]:
    """A process that waits for another, which never comes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-c", JOINS, address, str(patience)]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


def test_who_waits_in_vain_says_so(environment: dict[str, str]) -> None:
    _, error = (waiting := joining(environment, 3.0)).communicate(timeout=PATIENCE)
    assert waiting.returncode == 1
    says = "train.py: process 0 of 2 waits for the others at 127.0.0.1:[0-9]+"
    assert re.fullmatch(rf"{says}, 3 s at most\n{says} no longer: start all 2, and see what .*\n", error), error


def test_who_waits_can_be_told_to_stop(environment: dict[str, str]) -> None:
    waiting = joining(environment, 300.0)
    assert waiting.stderr is not None and "300 s at most" in waiting.stderr.readline()
    waiting.terminate()
    _, error = waiting.communicate(timeout=PATIENCE)
    assert (waiting.returncode, error) == (-signal.SIGTERM, "")
