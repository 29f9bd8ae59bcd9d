"""Runs the program as people do, and looks at what it leaves."""

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TINY = shlex.split(
    "--layers 1 --d-model 16 --heads 2 --kv-heads 1 --d-ff 16 --seq-len 32 --batch-size 4 --microbatch 2"
    " --speeds 3,1 --data-groups 1 --eval-rows 4 --sample ''"
)
PATIENCE = 120  # seconds; a mistake takes less than one, a run a few, on a machine that is not busy


def tiny(flags: str, **names: Path) -> list[str]:
    """TINY with other flags instead of its own."""
    given = [word.format(**names) for word in shlex.split(flags)]
    replaced = {word.partition("=")[0] for word in given if word.startswith("--")}
    if replaced & {"--plan", "--data-groups"}:
        replaced |= {"--data-groups"}
    if "--cluster" in replaced and "two" not in flags:
        replaced |= {"--speeds"}
    kept = [w for flag, value in zip(TINY[::2], TINY[1::2], strict=True) if flag not in replaced for w in (flag, value)]
    place = [] if "--run-dir" in replaced else ["--run-dir", str(names["run"])]
    return [*given, *place, *kept]


def train(environment: dict[str, str], *argv: str, patience: float = PATIENCE) -> subprocess.CompletedProcess[str]:
    """Run the program to its end."""
    return subprocess.run(
        [sys.executable, "train.py", *argv],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=patience,
    )


def succeed(environment: dict[str, str], *argv: str) -> str:
    """Run the program, which must end well and say nothing on stderr; what it printed."""
    done = train(environment, *argv)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@contextmanager
def training(environment: dict[str, str], *argv: str) -> Iterator[subprocess.Popen[str]]:
    """The program, running; killed at the end at the latest."""
    command = [sys.executable, "train.py", *argv]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    """Wait until something holds while a process runs."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if process.poll() is not None:
            pytest.fail(f"ended too early: {process.returncode}: {process.communicate()}")
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.005)


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Lines of metrics.jsonl, without one that is being written."""
    path = run_dir / "metrics.jsonl"
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


def losses(run_dir: Path) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in metrics(run_dir)}


def steps(checkpoints: Path) -> list[int]:
    """Steps that are complete on disk."""
    return sorted(int(path.parent.name) for path in checkpoints.glob("*/commit_success.txt") if complete(path.parent))


def complete(checkpoint: Path) -> bool:
    return checkpoint.name.isdecimal() and all(
        (checkpoint / part).exists() for part in ("about/metadata", "state/_METADATA")
    )


def contents(root: Path) -> dict[str, bytes]:
    """Every file and directory below one."""
    return {str(path.relative_to(root)): path.read_bytes() if path.is_file() else b"" for path in root.rglob("*")}


def refuse(environment: dict[str, str], argv: list[str], says: str, *untouched: Path) -> None:
    """The program ends with exit code 2 and one line that says so; nothing is written."""
    before = [contents(path) for path in untouched]
    began = (ROOT / "runs").exists()
    done = train(environment, *argv)
    assert done.returncode == 2, done
    assert re.fullmatch(rf"train\.py: .*{says}.*\n", done.stderr), done.stderr
    assert [contents(path) for path in untouched] == before
    assert (ROOT / "runs").exists() == began


def freeze(process: subprocess.Popen[str]) -> None:
    """Stop every thread where it is; the files are then what a kill would leave."""
    process.send_signal(signal.SIGSTOP)
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.001)


def copy(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished / "run", tmp_path / "run")
