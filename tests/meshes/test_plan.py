"""Plans: JSON round trip, rules, comparison with what is at hand, and the table."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshes.cluster import Cluster
from meshes.errors import UsageError
from meshes.plan import Plan, Tile
from meshes.planner import plan
from meshes.workload import Workload

WORK = Workload(
    batch_size=8,
    microbatch=2,
    seq_len=64,
    vocab_size=50,
    layers=2,
    d_model=32,
    heads=4,
    kv_heads=2,
    head_dim=8,
    d_ff=80,
)
CLUSTER = Cluster.from_flags(speeds=(4, 2, 1, 1), memory=("24GB", "24GB", "12GB", "12GB"))
HYBRID = plan(CLUSTER, WORK, attention="hybrid")
CONTEXT = plan(CLUSTER, WORK, attention="context", data_groups=2)


def edited(found: Plan, edit: Callable[[dict[str, Any]], None]) -> str:
    data = json.loads(found.to_json())
    edit(data)
    return json.dumps(data)


def assign(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """An edit of one place, like "tiles.0.1.tokens"."""

    def edit(data: dict[str, Any]) -> None:
        *way, last = (int(step) if step.isdigit() else step for step in path.split("."))
        place: Any = data
        for step in way:
            place = place[step]
        place[last] = value

    return edit


@pytest.mark.parametrize(
    "found", [HYBRID, CONTEXT, plan(Cluster.from_flags(1), WORK)], ids=["hybrid", "context", "one"]
)
def test_json_round_trip(found: Plan, tmp_path: Path) -> None:
    again = Plan.from_json(found.to_json())
    assert again == found and again.digest() == found.digest() and again.to_json() == found.to_json()
    found.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == found


def test_digest_follows_decisions_and_not_predictions() -> None:
    assert replace(CONTEXT, step_seconds=1.0, even_step_seconds=None).digest() == CONTEXT.digest()
    assert HYBRID.digest() != CONTEXT.digest()
    assert replace(CONTEXT, microbatches=CONTEXT.microbatches[::-1]).digest() != CONTEXT.digest()


BAD_JSON = {
    "unknown": (CONTEXT, assign("atention", 1), "plan: unknown key 'atention': did you mean 'attention'"),
    "missing": (CONTEXT, lambda data: data.pop("order"), "plan: key 'order' is missing"),
    "nested": (CONTEXT, assign("cluster.devices.0.sped", 1), r"plan.cluster.devices\[0\]: unknown key 'sped'"),
    "type": (CONTEXT, assign("tokens.0.0", 1.5), r"plan.tokens\[0\]\[0\] is 1.5: it must be int"),
    "bool": (CONTEXT, assign("tokens.0.0", True), "is True: it must be int"),
    "list": (CONTEXT, assign("tokens", 3), "plan.tokens is 3: it must be a list"),
    "pair": (CONTEXT, assign("tiles.0.0.heads", [0]), r"heads has 1 entries: it must have 2"),
    "record": (CONTEXT, assign("workload", None), "plan.workload is None: it must be an object"),
    "label": (CONTEXT, assign("kv", "post"), "plan.kv is 'post': it is one of gather, ring"),
    "speed": (CONTEXT, assign("cluster.devices.0.speed", -1.0), "plan: speed of device d0 is -1.0"),
    "order": (CONTEXT, assign("order.0.0", 3), "order holds devices .* must hold each of 4 once"),
    "shape": (CONTEXT, assign("tokens", [[64], [64]]), r"tokens has rows of \[1, 1\] entries, it must have 2 of 2"),
    "counts": (CONTEXT, assign("microbatches", [4]), "microbatches has 1 entries for 2 data groups"),
    "rows": (CONTEXT, assign("microbatches", [3, 3]), r"microbatches \(3, 3\) make 12 rows, the batch has 8"),
    "sum": (CONTEXT, assign("tokens.1", [30, 30]), "tokens of data group 1 sum to 60, a row has 64"),
    "negative": (CONTEXT, assign("tokens.1", [-1, 65]), "tokens of data group 1"),
    "gap": (HYBRID, assign("tiles.0.0.heads", [0, 1]), "tiles of data group 0: .*bands must partition the heads"),
    "end": (CONTEXT, lambda d: [t.update(heads=[0, 3]) for t in d["tiles"][0]], "end at head 3, the model has 4"),
    "queries": (CONTEXT, assign("tiles.0.0.tokens", 1), r"query tokens of heads 0 to 4 sum to \d+, not 64"),
    "idle": (HYBRID, assign("tiles.0.0.heads", [0, 0]), "a tile without heads has"),
    "kind": (CONTEXT, assign("attention", "head"), "are not head: 1 bands, the largest of 2 devices"),
    "ring": (HYBRID, assign("kv", "ring"), "a ring needs context tiles"),
    "single": (CONTEXT, assign("placement", "single"), "placement is single with 4 devices"),
    "uniform": (CONTEXT, assign("placement", "uniform"), "placement is uniform, but devices have 3 different sizes"),
}


@pytest.mark.parametrize("name", BAD_JSON)
def test_bad_json_is_named_in_one_line(name: str) -> None:
    found, edit, message = BAD_JSON[name]
    with pytest.raises(UsageError, match=message) as caught:
        Plan.from_json(edited(found, edit))
    assert "\n" not in str(caught.value) and str(caught.value).startswith("plan")


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none.json does not exist: check the path"):
        Plan.load(tmp_path / "none.json")
    with pytest.raises(UsageError, match="cannot be read"):
        Plan.load(tmp_path)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(UsageError, match=r"plan file .*broken.json is not JSON"):
        Plan.load(tmp_path / "broken.json")


def test_check_names_the_first_difference() -> None:
    CONTEXT.check(CLUSTER, WORK)
    faster = Cluster.from_flags(speeds=(4, 2, 3, 1), memory=("24GB", "24GB", "12GB", "12GB"))
    with pytest.raises(UsageError, match=r"another cluster: devices\[2\].speed is 1.0 in the plan and 3.0 here: run"):
        CONTEXT.check(faster, WORK)
    with pytest.raises(UsageError, match="another cluster: number of devices is 4 in the plan and 2 here"):
        CONTEXT.check(Cluster.from_flags(2), WORK)
    with pytest.raises(UsageError, match="another workload: seq_len is 64 in the plan and 128 here"):
        CONTEXT.check(CLUSTER, replace(WORK, seq_len=128))
    with pytest.raises(UsageError, match=r"devices\[0\].memory is 24000000000 in the plan and None here"):
        CONTEXT.check(Cluster.from_flags(speeds=(4, 2, 1, 1)), WORK)


def test_predictions_add_up() -> None:
    for found in (HYBRID, CONTEXT):
        for cost in (cost for group in found.predictions for cost in group):
            assert cost.compute + cost.communication + cost.waiting == pytest.approx(found.step_seconds)


def test_table_has_a_line_for_each_device() -> None:
    lines = HYBRID.table().splitlines()
    assert lines[0].startswith(f"Plan {HYBRID.digest()}: 4 devices in 1 data group of 4, hybrid attention")
    assert [line.split()[0] for line in lines[4:8]] == ["d0", "d1", "d2", "d3"]
    assert all("of 24 GB" in line or "of 12 GB" in line for line in lines[4:8])
    assert re.search(r"\d\.\d\dx as fast as the best even plan .* the ideal, is 2.00x", lines[-1])
    assert "no even plan fits" in replace(HYBRID, even_step_seconds=None).table()


def test_idle_tile_is_a_dash() -> None:
    found = plan(Cluster.from_flags(speeds=(1.0,) * 5), WORK, attention="head")
    assert found.tiles[0][4] == Tile(heads=(0, 0), tokens=0)
    assert " - " in found.table().splitlines()[-3]
