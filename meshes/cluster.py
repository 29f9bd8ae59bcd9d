"""What the devices are: how fast, how big, how far apart. Frozen values, no JAX."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from meshes.curve import Curve
from meshes.errors import UsageError
from meshes.units import parse_bytes, positive

# FLOP/s of speed 1.0 where nobody says: about one emulated device on a shared desktop CPU.
FLOPS_PER_SPEED = 2e10

# Peak dense FLOP/s in 16-bit arithmetic of one JAX device, from the vendors' data sheets. Matched as parts of
# `device_kind`, longest first. Only ratios matter to shares, and only where several kinds meet.
PEAK_FLOPS = {
    "H200": 989e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10": 125e12,
    "V100": 125e12,
    "T4": 65e12,
    "TPU v2": 22.5e12,
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a process may use of this machine when the launcher slows it down. None is unlimited.

    Args:
        cpu_share: cores, 0.33 is a third of one.
        memory: bytes; more ends the process. The planner plans with the devices' own memory instead.
        link_rate: bytes a second, each way, between this process and the others.
    """

    cpu_share: float | None = None
    memory: int | None = None
    link_rate: float | None = None

    def __post_init__(self) -> None:
        if self.cpu_share is not None:
            positive(self.cpu_share, "cpu_share of a process")
        if self.memory is not None:
            parse_bytes(self.memory, "memory of a process")
        if self.link_rate is not None:
            positive(self.link_rate, "link_rate of a process")


@dataclass(frozen=True, kw_only=True)
class Device:
    """One device.

    Args:
        name: unique in the cluster.
        kind: what it is, for people.
        speed: work per second relative to the other devices, positive.
        memory: bytes that the run may use; None is unlimited.
        host: the machine it is in; devices of one host share fast links.
        process: number of the process that drives it, when `meshes.launch` starts one for each.
        limits: of that process, enforced by `meshes.launch` and by nothing else: emulated devices of a single process
            share its cores, whatever this says. None is unlimited.
        curve: what it was measured to take for one model; None predicts from its speed.
    """

    name: str
    kind: str = "device"
    speed: float = 1.0
    memory: int | None = None
    host: str = "local"
    process: int = 0
    limits: Limits | None = None
    curve: Curve | None = None

    def __post_init__(self) -> None:
        positive(self.speed, f"speed of device {self.name}")
        if self.memory is not None:
            parse_bytes(self.memory, f"memory of device {self.name}")


@dataclass(frozen=True, kw_only=True)
class Link:
    """What a message between two hosts (or inside one) costs.

    Args:
        hosts: the two hosts, in any order; "*" is any host.
        bandwidth: bytes a second in each direction.
        latency: seconds before the first byte arrives.
    """

    hosts: tuple[str, str]
    bandwidth: float
    latency: float

    def __post_init__(self) -> None:
        where = f"link {self.hosts[0]} - {self.hosts[1]}"
        positive(self.bandwidth, f"bandwidth of {where}")
        if not (math.isfinite(self.latency) and self.latency >= 0):
            raise UsageError(f"latency of {where} is {self.latency!r}: write zero or more seconds")


# Where nobody says: about PCIe 4.0 x16 inside a host, and ten-gigabit Ethernet between hosts.
SAME_HOST = Link(hosts=("*", "*"), bandwidth=20e9, latency=10e-6)
CROSS_HOST = Link(hosts=("*", "*"), bandwidth=1.25e9, latency=50e-6)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """All devices of a run, in the order in which they are numbered.

    Args:
        devices: at least one, names unique.
        links: between named hosts; a link of a host with itself is what its devices share.
        flops_per_speed: FLOP/s that a device of speed 1.0 reaches.
        same_host, cross_host: the links that `links` does not name.
        declared: whether somebody said how fast the devices are; otherwise their speeds are a guess, to be measured.
    """

    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    flops_per_speed: float = FLOPS_PER_SPEED
    same_host: Link = SAME_HOST
    cross_host: Link = CROSS_HOST
    declared: bool = True

    def __post_init__(self) -> None:
        if not self.devices:
            raise UsageError("the cluster has no devices: name at least one")
        positive(self.flops_per_speed, "flops_per_speed")
        name, count = Counter(device.name for device in self.devices).most_common(1)[0]
        if count > 1:
            raise UsageError(f"{count} devices are called {name!r}: give each its own name")
        self._check_processes()
        hosts = {device.host for device in self.devices}
        for link in self.links:
            if missing := [host for host in link.hosts if host not in hosts]:
                raise UsageError(
                    f"a link names host {missing[0]!r}, but the devices are on {', '.join(sorted(hosts)[:8])}"
                )
        pair, count = Counter(frozenset(link.hosts) for link in self.links).most_common(1)[0] if self.links else ("", 0)
        if count > 1:
            raise UsageError(f"{count} links between {' and '.join(sorted(pair))}: keep one")

    @staticmethod
    def from_toml(path: str | Path) -> "Cluster":
        """Read a cluster file; `meshes.cluster_file` documents its keys.

        Raises:
            UsageError: the file is missing, is not TOML, or says something impossible.
        """
        from meshes import cluster_file

        return cluster_file.read(Path(path))

    @staticmethod
    def from_flags(
        devices: int | None = None, speeds: Sequence[float] | None = None, memory: Sequence[str] | None = None
    ) -> "Cluster":
        """A cluster on one host, from `--devices`, `--speeds` and `--memory`.

        Args:
            devices: how many; None takes the length of the lists.
            speeds: one for each device; None makes all 1.0.
            memory: one size for each device, like "24GB"; None is unlimited.
        """
        lists = {"--speeds": speeds, "--memory": memory}
        lengths = {flag: len(values) for flag, values in lists.items() if values is not None}
        wanted = {"--devices": devices, **lengths} if devices is not None else lengths
        if not wanted or max(wanted.values()) < 1:
            raise UsageError("no devices: give --devices N with N at least 1, or --speeds, or --cluster FILE")
        (first, count), *others = wanted.items()
        for flag, length in others:
            if length != count:
                says = f"{first} {count}" if first == "--devices" else f"{first} with {count} values"
                raise UsageError(f"{says} and {flag} with {length} values: give one value for each device")
        return Cluster(
            devices=tuple(
                Device(
                    name=f"d{i}",
                    kind="emulated",
                    speed=1.0 if speeds is None else positive(speeds[i], f"--speeds value {i + 1}"),
                    memory=None if memory is None else parse_bytes(memory[i], f"--memory value {i + 1}"),
                )
                for i in range(count)
            ),
            declared=speeds is not None,
        )

    @staticmethod
    def from_jax_devices(devices: Sequence[Any]) -> "Cluster":
        """A cluster from `jax.devices()`, one host for each process.

        Memory is known only if this process can ask every device: all processes must build the same plan.

        Raises:
            UsageError: the devices are of several kinds and the speed of one is unknown.
        """
        kinds = [str(device.device_kind) for device in devices]
        peaks = {kind: _peak(kind) for kind in kinds}
        if len(peaks) > 1 and None in peaks.values():
            unknown = next(kind for kind, peak in peaks.items() if peak is None)
            raise UsageError(f"the speed of a {unknown!r} is unknown: give --speeds or --cluster FILE")
        flops = [peaks[kind] or FLOPS_PER_SPEED for kind in kinds]
        base = min(flops, default=FLOPS_PER_SPEED)
        memory = _memory(devices, kinds)
        return Cluster(
            devices=tuple(
                Device(
                    name=f"{device.platform}{i}",
                    kind=kinds[i],
                    speed=flops[i] / base,
                    memory=memory.get(kinds[i]),
                    host=f"process{device.process_index}",
                    process=device.process_index,
                )
                for i, device in enumerate(devices)
            ),
            flops_per_speed=base,
            declared=False,
        )

    @cached_property
    def processes(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the devices of each process, in order."""
        members: dict[int, list[int]] = {}
        for number, device in enumerate(self.devices):
            members.setdefault(device.process, []).append(number)
        return tuple(tuple(members[process]) for process in sorted(members))

    def digest(self) -> str:
        """Hash of all the content, 16 hexadecimal digits, the same in every process and version."""
        return digest(asdict(self))

    def link(self, a: int, b: int) -> Link:
        """The link between two devices, given by their numbers."""
        return self._between(self.devices[a].host, self.devices[b].host)

    def worst_link(self, devices: Iterable[int]) -> Link:
        """The smallest bandwidth and the largest latency between any of the devices, given by their numbers.

        No link is faster than a device whose process is limited.
        """
        devices = [*devices]
        limits = [self.devices[d].limits for d in devices]
        rates = [limit.link_rate for limit in limits if limit is not None and limit.link_rate is not None]
        count = Counter(self.devices[d].host for d in devices)
        inside = [self._between(host, host) for host, number in count.items() if number > 1]
        named = [link for pair, link in self._named.items() if len(pair) == 2 and pair <= count.keys()]
        pairs = math.comb(len(count), 2)
        links = inside + named + ([self.cross_host] if len(named) < pairs else [])
        links = links or [self.same_host]
        return Link(
            hosts=("*", "*"),
            bandwidth=min([*rates, *(link.bandwidth for link in links)]),
            latency=max(link.latency for link in links),
        )

    def _check_processes(self) -> None:
        found = sorted({device.process for device in self.devices})
        if found != [*range(len(found))]:
            raise UsageError(f"the devices are in processes {found[:8]}: number the processes 0, 1, 2, ...")
        for process, members in enumerate(self.processes):
            if len({self.devices[number].limits for number in members}) > 1:
                names = ", ".join(self.devices[number].name for number in members[:8])
                raise UsageError(f"devices {names} of process {process} have different limits: a process has one")

    @cached_property
    def _named(self) -> dict[frozenset[str], Link]:
        return {frozenset(link.hosts): link for link in self.links}

    def _between(self, a: str, b: str) -> Link:
        return self._named.get(frozenset((a, b)), self.same_host if a == b else self.cross_host)


def digest(content: Any) -> str:
    """Hash of JSON content, 16 hexadecimal digits."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _peak(kind: str) -> float | None:
    matches = sorted((name for name in PEAK_FLOPS if name.lower() in kind.lower()), key=len)
    return PEAK_FLOPS[matches[-1]] if matches else None


def _memory(devices: Sequence[Any], kinds: Sequence[str]) -> dict[str, int]:
    """Bytes of each kind, the smallest device's; nothing unless every device answers."""
    limits: dict[str, list[int]] = {kind: [] for kind in kinds}
    for kind, device in zip(kinds, devices, strict=True):
        try:
            stats = device.memory_stats()
        except Exception:  # backends differ in how they say that a device has, or tells, none
            stats = None
        if not stats or not stats.get("bytes_limit"):
            return {}
        limits[kind].append(int(stats["bytes_limit"]))
    return {kind: min(found) for kind, found in limits.items()}
