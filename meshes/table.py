"""A plan as plain text."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from meshes.units import format_bytes

if TYPE_CHECKING:
    from meshes.plan import Plan

_COLUMNS = (
    ("device", "<"),
    ("kind", "<"),
    ("speed", ">"),
    ("group", ">"),
    ("tokens", ">"),
    ("heads", ">"),
    ("queries", ">"),
    ("microbatches", ">"),
    ("rows", ">"),
    ("compute ms", ">"),
    ("comm ms", ">"),
    ("wait ms", ">"),
    ("memory", ">"),
)


def render(plan: "Plan") -> str:
    """A line on what the plan is, a table with a line for each device, and what it should gain."""
    cells = [[name for name, _ in _COLUMNS], *_rows(plan)]
    rows = aligned(cells, "".join(side for _, side in _COLUMNS))
    return "\n".join([_header(plan), "", *rows, "", _footer(plan)])


def aligned(cells: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Rows of a table under its head and a rule.

    Args:
        cells: the head, and the rows.
        sides: `<` or `>` for each column.
    """
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()
        for row in cells
    ]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]


def _header(plan: "Plan") -> str:
    groups, devices = len(plan.order), len(plan.order[0])
    kv = "keys and values gathered" if plan.kv == "gather" else "keys and values in a ring"
    return (
        f"Plan {plan.digest()}: {count(groups * devices, 'device')} in {count(groups, 'data group')} of {devices}, "
        f"{plan.attention} attention, {kv}, {plan.placement} placement"
    )


def _rows(plan: "Plan") -> list[list[str]]:
    rows = []
    for g, group in enumerate(plan.order):
        for m, number in enumerate(group):
            device, tile, cost = plan.cluster.devices[number], plan.tiles[g][m], plan.predictions[g][m]
            memory = format_bytes(cost.memory)
            rows.append(
                [
                    device.name,
                    device.kind,
                    f"{device.speed:.4g}",
                    str(g),
                    str(plan.tokens[g][m]),
                    "-" if tile.heads[0] == tile.heads[1] else f"{tile.heads[0]}:{tile.heads[1]}",
                    str(tile.tokens),
                    str(plan.microbatches[g]),
                    str(plan.microbatches[g] * plan.workload.microbatch),
                    *(milliseconds(s) for s in (cost.compute, cost.communication, cost.waiting)),
                    memory if cost.memory_limit is None else f"{memory} of {format_bytes(cost.memory_limit)}",
                ]
            )
    return rows


def _footer(plan: "Plan") -> str:
    step, gain = milliseconds(plan.step_seconds), plan.gain
    if plan.even_step_seconds is None or gain is None:
        return f"Predicted step {step} ms; no even plan fits in memory."
    even = milliseconds(plan.even_step_seconds)
    return (
        f"Predicted step {step} ms, {gain:.2f}x as fast as the best even plan ({even} ms);"
        f" mean over slowest speed, the ideal, is {plan.ideal_gain:.2f}x."
    )


def milliseconds(seconds: float) -> str:
    """Seconds as milliseconds, to three digits."""
    value = seconds * 1e3
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def count(number: int, noun: str) -> str:
    """ "1 device", "2 devices"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
