"""A plan as a picture: who is busy when in a step, and how attention is tiled. Matplotlib, imported when drawing."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshes.tilings import Rectangle, Tiling, tilings
from meshes.timeline import PARTS, Block, blocks, first

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from meshes.plan import Plan

SUFFIXES = (".png", ".svg")  # of files that can be written
MOST_TILINGS, COLUMNS = 6, 3
WIDTH, BAR, TILING = 13.0, 0.24, 3.9  # inches
FONT = 8.0  # points
# Dark, hatched and pale: they differ without colour too.
STYLES: tuple[dict[str, Any], ...] = (
    {"facecolor": "#1f4e79", "edgecolor": "#1f4e79"},
    {"facecolor": "#f5b04c", "edgecolor": "#7a4a00", "hatch": "////", "linewidth": 0.5},
    {"facecolor": "#f0f0f0", "edgecolor": "#8c8c8c", "linewidth": 0.5},
)
TINTS = ("#cfe2f3", "#fde5c8", "#d9ead3", "#ead1dc", "#fff2cc", "#d0e0e3")


def save(plan: "Plan", path: Path) -> None:
    """Draw a plan and write it; the same plan gives the same file.

    Args:
        plan: any plan.
        path: a file with one of `SUFFIXES`, which says as what.

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib import rc_context

    kind = path.suffix.lower()[1:]
    about: dict[str, Any] = {"Date": None} if kind == "svg" else {}
    with rc_context({"svg.hashsalt": plan.digest()}):
        draw(plan).savefig(path, format=kind, dpi=120, metadata=about)


def draw(plan: "Plan") -> "Figure":
    """The picture: above, the step of each device; below, the different tilings of attention.

    What is too much to be read is left out, and the picture says how much.
    """
    from matplotlib.figure import Figure

    drawn, left_out = first(blocks(plan))
    found = tilings(plan)
    columns = min(len(found), COLUMNS)
    lines = math.ceil(min(len(found), MOST_TILINGS) / columns)
    slots = sum(len(block.bars) + 1 for block in drawn)
    heights = [BAR * (slots + 3), *[TILING] * lines]
    figure = Figure(figsize=(WIDTH, sum(heights) + 0.8), layout="constrained")
    figure.suptitle(_title(plan), fontsize=FONT + 3)
    grid = figure.add_gridspec(1 + lines, columns, height_ratios=heights)
    _draw_step(figure.add_subplot(grid[0, :]), plan, drawn, left_out)
    for i, tiling in enumerate(found[:MOST_TILINGS]):
        axes = figure.add_subplot(grid[1 + i // columns, i % columns])
        _draw_tiling(axes, plan, tiling, (WIDTH / columns - 1.0, TILING - 1.2))
    if len(found) > MOST_TILINGS:
        figure.supxlabel(f"{len(found) - MOST_TILINGS} more tilings are not drawn", fontsize=FONT)
    return figure


def _title(plan: "Plan") -> str:
    gain = "no even plan fits in memory"
    if plan.gain is not None:
        gain = f"{plan.gain:.2f} times as fast as the best even plan"
    return (
        f"Predicted step {_milliseconds(plan.step_seconds)} ms, {gain}\n"
        f"{plan.attention} attention, "
        f"{'keys and values gathered' if plan.kv == 'gather' else 'keys and values in a ring'}, "
        f"{plan.placement} placement, plan {plan.digest()}"
    )


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f}" if seconds >= 1 else f"{seconds * 1e3:.3g}"


def _draw_step(axes: "Axes", plan: "Plan", drawn: Sequence[Block], left_out: int) -> None:
    """A bar for each device, or for several that are alike; a line above each data group."""
    positions, labels, at = [], [], 0
    for block in drawn:
        axes.text(
            0.003 * plan.step_seconds * 1e3, at, _heading(plan, block), fontsize=FONT, fontweight="bold", va="center"
        )
        for bar in block.bars:
            at += 1
            begin = 0.0
            for spent, style in zip(bar.seconds, STYLES, strict=True):
                axes.barh(at, spent * 1e3, left=begin * 1e3, height=0.76, **style)
                begin += spent
            positions.append(at)
            labels.append(f"{_who(bar.names)}, speed {bar.speed:.4g}")
        at += 1
    axes.set_yticks(positions, labels, fontsize=FONT)
    axes.set_ylim(at - 0.3, -0.7)
    axes.set_xlim(0, plan.step_seconds * 1e3)
    axes.set_xlabel(f"ms of a step{f'; {left_out} more devices are not drawn' if left_out else ''}", fontsize=FONT)
    axes.tick_params(axis="x", labelsize=FONT)
    axes.xaxis.set_major_formatter("{x:,.0f}" if plan.step_seconds > 0.02 else "{x:g}")
    axes.spines[["top", "right"]].set_visible(False)
    handles = [axes.barh(0, 0, label=part, **style) for part, style in zip(PARTS, STYLES, strict=True)]
    axes.legend(
        handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(PARTS), fontsize=FONT, frameon=False
    )
    axes.set_title("One step, summed by what it is spent on", fontsize=FONT + 1, loc="left")


def _heading(plan: "Plan", block: Block) -> str:
    count = block.microbatches
    runs = f"{count} microbatch{'es' if count != 1 else ''} of {plan.workload.microbatch}"
    return f"data group{'s' if len(block.groups) > 1 else ''} {_ranges(block.groups)}: {runs}"


def _who(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} alike"


def _ranges(numbers: Sequence[int]) -> str:
    """1, 2, 3, 7 as 1-3, 7; no more than four parts."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ", ".join(parts[:4]) + (f" and {sum(map(len, runs[4:]))} more" if len(runs) > 4 else "")


def _draw_tiling(axes: "Axes", plan: "Plan", tiling: Tiling, inches: tuple[float, float]) -> None:
    """The rectangle of heads and query tokens, a tile for each device; labels where they have room."""
    from matplotlib.patches import Rectangle as Patch

    width, height = inches[0] * 72 / plan.workload.heads, inches[1] * 72 / plan.workload.seq_len  # points of a unit
    unlabelled = 0
    for i, tile in enumerate(tiling.tiles):
        corner = (tile.head, tile.token)
        axes.add_patch(
            Patch(corner, tile.heads, tile.tokens, facecolor=TINTS[i % len(TINTS)], edgecolor="black", lw=0.7)
        )
        text, rotation = _label(tile, tile.heads * width, tile.tokens * height)
        unlabelled += not text
        middle = (tile.head + tile.heads / 2, tile.token + tile.tokens / 2)
        axes.text(*middle, text, ha="center", va="center", fontsize=FONT - 1, rotation=rotation)
    axes.set_xlim(0, plan.workload.heads)
    axes.set_ylim(plan.workload.seq_len, 0)
    axes.tick_params(labelsize=FONT)
    axes.locator_params(integer=True)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    notes = [f"{len(tiling.idle)} without a tile: {_few(tiling.idle)}"] if tiling.idle else []
    notes += [f"{unlabelled} tiles too small for a label"] if unlabelled else []
    axes.set_xlabel("\n".join(["heads", *notes]), fontsize=FONT)
    axes.set_ylabel("query tokens", fontsize=FONT)
    names = f"Attention in data group{'s' if len(tiling.groups) > 1 else ''} {_ranges(tiling.groups)}"
    axes.set_title(names, fontsize=FONT + 1, loc="left")


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")


def _label(tile: Rectangle, width: float, height: float) -> tuple[str, int]:
    """The most that a tile of so many points has room for, and its rotation; empty if not even the device's name."""
    size = f"{tile.tokens:,} x {tile.heads}"
    choices = (
        (f"{tile.device}\n{tile.tokens:,} tokens\n{_heads(tile.heads)}", 0),
        (f"{tile.device}\n{size}", 0),
        (f"{tile.device}  {size}", 0),
        (f"{tile.device}  {size}", 90),
        (tile.device, 0),
        (tile.device, 90),
    )
    for text, rotation in choices:
        lines = text.split("\n")
        along, across = (height, width) if rotation else (width, height)
        if max(map(len, lines)) * FONT * 0.55 < along and len(lines) * FONT * 1.25 < across:
            return text, rotation
    return "", 0


def _heads(count: int) -> str:
    return "1 head" if count == 1 else f"{count} heads"
