"""Ways to divide a row's work over the devices of each data group: even ones, and ones that follow the speeds."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from meshes.cost import Division, Grid
from meshes.minimax import even, shares_minimax
from meshes.workload import Attention, KeysValues, Workload, divisors

Numbers = tuple[int, ...]
Speeds = tuple[float, ...]
MANY_BANDS = 12  # up to here every number of bands is tried


class Recipe(NamedTuple):
    """How to divide.

    Args:
        attention: `context`, `head` or `hybrid`.
        kv: `gather` or `ring`.
        bands: of a hybrid; each band shares some heads.
        chunked: bands are runs of devices in the group's order, equally many in each; else they differ in number,
            so that each is as fast as its heads need.
        even: every share as equal as whole numbers allow; else shares follow the speeds.
    """

    attention: Attention
    kv: KeysValues = "gather"
    bands: int = 0
    chunked: bool = False
    even: bool = False


def recipes(attention: str, kv: str, devices: int, heads: int) -> Iterator[Recipe]:
    """The recipes for groups of some devices, even ones first, simple ones first.

    Args:
        attention: a kind, or `auto` for all.
        kv: `gather`, `ring`, or `auto` for both.
        devices: of each group.
        heads: query heads.
    """
    for same in (True, False):
        if attention in ("auto", "context"):
            if kv in ("auto", "gather"):
                yield Recipe("context", even=same)
            if kv == "ring" or (kv == "auto" and devices > 1):
                yield Recipe("context", "ring", even=same)
        if kv == "ring":
            continue
        if attention == "head" or (attention == "auto" and devices > 1):
            yield Recipe("head", even=same)
        if attention in ("auto", "hybrid"):
            for bands in band_counts(devices, heads):
                yield Recipe("hybrid", bands=bands, chunked=True, even=same)
                if not same:
                    yield Recipe("hybrid", bands=bands)


def band_counts(devices: int, heads: int) -> list[int]:
    """Numbers of bands of a hybrid worth a try: all of a few, else divisors of the heads and round numbers."""
    most = min(devices - 1, heads)
    if most <= MANY_BANDS:
        return list(range(2, most + 1))
    wanted = {*divisors(heads), *(2**i for i in range(1, 11)), *(3 * 2**i for i in range(10))}
    return sorted(count for count in wanted if 2 <= count <= most)


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
        self, grid: Grid, recipe: Recipe, caps: np.ndarray | None = None, head_caps: np.ndarray | None = None
    ) -> Division | None:
        """The division that a recipe makes, None if it makes none of its kind.

        Args:
            grid, recipe: the devices and how to divide.
            caps: most tokens of each device [G, M].
            head_caps: most heads of each device [G, M], of recipe `head`.

        Raises:
            PlanError: the caps cannot hold the work.
        """
        speeds = [tuple(row) for row in grid.flops.tolist()]
        tokens, tiles = [], []
        for speed, limit, heads in zip(speeds, _rows(caps, grid), _rows(head_caps, grid), strict=True):
            tokens.append(self._tokens(speed, limit, recipe.even))
            made = self._tiles(speed, recipe, tokens[-1], heads)
            if made is None:
                return None
            tiles.append(made)
        return self._stack(tokens, tiles, recipe)

    def _stack(self, tokens: list[Numbers], tiles: list[Tiles], recipe: Recipe) -> Division:
        queries, start, stop = (np.array([tile[i] for tile in tiles]) for i in range(3))
        per_kv = self.workload.heads // self.workload.kv_heads
        kv_heads = np.where(stop > start, (stop - 1) // per_kv - start // per_kv + 1, 0)
        return Division(np.array(tokens), queries, start, stop, kv_heads, recipe.attention, recipe.kv)

    def _tokens(self, speed: Speeds, caps: Numbers | None, same: bool) -> Numbers:
        key = (speed, caps, same)
        if key not in self.shares:
            total = self.workload.seq_len
            self.shares[key] = even(total, len(speed)) if same else shares_minimax(total, speed, caps)
        return self.shares[key]

    def _tiles(self, speed: Speeds, recipe: Recipe, tokens: Numbers, caps: Numbers | None) -> Tiles | None:
        heads = self.workload.heads
        if recipe.attention == "context":
            return Tiles(tokens, (0,) * len(speed), (heads,) * len(speed))
        key = (speed, caps, recipe)
        if key not in self.tiles:
            self.tiles[key] = self._hybrid(speed, recipe) if recipe.bands else self._head(speed, recipe, caps)
        return self.tiles[key]

    def _head(self, speed: Speeds, recipe: Recipe, caps: Numbers | None) -> Tiles:
        total, bands = self.workload.heads, tuple((m,) for m in range(len(speed)))
        heads = even(total, len(speed)) if recipe.even else shares_minimax(total, speed, caps)
        return self._banded(speed, bands, heads, recipe.even)

    def _hybrid(self, speed: Speeds, recipe: Recipe) -> Tiles | None:
        wanted = even(self.workload.heads, recipe.bands)
        bands = _chunks(len(speed), recipe.bands) if recipe.chunked else _fair_bands(speed, wanted)
        together = [sum(speed[m] for m in band) for band in bands]
        heads = wanted if recipe.even else shares_minimax(self.workload.heads, together)
        used = [band for band, count in zip(bands, heads, strict=True) if count]
        if len(used) < 2 or max(len(band) for band in used) < 2:
            return None
        return self._banded(speed, bands, heads, recipe.even)

    def _banded(self, speed: Speeds, bands: tuple[Numbers, ...], heads: Numbers, same: bool) -> Tiles:
        """Heads dealt to the bands in order, each band's queries to its devices."""
        queries, start, stop = ([0] * len(speed) for _ in range(3))
        first = 0
        for band, count in zip(bands, heads, strict=True):
            if not count:
                continue
            alone = (self.workload.seq_len,)
            shares = alone if len(band) == 1 else self._tokens(tuple(speed[m] for m in band), None, same)
            for m, share in zip(band, shares, strict=True):
                queries[m], start[m], stop[m] = share, first, first + count
            first += count
        return Tiles(tuple(queries), tuple(start), tuple(stop))


def _rows(caps: np.ndarray | None, grid: Grid) -> list[Numbers] | list[None]:
    return [None] * grid.shape[0] if caps is None else [tuple(row) for row in caps.tolist()]


def _chunks(devices: int, bands: int) -> tuple[Numbers, ...]:
    """Runs of devices, equally many in each as far as that goes."""
    stops = np.cumsum(even(devices, bands)).tolist()
    return tuple(tuple(range(a, b)) for a, b in zip([0, *stops[:-1]], stops, strict=True))


def _fair_bands(speed: Speeds, wanted: Numbers) -> tuple[Numbers, ...]:
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
