"""Slow links between processes of one machine: a network namespace for each process, its traffic shaped by `tc tbf`.

The namespaces hang on a bridge in a namespace of its own, so nothing of the machine's network is touched, and the
processes reach each other and nothing else.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence

from meshes import leftovers
from meshes.errors import UsageError
from meshes.leftovers import Janitor

PORT = 29400  # of the coordinator; nobody else is in the namespace
_BURST = 128 * 1024  # bytes that pass at full speed: two of the largest packets that Linux cuts late
_QUEUE = "50ms"  # a packet that would wait longer is dropped
_TOOLS = ("ip", "tc", "nsenter", "unshare")


def build(rates: Sequence[float | None], janitor: Janitor) -> list[str]:
    """Make a namespace for each process.

    Args:
        rates: bytes a second of each process, each way; None is unlimited.
        janitor: will remove the namespaces.

    Returns:
        The name of each namespace.

    Raises:
        UsageError: a tool or a permission is missing.
    """
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        lacks = f"{' and '.join(missing)} (Debian: iproute2, util-linux)" if missing else "root's rights"
        raise UsageError(f"link_rate needs network namespaces, and {lacks} to make them: remove link_rate, or run so")
    leftovers.remove_stale("namespace", leftovers.NAMESPACES)
    switch = _namespace("switch", janitor)
    _run(f"ip -n {switch} link add bridge type bridge")
    _run(f"ip -n {switch} link set bridge up")
    names = [_namespace(str(process), janitor) for process in range(len(rates))]
    for process, (name, rate) in enumerate(zip(names, rates, strict=True)):
        port = f"port{process}"
        _run(f"ip -n {switch} link add {port} type veth peer name eth0 netns {name}")
        _run(f"ip -n {switch} link set {port} master bridge up")
        _run(f"ip -n {name} address add {address(process)}/16 dev eth0")
        _run(f"ip -n {name} link set lo up")
        _run(f"ip -n {name} link set eth0 up")
        if rate is not None:
            for where, end in ((name, "eth0"), (switch, port)):
                shape = f"tbf rate {round(rate)}bps burst {_BURST} latency {_QUEUE}"  # bps: bytes a second, in tc
                _run(f"tc -n {where} qdisc add dev {end} root {shape}")
    return names


def address(process: int) -> str:
    """The IP address of a process in its namespace."""
    return f"10.77.{(process + 1) // 256}.{(process + 1) % 256}"


def inside(name: str, process: int) -> list[str]:
    """Words before a command that run it in a namespace.

    Gloo binds to the address of the host's name, so inside the host is called by its address.
    """
    script = 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"'
    path = str(leftovers.NAMESPACES / name)
    return ["nsenter", f"--net={path}", "unshare", "--uts", "sh", "-c", script, address(process)]


def _namespace(part: str, janitor: Janitor) -> str:
    name = leftovers.name(part)
    janitor.remember("namespace", name)
    _run(f"ip netns add {name}")
    return name


def _run(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise UsageError(f"link_rate cannot be enforced here: {command!r} says {said}: remove link_rate")
