"""Cuts the vertices of a graph into parts of unequal weight, and counts what the parts need of each other.

NumPy, and METIS through pymetis. Legend: N vertices, E edges, C weights of a vertex, M devices. An edge goes from a
sender to a receiver and belongs to the device that owns the receiver.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from meshes import metis
from meshes.errors import UsageError

WEIGHT_UNITS = 1000  # METIS's whole units of the mean weight
MOST_UNITS = 2**30  # of all vertices, so that sums fit in 32 bits
ROUNDS = 64  # of moves between two devices
DENSE = 16  # entries of a table for each number, up to which it is faster than sorting
NEAR = 0.005  # of the step; devices that differ by less are balanced


class Edges(NamedTuple):
    """Edges of one graph, and which vertices are trained on.

    Args:
        senders, receivers: vertex numbers, int [E].
        relations: type of each edge, int [E]; None is one type.
        train: whether a vertex has a label to train on, bool [N]; None is no vertex.
    """

    senders: np.ndarray
    receivers: np.ndarray
    relations: np.ndarray | None = None
    train: np.ndarray | None = None

    def check(self, vertices: int) -> None:
        """Refuse edges of vertices that there are not.

        Raises:
            UsageError: arrays differ in length or are not whole numbers, or an edge names a vertex out of range.
        """
        for name, values in (("senders", self.senders), ("receivers", self.receivers), ("relations", self.relations)):
            if values is not None and (values.shape != (len(self.senders),) or values.dtype.kind not in "iu"):
                raise UsageError(
                    f"{name} has shape {values.shape} and type {values.dtype}: give {len(self.senders)} whole numbers"
                )
        for name, values in (("sender", self.senders), ("receiver", self.receivers)):
            if len(bad := np.flatnonzero((values < 0) | (values >= vertices))):
                at = int(bad[0])
                raise UsageError(f"edge {at} has {name} {values[at]}: the graph has vertices 0 to {vertices - 1}")
        if self.train is not None and self.train.shape != (vertices,):
            raise UsageError(f"train has shape {self.train.shape}: give one entry for each of {vertices} vertices")


@dataclass(frozen=True, eq=False)
class Parts:
    """What each device owns, and what pairs of devices send; int arrays.

    Args:
        vertices: owned [M].
        train: owned and trained on [M].
        edges: that arrive at owned vertices [M].
        cut: edges from vertices of device i to vertices of device j [M, M]; the diagonal is what stays inside.
        halo: distinct vertices of device i that have an edge to device j [M, M], zero on the diagonal.
        fed: distinct pairs of relation and vertex of device j that device i has an edge to [M, M], likewise.
    """

    vertices: np.ndarray
    train: np.ndarray
    edges: np.ndarray
    cut: np.ndarray
    halo: np.ndarray
    fed: np.ndarray

    @staticmethod
    def of(edges: Edges, owner: np.ndarray, devices: int) -> "Parts":
        """Count.

        Args:
            edges: of the graph.
            owner: device of each vertex, int [N].
            devices: M.
        """
        own = owner.astype(np.int64)
        sender, receiver = own[edges.senders], own[edges.receivers]
        cut = np.bincount(sender * devices + receiver, minlength=devices**2).reshape(devices, devices)
        across = np.flatnonzero(sender != receiver)
        senders, receivers = edges.senders[across].astype(np.int64), edges.receivers[across].astype(np.int64)
        kinds, slots = 1, receivers
        if edges.relations is not None and len(across):
            kinds = int(edges.relations[across].max()) + 1
            slots = receivers + len(own) * edges.relations[across].astype(np.int64)
        sent = _distinct(senders * devices + receiver[across], len(own) * devices)
        fed = _distinct(slots * devices + sender[across], len(own) * kinds * devices)
        return Parts(
            vertices=np.bincount(own, minlength=devices),
            train=np.bincount(own if edges.train is None else own[edges.train], minlength=devices)
            * (edges.train is not None),
            edges=cut.sum(axis=0),
            cut=cut,
            halo=_pairs(own[sent // devices], sent % devices, devices),
            fed=_pairs(fed % devices, own[fed // devices % len(own)], devices),
        )

    @cached_property
    def partners(self) -> int:
        """Most devices that one device sends to or receives from."""
        talks = self.halo > 0
        return int(max(talks.sum(axis=0).max(), talks.sum(axis=1).max()))

    @cached_property
    def cut_edges(self) -> int:
        """Edges between devices: more than this many rows nobody needs."""
        return int(self.cut.sum() - np.trace(self.cut))

    @cached_property
    def rows(self) -> np.ndarray:
        """Rows from device to device where sums may be added up by the sender [M, M]: at most the smaller of both ways.

        Only linear sums may be added up in parts: not a maximum, nor a softmax over edges that nobody sees together.
        `meshes.cover` mixes both ways, which makes fewer still.
        """
        return np.minimum(self.halo, self.fed)


def busiest(rows: np.ndarray) -> int:
    """Most rows that one device sends or receives.

    Args:
        rows: from device to device [M, M].
    """
    return int(max(rows.sum(axis=0).max(), rows.sum(axis=1).max()))


def partition(
    senders: np.ndarray,
    receivers: np.ndarray,
    vertices: int,
    shares: Sequence[float],
    weights: np.ndarray,
    seed: int,
) -> np.ndarray:
    """The owner of each vertex, few edges cut, such that weights are in proportion to the shares.

    METIS (Karypis and Kumar, "A Fast and High Quality Multilevel Scheme for Partitioning Irregular Graphs", 1998) cuts
    the undirected simple graph: directions, duplicates and self loops are dropped. pymetis balances one weight with
    target shares, not several; so the columns of `weights` are in one unit, seconds, and their sum is balanced.

    Args:
        senders, receivers: int [E].
        vertices: N.
        shares: of the total weight, one for each device, in any unit; a device of share zero owns nothing.
        weights: what a vertex costs, zero or more, [N, C].
        seed: zero or more; the same seed gives the same owners, with the same version of pymetis.

    Returns:
        int32 [N].

    Raises:
        UsageError: more devices with a share than vertices, or shares or weights that are no such thing.
    """
    share, units = _checked(vertices, shares, weights)
    parts = np.flatnonzero(share)
    if len(parts) == 1:
        return np.full(vertices, parts[0], np.int32)
    starts, neighbours = _adjacency(senders, receivers, vertices)
    target = share[parts] / share[parts].sum()
    targets = [*target[:-1].tolist(), 1.0 - float(target[:-1].sum())]
    return parts[metis.parts(starts, neighbours, units, targets, seed)].astype(np.int32)


def random_partition(vertices: int, shares: Sequence[float], weights: np.ndarray, seed: int) -> np.ndarray:
    """Owners by chance, weights in proportion to the shares; arguments and errors are those of `partition`."""
    share, units = _checked(vertices, shares, weights)
    order = np.random.default_rng(seed).permutation(vertices)
    reached = np.cumsum(units[order]) - units[order] / 2
    owner = np.empty(vertices, np.int32)
    owner[order] = np.searchsorted(np.cumsum(share) / share.sum(), reached / units.sum(), side="right")
    return owner


def rebalance(
    edges: Edges,
    owner: np.ndarray,
    work: np.ndarray,
    rates: np.ndarray,
    cost: Callable[[Parts], tuple[float, np.ndarray]],
) -> tuple[np.ndarray, Parts]:
    """Move vertices from the device that takes longest to others, as long as the longest time falls.

    METIS balances one weight and no halos; devices differ in what an edge costs them, and wait for the last one. The
    vertices that go first have most neighbours where they go, and fewest where they come from.

    Args:
        edges: of the graph.
        owner: int32 [N].
        work: what a vertex brings to do, [N, C].
        rates: seconds of one unit of each kind of work on each device [M, C]; a device with none (infinite) takes none.
        cost: of parts: bytes short of memory, and seconds of each device [M].

    Returns:
        Owners and their parts; the shortage and the longest time are never larger than before.
    """
    devices = len(rates)
    takes = np.isfinite(rates).all(axis=1)
    parts = Parts.of(edges, owner, devices)
    short, seconds = cost(parts)
    for _ in range(ROUNDS):
        slow = int(np.argmax(seconds))
        if seconds[slow] - seconds[takes].min() <= NEAR * seconds[slow]:
            break
        for fast in [int(d) for d in np.argsort(seconds, kind="stable") if takes[d] and d != slow]:
            moved = _moved(edges, owner, work, rates, seconds, (slow, fast), cost, (short, float(seconds[slow])))
            if moved is not None:
                owner, parts, (short, seconds) = moved
                break
        else:
            break
    return owner, parts


def owner_digest(owner: np.ndarray) -> str:
    """Hash of who owns what, 16 hexadecimal digits."""
    return hashlib.sha256(owner.astype("<i4").tobytes()).hexdigest()[:16]


def _moved(
    edges: Edges,
    owner: np.ndarray,
    work: np.ndarray,
    rates: np.ndarray,
    seconds: np.ndarray,
    pair: tuple[int, int],
    cost: Callable[[Parts], tuple[float, np.ndarray]],
    best: tuple[float, float],
) -> tuple[np.ndarray, Parts, tuple[float, np.ndarray]] | None:
    """Owners after a move from the first device to the second that shortens the step; None if none is found."""
    slow, fast = pair
    own = np.flatnonzero(owner == slow)
    leaves, arrives = work[own] @ rates[slow], work[own] @ rates[fast]
    order = np.argsort(-_attraction(edges, owner, pair)[own] / np.maximum(leaves, 1e-300), kind="stable")
    gap = float(seconds[slow] - seconds[fast])
    for part in (1.0, 0.5, 0.25, 0.05):
        light = order[(leaves + arrives)[order] <= part * gap]
        going = own[light[np.cumsum((leaves + arrives)[light]) <= part * gap]]
        if not len(going):
            return None
        tried = owner.copy()
        tried[going] = fast
        parts = Parts.of(edges, tried, len(rates))
        short, times = cost(parts)
        if (short, float(times.max())) < best:
            return tried, parts, (short, times)
    return None


def _attraction(edges: Edges, owner: np.ndarray, pair: tuple[int, int]) -> np.ndarray:
    """Edges of each vertex with the second device less those with the first [N]."""
    slow, fast = pair
    total = np.zeros(len(owner))
    for near, far in ((edges.senders, edges.receivers), (edges.receivers, edges.senders)):
        pull = (owner[far] == fast).astype(float) - ((owner[far] == slow) & (near != far))
        total += np.bincount(near, weights=pull, minlength=len(owner))
    return total


def _checked(vertices: int, shares: Sequence[float], weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shares as an array, and whole units of each vertex's weight."""
    share, weight = np.asarray(shares, float), np.asarray(weights, float)
    if not (np.isfinite(share).all() and (share >= 0).all() and share.sum() > 0):
        raise UsageError(f"shares are {[*share.tolist()][:8]}: give numbers, zero or more, one of them above zero")
    if (wanted := int(np.count_nonzero(share))) > vertices:
        raise UsageError(f"{wanted} devices for {vertices} vertices: use at most {vertices} devices")
    if weight.ndim != 2 or len(weight) != vertices or not (np.isfinite(weight).all() and (weight >= 0).all()):
        raise UsageError(f"weights have shape {weight.shape}: give numbers, zero or more, for {vertices} vertices")
    total = weight.sum(axis=1)
    if not total.any():
        total = np.ones(vertices)
    scale = min(WEIGHT_UNITS * vertices, MOST_UNITS - vertices) / total.sum()
    return share, np.maximum(np.rint(total * scale), 1).astype(np.int64)


def _adjacency(senders: np.ndarray, receivers: np.ndarray, vertices: int) -> tuple[np.ndarray, np.ndarray]:
    """The undirected simple graph: where each vertex's neighbours start, and the neighbours."""
    a, b = senders.astype(np.int64), receivers.astype(np.int64)
    other = a != b
    a, b = a[other], b[other]
    both = _distinct(np.concatenate([a * vertices + b, b * vertices + a]), vertices**2)
    degree = np.bincount(both // vertices, minlength=vertices)
    return np.concatenate([[0], np.cumsum(degree)]), both % vertices


def _distinct(keys: np.ndarray, stop: int) -> np.ndarray:
    """Each number once, sorted; numbers are below `stop`."""
    if stop <= DENSE * len(keys):
        found = np.zeros(stop, bool)
        found[keys] = True
        return np.flatnonzero(found)
    ordered = np.sort(keys)
    return ordered[np.diff(ordered, prepend=-1) != 0]


def _pairs(first: np.ndarray, second: np.ndarray, devices: int) -> np.ndarray:
    """How often each pair of devices occurs [M, M]."""
    return np.bincount(first * devices + second, minlength=devices**2).reshape(devices, devices)
