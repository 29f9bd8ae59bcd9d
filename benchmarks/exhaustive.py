"""The best of all plans of a small cluster, by trying them: what the planner is held against.

Every split into data groups, every share of tokens, every tiling (bands of any devices in any order, any heads and
query tokens), both forms of keys and values, every deal of microbatches. Divisions are tried in the order of a lower
bound, each device's own compute plus the weights, until the bound reaches the best step found: exact, for whatever
`meshes.cost` predicts, as long as a device's compute hangs on its own share alone and the exchange costs no less than
nothing. Legend: G data groups, M devices of a group, S tokens of a row.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from meshes.cluster import Cluster, Device, Link
from meshes.cost import Division, Grid, seconds, weight_seconds
from meshes.curve import Curve
from meshes.memory import bytes_needed
from meshes.workload import Attention, KeysValues, Workload, divisors

Numbers = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Found:
    """The best plan.

    Args:
        step: its predicted seconds.
        plans: divisions that there are, each counted with all deals of microbatches as one.
        evaluated: those whose step was predicted; the bound ruled out the others.
        grid, division, counts: who does what; None if nothing is faster than `below`.
    """

    step: float
    plans: int
    evaluated: int
    grid: Grid | None
    division: Division | None
    counts: np.ndarray | None


class Tiling(NamedTuple):
    """Tiles of one group: query tokens, first head, last head + 1 of each device."""

    queries: Numbers
    start: Numbers
    stop: Numbers


def best(cluster: Cluster, workload: Workload, *, specialized: bool = False, below: float = float("inf")) -> Found:
    """The fastest predicted plan that fits in memory.

    Args:
        cluster, workload: small ones; the number of plans grows exponentially.
        specialized: every process compiles its own sizes.
        below: a step that some plan reaches, to rule out more by the bound.
    """
    search = _Search(cluster, workload, specialized, below)
    for groups in divisors(len(cluster.devices)):
        for order in splits(len(cluster.devices), groups):
            search.explore(Grid.of(cluster, order))
    return Found(
        step=search.step,
        plans=search.plans,
        evaluated=search.evaluated,
        grid=search.grid,
        division=search.division,
        counts=search.counts,
    )


@dataclass(frozen=True, kw_only=True)
class Case:
    """Something small to plan."""

    cluster: Cluster
    workload: Workload
    specialized: bool


def draw(seed: int) -> Case:
    """A random cluster of two to four devices on one or two hosts, and a transformer of few tokens and heads.

    From messages that are nearly free to messages that outweigh the work; half of the clusters have curves, as if
    measured, half of the rest compile sizes of their own in each process.
    """
    rng = np.random.default_rng(seed)
    devices = int(rng.integers(2, 5))
    kv_heads = int(rng.integers(1, 4))
    microbatch = int(_between(rng, 1, 256))
    work = Workload(
        batch_size=microbatch * int(rng.choice((1, 1, 1, 2, 3, 5))),
        microbatch=microbatch,
        seq_len=int(rng.integers(4, 10 if devices == 4 else 13)),
        vocab_size=int(rng.choice((16, 64, 256))),
        layers=int(rng.integers(1, 5)),
        d_model=int(rng.choice((16, 64, 128))),
        heads=kv_heads * int(rng.integers(1, 1 + 4 // kv_heads)),
        kv_heads=kv_heads,
        head_dim=int(rng.choice((8, 16, 64))),
        d_ff=int(rng.choice((32, 128, 512))),
        remat="layer" if rng.integers(2) else "none",
        compute_bytes=int(rng.choice((2, 4))),
    )
    speeds = np.exp(rng.normal(0, 0.8, devices)) if rng.integers(2) else rng.choice((0.5, 1.0, 2.0, 3.0, 4.0), devices)
    hosts = rng.integers(0, 2, devices) * int(rng.integers(2))
    flops, measured = _between(rng, 1e10, 1e13), bool(rng.integers(2))
    named = [
        Device(name=f"d{i}", speed=float(s), host=f"h{h}", curve=_curve(rng, work, s * flops) if measured else None)
        for i, (s, h) in enumerate(zip(speeds, hosts, strict=True))
    ]
    inside = _between(rng, 1e9, 3e11)
    cluster = Cluster(
        devices=tuple(named),
        flops_per_speed=flops,
        same_host=Link(hosts=("*", "*"), bandwidth=inside, latency=_between(rng, 1e-7, 1e-5)),
        cross_host=Link(
            hosts=("*", "*"), bandwidth=min(inside, _between(rng, 1e8, 1e11)), latency=_between(rng, 1e-6, 1e-4)
        ),
    )
    return Case(cluster=cluster, workload=work, specialized=bool(rng.integers(2)))


def _between(rng: np.random.Generator, low: float, high: float) -> float:
    """A number whose logarithm is uniform."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _curve(rng: np.random.Generator, work: Workload, flops: float) -> Curve:
    """A curve around what the FLOP/s say, each part a little off, and a fixed part up to half of the rest."""
    token = 3 * work.microbatch * work.token_flops / flops
    pair = 3.5 * work.microbatch * work.layers * work.query_flops / work.seq_len / flops
    whole = work.seq_len * (token + work.heads * work.seq_len * pair)
    token, pair = token * rng.uniform(0.6, 1.6), pair * rng.uniform(0.6, 1.6)
    fixed = whole / 4 * rng.uniform(0, 0.5)
    return Curve(model=work.model, token=float(token), pair=float(pair), fixed=float(fixed), update=1e-9)


@dataclass
class _Search:
    """The best so far."""

    cluster: Cluster
    workload: Workload
    specialized: bool
    step: float
    plans: int = 0
    evaluated: int = 0
    grid: Grid | None = None
    division: Division | None = None
    counts: np.ndarray | None = None

    def explore(self, grid: Grid) -> None:
        """Try all divisions of a grid."""
        work, devices = self.workload, grid.shape[1]
        shares = compositions(work.seq_len, devices)
        kinds: list[tuple[Attention, KeysValues, list[Tiling]]] = [("context", "gather", context(work, devices))]
        if devices > 1:
            kinds += [("head", "gather", bands(work, devices, "head")), ("context", "ring", context(work, devices))]
        if devices > 2 and work.heads > 1:
            kinds.append(("hybrid", "gather", bands(work, devices, "hybrid")))
        token = self._token_seconds(grid, shares)
        for attention, kv, tilings in kinds:
            self._divisions(grid, attention, kv, shares, tilings, token)

    def _divisions(
        self,
        grid: Grid,
        attention: Attention,
        kv: KeysValues,
        shares: list[Numbers],
        tilings: list[Tiling],
        token: np.ndarray,
    ) -> None:
        """Try all divisions of one kind, the lowest bound first."""
        groups = grid.shape[0]
        work = self._tile_seconds(grid, tilings)
        # One option of a group is a pair of a share and a tiling; a ring ties the two together.
        pair = token + work if kv == "ring" else (token[:, :, None] + work[:, None, :]).reshape(groups, -1)
        option = pair + weight_seconds(grid, self.workload)[:, None]
        deals = np.array(compositions(self.workload.microbatches, groups))
        rest = seconds(grid, self.workload, self._division([shares[0]] * groups, [tilings[0]] * groups, attention, kv))
        bound = _least(option, deals) + rest.once
        self.plans += bound.size
        worth = np.flatnonzero(bound < self.step)
        for flat in worth[np.argsort(bound.flat[worth], kind="stable")]:
            if bound.flat[flat] >= self.step:
                break
            chosen = [divmod(int(i), len(tilings)) for i in np.unravel_index(flat, bound.shape)]
            if kv == "ring":
                chosen = [(i, i) for _, i in chosen]
            tokens, tiles = [shares[i] for i, _ in chosen], [tilings[i] for _, i in chosen]
            self._evaluate(grid, self._division(tokens, tiles, attention, kv), deals, float(bound.flat[flat]))

    def _evaluate(self, grid: Grid, division: Division, deals: np.ndarray, bound: float) -> None:
        times = seconds(grid, self.workload, division, specialized=self.specialized)
        counts = deals[np.argmin((deals * times.microbatch).max(axis=1))]
        step = times.step(counts)
        if step < bound * (1 - 1e-9):
            raise AssertionError(f"a step of {step} s is below its bound {bound} s: the bound rules out too much")
        self.evaluated += 1
        if step < self.step and self._fits(grid, division):
            self.step, self.grid, self.division, self.counts = step, grid, division, counts

    def _fits(self, grid: Grid, division: Division) -> bool:
        return bool(np.all(bytes_needed(grid, self.workload, division, specialized=self.specialized) <= grid.limit))

    def _division(self, tokens: list[Numbers], tiles: list[Tiling], attention: Attention, kv: KeysValues) -> Division:
        queries, start, stop = (np.array([tile[i] for tile in tiles]) for i in range(3))
        per_kv = self.workload.heads // self.workload.kv_heads
        heads = np.where(stop > start, (stop - 1) // per_kv - start // per_kv + 1, 0)
        return Division(np.array(tokens), queries, start, stop, heads, attention, kv)

    def _token_seconds(self, grid: Grid, shares: list[Numbers]) -> np.ndarray:
        """Token phase of each group under each share [G, shares]: the slowest device's."""
        tokens, size = self.workload.seq_len, grid.shape[1]
        found = []
        for group in grid.order.tolist():
            rows = Grid.of(self.cluster, [group] * (tokens + 1))
            same = [(t,) * size for t in range(tokens + 1)]
            whole = [Tiling((0,) * size, (0,) * size, (0,) * size)] * (tokens + 1)
            division = self._division(same, whole, "context", "gather")
            table = seconds(rows, self.workload, division, specialized=self.specialized).tokens  # [S + 1, M]
            slowest = np.array([max(table[t, m] for m, t in enumerate(share)) for share in shares])
            if tokens % size == 0:  # equal shares may make a plain program, which is no slower
                equal = seconds(
                    Grid.of(self.cluster, [group]),
                    self.workload,
                    self._division([(tokens // size,) * size], whole[:1], "context", "gather"),
                    specialized=self.specialized,
                )
                at = shares.index((tokens // size,) * size)
                slowest[at] = min(slowest[at], equal.tokens.max())
            found.append(slowest)
        return np.array(found)

    def _tile_seconds(self, grid: Grid, tilings: list[Tiling]) -> np.ndarray:
        """Attention phase of each group under each tiling [G, tilings]: the slowest device's."""
        size = grid.shape[1]
        tiles = sorted({tile for tiling in tilings for tile in zip(*tiling, strict=True)})
        number = {tile: i for i, tile in enumerate(tiles)}
        index = np.array([[number[tile] for tile in zip(*tiling, strict=True)] for tiling in tilings])
        same = [Tiling((q,) * size, (a,) * size, (b,) * size) for q, a, b in tiles]
        shares = compositions(self.workload.seq_len, size)[0]
        found = []
        for group in grid.order.tolist():
            division = self._division([shares] * len(tiles), same, "hybrid", "gather")
            rows = Grid.of(self.cluster, [group] * len(tiles))
            table = seconds(rows, self.workload, division, specialized=self.specialized).attention  # [tiles, M]
            found.append(table[index, np.arange(size)].max(axis=1))
        return np.array(found)


def _least(option: np.ndarray, deals: np.ndarray) -> np.ndarray:
    """Least bound over all deals of microbatches, for every choice of one option in each group [options] * G."""
    groups = option.shape[0]
    found: np.ndarray | None = None
    for deal in deals:
        slowest: np.ndarray = np.zeros(())
        for g, count in enumerate(deal):
            along = [1] * groups
            along[g] = -1
            slowest = np.maximum(slowest, (count * option[g]).reshape(along))
        found = slowest if found is None else np.minimum(found, slowest)
    assert found is not None
    return found


def splits(devices: int, groups: int) -> Iterator[list[Numbers]]:
    """All ways to split devices into groups of equally many; the order of groups and of their devices is left aside."""

    def rest(left: Numbers) -> Iterator[list[Numbers]]:
        if not left:
            yield []
            return
        for others in itertools.combinations(left[1:], devices // groups - 1):
            group = (left[0], *others)
            for more in rest(tuple(d for d in left if d not in group)):
                yield [group, *more]

    return rest(tuple(range(devices)))


@cache
def compositions(total: int, parts: int) -> list[Numbers]:
    """All whole shares of a total, zeros included."""
    if parts == 1:
        return [(total,)]
    return [(first, *more) for first in range(total + 1) for more in compositions(total - first, parts - 1)]


@cache
def context(workload: Workload, devices: int) -> list[Tiling]:
    """All tilings of one band, in the order of `compositions`."""
    zeros, heads = (0,) * devices, (workload.heads,) * devices
    return [Tiling(queries, zeros, heads) for queries in compositions(workload.seq_len, devices)]


@cache
def bands(workload: Workload, devices: int, attention: Attention) -> list[Tiling]:
    """All tilings in bands of one device each (`head`), or in several bands of which one has several (`hybrid`)."""
    found = []
    for members in _ordered_bands(tuple(range(devices)), workload.kv_heads < workload.heads):
        alone = max(map(len, members)) == 1
        if alone == (attention == "head") and (attention == "head" or len(members) > 1):
            found += _tilings(workload, devices, members)
    return found


def _ordered_bands(devices: Numbers, orders_differ: bool) -> Iterator[tuple[Numbers, ...]]:
    """All ways to put some or all devices into bands, in every order of the bands where it makes a difference."""
    for count in range(1, len(devices) + 1):
        for used in itertools.combinations(devices, count):
            for parts in _set_partitions(used):
                yield from itertools.permutations(parts) if orders_differ else [parts]


def _set_partitions(items: Numbers) -> Iterator[tuple[Numbers, ...]]:
    if not items:
        yield ()
        return
    first, others = items[0], items[1:]
    for count in range(len(others) + 1):
        for more in itertools.combinations(others, count):
            rest = tuple(item for item in others if item not in more)
            for parts in _set_partitions(rest):
                yield ((first, *more), *parts)


def _tilings(workload: Workload, devices: int, members: tuple[Numbers, ...]) -> Iterator[Tiling]:
    """All heads and query tokens of given bands."""
    shares = [compositions(workload.seq_len, len(band)) for band in members]
    for heads in compositions(workload.heads, len(members)):
        if min(heads) == 0:
            continue
        for chosen in itertools.product(*shares):
            queries, start, stop = ([0] * devices for _ in range(3))
            first = 0
            for band, count, share in zip(members, heads, chosen, strict=True):
                for device, mine in zip(band, share, strict=True):
                    queries[device], start[device], stop[device] = mine, first, first + count
                first += count
            yield Tiling(tuple(queries), tuple(start), tuple(stop))
