"""Trains in several processes on this machine: `python -m meshes.launch --cluster FILE -- FLAGS of train.py`.

One process for each device of the cluster file, or for `devices_per_process` of them. On a machine with NVIDIA GPUs
each process sees only its own; elsewhere, or with JAX_PLATFORMS=cpu, it has emulated devices and may be slowed down:
`cpu_share`, `process_memory` and `link_rate` in the cluster file make a lopsided cluster in a box. Output lines bear
the names of the process' devices. If one process fails the others are ended and its exit code is returned. Ctrl-C and
SIGTERM reach every process once, so that it can save; a second one kills. No process is left behind.
"""

import argparse
import math
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from meshes import control, leftovers, network
from meshes.cluster import Cluster, Device, Limits
from meshes.errors import UsageError
from meshes.leftovers import Janitor
from meshes.supervise import Child, Signals, Supervisor
from meshes.throttle import DutyCycle, Group, GroupMemory, Pinned, Quota, WatchedMemory, packed

TRAIN = Path(__file__).parents[1] / "train.py"
GRACE = 20.0  # seconds; the others mostly end by themselves, and say whom they lost
_EXAMPLE = "python -m meshes.launch --cluster FILE -- --steps 100"
_GATE = 'read -r _ && exec "$@" < /dev/null'  # until the launcher has seen to it that the process will not be left


def launch(
    command: Sequence[str],
    cluster: Cluster,
    *,
    throttle: bool = True,
    cgroups: bool = True,
    grace: float = GRACE,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run a command once for each process of a cluster, until all have ended. For the main thread.

    Args:
        command: program and arguments, the same for all; JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID
            and JAX_NUM_CPU_DEVICES tell them apart.
        cluster: its processes and their limits.
        throttle: whether the limits are enforced; the CPU share from when a process asks by `meshes.control`.
        cgroups: whether control groups may enforce them.
        grace: seconds from the failure of one process to the end of the others.
        environment: of the processes; None is this process' own.

    Returns:
        The exit code of the first process that failed (128 + N for signal N), 128 + N if signal N ended the run, or 0.

    Raises:
        UsageError: there are too few GPUs or cores, or a limit cannot be enforced here.
    """
    base = dict(os.environ if environment is None else environment)
    limits = [(throttle and cluster.devices[members[0]].limits) or Limits() for members in cluster.processes]
    _check_shares(cluster, limits)
    gpus = _gpus(base)
    if gpus is not None and any(limit.link_rate for limit in limits):
        raise UsageError("link_rate cannot slow down GPUs: remove it, or emulate devices with JAX_PLATFORMS=cpu")
    own = [*_environments(cluster, limits, gpus)]
    children: list[Child] = []
    with Signals() as signals, Janitor() as janitor:
        spaces, coordinator = _network(limits, janitor)
        cores = sorted(os.sched_getaffinity(0))
        places = packed([limit.cpu_share for limit in limits], len(cores))
        try:
            for number, members in enumerate(cluster.processes):
                prefix = network.inside(spaces[number], number) if spaces else []
                place = {"JAX_COORDINATOR_ADDRESS": coordinator} | own[number]
                label = _label([cluster.devices[device].name for device in members])
                child = _start(number, label, [*prefix, *command], base | place, janitor)
                children.append(child)
                if gpus is None:
                    _let_finish(child.process.pid)
                _limit(child, limits[number], janitor, cgroups)
                if places is not None and child.share is not None:
                    child.share = Pinned(child.share, child.process.pid, cores[places[number]])
            for child in children:
                _open(child)
            return Supervisor(children, signals, grace).run()
        finally:
            for child in children:
                if child.process.returncode is None:
                    child.kill()
                    child.process.wait()


def main(argv: Sequence[str] | None = None) -> int:
    """The command line.

    Args:
        argv: flags; None takes the program's own.

    Returns:
        Exit code.
    """
    try:
        command, cluster, throttle = _parsed(sys.argv[1:] if argv is None else argv)
        return launch(command, cluster, throttle=throttle)
    except UsageError as error:
        print(f"launch: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # who reads our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}: flags of train.py come after --, like {_EXAMPLE}")


def _parsed(argv: Sequence[str]) -> tuple[list[str], Cluster, bool]:
    """The command, the cluster, and whether it is throttled."""
    words = [*argv]
    at = words.index("--") if "--" in words else len(words)
    parser = _Parser(
        prog="python -m meshes.launch",
        usage="%(prog)s (--cluster FILE | --processes N) [--module NAME] [--no-throttle] -- FLAGS",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--cluster", metavar="FILE", help="cluster file; given to train.py too")
    what.add_argument("--processes", metavar="N", help="so many equal processes of one device")
    parser.add_argument("--module", metavar="NAME", help="program to start in place of train.py: meshes.profile")
    parser.add_argument("--no-throttle", action="store_true", help="run without the limits of the cluster file")
    options = parser.parse_args(words[:at])
    if at == len(words):
        parser.error("no -- and flags of train.py")
    flags = words[at + 1 :]
    program = [sys.executable, str(TRAIN)] if options.module is None else [sys.executable, "-m", options.module]
    if options.processes is not None:
        return [*program, *flags], equal(options.processes), True
    cluster = Cluster.from_toml(options.cluster)
    if not any(flag.partition("=")[0] == "--cluster" for flag in flags):
        flags = ["--cluster", options.cluster, *flags]
    return [*program, *flags], cluster, not options.no_throttle


def equal(count: str) -> Cluster:
    """So many processes of one device each, all alike.

    Raises:
        UsageError: it is no number of processes.
    """
    if not count.isdecimal() or int(count) < 1:
        raise UsageError(f"--processes is {count!r}: write a whole number, 1 or more")
    return Cluster(devices=tuple(Device(name=f"process{i}", process=i) for i in range(int(count))))


def _gpus(environment: Mapping[str, str]) -> list[str] | None:
    """What CUDA calls the GPUs that may be used; None if there are none, or others are asked for."""
    platforms = environment.get("JAX_PLATFORMS", "")
    if platforms and not {"cuda", "gpu"} & {*platforms.split(",")}:
        return None
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        found = [path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia*")]
        return sorted((name for name in found if name.isdecimal()), key=int) or None
    names = [name.strip() for name in visible.split(",")]
    return None if names in ([""], ["-1"]) else names


def _check_shares(cluster: Cluster, limits: Sequence[Limits]) -> None:
    cores = os.cpu_count() or 1
    for members, limit in zip(cluster.processes, limits, strict=True):
        if limit.cpu_share is not None and limit.cpu_share > cores:
            name = cluster.devices[members[0]].name
            raise UsageError(
                f"device {name}: cpu_share {limit.cpu_share:g} is more than the {cores} cores of this machine: write"
                " smaller shares, in the same proportion"
            )


def _environments(cluster: Cluster, limits: Sequence[Limits], gpus: list[str] | None) -> Iterator[dict[str, str]]:
    """What tells the processes apart, and how much of the machine each may use."""
    if gpus is not None and len(gpus) < len(cluster.devices):
        raise UsageError(
            f"the cluster has {len(cluster.devices)} devices and this machine {len(gpus)} GPUs: describe those, or"
            " emulate devices with JAX_PLATFORMS=cpu"
        )
    taken = 0
    for number, members in enumerate(cluster.processes):
        place = {
            "JAX_NUM_PROCESSES": str(len(cluster.processes)),
            "JAX_PROCESS_ID": str(number),
            "JAX_NUM_CPU_DEVICES": str(len(members)),
            "PYTHONUNBUFFERED": "1",
        }
        if gpus is None:
            cores = limits[number].cpu_share or len(members)
            yield place | {"JAX_PLATFORMS": "cpu", "NPROC": str(math.ceil(cores))}  # threads of XLA's pool
        else:
            yield place | {"CUDA_VISIBLE_DEVICES": ",".join(gpus[taken : taken + len(members)])}
        taken += len(members)


def _network(limits: Sequence[Limits], janitor: Janitor) -> tuple[list[str], str]:
    """Namespaces of the processes, where a link is limited; and the coordinator's address."""
    rates = [limit.link_rate for limit in limits]
    if any(rates):
        return network.build(rates, janitor), f"{network.address(0)}:{network.PORT}"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return [], f"127.0.0.1:{free.getsockname()[1]}"


def _label(names: Sequence[str]) -> str:
    return ",".join(names) if len(names) < 3 else f"{names[0]}..{names[-1]}"


def _start(number: int, label: str, command: list[str], environment: dict[str, str], janitor: Janitor) -> Child:
    """A process that waits at the gate."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            ["sh", "-c", _GATE, "sh", *command],
            env=environment | {control.VARIABLE: str(theirs.fileno())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    janitor.remember("session", leftovers.session(process.pid))
    return Child(number=number, label=label, process=process, control=ours)


def _let_finish(process: int) -> None:
    """Threads of the process do not interrupt what runs when they wake up.

    One of Gloo's threads polls for a lock; where it has interrupted the thread that holds it, on the same core, it
    burns what is left of the process' turn.
    """
    if hasattr(os, "SCHED_BATCH"):  # on Linux
        with suppress(OSError):
            os.sched_setscheduler(process, os.SCHED_BATCH, os.sched_param(0))


def _limit(child: Child, limits: Limits, janitor: Janitor, cgroups: bool) -> None:
    pid = child.process.pid
    if limits.cpu_share is not None:
        group = _joined("cpu", child, janitor) if cgroups else None
        child.share = Quota(group, limits.cpu_share) if group else DutyCycle(pid, limits.cpu_share)
    if limits.memory is not None:
        group = _joined("memory", child, janitor) if cgroups else None
        child.memory = GroupMemory(group, limits.memory) if group else WatchedMemory(pid, limits.memory)


def _joined(controller: str, child: Child, janitor: Janitor) -> Group | None:
    group = Group.make(controller, child.number, janitor)
    if group is not None:
        group.join(child.process.pid)
    return group


def _open(child: Child) -> None:
    assert child.process.stdin is not None
    child.process.stdin.write(b"\n")
    child.process.stdin.close()


if __name__ == "__main__":
    sys.exit(main())
