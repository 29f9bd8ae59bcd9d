"""What the devices do in a step, as bars for a picture: compute, communicate, wait."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshes.plan import Plan

MANY = 32  # more devices than this share bars where they are alike
MOST = 48  # bars that are drawn

PARTS = ("compute", "communication", "waiting")


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Devices of the same speed that spend a step alike.

    Args:
        names: of the devices.
        speed: of each.
        seconds: of each of `PARTS`.
    """

    names: tuple[str, ...]
    speed: float
    seconds: tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class Block:
    """Data groups that spend a step alike.

    Args:
        groups: their numbers.
        microbatches: that each of them runs.
        bars: of their devices.
    """

    groups: tuple[int, ...]
    microbatches: int
    bars: tuple[Bar, ...]


def blocks(plan: "Plan") -> list[Block]:
    """The step of every device, a block for each data group.

    Where there are many devices, those of a group that are alike share a bar, and groups that are alike a block.
    """
    found = [_block(plan, g) for g in range(len(plan.order))]
    if len(plan.cluster.devices) <= MANY:
        return found
    alike: dict[object, list[Block]] = {}
    for block in map(_bars_shared, found):
        key = (block.microbatches, tuple((len(bar.names), bar.speed, bar.seconds) for bar in block.bars))
        alike.setdefault(key, []).append(block)
    return [_joined(same) for same in alike.values()]


def first(found: list[Block]) -> tuple[list[Block], int]:
    """As many whole blocks as can be drawn, at least one with as many bars, and the devices of all others."""
    kept: list[Block] = []
    room = MOST
    for block in found:
        if kept and len(block.bars) > room:
            break
        kept.append(Block(groups=block.groups, microbatches=block.microbatches, bars=block.bars[:room]))
        room -= len(block.bars)
    return kept, _devices(found) - _devices(kept)


def _devices(found: list[Block]) -> int:
    return sum(len(bar.names) for block in found for bar in block.bars)


def _block(plan: "Plan", group: int) -> Block:
    bars = []
    for number, cost in zip(plan.order[group], plan.predictions[group], strict=True):
        device, spent = plan.cluster.devices[number], (cost.compute, cost.communication, cost.waiting)
        bars.append(Bar(names=(device.name,), speed=device.speed, seconds=spent))
    return Block(groups=(group,), microbatches=plan.microbatches[group], bars=tuple(bars))


def _bars_shared(block: Block) -> Block:
    names: dict[tuple[float, tuple[float, float, float]], tuple[str, ...]] = {}
    for bar in block.bars:
        names[bar.speed, bar.seconds] = names.get((bar.speed, bar.seconds), ()) + bar.names
    bars = tuple(Bar(names=who, speed=speed, seconds=spent) for (speed, spent), who in names.items())
    return Block(groups=block.groups, microbatches=block.microbatches, bars=bars)


def _joined(same: list[Block]) -> Block:
    columns = zip(*(block.bars for block in same), strict=True)
    return Block(
        groups=tuple(g for block in same for g in block.groups),
        microbatches=same[0].microbatches,
        bars=tuple(
            Bar(names=tuple(n for bar in bars for n in bar.names), speed=bars[0].speed, seconds=bars[0].seconds)
            for bars in columns
        ),
    )
