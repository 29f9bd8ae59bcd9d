"""Pictures of plans: everything is in them, nothing overlaps, and the program writes them."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import refuse, succeed, tiny
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import Rectangle as Patch
from matplotlib.transforms import Bbox
from workloads import WORK

from meshes import picture
from meshes.cluster import Cluster
from meshes.errors import UsageError
from meshes.plan import Plan
from meshes.planner import plan
from meshes.tilings import tilings
from meshes.timeline import MOST, blocks, first
from meshes.workload import Workload
from training import setup
from training.config import TrainConfig

LONG = replace(WORK, batch_size=64, seq_len=65536, heads=32, kv_heads=8)
THREE_SPEEDS = (4.0,) * 32 + (2.0,) * 32 + (1.0,) * 64
ALL_DIFFERENT = tuple(np.exp(np.random.default_rng(0).normal(size=128)).tolist())
CASES: dict[str, tuple[tuple[float, ...], Workload, dict[str, Any]]] = {
    "one": ((1,), WORK, {}),
    "context": ((4, 2, 1, 1), WORK, {"attention": "context", "data_groups": 1}),
    "hybrid": ((4, 2, 1, 1), WORK, {"attention": "hybrid"}),
    "groups": ((4, 2, 1, 1), WORK, {"data_groups": 2}),
    "ring": ((5, 3, 1, 1, 0.5), WORK, {"kv": "ring", "placement": "specialized"}),
    "no_tile_for_some": ((5, 3, 1, 1, 0.5), WORK, {"attention": "head", "data_groups": 1}),
    "no_tokens_for_some": ((5, 3, 1, 1, 0.5), replace(WORK, seq_len=3), {"data_groups": 1}),
    "no_rows_for_some": ((5, 3, 1, 1, 0.5), replace(WORK, batch_size=2), {"data_groups": 5}),
    "many_in_one_group": (THREE_SPEEDS, LONG, {"data_groups": 1, "attention": "hybrid"}),
    "many_groups": (THREE_SPEEDS, LONG, {"data_groups": 32}),
    "many_different": (ALL_DIFFERENT, LONG, {"data_groups": 16}),
}


@cache
def made(name: str) -> Plan:
    speeds, work, choices = CASES[name]
    return plan(Cluster.from_flags(speeds=speeds), work, **choices)


@pytest.mark.parametrize("name", CASES)
def test_every_device_has_its_step(name: str) -> None:
    found = made(name)
    names = [who for block in blocks(found) for bar in block.bars for who in bar.names]
    assert sorted(names) == sorted(device.name for device in found.cluster.devices)
    for block in blocks(found):
        for bar in block.bars:
            assert sum(bar.seconds) == pytest.approx(found.step_seconds)


@pytest.mark.parametrize("name", CASES)
def test_tiles_cover_the_rectangle(name: str) -> None:
    found = made(name)
    covered = []
    for tiling in tilings(found):
        area = np.zeros((found.workload.seq_len, found.workload.heads), np.int8)
        for tile in tiling.tiles:
            area[tile.token : tile.token + tile.tokens, tile.head : tile.head + tile.heads] += 1
        assert np.all(area == 1)
        assert len(tiling.tiles) + len(tiling.idle) == len(found.order[0])
        covered += tiling.groups
    assert sorted(covered) == [*range(len(found.order))]


def test_many_devices_share_bars() -> None:
    assert len(blocks(made("hybrid"))[0].bars) == 4
    assert [len(block.bars) for block in blocks(made("many_in_one_group"))] == [3]
    shared = blocks(made("many_groups"))
    assert len(shared) < 8 and sum(len(block.groups) for block in shared) == 32
    drawn, left_out = first(blocks(made("many_different")))
    bars = [bar for block in drawn for bar in block.bars]
    assert len(bars) <= MOST and left_out == 128 - sum(len(bar.names) for bar in bars) > 0


def rendered(found: Plan) -> tuple[list[Axes], Any]:
    figure = picture.draw(found)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return figure.axes, canvas.get_renderer()


def overlaps(boxes: list[Bbox]) -> int:
    """Pairs of boxes that have more than a pixel in common."""
    inner = [Bbox.from_extents(box.x0 + 1, box.y0 + 1, box.x1 - 1, box.y1 - 1) for box in boxes]
    return sum(a.overlaps(b) for i, a in enumerate(inner) for b in inner[:i])


@pytest.mark.parametrize("name", CASES)
def test_no_label_overlaps_another_or_leaves_its_tile(name: str) -> None:
    (step, *areas), renderer = rendered(made(name))
    words = [*step.get_yticklabels(), *step.texts]
    assert not overlaps([word.get_window_extent(renderer) for word in words])
    for axes in areas:
        tiles = [patch.get_window_extent(renderer) for patch in axes.patches if isinstance(patch, Patch)]
        assert len(tiles) == len(axes.texts)
        for tile, word in zip(tiles, axes.texts, strict=True):
            box = word.get_window_extent(renderer)
            inside = tile.x0 <= box.x0 and box.x1 <= tile.x1 and tile.y0 <= box.y0 and box.y1 <= tile.y1
            assert not word.get_text() or inside


def test_overlapping_labels_would_be_seen() -> None:
    """The twin: letters twice as large overlap."""
    (step, *_), renderer = rendered(made("many_different"))
    words = [*step.get_yticklabels(), *step.texts]
    for word in words:
        word.set_fontsize(3 * picture.FONT)
    assert overlaps([word.get_window_extent(renderer) for word in words])


def test_the_picture_says_what_it_is_of() -> None:
    found = made("hybrid")
    figure = picture.draw(found)
    title = figure.get_suptitle()
    assert f"Predicted step {found.step_seconds * 1e3:.3g} ms" in title and f"{found.gain:.2f} times" in title
    assert figure.axes[0].get_yticklabels()[0].get_text() == "d0, speed 4"
    assert figure.axes[0].get_legend() is not None
    assert "d0\n256 tokens\n4 heads" in [text.get_text() for text in figure.axes[1].texts]
    left_out = picture.draw(made("many_different"))
    assert "more devices are not drawn" in left_out.axes[0].get_xlabel()
    assert left_out.get_supxlabel() == "10 more tilings are not drawn"
    assert "no even plan fits" in picture.draw(replace(found, even_step_seconds=None)).get_suptitle()


def test_files(tmp_path: Path) -> None:
    for path in (tmp_path / "a.png", tmp_path / "a.svg", tmp_path / "b.SVG"):
        picture.save(made("groups"), path)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.SVG").read_bytes()


def test_plan_only_draws_without_jax(without_jax: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "plan.png"
    succeed(without_jax, *tiny("--plan-only --plan-picture {path}", path=path, run=tmp_path / "run"))
    assert path.read_bytes().startswith(b"\x89PNG")


def test_plan_and_picture_are_written_together(tmp_path: Path) -> None:
    """As a run does with its other records."""
    config = TrainConfig(plan_out=tmp_path / "plan.json", plan_picture=tmp_path / "plan.svg")
    setup.write_plan(config, made("hybrid"))
    assert Plan.load(tmp_path / "plan.json") == made("hybrid") and (tmp_path / "plan.svg").exists()
    (tmp_path / "taken.png").mkdir()
    with pytest.raises(UsageError, match=r"--plan-picture .*: Is a directory: name a file that can be written"):
        setup.write_plan(TrainConfig(plan_picture=tmp_path / "taken.png"), made("hybrid"))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--plan-picture {run}.pdf", r"--plan-picture .*run.pdf: name a file that ends in .png or .svg"),
        ("--plan-picture {run}.pdf --plan-only", r"--plan-picture .*run.pdf: name a file that ends in .png or .svg"),
        ("--plan-picture {run}/gone/plan.png", "--plan-picture .*plan.png: no such directory: name a file"),
    ],
)
def test_a_place_that_cannot_be_drawn_into(flags: str, says: str, without_jax: dict[str, str], tmp_path: Path) -> None:
    refuse(without_jax, tiny(flags, run=tmp_path / "run"), says, tmp_path)
