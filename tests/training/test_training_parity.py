"""The planner's own plans train as one device does: first loss, first gradient, and the losses of twenty steps."""

import shlex
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import oracle
import pytest

from meshes.plan import Plan
from models.transformer import TransformerConfig
from sharding import rules
from training import program, setup
from training.batches import Dealer
from training.config import parse
from training.data import PackedRows, Rows, TrainStream, load, split
from training.step import Program

FIRST_LOSS, GRADIENT, LOSSES = 1e-5, 1e-4, 1e-3  # relative, fp32
STEPS = 20
B1 = 0.9  # of Adam: the first moment after one step is (1 - B1) times the gradient
MODEL = shlex.split(
    "--layers 2 --d-model 32 --heads 8 --kv-heads 4 --d-ff 48 --seq-len 48 --batch-size 8 --microbatch 4"
    " --clip-norm 0 --lr 0.003 --warmup 5 --steps 20"
)
ONE = "--devices 1"
# Slow enough that the small model's work outweighs its messages; else the planner leaves devices out.
FOUR = "--devices 4 --speeds .04,.02,.01,.01"
CASES = {
    "context": f"{FOUR} --attention context --data-groups 1",
    "head": f"{FOUR} --attention head --data-groups 1",
    "hybrid": f"{FOUR} --attention hybrid --data-groups 1",
    "data groups": f"{FOUR} --data-groups 2",
    "five devices": "--devices 5 --speeds .05,.03,.01,.01,.005 --data-groups 1",
    "ring": f"{FOUR} --attention context --kv ring --data-groups 1",
}


@dataclass(frozen=True)
class Trained:
    """What twenty steps began with, and what came of them."""

    plan: Plan
    model: TransformerConfig
    first_rows: Rows
    first_params: Any
    losses: list[float]
    norm: float
    gradient: Any


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> PackedRows:
    """Documents of words, packed: more rows than twenty steps need."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("data")
    words = ["".join(map(chr, rng.integers(97, 123, rng.integers(2, 8)))) for _ in range(40)]
    for n in range(100):
        (folder / f"{n}.txt").write_text(" ".join(rng.choice(words, rng.integers(3, 40))))
    train, _ = split(load(folder), 48)
    assert len(train) > STEPS * 8
    return train


@pytest.fixture(scope="module")
def one(rows: PackedRows) -> Trained:
    return train(ONE, rows)


def train(devices: str, rows: PackedRows, seed: int = 0) -> Trained:
    """Train by the program as the command line plans and builds it."""
    config = parse([*MODEL, *devices.split(), "--seed", str(seed)])
    cluster, _ = setup.find_cluster(config)
    plan = setup.make_plan(config, cluster, 257)
    built = program.build(config, plan, jax.devices()[: len(cluster.devices)], 257)
    dealer = Dealer(built.mesh, built.tiling, config.microbatch, plan.microbatches)
    stream, step = TrainStream(rows, seed=config.seed, batch_size=config.batch_size), built.train_step()
    state = built.init(program.key(0))
    params = logical(built, state["params"])
    losses, norm, gradient = [], 0.0, None
    for number in range(STEPS):
        batch = dealer(stream.rows(number, dealer.my_rows))
        state, metrics = step(state, batch, dealer.device_counts, built.tables)
        losses.append(float(metrics["loss"]))
        if number == 0:
            norm = float(metrics["grad_norm"])
            moment = state["opt_state"][1][0].mu
            gradient = jax.tree.map(lambda mu: mu / np.float32(1 - B1), logical(built, moment))
    first = stream.rows(0, range(config.batch_size))
    return Trained(plan, built.config, first, params, losses, norm, gradient)


def logical(built: Program, stored: Any) -> Any:
    """Parameters, or what has their shapes, without padding."""
    return rules.apply(lambda s, leaf: np.array(s.crop(leaf)), built.stored["params"], stored)


def distance(a: Any, b: Any) -> float:
    """Relative distance of two trees in the 2-norm, the worst leaf."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(np.linalg.norm(x - y) / np.linalg.norm(y)) for x, y in pairs)


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_twenty_steps_are_those_of_one_device(name: str, one: Trained, rows: PackedRows) -> None:
    many = train(CASES[name], rows)
    check_plan(name, many.plan)
    assert many.losses[0] == pytest.approx(one.losses[0], rel=FIRST_LOSS)
    assert many.norm == pytest.approx(one.norm, rel=GRADIENT)
    assert distance(many.gradient, one.gradient) < GRADIENT
    assert many.losses == pytest.approx(one.losses, rel=LOSSES)


def check_plan(name: str, plan: Plan) -> None:
    """The planner was not asked in vain: shares are uneven, and several devices work."""
    wanted = {"ring": "context"}.get(name, name)
    if wanted in ("context", "head", "hybrid"):
        assert plan.attention == wanted
    assert (plan.kv == "ring") == (name == "ring")
    assert len(plan.order) == (2 if name == "data groups" else 1)
    shares = [share for group in plan.tokens for share in group]
    assert len(set(shares)) > 1 or len(set(plan.microbatches)) > 1
    assert sum(share > 0 for share in shares) > 2
    if name in ("head", "hybrid"):
        assert len({tile.heads for tile in plan.tiles[0] if tile.tokens}) > 1


def test_one_device_is_the_plain_model_and_learns(one: Trained) -> None:
    loss = jax.jit(jax.value_and_grad(lambda p: oracle.loss(one.model, p, one.first_rows)))
    expected, gradient = loss(one.first_params)
    assert one.losses[0] == pytest.approx(float(expected), rel=FIRST_LOSS)
    assert distance(one.gradient, jax.tree.map(np.asarray, gradient)) < GRADIENT
    assert one.losses[-1] < 0.8 * one.losses[0]


def test_other_rows_would_be_seen(one: Trained, rows: PackedRows) -> None:
    """The twin: one device that trains on the rows of another order is not within tolerance."""
    other = train(ONE, rows, seed=1)
    assert other.losses[0] != pytest.approx(one.losses[0], rel=FIRST_LOSS)
    assert other.losses != pytest.approx(one.losses, rel=LOSSES)
    assert distance(other.gradient, one.gradient) > GRADIENT
