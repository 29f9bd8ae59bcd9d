"""Measures what messages cost: the links between hosts, and what a byte costs the devices themselves."""

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax

from meshes.cluster import Cluster, Link
from meshes.job import Job
from meshes.stopwatch import timed
from sharding import messages
from sharding.collectives import better_direct

SMALL = 1  # row of the matrices in a message in which only latency counts
BETWEEN = 0.005  # seconds of work between messages: little, so that its own noise is small
UNITS = 200  # of work, of which the time is taken
TURNS = 25  # of two messages
LEAST = 1e-6  # seconds that an exchange takes at least, whatever the noise

Hosts = tuple[str, str]


@dataclass(frozen=True, eq=False, kw_only=True)
class Exchanges:
    """Compiled messages between hosts; made in every process.

    Args:
        devices: of the cluster.
        ends: who takes part, by hosts; ("*", "*") is one host.
        turns: of weights, small and large, and of rows, large; of those in which this process takes part.
        alone: work without messages.
        large: rows of large messages.
    """

    devices: Sequence[jax.Device]
    ends: Mapping[Hosts, Sequence[jax.Device]]
    turns: Mapping[Hosts, Sequence[messages.Turns]]
    alone: messages.Turns
    large: int

    @staticmethod
    def prepared(cluster: Cluster, devices: Sequence[jax.Device], numbers: int, batch: int = 1) -> "Exchanges":
        """Messages as large as those of a step: what a byte costs depends on whether it is still in a cache.

        Args:
            cluster, devices: in the same order.
            numbers: that travel in one exchange, of all devices together.
            batch: that rows of an exchange are in.
        """
        ends = _ends(cluster, devices)
        large = batch * max(numbers // (messages.MATRICES * messages.WIDTH * len(devices) * batch), 2 * SMALL)
        here = next(device for device in devices if device.process_index == jax.process_index())
        turns = {hosts: _turns(some, large, batch) for hosts, some in ends.items() if _takes_part(some)}
        return Exchanges(devices=devices, ends=ends, turns=turns, alone=messages.working(here), large=large)

    def measured(self, job: Job) -> "tuple[list[Link], list[Own]]":
        """The links, one after the other, and what a byte costs each device itself."""
        work = Load.of(self.alone, BETWEEN)
        links, own = [], dict.fromkeys(range(len(self.devices)), Own(0.0, 0.0))
        for hosts, some in self.ends.items():
            link, seconds = _link(job, hosts, len(some), self.turns.get(hosts), work, self.large)
            links.append(link)
            own |= {self.devices.index(device): byte for device, byte in zip(some, seconds, strict=True)}
        return links, [own[n] for n in range(len(self.devices))]


class Own(NamedTuple):
    """Seconds of a device for each byte that it is brought.

    Args:
        weights: packing, unpacking and adding.
        rows: of an exchange, which are picked and put into order besides.
    """

    weights: float
    rows: float


def linked(cluster: Cluster, links: Sequence[Link]) -> Cluster:
    """The cluster with measured links."""
    return replace(
        cluster,
        links=tuple(link for link in links if "*" not in link.hosts),
        same_host=next((link for link in links if "*" in link.hosts), cluster.same_host),
    )


def _ends(cluster: Cluster, devices: Sequence[jax.Device]) -> dict[Hosts, list[jax.Device]]:
    """Who exchanges messages to measure links: the devices of the largest host, and one device of every two hosts."""
    hosts: dict[str, list[jax.Device]] = {}
    for described, device in zip(cluster.devices, devices, strict=True):
        hosts.setdefault(described.host, []).append(device)
    largest = max(hosts.values(), key=len)
    ends = {("*", "*"): largest} if len(largest) > 1 else {}
    return ends | {(a, b): [hosts[a][0], hosts[b][0]] for a, b in itertools.combinations(hosts, 2)}


def _takes_part(devices: Sequence[jax.Device]) -> bool:
    return jax.process_index() in {device.process_index for device in devices}


def _turns(devices: Sequence[jax.Device], large: int, batch: int) -> list[messages.Turns]:
    """Small and large messages of weights, large ones of rows."""
    direct = better_direct(devices)
    weights = [messages.exchanging(devices, rows, direct=direct) for rows in (SMALL, large)]
    return [*weights, messages.exchanging(devices, large, direct=direct, what="rows", batch=batch)]


@dataclass(frozen=True, kw_only=True)
class Load:
    """A little work between messages: a process that has rested answers sooner than one in a step.

    Args:
        units: how often its unit is done before each message.
        took: what this takes on average.
    """

    units: int
    took: "Took"

    @staticmethod
    def of(alone: messages.Turns, wanted: float) -> "Load":
        """As many units as take so many seconds."""
        alone(1, UNITS)
        unit = timed(lambda: alone(1, UNITS)).seconds / (2 * UNITS)
        units = max(1, round(wanted / unit))
        return Load(units=units, took=per_message(alone, units))


@dataclass(frozen=True, kw_only=True)
class Took:
    """Of one message and the work before it.

    Args:
        seconds: by the clock.
        cpu: of this process.
    """

    seconds: float
    cpu: float


def per_message(turns: messages.Turns, units: int) -> Took:
    """From one message to the next, the work before it included."""
    turns(1, units)
    start, cpu = time.perf_counter(), time.process_time()
    turns(TURNS, units)
    count = 2 * TURNS
    return Took(seconds=(time.perf_counter() - start) / count, cpu=(time.process_time() - cpu) / count)


def _link(
    job: Job, hosts: Hosts, count: int, exchanges: Sequence[messages.Turns] | None, work: Load, large: int
) -> tuple[Link, list[Own]]:
    """Latency and bandwidth as the cost model counts them, told to all processes; a device's own seconds for a byte.

    Each process works, then all exchange: what that takes beyond the work of the slowest is the exchange. Of that, what
    a large message costs a processor that works for itself is the device's own, and the slowest's is not the link's.
    """
    mine = None
    if exchanges is not None:
        small, long, rows = (per_message(turns, work.units) for turns in exchanges)
        pace = work.took.seconds / max(work.took.cpu, LEAST)  # how long a slowed process takes for a CPU second
        own = [pace * max(took.cpu - small.cpu, 0.0) if _one_cpu_device() else 0.0 for took in (long, rows)]
        mine = [small.seconds, long.seconds, work.took.seconds, *own]
    found = [times for times in job.exchange(f"link {hosts}", mine) if times is not None]
    busiest, slowest = (max(times[column] for times in found) for column in (2, 3))
    short, full = (max(found[0][size] - busiest, LEAST) for size in range(2))
    brought = (count - 1) * 4 * messages.MATRICES * messages.WIDTH * (large - SMALL)  # bytes
    bandwidth = brought / max(full - short - slowest, LEAST)
    owners = [Own(times[3] / brought, times[4] / brought) for times in found]
    link = Link(hosts=hosts, bandwidth=bandwidth, latency=short / (count - 1))
    return link, owners if len(owners) == count else [Own(0.0, 0.0)] * count


def _one_cpu_device() -> bool:
    """Whether this process' CPU seconds are those of one device."""
    devices = jax.local_devices()
    return len(devices) == 1 and devices[0].platform == "cpu"
