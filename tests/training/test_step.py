"""Any tiling and any placement give the loss and the gradients of the plain single-device model."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest

from meshes.mesh import make_mesh
from models.transformer import TransformerConfig
from sharding import rules
from sharding.placement import Mode, Placement
from sharding.tiles import Tiling
from training.batches import Dealer
from training.data import Rows
from training.step import Program

LOSS, GRADIENT = 1e-5, 1e-4  # relative, fp32
SMALL = TransformerConfig(vocab_size=37, layers=2, d_model=24, heads=6, kv_heads=2, d_ff=40)


@dataclass(frozen=True)
class Case:
    """A plan in short: tokens and tiles (first head, last head + 1, queries) of [groups][devices]."""

    tokens: tuple[tuple[int, ...], ...]
    tiles: tuple[tuple[tuple[int, int, int], ...], ...]
    counts: tuple[int, ...]
    mode: Mode = "switched"
    ring: bool = False
    config: TransformerConfig = SMALL
    microbatch: int = 2
    dtype: Any = jnp.float32
    packed: bool = True
    direct: bool = False

    def build(self) -> tuple[Program, Dealer]:
        heads = (self.config.heads, self.config.kv_heads)
        tiling = Tiling(self.tokens, self.tiles, *heads, ring=self.ring, packed=self.packed, direct=self.direct)
        groups, devices = len(self.tokens), len(self.tokens[0])
        order = np.arange(groups * devices).reshape(devices, groups).T.tolist()
        mesh = make_mesh(order, jax.devices())
        program = Program(
            config=self.config,
            mesh=mesh,
            tiling=tiling,
            placement=Placement(self.mode, tiling.sizes),
            optimizer=optax.adam(1e-3),
            dtype=self.dtype,
        )
        return program, Dealer(mesh, tiling, self.microbatch, self.counts)


def context(*tokens: int, heads: int = 6) -> tuple[tuple[int, int, int], ...]:
    return tuple((0, heads, t) for t in tokens)


S = 17
TOKENS = (8, 5, 3, 1)
WIDE = TransformerConfig(vocab_size=37, layers=1, d_model=32, heads=8, kv_heads=8, d_ff=40, tied=False, remat="layer")
CASES = {
    "single": Case(((S,),), (context(S),), (2,), "single"),
    "context": Case((TOKENS,), (context(*TOKENS),), (2,)),
    "ring": Case((TOKENS,), (context(*TOKENS),), (1,), ring=True),
    "ring of one with all": Case(((0, S, 0),), (context(0, S, 0),), (1,), ring=True),
    "head": Case((TOKENS,), (((0, 3, S), (3, 5, S), (5, 6, S), (0, 0, 0)),), (1,)),
    "head, more devices than K/V heads": Case(((6, 5, 4, 2),), (((0, 2, S), (2, 4, S), (4, 5, S), (5, 6, S)),), (1,)),
    "hybrid": Case((TOKENS,), (((0, 4, 12), (0, 4, 5), (4, 6, S), (0, 0, 0)),), (1,)),
    "hybrid, queries not the owned tokens": Case((TOKENS,), (((0, 5, 2), (5, 6, S), (0, 5, 15), (0, 5, 0)),), (1,)),
    "one device with all": Case(((0, S, 0),), (((0, 0, 0), (0, 6, S), (0, 0, 0)),), (2,)),
    "data groups": Case(((12, 5), (9, 8)), (context(12, 5), ((0, 4, S), (4, 6, S))), (3, 1)),
    "data groups, ring": Case(((12, 5), (9, 8)), (context(12, 5), context(9, 8)), (1, 2), ring=True),
    "a data group without rows": Case(((12, 5), (9, 8)), (context(12, 5), context(9, 8)), (2, 0)),
    "data parallel": Case(((S,), (S,), (S,)), (context(S),) * 3, (2, 1, 1), "uniform"),
    "five devices": Case(((8, 5, 2, 1, 1),), (context(8, 5, 2, 1, 1),), (1,)),
    "uniform context": Case(((9, 9),), (context(9, 9),), (2,), "uniform"),
    "uniform head": Case(((8, 8),), (((0, 3, 16), (3, 6, 16)),), (1,), "uniform"),
    "fewer tokens than devices": Case(((1, 1, 1, 0),), (context(1, 1, 1, 0),), (1,)),
    "one token": Case(((1, 0),), (context(1, 0),), (1,)),
    "direct": Case((TOKENS,), (context(*TOKENS),), (2,), direct=True),
    "data groups, direct": Case(((12, 5), (9, 8)), (context(12, 5), ((0, 4, S), (4, 6, S))), (3, 1), direct=True),
    "untied, remat": Case((TOKENS,), (((0, 4, S), (4, 6, 12), (4, 6, 5), (6, 8, S)),), (1,), config=WIDE),
}


def crop(program: Program, stored: Any) -> Any:
    return jax.tree.map(np.asarray, rules.apply(lambda s, leaf: s.crop(leaf), program.stored["params"], stored))


def distance(a: Any, b: Any) -> float:
    """Relative distance of two trees in the 2-norm, the worst leaf.

    A leaf that is nearly zero (keys that are alone have no gradient) is held against a thousandth of the whole.
    """
    pairs = list(zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
    least = 1e-3 * np.sqrt(sum(float(np.sum(np.square(y))) for _, y in pairs))
    return max(float(np.linalg.norm(x - y) / max(np.linalg.norm(y), least)) for x, y in pairs)


def gradients(case: Case, rows: Rows | None = None) -> tuple[float, Any, float, Any]:
    """Loss and gradients of the program, and of the oracle."""
    program, dealer = case.build()
    rows = rows or oracle.random_rows(np.random.default_rng(0), dealer.rows, sum(case.tokens[0]), 37)
    params = program.init(jax.random.key(0))["params"]
    logical = crop(program, params)
    expected = jax.jit(jax.value_and_grad(lambda p: oracle.loss(case.config, p, rows)))(logical)
    total, weight, grads = program.gradient_step()(params, dealer(rows), dealer.device_counts, program.tables)
    assert float(weight) == np.sum(rows.weights_BS)
    return float(total / weight), jax.tree.map(lambda g: g / weight, crop(program, grads)), *expected


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_are_those_of_one_device(name: str) -> None:
    loss, grads, expected_loss, expected = gradients(CASES[name])
    assert loss == pytest.approx(float(expected_loss), rel=LOSS)
    assert distance(grads, jax.tree.map(np.asarray, expected)) < GRADIENT


def random_case(seed: int) -> Case:
    """Random shares of a random prime length, random bands of random devices; zeros are frequent."""
    rng = np.random.default_rng(seed)
    devices, length = int(rng.integers(2, 6)), int(rng.choice([7, 13, 23]))

    def shares(total: int, parts: int) -> list[int]:
        wish = rng.random(parts) * (rng.random(parts) < 0.7)
        return rng.multinomial(total, wish / wish.sum() if wish.sum() else np.eye(parts)[0]).tolist()

    bands = int(rng.integers(1, devices + 1))
    members = np.array_split(rng.permutation(devices), bands)
    cuts = np.cumsum([0, *shares(6, bands)])
    tiles = [(0, 0, 0)] * devices
    for band, (start, stop) in zip(members, pairwise(cuts), strict=True):
        for device, queries in zip(band, shares(length, len(band)), strict=True):
            tiles[device] = (int(start), int(stop), queries) if stop > start else (0, 0, 0)
    return Case((tuple(shares(length, devices)),), (tuple(tiles),), (1,), microbatch=1)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_random_plans(seed: int) -> None:
    loss, grads, expected_loss, expected = gradients(random_case(seed))
    assert loss == pytest.approx(float(expected_loss), rel=LOSS)
    assert distance(grads, jax.tree.map(np.asarray, expected)) < GRADIENT


def test_another_document_layout_would_be_seen() -> None:
    """The twin: the program run on rows whose documents are cut elsewhere is not within tolerance."""
    case = CASES["context"]
    program, dealer = case.build()
    rows = oracle.random_rows(np.random.default_rng(0), dealer.rows, S, 37)
    other = rows._replace(segments_BS=np.ones_like(rows.segments_BS))
    params = program.init(jax.random.key(0))["params"]
    expected = oracle.loss(case.config, crop(program, params), rows)
    total, weight, _ = program.gradient_step()(params, dealer(other), dealer.device_counts, program.tables)
    assert float(total / weight) != pytest.approx(float(expected), rel=LOSS)


def test_rows_of_one_document() -> None:
    """Told so, tiles of all queries promise the plain causal mask to the kernel, and only those."""
    tiles = ((0, 4, 12), (0, 4, 5), (4, 6, S), (0, 0, 0))
    case = Case((TOKENS,), (tiles,), (1,), packed=False)
    program, dealer = case.build()
    assert [fact.dense_causal for fact in program.tiling.facts[0]] == [False, False, True, False]
    rows = oracle.random_rows(np.random.default_rng(0), dealer.rows, S, 37, documents=1)
    loss, grads, expected_loss, expected = gradients(case, rows)
    assert loss == pytest.approx(float(expected_loss), rel=LOSS)
    assert distance(grads, jax.tree.map(np.asarray, expected)) < GRADIENT


def test_one_weighted_target_in_all() -> None:
    """The loss is a global sum over a global weight, whichever device holds the only target."""
    rows = oracle.random_rows(np.random.default_rng(1), 4, S, 37)
    weights = np.zeros_like(rows.weights_BS)
    weights[3, 11] = 0.5
    loss, grads, expected_loss, expected = gradients(CASES["context"], rows._replace(weights_BS=weights))
    assert loss == pytest.approx(float(expected_loss), rel=LOSS)
    assert distance(grads, jax.tree.map(np.asarray, expected)) < GRADIENT


def test_no_target_at_all_leaves_the_state_finite() -> None:
    program, dealer = CASES["context"].build()
    rows = oracle.random_rows(np.random.default_rng(1), 4, S, 37)
    rows = rows._replace(weights_BS=np.zeros_like(rows.weights_BS))
    state = program.init(jax.random.key(0))
    before = crop(program, state["params"])
    state, metrics = program.train_step()(state, dealer(rows), dealer.device_counts, program.tables)
    assert float(metrics["weight"]) == 0 and float(metrics["loss"]) == 0
    assert distance(crop(program, state["params"]), before) == 0


def test_parameters_do_not_depend_on_the_plan() -> None:
    one, many = (
        crop(p, p.init(jax.random.key(3))["params"])
        for p, _ in (CASES["single"].build(), CASES["five devices"].build())
    )
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(many), strict=True))


def test_gradient_norm_counts_each_parameter_once() -> None:
    norms = []
    rows = oracle.random_rows(np.random.default_rng(2), 4, S, 37)
    for name in ("single", "context"):
        program, dealer = CASES[name].build()
        state = program.init(jax.random.key(0))
        _, metrics = program.train_step()(state, dealer(rows), dealer.device_counts, program.tables)
        norms.append(float(metrics["grad_norm"]))
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_a_second_step_and_other_counts_compile_nothing() -> None:
    program, dealer = Case(((12, 5), (9, 8)), (context(12, 5), context(9, 8)), (2, 1)).build()
    rows = oracle.random_rows(np.random.default_rng(0), dealer.rows, S, 37)
    step, state = program.train_step(), program.init(jax.random.key(0))
    state, _ = step(state, dealer(rows), dealer.device_counts, program.tables)
    state, _ = step(state, dealer(rows), dealer.device_counts, program.tables)
    shifted = Dealer(dealer.mesh, dealer.tiling, dealer.microbatch, (1, 2))
    state, _ = step(state, shifted(rows), shifted.device_counts, program.tables)
    assert step._cache_size() == 1


def test_an_even_plan_has_no_branches() -> None:
    program, dealer = CASES["uniform context"].build()
    rows = oracle.random_rows(np.random.default_rng(0), dealer.rows, 18, 37)
    args = (program.init(jax.random.key(0))["params"], dealer(rows), dealer.device_counts, program.tables)
    assert "stablehlo.case" not in program.gradient_step().lower(*args).as_text()
    uneven, dealer = CASES["context"].build()
    rows = oracle.random_rows(np.random.default_rng(0), dealer.rows, S, 37)
    args = (uneven.init(jax.random.key(0))["params"], dealer(rows), dealer.device_counts, uneven.tables)
    assert "stablehlo.case" in uneven.gradient_step().lower(*args).as_text()


def test_bfloat16_stays_near_and_does_not_drift_with_devices() -> None:
    """Sums over devices are float32: four devices are no further from the fp32 loss than one, times two."""
    rows = oracle.random_rows(np.random.default_rng(4), 4, S, 37)
    errors = []
    for name in ("single", "context"):
        case = CASES[name]
        half = Case(case.tokens, case.tiles, case.counts, case.mode, dtype=jnp.bfloat16)
        _, grads, _, expected = gradients(half, rows)
        errors.append(distance(grads, jax.tree.map(np.asarray, expected)))
    assert errors[0] < 0.1 and errors[1] < 2 * errors[0]
