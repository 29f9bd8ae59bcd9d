"""Which devices make a data group."""

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from meshes.cluster import Cluster

Order = tuple[tuple[int, ...], ...]
FEW_SPLITS = 40  # up to here every split is tried


def orders(cluster: Cluster, groups: int) -> list[Order]:
    """Ways worth a try to split the devices into groups of equally many, deterministic.

    Groups as fast as each other; groups of like devices; groups of devices of one host; groups as the cluster names
    its devices; and where the ways are few, all of them but for exchanges of equal devices. In a group faster devices
    come first, and groups come fastest first; equal devices keep their order.

    Args:
        cluster: the devices.
        groups: a divisor of their number.

    Returns:
        Numbers of the devices [groups][devices of a group], without repetition.
    """
    size = len(cluster.devices) // groups
    first_seen = {device.host: i for i, device in reversed([*enumerate(cluster.devices)])}
    alike = _sorted(cluster, range(len(cluster.devices)))
    near = sorted(alike, key=lambda d: first_seen[cluster.devices[d].host])
    found = [
        _balanced(cluster, alike, groups),
        _runs(alike, size),
        _runs(near, size),
        _runs([*range(len(alike))], size),
    ]
    if 1 < _splits_count(len(alike), size) <= FEW_SPLITS:
        found += _splits(alike, size)
    arranged = list(dict.fromkeys(_arranged(cluster, order) for order in found))
    return list({_kinds(cluster, order): order for order in reversed(arranged)}.values())[::-1]


def _sorted(cluster: Cluster, devices: Iterable[int]) -> list[int]:
    return sorted(devices, key=lambda d: (-cluster.devices[d].speed, -_memory(cluster, d), d))


def _memory(cluster: Cluster, device: int) -> float:
    memory = cluster.devices[device].memory
    return float("inf") if memory is None else float(memory)


def _runs(devices: list[int], size: int) -> list[list[int]]:
    return [devices[i : i + size] for i in range(0, len(devices), size)]


def _splits_count(devices: int, size: int) -> int:
    groups = devices // size
    return math.factorial(devices) // (math.factorial(size) ** groups * math.factorial(groups))


def _splits(devices: list[int], size: int) -> Iterator[list[list[int]]]:
    """All ways to split devices into groups of a size."""
    if not devices:
        yield []
        return
    first, others = devices[0], devices[1:]
    for more in itertools.combinations(others, size - 1):
        for rest in _splits([d for d in others if d not in more], size):
            yield [[first, *more], *rest]


def _kinds(cluster: Cluster, order: Order) -> Order:
    """What an order is but for exchanges of equal devices: of each group, the first device equal to each of its own."""
    kinds = [replace(device, name="", process=0) for device in cluster.devices]
    alike = {kind: d for d, kind in reversed([*enumerate(kinds)])}
    first = [alike[kind] for kind in kinds]
    return tuple(sorted(tuple(sorted(first[d] for d in group)) for group in order))


def _balanced(cluster: Cluster, devices: list[int], groups: int) -> list[list[int]]:
    """The next fastest device joins the slowest group that has room (longest processing time first)."""
    size = len(devices) // groups
    heap = [(0.0, g) for g in range(groups)]
    members: list[list[int]] = [[] for _ in range(groups)]
    for device in devices:
        speed, g = heapq.heappop(heap)
        members[g].append(device)
        if len(members[g]) < size:
            heapq.heappush(heap, (speed + cluster.devices[device].speed, g))
    return members


def _arranged(cluster: Cluster, order: list[list[int]]) -> Order:
    inside = [tuple(_sorted(cluster, group)) for group in order]
    return tuple(sorted(inside, key=lambda g: (-sum(cluster.devices[d].speed for d in g), g)))
