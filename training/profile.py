"""Measures the devices of a run: what each takes for the model's own segments, and what messages cost."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import numpy as np

from meshes import control
from meshes.cluster import Cluster, Link
from meshes.curve import Curve, Fit, Sample, fit
from meshes.job import Job
from meshes.lengths import visited
from meshes.stopwatch import Timing, timed
from meshes.workload import Workload
from training.link_profile import Exchanges, linked
from training.segments import Run, Segments

Size = tuple[str, int, int]  # which segment, tokens or pairs or numbers, key/value heads
Measured = tuple[Size, Timing]
POORLY_FITTED = 0.1
PLAIN = 0.95  # of a round part of a row


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
    exchanges = Exchanges.prepared(cluster, devices, _numbers(workload), workload.microbatch)
    job.exchange("profile compiled", True)
    control.throttle(True)
    mine = {str(n): _measure(runs) for n, runs in prepared.items()}
    found: dict[str, Any] = {}
    for part in job.exchange("profile", mine):
        found |= part
    timings = [
        [((kind, size, heads), Timing(**timing)) for (kind, size, heads), timing in found[str(n)]]
        for n in range(len(devices))
    ]
    fits = [_fitted(workload, some) for some in timings]
    links, own = exchanges.measured(job)
    control.throttle(False)
    curves = [replace(f.curve, byte=own[n].weights, row_byte=own[n].rows) for n, f in enumerate(fits)]
    return _profile(cluster, workload, timings, [replace(f, curve=c) for f, c in zip(fits, curves, strict=True)], links)


def _prepare(segments: Segments, device: jax.Device, workload: Workload) -> Iterator[tuple[Size, Run]]:
    """Compiled segments, with what they measure."""
    row, heads, group = workload.seq_len, workload.heads, workload.heads // workload.kv_heads
    shares = sorted({_plain(row, part) for part in (8, 4, 2, 1)})
    for tokens in shares:
        yield ("tokens", tokens, 0), segments.tokens(device, tokens)
    tiles = {(share, heads) for share in shares}
    tiles |= {(row, max(heads // 2, 1)), (row, group)}  # a row in few heads reads few keys
    for queries, count in sorted(tiles):
        yield (
            ("pairs", count * _pairs(queries, row), -(-count // group)),
            segments.attention(device, queries, (0, count)),
        )
    stored = -(-workload.parameters // jax.device_count())
    yield ("update", stored, 0), segments.update(device, stored)


def _plain(row: int, part: int) -> int:
    """About a part of a row, as shares are: no round number, which blocks and caches take for better or worse."""
    return min(round(PLAIN * row / part) | 1, row)


def _pairs(queries: int, row: int) -> int:
    """Pairs of queries and keys that attention computes in one head."""
    return round(queries * row * float(visited(np.array(queries), np.array(row))))


def _measure(runs: Sequence[tuple[Size, Run]]) -> list[tuple[Size, dict[str, Any]]]:
    return [(size, asdict(timed(run))) for size, run in runs]


def _profile(
    cluster: Cluster, workload: Workload, timings: list[list[Measured]], fits: list[Fit], links: list[Link]
) -> Profile:
    notes = []
    for device, some, fitted in zip(cluster.devices, timings, fits, strict=True):
        if device.limits is not None and device.limits.cpu_share is not None:
            got = statistics.median(timing.share for _, timing in some)
            notes.append(f"profile: {device.name}: {got:.3f} of a core, {device.limits.cpu_share:g} was asked for")
        (kind, size, _), noisy = max(some, key=lambda timing: timing[1].spread)
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
    found = replace(linked(cluster, links), devices=tuple(measured), flops_per_speed=base, declared=True)
    return Profile(cluster=found, notes=tuple(notes))


def _fitted(workload: Workload, timings: list[Measured]) -> Fit:
    """The curve of one device."""
    samples, update = [], 0.0
    for (kind, size, kv_heads), timing in timings:
        if kind == "tokens":
            samples.append(Sample(tokens=size, pairs=0, seconds=timing.seconds))
        elif kind == "pairs":  # of one layer
            seconds = timing.seconds * workload.layers
            samples.append(Sample(tokens=0, pairs=size, seconds=seconds, kv_heads=kv_heads))
        else:
            update = timing.seconds / size
    return fit(workload.model, samples, update)


def _row_seconds(workload: Workload, curve: Curve) -> float:
    """Of a microbatch of whole rows on one device."""
    row = workload.seq_len
    return curve.compute(row, workload.heads * _pairs(row, row), workload.kv_heads)


def _numbers(workload: Workload) -> int:
    """Of the largest exchange: keys and values of a microbatch, or the weights of a layer."""
    keys_values = 2 * workload.microbatch * workload.seq_len * workload.kv_heads * workload.head_dim
    return max(keys_values, workload.layer_parameters)


def _flops(workload: Workload) -> float:
    """Of a microbatch."""
    return workload.step_flops() / workload.microbatches
