"""Limits of memory: hard, and where nothing fits the error says what would."""

from dataclasses import replace
from typing import Any

import pytest
from workloads import FOUR, WORK

from meshes.cluster import Cluster
from meshes.errors import PlanError
from meshes.plan import Plan
from meshes.planner import plan
from meshes.workload import Workload


def needs(found: Plan) -> int:
    return max(cost.memory for group in found.predictions for cost in group)


@pytest.mark.parametrize("attention", ["auto", "context", "head"])
@pytest.mark.parametrize("placement", ["auto", "specialized"])
def test_memory_is_a_hard_limit(attention: Any, placement: Any) -> None:
    free = plan(FOUR, WORK, attention=attention, placement=placement, data_groups=1)
    for share in (0.95, 0.9, 0.8):
        sizes = (f"{int(needs(free) * share)}B",) * 4
        small = Cluster.from_flags(speeds=(4, 2, 1, 1), memory=sizes)
        try:
            found = plan(small, WORK, attention=attention, placement=placement, data_groups=1)
        except PlanError as error:
            assert "no plan fits in memory" in str(error) and share < 0.9
            continue
        assert needs(found) <= int(needs(free) * share)
        assert found.step_seconds >= free.step_seconds * (1 - 1e-9)


def test_small_memory_shifts_tokens_when_specialized() -> None:
    free = plan(FOUR, WORK, attention="context", placement="specialized", data_groups=1)
    limit = int(free.predictions[0][0].memory * 0.9)
    small = Cluster.from_flags(speeds=(4, 2, 1, 1), memory=(f"{limit}B", "1TB", "1TB", "1TB"))
    found = plan(small, WORK, attention="context", kv="gather", placement="specialized", data_groups=1)
    assert found.tokens[0][0] < free.tokens[0][0] and found.predictions[0][0].memory <= limit


def test_no_even_plan_fits() -> None:
    """A fast device with much memory takes what small ones cannot hold."""
    even_needs = needs(plan(Cluster.from_flags(speeds=(1, 1)), WORK, data_groups=1))
    cluster = Cluster.from_flags(speeds=(8, 1), memory=("1TB", f"{int(even_needs * 0.8)}B"))
    found = plan(cluster, WORK, data_groups=1, placement="specialized")
    assert found.even_step_seconds is None and found.gain is None


def remedy_of(cluster: Cluster, work: Workload, **choices: Any) -> str:
    with pytest.raises(PlanError, match="no plan fits in memory") as caught:
        plan(cluster, work, **choices)
    return str(caught.value)


def test_remedies_are_tried_before_they_are_named() -> None:
    choices: dict[str, Any] = {"kv": "gather", "attention": "context", "data_groups": 1}
    work = replace(WORK, microbatch=8)

    def small(memory: int) -> Cluster:
        return Cluster.from_flags(speeds=(4, 2, 1, 1), memory=(f"{memory}B",) * 4)

    cluster = small(needs(plan(FOUR, replace(work, remat="layer"), **choices)))
    assert remedy_of(cluster, replace(work, microbatch=16), **choices).endswith("use --microbatch 8")
    assert plan(cluster, work, **choices).workload.microbatch == 8
    assert "no plan fits" in remedy_of(cluster, replace(work, microbatch=16, remat="layer"), **choices)
    larger = remedy_of(small(needs(plan(FOUR, work, **choices))), replace(work, microbatch=16), **choices)
    assert larger.endswith("use --remat layer or --microbatch 8 or keys and values in a ring or --dtype bfloat16")
    tiny = Cluster.from_flags(speeds=(4, 2, 1, 1), memory=("1MB",) * 4)
    assert "use more or larger devices" in remedy_of(tiny, work)
