"""A row's work divided over the devices of each data group by a recipe: evenly, or by the paces of the devices."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from meshes.cost import Division
from meshes.minimax import even, shares_minimax
from meshes.pace import Pace, Paces, Reals
from meshes.recipes import Recipe
from meshes.workload import Attention, KeysValues, Workload

Numbers = tuple[int, ...]
NO_CAP = 2**62


class Tiles(NamedTuple):
    """Tiles of one group: query tokens, first head, last head + 1 of each device."""

    queries: Numbers
    start: Numbers
    stop: Numbers


@dataclass(frozen=True)
class Divider:
    """Divides rows; equal groups are divided once.

    Args:
        workload: sequence length and heads.
        shares, tiles: what has been divided before.
    """

    workload: Workload
    shares: dict[tuple[object, ...], Numbers] = field(default_factory=dict)
    tiles: dict[tuple[object, ...], Tiles | None] = field(default_factory=dict)

    def divide(
        self,
        given: Sequence[Paces],
        recipe: Recipe,
        caps: np.ndarray | None = None,
        head_caps: np.ndarray | None = None,
    ) -> Division | None:
        """The division that a recipe makes, None if it makes none of its kind.

        Args:
            given: paces of each group.
            recipe: how to divide, not evenly.
            caps: most tokens of each device [G, M].
            head_caps: most heads of each device [G, M], of recipe `head`.

        Raises:
            PlanError: the caps cannot hold the work.
        """
        tokens, tiles = [], []
        for pace, limit, heads in zip(given, _rows(caps, given), _rows(head_caps, given), strict=True):
            if recipe.few:
                alone = pace.aligned(self.workload.heads).seconds(self.workload.seq_len)
                limit, heads = (_only_few(alone, recipe.few, cap) for cap in (limit, heads))
            owner = pace.aligned(self.workload.heads) if recipe.attention == "context" else pace.tokens
            tokens.append(self._tokens(pace.tokens if recipe.apart else owner, limit))
            made = self._tiles(pace.rows, recipe, tokens[-1], heads)
            if made is None:
                return None
            tiles.append(made)
        if recipe.apart and all(tile.queries == share for tile, share in zip(tiles, tokens, strict=True)):
            return None
        return stacked(self.workload, tokens, tiles, recipe.attention, recipe.kv)

    def _tokens(self, pace: Pace, caps: Numbers | None = None) -> Numbers:
        key = (pace, caps)
        if key not in self.shares:
            self.shares[key] = dealt(self.workload.seq_len, pace, caps)
        return self.shares[key]

    def _tiles(self, pace: Pace, recipe: Recipe, tokens: Numbers, caps: Numbers | None) -> Tiles | None:
        heads, devices = self.workload.heads, len(pace.each)
        if recipe.attention == "context":
            queries = self._tokens(pace) if recipe.apart else tokens
            return Tiles(queries, (0,) * devices, (heads,) * devices)
        key = (pace, caps, recipe)
        if key not in self.tiles:
            self.tiles[key] = self._hybrid(pace, recipe) if recipe.bands else self._head(pace, caps)
        return self.tiles[key]

    def _head(self, pace: Pace, caps: Numbers | None) -> Tiles:
        everyone = tuple(range(len(pace.each)))
        heads = dealt(self.workload.heads, pace.of(everyone, self.workload.seq_len), caps)
        return self._banded(pace, [(m,) for m in everyone], heads)

    def _hybrid(self, pace: Pace, recipe: Recipe) -> Tiles | None:
        devices, wanted = len(pace.each), even(self.workload.heads, recipe.bands)
        bands = _chunks(devices, recipe.bands) if recipe.chunked else _fair_bands(pace.speeds, wanted)
        fixed, each = zip(*(pace.of(band).together(self.workload.seq_len) for band in bands), strict=True)
        heads = dealt(self.workload.heads, Pace(fixed, each))
        used = [band for band, count in zip(bands, heads, strict=True) if count]
        if len(used) < 2 or max(len(band) for band in used) < 2:
            return None
        return self._banded(pace, bands, heads)

    def _banded(self, pace: Pace, bands: Sequence[Numbers], heads: Numbers) -> Tiles:
        """Heads dealt to the bands in order, each band's queries to its devices."""
        alone = (self.workload.seq_len,)
        queries = [
            alone if len(band) == 1 or not count else self._tokens(pace.of(band, count))
            for band, count in zip(bands, heads, strict=True)
        ]
        return banded(len(pace.each), bands, heads, queries)


def evenly(workload: Workload, groups: int, devices: int, recipe: Recipe) -> Division:
    """The division of an even recipe: every share as equal as whole numbers allow, larger ones first."""
    tokens, everyone = even(workload.seq_len, devices), tuple(range(devices))
    if recipe.attention == "context":
        tiles = Tiles(tokens, (0,) * devices, (workload.heads,) * devices)
    else:
        bands = _chunks(devices, recipe.bands) if recipe.bands else [(m,) for m in everyone]
        shares = [even(workload.seq_len, len(band)) for band in bands]
        tiles = banded(devices, bands, even(workload.heads, len(bands)), shares)
    return stacked(workload, [tokens] * groups, [tiles] * groups, recipe.attention, recipe.kv)


def banded(devices: int, bands: Sequence[Numbers], heads: Numbers, queries: Sequence[Numbers]) -> Tiles:
    """Tiles of bands.

    Args:
        devices: of the group; those in no band, or in one without heads, have none.
        bands: devices of each.
        heads: of each band, dealt in order.
        queries: query tokens of each band's devices.
    """
    tokens, start, stop = ([0] * devices for _ in range(3))
    first = 0
    for band, count, shares in zip(bands, heads, queries, strict=True):
        if not count:
            continue
        for m, share in zip(band, shares, strict=True):
            tokens[m], start[m], stop[m] = share, first, first + count
        first += count
    return Tiles(tuple(tokens), tuple(start), tuple(stop))


def stacked(
    workload: Workload, tokens: Sequence[Numbers], tiles: Sequence[Tiles], attention: Attention, kv: KeysValues
) -> Division:
    """The division of shares and tiles of each group."""
    queries, start, stop = (np.array([tile[i] for tile in tiles]) for i in range(3))
    per_kv = workload.heads // workload.kv_heads
    kv_heads = np.where(stop > start, (stop - 1) // per_kv - start // per_kv + 1, 0)
    return Division(np.array(tokens), queries, start, stop, kv_heads, attention, kv)


def dealt(total: int, pace: Pace, caps: Numbers | None = None) -> Numbers:
    """Whole units for each device, such that the last one finishes as early as possible."""
    return shares_minimax(total, pace.speeds, caps, pace.fixed)


def _only_few(alone: Sequence[float], few: int, caps: Numbers | None) -> Numbers:
    """Caps that leave nothing to all but the fastest devices when alone; beside other caps, if there are."""
    order = sorted(range(len(alone)), key=lambda m: (alone[m], m))
    working = set(order[:few])
    most = caps if caps is not None else (NO_CAP,) * len(order)
    return tuple(most[m] if m in working else 0 for m in range(len(order)))


def _rows(caps: np.ndarray | None, given: Sequence[Paces]) -> list[Numbers] | list[None]:
    return [None] * len(given) if caps is None else [tuple(row) for row in caps.tolist()]


def _chunks(devices: int, bands: int) -> Sequence[Numbers]:
    """Runs of devices, equally many in each as far as that goes."""
    stops = np.cumsum(even(devices, bands)).tolist()
    return tuple(tuple(range(a, b)) for a, b in zip([0, *stops[:-1]], stops, strict=True))


def _fair_bands(speed: Reals, wanted: Numbers) -> Sequence[Numbers]:
    """Bands whose speeds are about proportional to the heads wanted: fastest device to the largest deficit first.

    Every band gets a device.
    """
    total, heads = sum(speed), sum(wanted)
    deficits = [(-total * count / heads, band) for band, count in enumerate(wanted)]
    heapq.heapify(deficits)
    bands: list[list[int]] = [[] for _ in wanted]
    empty = len(bands)
    for rank, m in enumerate(sorted(range(len(speed)), key=lambda m: (-speed[m], m))):
        if len(speed) - rank <= empty:
            bands[next(b for b, band in enumerate(bands) if not band)].append(m)
            empty -= 1
            continue
        deficit, band = heapq.heappop(deficits)
        empty -= not bands[band]
        bands[band].append(m)
        heapq.heappush(deficits, (deficit + speed[m], band))
    return tuple(tuple(band) for band in bands)
