"""What must be true of a plan."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from meshes.errors import UsageError
from meshes.workload import Workload

if TYPE_CHECKING:
    from meshes.plan import Plan, Tile


def check(plan: "Plan") -> None:
    """Check sums, partitions and labels.

    Raises:
        UsageError: a rule is broken; names the values.
    """
    _check_shapes(plan)
    _check_sums(plan)
    for g, (tiles, tokens) in enumerate(zip(plan.tiles, plan.tokens, strict=True)):
        _check_tiles(plan, f"tiles of data group {g}", tiles, tokens)
    _check_placement(plan)


def kinds(
    workload: Workload, tokens: Sequence[Sequence[int]], tiles: "Sequence[Sequence[Tile]]"
) -> set[tuple[int, int, tuple[int, ...]]]:
    """The distinct sizes of devices: tokens, query tokens, and the local key/value head of each query head.

    Args:
        workload: heads and key/value heads.
        tokens, tiles: of a plan, [data groups][devices].
    """
    found = set()
    for shares, group in zip(tokens, tiles, strict=True):
        for share, tile in zip(shares, group, strict=True):
            kv = workload.kv_heads_of(*tile.heads)
            found.add((share, tile.tokens, tuple(h - kv[0] for h in kv)))
    return found


def _check_shapes(plan: "Plan") -> None:
    groups, devices = len(plan.order), len(plan.order[0]) if plan.order else 0
    numbers = sorted(d for group in plan.order for d in group)
    if numbers != list(range(len(plan.cluster.devices))):
        raise UsageError(f"order holds devices {numbers[:8]}..., it must hold each of {len(plan.cluster.devices)} once")
    rows = {"order": plan.order, "tokens": plan.tokens, "tiles": plan.tiles, "predictions": plan.predictions}
    for name, value in rows.items():
        if len(value) != groups or any(len(row) != devices for row in value):
            lengths = [len(row) for row in value]
            raise UsageError(f"{name} has rows of {lengths[:8]} entries, it must have {groups} of {devices}")
    if len(plan.microbatches) != groups:
        raise UsageError(f"microbatches has {len(plan.microbatches)} entries for {groups} data groups")


def _check_sums(plan: "Plan") -> None:
    work = plan.workload
    rows = sum(plan.microbatches) * work.microbatch
    if min(plan.microbatches) < 0 or rows != work.batch_size:
        raise UsageError(f"microbatches {plan.microbatches} make {rows} rows, the batch has {work.batch_size}")
    for g, tokens in enumerate(plan.tokens):
        if min(tokens) < 0 or sum(tokens) != work.seq_len:
            raise UsageError(f"tokens of data group {g} sum to {sum(tokens)}, a row has {work.seq_len}")


def _check_tiles(plan: "Plan", where: str, tiles: "tuple[Tile, ...]", tokens: tuple[int, ...]) -> None:
    work = plan.workload
    bands: dict[tuple[int, int], list[int]] = {}
    for tile in tiles:
        if tile.heads[0] != tile.heads[1]:
            bands.setdefault(tile.heads, []).append(tile.tokens)
        elif tile.heads != (0, 0) or tile.tokens:
            raise UsageError(f"{where}: a tile without heads has heads {tile.heads} and {tile.tokens} tokens")
    reached = 0
    for (start, stop), queries in sorted(bands.items()):
        if start != reached or stop <= start:
            raise UsageError(f"{where}: heads {start} to {stop} follow head {reached}: bands must partition the heads")
        if min(queries) < 0 or sum(queries) != work.seq_len:
            raise UsageError(
                f"{where}: query tokens of heads {start} to {stop} sum to {sum(queries)}, not {work.seq_len}"
            )
        reached = stop
    if reached != work.heads:
        raise UsageError(f"{where}: bands end at head {reached}, the model has {work.heads}")
    widest = max(len(queries) for queries in bands.values())
    is_kind = {
        "context": len(bands) == 1 and widest == len(tiles),
        "head": widest == 1,
        "hybrid": len(bands) > 1 and widest > 1,
    }
    if not is_kind[plan.attention]:
        raise UsageError(f"{where} are not {plan.attention}: {len(bands)} bands, the largest of {widest} devices")
    if plan.kv == "ring" and (plan.attention != "context" or tuple(t.tokens for t in tiles) != tokens):
        raise UsageError(f"{where}: a ring needs context tiles of the tokens that each device owns")


def _check_placement(plan: "Plan") -> None:
    alone, found = len(plan.cluster.devices) == 1, len(kinds(plan.workload, plan.tokens, plan.tiles))
    if alone != (plan.placement == "single"):
        raise UsageError(f"placement is {plan.placement} with {len(plan.cluster.devices)} devices")
    if plan.placement == "uniform" and found > 1:
        raise UsageError(f"placement is uniform, but devices have {found} different sizes: it must be switched")
