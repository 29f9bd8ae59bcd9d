"""Predicted seconds and bytes against formulas worked out by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshes.cluster import Cluster, Device, Link
from meshes.cost import (
    Curves,
    Division,
    Grid,
    exchange_seconds,
    link_bytes,
    reduction_seconds,
    seconds,
    weight_bytes,
    weight_seconds,
)
from meshes.errors import UsageError
from meshes.memory import bytes_needed, head_caps, state_bytes, token_caps
from meshes.workload import Workload, divisors

WORK = Workload(
    batch_size=8,
    microbatch=2,
    seq_len=64,
    vocab_size=50,
    layers=3,
    d_model=16,
    heads=4,
    kv_heads=2,
    head_dim=4,
    d_ff=40,
    compute_bytes=2,
)
BANDWIDTH, LATENCY, FLOPS = 1e6, 1e-3, 1e9


def grid(*speeds: tuple[float, ...], memory: int | None = None) -> Grid:
    """One row of speeds for each data group."""
    flat = [s for row in speeds for s in row]
    link = Link(hosts=("*", "*"), bandwidth=BANDWIDTH, latency=LATENCY)
    devices = tuple(Device(name=f"d{i}", speed=s, memory=memory) for i, s in enumerate(flat))
    cluster = Cluster(devices=devices, flops_per_speed=FLOPS, same_host=link)
    return Grid.of(cluster, np.arange(len(flat)).reshape(len(speeds), -1).tolist())


def context(tokens: list[list[int]], **changes: Any) -> Division:
    t = np.array(tokens)
    division = Division(t, t, np.zeros_like(t), np.full_like(t, 4), np.full_like(t, 2), "context", "gather")
    return replace(division, **changes)


def head(tokens: list[int], heads: list[int], kv_heads: list[int]) -> Division:
    stop = np.cumsum([heads], axis=1)
    queries = np.where(np.array([heads]) > 0, 64, 0)
    return Division(np.array([tokens]), queries, stop - heads, stop, np.array([kv_heads]), "head", "gather")


def test_flops_and_parameters() -> None:
    attention = 16 * 16 * 2 + 16 * 8 * 2  # queries and output, keys and values
    assert WORK.layer_parameters == attention + 3 * 16 * 40 + 2 * 16
    assert WORK.parameters == 3 * WORK.layer_parameters + 50 * 16 + 16
    assert replace(WORK, tied=False).parameters == WORK.parameters + 50 * 16
    assert WORK.token_flops == 2 * (3 * (attention + 3 * 16 * 40) + 50 * 16)
    assert WORK.query_flops == 2 * (2 * 64 * 4) / 2


@pytest.mark.parametrize(
    ("tokens", "remat", "specialized", "passes"),
    [
        ([32, 32], "none", False, 3),
        ([48, 16], "none", False, 4),
        ([48, 16], "none", True, 3),
        ([32, 32], "layer", False, 4),
        ([48, 16], "layer", False, 5),
    ],
)
def test_token_and_attention_seconds(tokens: list[int], remat: Any, specialized: bool, passes: int) -> None:
    work = replace(WORK, remat=remat)
    times = seconds(grid((3.0, 1.0)), work, context([tokens]), specialized=specialized)
    speed = np.array([3.0, 1.0]) * FLOPS
    np.testing.assert_allclose(times.tokens[0], passes * 2 * WORK.token_flops * np.array(tokens) / speed)
    forward = 2 * 3 * 4 * WORK.query_flops * np.array(tokens) / speed
    np.testing.assert_allclose(times.attention[0], (3.5 + (remat == "layer")) * forward)


def test_step_is_the_slowest_group() -> None:
    times = seconds(grid((3.0, 1.0), (2.0, 2.0)), WORK, context([[48, 16], [32, 32]]))
    expected = times.tokens.max(1) + times.attention.max(1) + times.communication
    np.testing.assert_allclose(times.microbatch, expected)
    assert times.step(np.array([3, 1])) == pytest.approx(3 * expected[0] + times.once)


def test_one_device_says_nothing() -> None:
    alone = context([[64]])
    assert weight_seconds(grid((1.0,)), WORK) == exchange_seconds(grid((1.0,)), WORK, alone) == 0
    assert reduction_seconds(grid((1.0,)), WORK) == 0


def test_weight_seconds() -> None:
    layers = 3 * WORK.layer_parameters * (2 * 2 + 4)  # two gathers in the compute dtype, one scatter in float32
    ends = 50 * 16 * (2 + 2 * 4)  # one gather and two scatters of the embedding
    expected = (layers + ends) * 3 / 4 / BANDWIDTH + (3 * 2 * 3 + 3) * 3 * LATENCY
    np.testing.assert_allclose(weight_seconds(grid((1.0,) * 4), WORK), expected)
    groups = grid((1.0,) * 2, (1.0,) * 2)
    assert reduction_seconds(groups, WORK) == pytest.approx(2 * 4 * WORK.parameters / 2 / 2 / BANDWIDTH + 2 * LATENCY)


def test_context_exchange_moves_keys_and_values_only() -> None:
    rows = 2 * 40 * 2  # keys and values of the largest share, two heads, to the other device
    size = rows * 2 * 4 * 2  # microbatch, head width, bytes
    expected = 3 * 2 * (size / BANDWIDTH + LATENCY)  # layers, forward and backward
    np.testing.assert_allclose(exchange_seconds(grid((2.0, 1.0)), WORK, context([[40, 24]])), expected)


def test_head_exchange_moves_queries_and_outputs_too() -> None:
    division = head([48, 16], [3, 1], [2, 1])
    kv = max(2 * (64 - 48) * 2, 2 * (64 - 16) * 1, 2 * 48 * 1, 2 * 16 * 2)
    away = max(64 * 3 * 16 / 64, 64 * 1 * 48 / 64, 48 * (4 - 3), 16 * (4 - 1))
    size = (kv + 2 * away) * 2 * 4 * 2
    expected = 3 * 2 * (size / BANDWIDTH + 3 * LATENCY)
    np.testing.assert_allclose(exchange_seconds(grid((3.0, 1.0)), WORK, division), expected)


def test_ring_waits_for_the_largest_block() -> None:
    ring, gathered = context([[48, 16]], kv="ring"), context([[48, 16]])
    devices = grid((3.0, 1.0))
    slower = seconds(devices, WORK, ring).attention / seconds(devices, WORK, gathered).attention
    np.testing.assert_allclose(slower, 2 * 48 / 64)
    block = 2 * 48 * 2 * 2 * 4
    size = 2 * block * (2 * 2 + 4)
    np.testing.assert_allclose(exchange_seconds(devices, WORK, ring), 3 * (size / BANDWIDTH + 2 * 3 * LATENCY))


def test_state_bytes() -> None:
    params = WORK.parameters
    assert state_bytes(grid((1.0,)), replace(WORK, microbatch=8)) == (12 + 4) * params
    assert state_bytes(grid((1.0,)), WORK) == (12 + 8) * params
    assert state_bytes(grid((1.0,) * 2, (1.0,) * 2), WORK) == 12 * -(-params // 4) + 12 * -(-params // 2)


CURVES = Curves(
    model=WORK.model,
    fixed=np.array([[1e-3, 2e-3]]),
    token=np.array([[1e-5, 3e-5]]),
    pair=np.array([[1e-9, 2e-9]]),
    update=np.array([[1e-9, 5e-9]]),
    knee=np.array([[40, 20]]),
    bend=np.array([[2e-5, 9e-5]]),
    byte=np.zeros((1, 2)),
    row_byte=np.zeros((1, 2)),
    key=np.array([[1e-5, 4e-5]]),
)


def test_measured_curves_take_the_place_of_flops() -> None:
    devices, division = replace(grid((3.0, 1.0)), curves=CURVES), context([[48, 16]])
    found = seconds(devices, WORK, division, specialized=True)
    np.testing.assert_allclose(found.tokens, [[1e-3 + 48e-5 + 8 * 2e-5, 2e-3 + 16 * 3e-5]])
    read = np.array([1e-5, 4e-5]) * WORK.kv_heads
    pairs = np.array([[48, 16]]) * 64 * WORK.heads  # one block of queries and one of keys: all of them
    np.testing.assert_allclose(found.attention, np.array([[1e-9, 2e-9]]) * pairs + read)
    lookups = 50 * 16 * 2 / 2 / BANDWIDTH + LATENCY
    assert found.once == pytest.approx(5e-9 * WORK.parameters / 2 + 4 * LATENCY + lookups)
    switched = seconds(devices, WORK, division)
    np.testing.assert_allclose(switched.tokens, [[1e-3 + 4 / 3 * (48e-5 + 8 * 2e-5), 2e-3 + 4 / 3 * 16 * 3e-5]])


def test_what_links_bring_costs_a_device_its_own_seconds() -> None:
    """A slow device needs longer to unpack the same bytes, and the planner gives it less other work."""
    plain, division = replace(grid((3.0, 1.0)), curves=CURVES), context([[48, 16]])
    curves = replace(CURVES, byte=np.array([[1e-9, 3e-9]]), row_byte=np.array([[2e-9, 5e-9]]))
    own = replace(plain, curves=curves)
    before, after = (seconds(g, WORK, division, specialized=True) for g in (plain, own))
    weights, (rows,) = link_bytes(own, WORK, division)
    assert weights == weight_bytes(WORK) / 2 and rows > 0
    expected = [[1e-9 * weights + 2e-9 * rows, 3e-9 * weights + 5e-9 * rows]]
    np.testing.assert_allclose(after.tokens - before.tokens, expected)
    np.testing.assert_allclose(after.communication, before.communication)


def test_curves_of_another_model_are_not_used() -> None:
    devices, division = grid((3.0, 1.0)), context([[48, 16]])
    other = replace(devices, curves=replace(CURVES, model="another"))
    plain, found = (seconds(g, WORK, division, specialized=True) for g in (devices, other))
    np.testing.assert_allclose(found.tokens, plain.tokens)
    assert found.once == plain.once


def test_switched_pads_every_device_to_the_largest() -> None:
    devices, division = grid((3.0, 1.0)), context([[48, 16]])
    padded, exact = (bytes_needed(devices, WORK, division, specialized=s)[0] for s in (False, True))
    assert padded[0] == padded[1] and exact[0] > exact[1]
    assert bytes_needed(devices, replace(WORK, remat="layer"), division)[0, 0] < padded[0]


@pytest.mark.parametrize("specialized", [False, True])
@pytest.mark.parametrize("kv", ["gather", "ring"])
def test_token_caps_are_what_fits(kv: Any, specialized: bool) -> None:
    need = bytes_needed(grid((3.0, 1.0)), WORK, context([[48, 16]], kv=kv), specialized=specialized)
    devices = grid((3.0, 1.0), memory=int(need[0, 0]))
    caps = token_caps(devices, WORK, context([[60, 4]], kv=kv), specialized=specialized)
    assert np.all(caps >= 16) and np.all(caps < 64)
    most = int(caps[0, 0])
    for tokens, fits in ((most, True), (most + 1, False)):
        division = context([[tokens, 64 - tokens]], kv=kv)
        found = bytes_needed(devices, WORK, division, specialized=specialized)
        assert bool(np.all(found <= devices.limit)) == fits


def test_head_caps_are_what_fits() -> None:
    division = head([48, 16], [3, 1], [2, 1])
    need = int(bytes_needed(grid((3.0, 1.0)), WORK, division).max())
    assert head_caps(grid((3.0, 1.0), memory=need), WORK, division).tolist() == [[3, 3]]
    assert head_caps(grid((3.0, 1.0), memory=10), WORK, division).tolist() == [[-1, -1]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 3}, "heads 3 is not a multiple of kv_heads 2"),
        ({"seq_len": 0}, "seq_len is 0: it must be a whole number, 1 or more"),
        ({"layers": 1.5}, "layers is 1.5"),
        ({"batch_size": True}, "batch_size is True"),
        ({"remat": "all"}, "remat is 'all': it is none or layer"),
    ],
)
def test_bad_workloads(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(WORK, **changes)


def test_divisors() -> None:
    assert divisors(12) == [1, 2, 3, 4, 6, 12] and divisors(1) == [1] and divisors(7) == [1, 7]
