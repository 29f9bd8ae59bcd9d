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
from meshes.curve import Curve, Sample, fit
from meshes.job import Job
from meshes.stopwatch import Timing, timed
from meshes.workload import Workload
from sharding import messages
from training.segments import Run, Segments

POORLY_FITTED = 0.1
SMALL, LARGE = 64, 2**20  # float32 numbers of a message
LOAD = 0.03  # seconds of work between messages
ROUNDS = 15
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
    exchanges = {hosts: _exchanges(some) for hosts, some in ends.items() if _takes_part(some)}
    job.exchange("profile compiled", True)
    control.throttle(True)
    mine = {str(n): _measure(runs) for n, runs in prepared.items()}
    found: dict[str, Any] = {}
    for part in job.exchange("profile", mine):
        found |= part
    work = Load.of(prepared[here[0]][0][2])
    links = [_link(job, hosts, len(some), exchanges.get(hosts), work) for hosts, some in ends.items()]
    control.throttle(False)
    return _profile(cluster, workload, [found[str(n)] for n in range(len(devices))], links)


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
    for tokens in sorted({max(row // 4, 1), max(row // 2, 1), row}):
        yield "tokens", tokens, segments.tokens(device, tokens)
    tiles = {(max(row // 4, 1), heads), (row, heads), (row, max(heads // 2, 1)), (max(row // 2, 1), heads)}
    for queries, count in sorted(tiles):
        yield "rows", queries * count, segments.attention(device, queries, (0, count))
    stored = -(-workload.parameters // jax.device_count())
    yield "update", stored, segments.update(device, stored)


def _measure(runs: Sequence[tuple[str, int, Run]]) -> list[tuple[str, int, dict[str, Any]]]:
    return [(kind, size, asdict(timed(run))) for kind, size, run in runs]


def _profile(cluster: Cluster, workload: Workload, found: list[Any], links: list[Link]) -> Profile:
    curves, notes = [], []
    for device, about in zip(cluster.devices, found, strict=True):
        timings = [(kind, size, Timing(**timing)) for kind, size, timing in about]
        curve, error = _curve(workload, timings)
        curves.append(curve)
        if device.limits is not None and device.limits.cpu_share is not None:
            got = statistics.median(timing.share for _, _, timing in timings)
            notes.append(f"profile: {device.name}: {got:.3f} of a core, {device.limits.cpu_share:g} was asked for")
        noisy = max(timings, key=lambda timing: timing[2].spread)
        if noisy[2].noisy:
            notes.append(f"profile: {device.name}: samples of {noisy[0]} {noisy[1]} differ by {noisy[2].spread:.0%}")
        if error > POORLY_FITTED:
            notes.append(f"profile: {device.name}: the curve is {error:.0%} off at one size")
    rates = [_flops(workload) / c.compute(workload.seq_len, workload.seq_len * workload.heads) for c in curves]
    base = min(rates)
    measured = [
        replace(device, curve=curve, speed=float(f"{rate / base:.4g}"))
        for device, curve, rate in zip(cluster.devices, curves, rates, strict=True)
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


def _curve(workload: Workload, timings: list[tuple[str, int, Timing]]) -> tuple[Curve, float]:
    samples, update = [], 0.0
    for kind, size, timing in timings:
        if kind == "tokens":
            samples.append(Sample(tokens=size, rows=0, seconds=timing.seconds))
        elif kind == "rows":  # of one layer
            samples.append(Sample(tokens=0, rows=size, seconds=timing.seconds * workload.layers))
        else:
            update = timing.seconds / size
    fitted = fit(workload.model, samples, update)
    return fitted.curve, fitted.error


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


def _exchanges(devices: Sequence[jax.Device]) -> tuple[Run, Run]:
    """A small and a large exchange."""
    return messages.collective(devices, SMALL), messages.collective(devices, LARGE)


@dataclass(frozen=True, kw_only=True)
class Load:
    """Work of about `LOAD` seconds between exchanges: a process that has rested answers sooner than in a step.

    Args:
        run: a segment.
        repeats: how often.
        seconds: that this takes.
    """

    run: Run
    repeats: int
    seconds: float

    @staticmethod
    def of(run: Run) -> "Load":
        """As often as a segment must run."""
        once = timed(run).seconds
        repeats = max(1, round(LOAD / once))
        return Load(run=run, repeats=repeats, seconds=once * repeats)

    def __call__(self) -> None:
        """Do it."""
        for _ in range(self.repeats):
            self.run()


def _link(job: Job, hosts: tuple[str, str], count: int, exchanges: tuple[Run, Run] | None, work: Load) -> Link:
    """Latency and bandwidth as the cost model counts them, told to all processes.

    Each process works, then all exchange: what a round takes beyond the work of the slowest is the exchange.
    """
    mine = None
    if exchanges is not None:
        mine = [*(_round_seconds(work, exchange) for exchange in exchanges), work.seconds]
    found = [times for times in job.exchange(f"link {hosts}", mine) if times is not None]
    busiest = max(times[2] for times in found)
    small, large = (max(found[0][size] - busiest, LEAST) for size in range(2))
    steps = 2 * (count - 1)  # a ring, once for the all-gather and once for the reduce-scatter
    size = 4 * (LARGE - SMALL)
    return Link(hosts=hosts, bandwidth=steps * size / max(large - small, LEAST), latency=small / steps)


def _round_seconds(work: Load, exchange: Run) -> float:
    """Median seconds of a round; all processes begin and end a round together."""
    exchange()
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        exchange()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
