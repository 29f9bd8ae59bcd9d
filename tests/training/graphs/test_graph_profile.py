"""What graph networks take on each device, measured, kept, and compared with a plan."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from meshes.cluster import Cluster
from meshes.job import Job
from training.comparison import Comparer
from training.config import TrainConfig
from training.graphs.subject import Graphs

CLUSTER = replace(Cluster.from_flags(devices=2), flops_per_speed=1e5)  # so slow that work outweighs messages


@pytest.fixture
def subject() -> Graphs:
    return Graphs(TrainConfig(model="gcn", data=Path("karate"), d_model=8, heads=2, profile="always"))


def test_what_was_measured_is_kept_unless_it_is_wanted_again(
    subject: Graphs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def measured(how: str, cluster: Cluster) -> tuple[Cluster, Any]:
        again = Graphs(replace(subject.config, profile=how))  # type: ignore[arg-type]
        return again.measured(Job(), cluster, jax.devices()[:2])[0], again.curves

    monkeypatch.setattr("training.setup.wants_profile", lambda *_: True)
    first = measured("auto", CLUSTER)
    assert measured("auto", CLUSTER) == first
    assert measured("always", CLUSTER)[1] != first[1]
    (file,) = (tmp_path / "lopsided").iterdir()
    file.write_text('{"cluster": {}, "curves": []}')  # of another version
    assert measured("auto", CLUSTER)[1] != first[1]


@pytest.mark.parametrize("parallel", ["vertex", "feature", "sample"])
def test_a_comparison_times_what_the_plan_gives_each_device(subject: Graphs, parallel: Any) -> None:
    fanouts = (2, 2) if parallel == "sample" else None
    subject = Graphs(replace(subject.config, graph_parallel=parallel, fanouts=fanouts, layers=2, seeds=4))
    plan, devices = subject.plan(CLUSTER), jax.devices()[:2]
    assert sum(plan.part(number) for number in range(2)) == pytest.approx(1)
    comparer = Comparer(Job(), plan, devices, lambda number: subject.segments(plan, number, devices[number]))
    comparer.prepare()
    compared = comparer.compare("now", step=1.0)
    assert [device.name for device in compared.devices] == ["d0", "d1"]
    assert all(device.compute > 0 for device in compared.devices)
    assert [d.predicted_compute for d in compared.devices] == [prediction.compute for prediction in plan.predictions]
    assert compared.ideal_fraction > 0


def test_a_device_without_a_share_has_nothing_to_time(subject: Graphs) -> None:
    plan = subject.plan(Cluster.from_flags(speeds=(1e9, 1)))
    empty = [number for number in range(2) if not any(plan.size(number))]
    assert empty == [1]
    assert subject.segments(plan, 1, jax.devices()[1]) == []
