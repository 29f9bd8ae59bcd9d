"""Measures the devices of a run: what each takes for the model's own segments, and what messages cost."""

import itertools
import json
import os
import platform
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax

from meshes import control, strict_json
from meshes.cluster import Cluster, Link, digest
from meshes.curve import Curve, Fit, Sample, fit
from meshes.job import Job
from meshes.stopwatch import Timing, timed
from meshes.workload import Workload
from sharding import messages
from sharding.collectives import better_direct
from training.segments import Run, Segments

Measured = tuple[str, int, Timing]  # of which segment and size
POORLY_FITTED = 0.1
SMALL = 1  # row of the matrices in a message in which only latency counts
BETWEEN = 0.005  # seconds of work between messages: little, so that its own noise is small
UNITS = 200  # of work, of which the time is taken
TURNS = 25  # of two messages
LEAST = 1e-6  # seconds that an exchange takes at least, whatever the noise


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What was measured.

    Args:
        cluster: the devices with their curves and speeds, the links with theirs.
        notes: lines for people: shares of cores, samples that disagree, curves that fit poorly.
    """

    cluster: Cluster
    notes: tuple[str, ...]


def profile(
    job: Job, cluster: Cluster, devices: Sequence[jax.Device], workload: Workload, segments: Segments
) -> Profile:
    """Measure all devices at the same time, each in its own process, then the links, one after the other.

    Args:
        job: this process among the others, which all call this.
        cluster, devices: in the same order.
        workload: what will be planned.
        segments: of the same model.
    """
    here = [n for n, device in enumerate(devices) if device.process_index == jax.process_index()]
    prepared = {n: list(_prepare(segments, devices[n], workload)) for n in here}
    ends = _ends(cluster, devices)
    large = max(workload.layer_parameters // (messages.MATRICES * messages.WIDTH * len(devices)), 2 * SMALL)
    exchanges = {hosts: _exchanges(some, large) for hosts, some in ends.items() if _takes_part(some)}
    alone = messages.working(devices[here[0]])
    job.exchange("profile compiled", True)
    control.throttle(True)
    mine = {str(n): _measure(runs) for n, runs in prepared.items()}
    found: dict[str, Any] = {}
    for part in job.exchange("profile", mine):
        found |= part
    timings = [[(kind, size, Timing(**timing)) for kind, size, timing in found[str(n)]] for n in range(len(devices))]
    fits = [_fitted(workload, some) for some in timings]
    work = Load.of(alone, BETWEEN)
    links, own = [], dict.fromkeys(range(len(devices)), 0.0)
    for hosts, some in ends.items():
        link, seconds = _link(job, hosts, len(some), exchanges.get(hosts), work, large)
        links.append(link)
        own |= {devices.index(device): byte for device, byte in zip(some, seconds, strict=True)}
    control.throttle(False)
    curves = [replace(fitted.curve, byte=own[n]) for n, fitted in enumerate(fits)]
    return _profile(cluster, workload, timings, [replace(f, curve=c) for f, c in zip(fits, curves, strict=True)], links)


def key(cluster: Cluster, devices: Sequence[jax.Device], workload: Workload) -> str:
    """Names what a profile depends on: the hardware, the limits on it, the model and the version of JAX."""
    kinds = [device.device_kind for device in devices]
    about = {"cluster": asdict(cluster), "kinds": kinds, "cores": os.cpu_count(), "machine": platform.processor()}
    return digest({**about, "model": workload.model, "jax": jax.__version__})


def load(name: str) -> Profile | None:
    """A profile that was kept, None if there is none."""
    try:
        return decode(json.loads(_kept(name).read_text()))
    except (OSError, ValueError):
        return None


def decode(data: Any) -> Profile | None:
    """A profile from its JSON values.

    Raises:
        UsageError: they are not those of a profile.
    """
    return None if data is None else strict_json.decode(Profile, data, "profile")


def keep(name: str, profile: Profile) -> None:
    """Keep a profile for later runs; a cache that cannot be written is no error."""
    path = _kept(name)
    beside = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(asdict(profile)))
        beside.replace(path)
    except OSError:
        return


def _kept(name: str) -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "lopsided" / f"{name}.json"


def _prepare(segments: Segments, device: jax.Device, workload: Workload) -> Iterator[tuple[str, int, Run]]:
    """Compiled segments: what they measure, and of which size."""
    row, heads = workload.seq_len, workload.heads
    for tokens in sorted({max(row // part, 1) for part in (8, 4, 2, 1)}):
        yield "tokens", tokens, segments.tokens(device, tokens)
    tiles = {(max(row // part, 1), heads) for part in (8, 4, 2, 1)} | {(row, max(heads // 2, 1))}
    for queries, count in sorted(tiles):
        yield "rows", queries * count, segments.attention(device, queries, (0, count))
    stored = -(-workload.parameters // jax.device_count())
    yield "update", stored, segments.update(device, stored)


def _measure(runs: Sequence[tuple[str, int, Run]]) -> list[tuple[str, int, dict[str, Any]]]:
    return [(kind, size, asdict(timed(run))) for kind, size, run in runs]


def _profile(
    cluster: Cluster, workload: Workload, timings: list[list[Measured]], fits: list[Fit], links: list[Link]
) -> Profile:
    notes = []
    for device, some, fitted in zip(cluster.devices, timings, fits, strict=True):
        if device.limits is not None and device.limits.cpu_share is not None:
            got = statistics.median(timing.share for _, _, timing in some)
            notes.append(f"profile: {device.name}: {got:.3f} of a core, {device.limits.cpu_share:g} was asked for")
        kind, size, noisy = max(some, key=lambda timing: timing[2].spread)
        if noisy.noisy:
            notes.append(f"profile: {device.name}: samples of {kind} {size} differ by {noisy.spread:.0%}")
        if fitted.error > POORLY_FITTED:
            notes.append(f"profile: {device.name}: the curve is {fitted.error:.0%} off at one size")
    rates = [_flops(workload) / _row_seconds(workload, fitted.curve) for fitted in fits]
    base = min(rates)
    measured = [
        replace(device, curve=fitted.curve, speed=float(f"{rate / base:.4g}"))
        for device, fitted, rate in zip(cluster.devices, fits, rates, strict=True)
    ]
    return Profile(
        cluster=replace(
            cluster,
            devices=tuple(measured),
            flops_per_speed=base,
            links=tuple(link for link in links if "*" not in link.hosts),
            same_host=next((link for link in links if "*" in link.hosts), cluster.same_host),
            declared=True,
        ),
        notes=tuple(notes),
    )


def _fitted(workload: Workload, timings: list[Measured]) -> Fit:
    """The curve of one device."""
    samples, update = [], 0.0
    for kind, size, timing in timings:
        if kind == "tokens":
            samples.append(Sample(tokens=size, rows=0, seconds=timing.seconds))
        elif kind == "rows":  # of one layer
            samples.append(Sample(tokens=0, rows=size, seconds=timing.seconds * workload.layers))
        else:
            update = timing.seconds / size
    return fit(workload.model, samples, update)


def _row_seconds(workload: Workload, curve: Curve) -> float:
    """Of a microbatch of whole rows on one device."""
    return curve.compute(workload.seq_len, workload.seq_len * workload.heads)


def _flops(workload: Workload) -> float:
    """Of a microbatch."""
    return workload.step_flops() / workload.microbatches


def _ends(cluster: Cluster, devices: Sequence[jax.Device]) -> dict[tuple[str, str], list[jax.Device]]:
    """Who exchanges messages to measure links: the devices of the largest host, and one device of every two hosts."""
    hosts: dict[str, list[jax.Device]] = {}
    for described, device in zip(cluster.devices, devices, strict=True):
        hosts.setdefault(described.host, []).append(device)
    largest = max(hosts.values(), key=len)
    ends = {("*", "*"): largest} if len(largest) > 1 else {}
    return ends | {(a, b): [hosts[a][0], hosts[b][0]] for a, b in itertools.combinations(hosts, 2)}


def _takes_part(devices: Sequence[jax.Device]) -> bool:
    return jax.process_index() in {device.process_index for device in devices}


def _exchanges(devices: Sequence[jax.Device], large: int) -> list[messages.Turns]:
    """Small and large messages."""
    return [messages.exchanging(devices, rows, direct=better_direct(devices)) for rows in (SMALL, large)]


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
    job: Job, hosts: tuple[str, str], count: int, exchanges: list[messages.Turns] | None, work: Load, large: int
) -> tuple[Link, list[float]]:
    """Latency and bandwidth as the cost model counts them, told to all processes; a device's own seconds for a byte.

    Each process works, then all exchange: what that takes beyond the work of the slowest is the exchange. Of that, what
    a large message costs a processor that works for itself is the device's own, and the slowest's is not the link's.
    """
    mine = None
    if exchanges is not None:
        small, long = (per_message(turns, work.units) for turns in exchanges)
        pace = work.took.seconds / max(work.took.cpu, LEAST)  # how long a slowed process takes for a CPU second
        own = max(long.cpu - small.cpu, 0.0) * pace if _one_cpu_device() else 0.0
        mine = [small.seconds, long.seconds, work.took.seconds, own]
    found = [times for times in job.exchange(f"link {hosts}", mine) if times is not None]
    busiest, slowest = (max(times[column] for times in found) for column in (2, 3))
    short, full = (max(found[0][size] - busiest, LEAST) for size in range(2))
    brought = (count - 1) * 4 * messages.MATRICES * messages.WIDTH * (large - SMALL)  # bytes
    bandwidth = brought / max(full - short - slowest, LEAST)
    owners = [times[3] / brought for times in found]
    link = Link(hosts=hosts, bandwidth=bandwidth, latency=short / (count - 1))
    return link, owners if len(owners) == count else [0.0] * count


def _one_cpu_device() -> bool:
    """Whether this process' CPU seconds are those of one device."""
    devices = jax.local_devices()
    return len(devices) == 1 and devices[0].platform == "cpu"
