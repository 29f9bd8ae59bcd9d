"""Profiles: segments of the model are timed on each device, and the planner works with what was found."""

from pathlib import Path

import jax
import pytest

from meshes.cluster import Cluster
from meshes.job import Job
from meshes.planner import plan
from training import kept, profile, program, setup
from training.comparison import Comparer
from training.config import TrainConfig

CONFIG = TrainConfig(
    layers=2, d_model=32, heads=4, kv_heads=2, d_ff=64, seq_len=64, batch_size=4, microbatch=2, remat="layer"
)
VOCAB = 37


@pytest.fixture(scope="module")
def found() -> profile.Profile:
    cluster = Cluster.from_flags(devices=2)
    work = setup.workload(CONFIG, VOCAB)
    return profile.profile(Job(), cluster, jax.devices()[:2], work, program.segments(CONFIG, VOCAB, 2))


def test_every_device_has_a_curve_of_this_model(found: profile.Profile) -> None:
    work = setup.workload(CONFIG, VOCAB)
    assert found.cluster.declared and len(found.cluster.devices) == 2
    for device in found.cluster.devices:
        assert device.curve is not None and device.curve.model == work.model
        assert device.curve.update > 0 and 1 <= device.speed < 100
    assert found.cluster.same_host.bandwidth > 0 and found.cluster.same_host.latency > 0
    assert min(device.speed for device in found.cluster.devices) == 1


def test_the_planner_predicts_from_the_curves(found: profile.Profile) -> None:
    made = plan(found.cluster, setup.workload(CONFIG, VOCAB), data_groups=2)
    assert made.tokens == ((64,), (64,))
    for g, (device,) in enumerate(made.order):
        curve, count = found.cluster.devices[device].curve, made.microbatches[g]
        assert curve is not None
        predicted = count * curve.compute(64, 64 * 64 * 4, CONFIG.kv_heads)  # one block of keys: all pairs
        assert made.predictions[g][0].compute == pytest.approx(predicted)


def test_a_profile_is_kept_for_the_same_devices_and_model(
    found: profile.Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cluster, work = Cluster.from_flags(devices=2), setup.workload(CONFIG, VOCAB)
    name = kept.key(cluster, jax.devices()[:2], work.model)
    assert kept.load(name, profile.Profile) is None
    kept.keep(name, found)
    assert kept.load(name, profile.Profile) == found
    others = [
        kept.key(Cluster.from_flags(devices=2, speeds=(2, 1)), jax.devices()[:2], work.model),
        kept.key(cluster, jax.devices()[:2], setup.workload(CONFIG, VOCAB + 1).model),
    ]
    assert name not in others and len({*others}) == 2
    (tmp_path / "lopsided" / f"{name}.json").write_text('{"cluster": ')  # by a process that was killed
    assert kept.load(name, profile.Profile) is None


def test_a_cache_that_cannot_be_written_is_no_error(
    found: profile.Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    kept.keep("name", found)
    assert kept.load("name", profile.Profile) is None


def test_a_comparison_times_what_the_plan_gives_each_device() -> None:
    made = plan(Cluster.from_flags(devices=2), setup.workload(CONFIG, VOCAB), attention="head", data_groups=1)
    devices, segments = jax.devices()[:2], program.segments(CONFIG, VOCAB, 2)
    comparer = Comparer(Job(), made, devices, lambda number: segments.of(made, number, devices[number]))
    comparer.prepare()
    compared = comparer.compare("now", step=1.0)
    assert [device.name for device in compared.devices] == ["d0", "d1"]
    assert all(device.compute > 0 for device in compared.devices)
    assert all(device.waiting == pytest.approx(max(1.0 - device.compute, 0)) for device in compared.devices)
    assert compared.ideal_fraction > 0


def test_measuring_happens_where_nobody_says_how_fast_devices_are(monkeypatch: pytest.MonkeyPatch) -> None:
    several, declared = Job(number=0, count=2), Cluster.from_flags(devices=2, speeds=(2, 1))
    unknown = Cluster.from_flags(devices=2)

    def wanted(how: str, job: Job, cluster: Cluster) -> bool:
        config = TrainConfig(profile=how)  # type: ignore[arg-type]
        return setup.wants_profile(config, job, cluster, jax.devices()[:2])

    monkeypatch.setattr(Job, "alone", property(lambda job: job.count == 1))
    quiet = [("auto", several, declared), ("auto", Job(), unknown), ("never", several, unknown)]
    loud = [("auto", several, unknown), ("always", several, declared), ("always", Job(), unknown)]
    assert not any(wanted(*case) for case in quiet)
    assert all(wanted(*case) for case in loud)
