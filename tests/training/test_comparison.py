"""What is said when a plan does not come true."""

import pytest

from training.comparison import Comparison, DeviceTimes


def compared(compute: tuple[float, float], step: float, planned: tuple[float, float] = (0.8, 0.8)) -> Comparison:
    devices = [
        DeviceTimes(name=n, compute=c, predicted_compute=p, waiting=step - c, predicted_waiting=1.0 - p)
        for n, c, p in zip(("fast", "slow"), compute, planned, strict=True)
    ]
    return Comparison(devices=tuple(devices), step=step, predicted_step=1.0, ideal_fraction=0.7)


@pytest.mark.parametrize(
    ("compute", "step", "says"),
    [
        ((0.8, 0.8), 1.05, ""),
        ((0.8, 1.6), 1.8, "advice: slow takes 2.00x its predicted time and fast 1.00x, so that shares are not"),
        ((1.6, 1.6), 1.8, "advice: all devices take about 2.00x the predicted time: the shares are right"),
        ((1.6, 0.8), 0.7, "advice: a step takes 700 ms and its work alone 1600 ms: steps so short cannot be compared"),
        ((0.8, 0.8), 2.0, "advice: messages and waiting take 1200 ms of the step, 200 ms were planned"),
    ],
)
def test_advice_names_what_differs_most(compute: tuple[float, float], step: float, says: str) -> None:
    found = compared(compute, step)
    assert found.advice().startswith(says) and bool(found.advice()) == bool(says)


def test_the_table_has_a_line_for_each_device_and_the_share_of_the_ideal() -> None:
    lines = [*compared((0.8, 1.6), 1.8).lines()]
    assert [line.split()[0] for line in lines[:3]] == ["device", "fast", "slow"]
    assert lines[2].split() == ["slow", "1600", "800", "200", "200"]
    assert "70% of the ideal" in lines[3] and len(lines) == 5


def test_a_device_without_work_is_no_reason_for_advice() -> None:
    assert compared((0.8, 0.0), 1.0, (0.8, 0.0)).advice() == ""
