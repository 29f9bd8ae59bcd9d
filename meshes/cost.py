"""Predicted seconds of a step, from measured curves where every device has one, else from analytic FLOPs. NumPy only.

A data group works in phases: the token phase (projections, MLP, logits), the attention phase (tiles), and the
exchanges between them. Exchanges synchronise a group, so that a group's microbatch takes the sum over phases of its
slowest device; a step takes the slowest group's microbatches, then the gradients are summed over the mesh. Nothing
is assumed to overlap. Legend: arrays are [G data groups, M devices of a group].
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from meshes.cluster import Cluster
from meshes.curve import token_seconds
from meshes.lengths import visited
from meshes.workload import Attention, KeysValues, Workload

__all__ = ["Division", "Grid", "Seconds", "Workload", "seconds"]


@dataclass(frozen=True, eq=False)
class Grid:
    """The devices of a mesh.

    Args:
        order: numbers of the devices in the cluster, int [G, M].
        flops: FLOP/s of each device [G, M].
        limit: bytes of memory of each device, infinite if unlimited [G, M].
        bandwidth, latency: of the worst link of each group [G].
        mesh_bandwidth, mesh_latency: of the worst link of the mesh.
        curves: what each device was measured to take, [G, M] arrays; None if one of them was not.
    """

    order: np.ndarray
    flops: np.ndarray
    limit: np.ndarray
    bandwidth: np.ndarray
    latency: np.ndarray
    mesh_bandwidth: float
    mesh_latency: float
    curves: "Curves | None" = None

    @staticmethod
    def of(cluster: Cluster, order: Sequence[Sequence[int]]) -> "Grid":
        """The grid of a device order."""
        numbers = np.asarray(order, np.int64)
        speed = np.array([device.speed for device in cluster.devices])
        memory = np.array([np.inf if d.memory is None else d.memory for d in cluster.devices])
        links = [cluster.worst_link(group) for group in numbers.tolist()]
        worst = cluster.worst_link(range(len(cluster.devices)))
        return Grid(
            order=numbers,
            flops=speed[numbers] * cluster.flops_per_speed,
            limit=memory[numbers],
            bandwidth=np.array([link.bandwidth for link in links]),
            latency=np.array([link.latency for link in links]),
            mesh_bandwidth=worst.bandwidth,
            mesh_latency=worst.latency,
            curves=Curves.of(cluster, numbers),
        )

    @cached_property
    def unlimited(self) -> bool:
        """Whether no device has a limit on its memory."""
        return bool(np.all(np.isinf(self.limit)))

    @property
    def shape(self) -> tuple[int, int]:
        """Data groups, devices of a group."""
        return self.order.shape[0], self.order.shape[1]


@dataclass(frozen=True, eq=False)
class Curves:
    """The curves of a mesh's devices, `meshes.curve.Curve`, as arrays [G, M].

    Args:
        model: that all were measured with.
        fixed, token, pair, update, bend, byte, row_byte, key: seconds.
        knee: tokens.
    """

    model: str
    fixed: np.ndarray
    token: np.ndarray
    pair: np.ndarray
    update: np.ndarray
    knee: np.ndarray
    bend: np.ndarray
    byte: np.ndarray
    row_byte: np.ndarray
    key: np.ndarray

    @staticmethod
    def of(cluster: Cluster, order: np.ndarray) -> "Curves | None":
        """The curves of a device order; None unless all devices have one of the same model."""
        curves = [device.curve for device in cluster.devices if device.curve is not None]
        if len(curves) < len(cluster.devices) or len({curve.model for curve in curves}) > 1:
            return None
        names = [field.name for field in fields(Curves) if field.name != "model"]
        parts = {name: np.array([getattr(curve, name) for curve in curves])[order] for name in names}
        return Curves(model=curves[0].model, **parts)


@dataclass(frozen=True, eq=False)
class Division:
    """How a row's work is divided over the devices of each group; int arrays [G, M].

    Args:
        tokens: tokens owned outside attention.
        queries: query tokens of the tile.
        start, stop: query heads of the tile.
        kv_heads: key/value heads that the tile reads.
        attention: `context`, `head` or `hybrid`.
        kv: `gather` or `ring`.
    """

    tokens: np.ndarray
    queries: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    kv_heads: np.ndarray
    attention: Attention
    kv: KeysValues

    @cached_property
    def heads(self) -> np.ndarray:
        """Query heads of each tile."""
        return self.stop - self.start

    @cached_property
    def even_tokens(self) -> bool:
        """All devices own equally many tokens: token work is one plain program without recomputation."""
        return bool(np.all(self.tokens == self.tokens[0, 0]))

    @cached_property
    def aligned(self) -> bool:
        """Every device attends from the tokens that it owns, in all heads: queries and outputs stay at home."""
        everything = (self.heads == self.stop.max()) | (self.queries == 0)
        return bool(np.all(everything) and np.array_equal(self.queries, self.tokens))


@dataclass(frozen=True, eq=False)
class Seconds:
    """Predicted times.

    Args:
        tokens, attention: of one microbatch on each device [G, M].
        communication: of one microbatch in each group [G].
        once: of gradients and parameters over data groups, sums and the optimizer, once a step.
    """

    tokens: np.ndarray
    attention: np.ndarray
    communication: np.ndarray
    once: float

    @cached_property
    def microbatch(self) -> np.ndarray:
        """One microbatch of each group [G]."""
        return self.tokens.max(axis=1) + self.attention.max(axis=1) + self.communication

    def step(self, counts: np.ndarray) -> float:
        """The whole step, if group g runs counts[g] microbatches."""
        return float(np.max(counts * self.microbatch)) + self.once


def seconds(
    grid: Grid, workload: Workload, division: Division, *, specialized: bool = False, part: float | None = None
) -> Seconds:
    """Predict a division.

    Args:
        grid, workload, division: what runs what, and how.
        specialized: every process compiles its own sizes; else unequal devices run one switched program.
        part: of all pairs of queries and keys that measured devices compute, by default that of their blocks.
    """
    exact = specialized or division.even_tokens
    rows, remat = workload.microbatch, workload.remat == "layer"
    # Forward 1, backward 2, and rematerialised layers run again; a switched backward recomputes its branch.
    passes, again = 3 + remat, not exact
    tiles = division.queries * division.heads * _ring_padding(workload, division)
    if grid.curves is not None and grid.curves.model == workload.model:
        curves, works = grid.curves, division.tokens + tiles > 0
        token = (1 + again / passes) * token_seconds(curves, division.tokens) + curves.fixed * works
        weights, moved = link_bytes(grid, workload, division)
        token = token + curves.byte * weights + curves.row_byte * moved[:, None]
        keys = np.array(division.tokens.max() if division.kv == "ring" else workload.seq_len)
        pairs = tiles * workload.seq_len * (visited(division.queries, keys) if part is None else part)
        attention = curves.pair * pairs + curves.key * division.kv_heads * (tiles > 0)
    else:
        token = (passes + again) * rows * workload.token_flops * division.tokens / grid.flops
        # Blockwise attention's backward takes 5 matrix products where the forward takes 2 (Dao, FlashAttention-2).
        attention = (3.5 + remat) * rows * workload.layers * workload.query_flops * tiles / grid.flops
    communication = weight_seconds(grid, workload) + exchange_seconds(grid, workload, division)
    return Seconds(token, attention, communication, once_seconds(grid, workload))


def weight_seconds(grid: Grid, workload: Workload) -> np.ndarray:
    """Parameters gathered and gradients scattered inside each group, of one microbatch [G].

    Each half of a layer gathers its weights for the forward, the backward and a rematerialised forward, and
    reduce-scatters gradients; the output gathers once, and both ends scatter.
    """
    collectives = 2 * workload.layers * (_gathers(workload) + 1) + 3
    return collective_seconds(grid, weight_bytes(workload), collectives)


def weight_bytes(workload: Workload) -> float:
    """Bytes of whole parameters in the compute dtype and gradients in float32, as often as a microbatch moves them."""
    size = workload.layers * workload.layer_parameters * (_gathers(workload) * workload.compute_bytes + 4)
    return size + workload.embedding_parameters * (workload.compute_bytes + 2 * 4)


def _gathers(workload: Workload) -> int:
    return 2 + (workload.remat == "layer")


def link_bytes(grid: Grid, workload: Workload, division: Division) -> tuple[float, np.ndarray]:
    """Bytes of weights and of rows [G] that the links bring a device of each group in one microbatch."""
    devices = grid.shape[1]
    return weight_bytes(workload) * (devices - 1) / devices, _exchanged(grid, workload, division)[0]


def collective_seconds(grid: Grid, size: float, collectives: int) -> np.ndarray:
    """All-gathers or reduce-scatters inside each group [G], of so many bytes together: rings of M - 1 messages."""
    devices = grid.shape[1]
    return (devices - 1) * (size / devices / grid.bandwidth + collectives * grid.latency)


SUMS = 2  # of a few numbers over the mesh: loss and weight, and the norm of the gradient


def once_seconds(grid: Grid, workload: Workload) -> float:
    """What a step does once: exchanges over data groups, sums, and the optimizer where it was measured.

    The embedding is gathered once for the lookups of all microbatches.
    """
    sums = 2 * SUMS * (grid.order.size - 1) * grid.mesh_latency  # a ring there and back
    lookups = float(collective_seconds(grid, workload.embedding_parameters * workload.compute_bytes, 1).max())
    exchanged = reduction_seconds(grid, workload) + sums + lookups
    curves = grid.curves
    if curves is None or curves.model != workload.model:
        return exchanged
    own = float(curves.byte.max()) * reduction_bytes(grid, workload)
    return exchanged + own + float(curves.update.max()) * workload.parameters / grid.order.size


def reduction_seconds(grid: Grid, workload: Workload) -> float:
    """Parameters gathered and gradients scattered over data groups, once a step, both in float32."""
    groups = grid.shape[0]
    return reduction_bytes(grid, workload) / grid.mesh_bandwidth + 2 * (groups - 1) * grid.mesh_latency


def reduction_bytes(grid: Grid, workload: Workload) -> float:
    """Bytes that each device receives for that."""
    groups, devices = grid.shape
    return 2 * 4 * workload.parameters / devices * (groups - 1) / groups


def exchange_seconds(grid: Grid, workload: Workload, division: Division) -> np.ndarray:
    """Queries, keys, values and outputs between devices, of one microbatch [G]."""
    size, messages = _exchanged(grid, workload, division)
    return size / grid.bandwidth + messages * grid.latency


def _exchanged(grid: Grid, workload: Workload, division: Division) -> tuple[np.ndarray, int]:
    """Bytes that the busiest device of each group sends or receives, and messages, of one microbatch [G]."""
    devices = grid.shape[1]
    if devices == 1:
        return np.zeros(grid.shape[0]), 0
    number = workload.microbatch * workload.head_dim  # numbers of one token in one head
    if division.kv == "ring":
        return _ring(grid, workload, division, number)
    t, s = division.tokens, workload.seq_len
    w = division.kv_heads
    received = [2 * (s - t) * w]
    sent = [2 * t * (w.sum(axis=1, keepdims=True) - w)]
    if not division.aligned:
        tile = division.queries * division.heads
        away, lent = tile * (1 - t / s), t * (workload.heads - tile / s)
        received += [away, lent]
        sent += [lent, away]
    times = workload.layers * (2 + (workload.remat == "layer"))
    # Rounds are matched over all groups at once, so that the largest message of any group sets their size.
    busiest = [float(np.maximum(a, b).max()) for a, b in zip(received, sent, strict=True)]
    size = times * sum(busiest) * number * workload.compute_bytes
    return np.full(grid.shape[0], size), times * int(np.count_nonzero(busiest)) * (devices - 1)


def _ring(grid: Grid, workload: Workload, division: Division, number: int) -> tuple[np.ndarray, int]:
    """Every block visits every device; the backward carries float32 gradients along."""
    devices, forwards = grid.shape[1], 1 + (workload.remat == "layer")
    block = 2 * int(division.tokens.max()) * workload.kv_heads * number
    size = workload.layers * devices * block * ((forwards + 1) * workload.compute_bytes + 4)
    return np.full(grid.shape[0], float(size)), workload.layers * devices * (forwards + 2)


def _ring_padding(workload: Workload, division: Division) -> float:
    """In a ring all devices wait, in every turn, for the one that holds the largest block."""
    if division.kv != "ring":
        return 1.0
    return division.tokens.shape[1] * int(division.tokens.max()) / workload.seq_len
