"""Exchanges move exactly the asked rows, and gradients return as sums, in every form."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from sharding import exchange
from sharding.exchange import Exchange
from sharding.routes import Form, message_sizes, schedule

FORMS: tuple[Form, ...] = ("gather", "swap", "permute", "ragged")
MESHES = [(1, 1), (1, 3), (2, 2), (1, 5), (2, 4)]
Case = tuple[list[list[np.ndarray]], list[list[np.ndarray]]]


def random_case(seed: int, groups: int, devices: int, rows: int) -> Case:
    """Owners of `rows` rows and random wishes, some devices with nothing."""
    rng = np.random.default_rng(seed)
    have, want = [], []
    for _ in range(groups):
        cuts = np.sort(rng.integers(0, rows + 1, devices - 1))
        have.append(np.split(rng.permutation(rows), cuts))
        want.append([rng.permutation(rows)[: rng.integers(0, rows + 1) * rng.integers(0, 2)] for _ in range(devices)])
    return have, want


def run(moved: Exchange, rows: np.ndarray, cotangents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values and gradients [groups, devices, B, rows, C]; `rows` are [groups, row id, B, C], padding is NaN."""
    groups, devices = len(moved.have), len(moved.have[0])
    mesh = jax.make_mesh(
        (groups, devices), ("data", "seq"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[: groups * devices]
    )
    capacity = max(len(r) for group in moved.have for r in group)
    local = np.full((groups, devices, rows.shape[2], capacity, rows.shape[3]), np.nan, np.float32)
    for g, group in enumerate(moved.have):
        for m, ids in enumerate(group):
            local[g, m, :, : len(ids)] = np.swapaxes(rows[g][ids], 0, 1)

    def device(local: Any, cotangent: Any, tables: Any) -> Any:
        mine = jax.tree.map(lambda t: t[0, 0], tables)
        out, vjp = jax.vjp(lambda x: moved(x, mine, cotangents.shape[3]), local[0, 0])
        return out[None, None], vjp(cotangent[0, 0])[0][None, None]

    at = P("data", "seq")
    mapped = jax.shard_map(device, mesh=mesh, in_specs=(at, at, at), out_specs=(at, at), check_vma=False)
    out, grads = jax.jit(mapped)(local, cotangents, moved.tables)
    return np.asarray(out), np.asarray(grads)


def check(moved: Exchange, row_count: int) -> None:
    rng = np.random.default_rng(1)
    groups, wanted = len(moved.have), max(len(r) for group in moved.want for r in group)
    rows = rng.normal(size=(groups, row_count, 2, 3)).astype(np.float32)
    cotangents = rng.normal(size=(groups, len(moved.have[0]), 2, wanted, 3)).astype(np.float32)
    out, grads = run(moved, rows, cotangents)
    for g in range(groups):
        total = np.zeros((row_count, 2, 3))
        for m, ids in enumerate(moved.want[g]):
            assert np.array_equal(out[g, m, :, : len(ids)], np.swapaxes(rows[g][ids], 0, 1))
            assert not np.any(out[g, m, :, len(ids) :])
            np.add.at(total, ids, np.swapaxes(cotangents[g, m, :, : len(ids)], 0, 1))
        for m, ids in enumerate(moved.have[g]):
            np.testing.assert_allclose(grads[g, m, :, : len(ids)], np.swapaxes(total[ids], 0, 1), atol=1e-5)
            assert not np.any(grads[g, m, :, len(ids) :])


@pytest.fixture
def emulated_ragged(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the ragged collective does, by its documentation, from an all-gather: CPU has none."""

    def ragged(
        operand: Any, output: Any, offsets: Any, sizes: Any, out_offsets: Any, received: Any, **axis: str
    ) -> Any:
        name = axis["axis_name"]
        me = lax.axis_index(name)
        everything = [lax.all_gather(x, name) for x in (operand, offsets, sizes, out_offsets)]
        for sender in range(everything[0].shape[0]):
            rows, offset, size, start = (x[sender] for x in everything)
            at = jax.numpy.arange(output.shape[0]) - start[me]
            picked = rows[jax.numpy.clip(at + offset[me], 0, rows.shape[0] - 1)]
            mine = (at >= 0) & (at < size[me])
            output = jax.numpy.where(mine[:, None, None], picked, output)
        return output

    monkeypatch.setattr(lax, "ragged_all_to_all", ragged)


@pytest.mark.usefixtures("emulated_ragged")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mesh", MESHES)
def test_rows_arrive_and_gradients_return(form: Form, mesh: tuple[int, int]) -> None:
    for seed in range(2):
        have, want = random_case(seed, *mesh, rows=17)
        if max(len(r) for group in want for r in group):
            check(Exchange(have, want, form), 17)


@pytest.mark.parametrize("mesh", MESHES)
def test_rows_arrive_straight(mesh: tuple[int, int]) -> None:
    have, want = random_case(0, *mesh, rows=17)
    check(Exchange(have, want, "gather", direct=True), 17)


@pytest.mark.parametrize("form", ["gather", "swap", "permute"])
def test_fewer_rows_than_devices(form: Form) -> None:
    have = [[np.array([0, 1]), np.array([], int), np.array([], int), np.array([], int)]]
    check(Exchange(have, [[np.array([1]), np.array([0, 1]), np.array([], int), np.array([1])]], form), 2)


def test_a_wrong_table_would_be_seen() -> None:
    """The twin: an exchange that brings other rows fails the same check."""
    have, want = random_case(3, 1, 3, rows=17)
    want = [[np.arange(17), np.arange(17), np.arange(17)]]
    moved = Exchange(have, want, "gather")
    check(moved, 17)
    wrong = Exchange([[rows[::-1] for rows in have[0]]], want, "gather")
    mislabelled = dataclasses.replace(moved)
    mislabelled.__dict__["legs"] = wrong.legs
    with pytest.raises(AssertionError):
        check(mislabelled, 17)


def test_build_chooses_the_cheapest_form() -> None:
    everything = np.arange(4000)
    have = [list(np.split(everything, 4))]
    assert exchange.build(have, have).form == "none"
    assert exchange.build(have, [[everything] * 4]).form == "gather"
    turned = [[have[0][1], have[0][0], have[0][2], have[0][3]]]
    assert exchange.build(have, turned).form == "permute"
    twice = [have[0], have[0]]
    assert exchange.build(twice, [turned[0], turned[0]]).form != "permute"
    assert exchange.build(have, turned, ragged=True).form == "ragged"


def test_rounds_are_matchings_of_similar_sizes() -> None:
    rng = np.random.default_rng(0)
    sizes = {(a, b): int(rng.integers(1, 100)) for a in range(7) for b in range(7) if a != b}
    rounds = schedule(sizes)
    assert sorted(pair for pairs, _ in rounds for pair in pairs) == sorted(sizes)
    for pairs, size in rounds:
        assert len({a for a, _ in pairs}) == len({b for _, b in pairs}) == len(pairs)
        assert size == max(sizes[pair] for pair in pairs)
    padded = sum(size * len(pairs) for pairs, size in rounds)
    assert padded < 0.8 * max(sizes.values()) * len(sizes)  # less than if all messages were equal
    assert message_sizes([]) == {}


@pytest.mark.parametrize(
    ("have", "want", "message"),
    [
        ([[[0, 1], [1]]], [[[0], [1]]], "row 1 has 2 owners"),
        ([[[0], [1]]], [[[0], [2]]], "wants row 2, nobody has it"),
        ([[[0], [1]]], [[[0, 0], [1]]], "wants a row twice"),
    ],
)
def test_impossible_routes(have: Any, want: Any, message: str) -> None:
    arrays = [[[np.array(r, int) for r in group] for group in rows] for rows in (have, want)]
    with pytest.raises(ValueError, match=message):
        exchange.build(*arrays)


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_the_ragged_form_lowers_where_the_backend_has_it(platform: str) -> None:
    have, _ = random_case(0, 1, 3, rows=17)
    moved = Exchange(have, [[np.arange(17)] * 3], "ragged")
    mesh = jax.make_mesh((1, 3), ("data", "seq"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:3])

    def device(rows: Any, tables: Any) -> Any:
        mine = jax.tree.map(lambda t: t[0, 0], tables)
        return jax.grad(lambda x: moved(x, mine, 17).sum())(rows[0, 0])[None, None]

    at = P("data", "seq")
    mapped = jax.jit(jax.shard_map(device, mesh=mesh, in_specs=(at, at), out_specs=at, check_vma=False))
    capacity = max(len(r) for r in have[0])
    shape = jax.ShapeDtypeStruct((1, 3, 2, capacity, 3), np.float32)
    lowered = mapped.trace(shape, moved.tables).lower(lowering_platforms=(platform,))
    assert "ragged_all_to_all" in lowered.as_text()
