"""How attention is tiled in a plan, as rectangles for a picture: query tokens by heads."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshes.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Rectangle:
    """A device's tile: where it begins and how large it is.

    Args:
        device: its name.
        head, heads: the first, and how many.
        token, tokens: query tokens before it in its band, and its own; a share, not places in the sequence.
    """

    device: str
    head: int
    heads: int
    token: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """Data groups that tile attention alike.

    Args:
        groups: their numbers.
        tiles: devices are named as in the first group.
        idle: its devices without a tile.
    """

    groups: tuple[int, ...]
    tiles: tuple[Rectangle, ...]
    idle: tuple[str, ...]


def tilings(plan: "Plan") -> list[Tiling]:
    """Every different tiling, in the order of the data groups."""
    alike: dict[object, list[int]] = {}
    for g, (order, tiles) in enumerate(zip(plan.order, plan.tiles, strict=True)):
        speeds = tuple(plan.cluster.devices[number].speed for number in order)
        alike.setdefault((speeds, tiles), []).append(g)
    return [_tiling(plan, tuple(groups)) for groups in alike.values()]


def _tiling(plan: "Plan", groups: tuple[int, ...]) -> Tiling:
    rectangles, idle = [], []
    reached: dict[tuple[int, int], int] = {}
    for number, tile in zip(plan.order[groups[0]], plan.tiles[groups[0]], strict=True):
        name, (start, stop) = plan.cluster.devices[number].name, tile.heads
        if tile.tokens == 0 or start == stop:
            idle.append(name)
            continue
        token = reached.get(tile.heads, 0)
        reached[tile.heads] = token + tile.tokens
        rectangles.append(Rectangle(device=name, head=start, heads=stop - start, token=token, tokens=tile.tokens))
    return Tiling(groups=groups, tiles=tuple(rectangles), idle=tuple(idle))
