"""The compiled step's own analysis of memory agrees with what its plan predicts.

Programs are compiled for abstract arrays, each process's own among them, and not run.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshes import activations
from meshes.activations import Activations
from meshes.cluster import Cluster
from meshes.cost import Grid
from meshes.lengths import Lengths
from meshes.memory import stored_bytes
from meshes.plan import Plan
from meshes.planner import plan
from models import blocks, transformer
from sharding.placement import Placement
from training import program, setup
from training.batches import Dealer
from training.config import TrainConfig
from training.data import Rows
from training.step import Program

TOLERANCE = 0.1  # of the compiled size
FASTER: dict[str, Any] = {"xla_backend_optimization_level": 0}  # code, which comes after buffers are assigned
VOCAB = 500
SIZES: dict[str, Any] = {"layers": 3, "d_model": 128, "heads": 4, "kv_heads": 2, "d_ff": 512, "seq_len": 512}
BASE = TrainConfig(**SIZES, batch_size=2, microbatch=2, attention="context", kv="gather", data_groups=1)

Place = tuple[int, int]
CASES: dict[str, tuple[TrainConfig, tuple[float, ...], Any]] = {
    "context": (BASE, (3.0, 1.0), "specialized"),
    "ring, remat": (dataclasses.replace(BASE, kv="ring", remat="layer"), (3.0, 1.0), "specialized"),
    "head, loop": (dataclasses.replace(BASE, attention="head", batch_size=6), (3.0, 1.0), "specialized"),
    "data groups, switched": (dataclasses.replace(BASE, data_groups=2, batch_size=6), (3.0, 2.0, 1.0, 1.0), "switched"),
    "single": (BASE, (1.0,), "auto"),
}


def planned(config: TrainConfig, speeds: tuple[float, ...], placement: Any) -> Plan:
    work = setup.workload(config, VOCAB)
    choices: dict[str, Any] = {name: getattr(config, name) for name in ("attention", "kv", "data_groups")}
    return plan(Cluster.from_flags(speeds=speeds), work, placement=placement, **choices)


def own_program(config: TrainConfig, found: Plan, place: Place) -> Program:
    """The program that the process of one device compiles."""
    shared = dataclasses.replace(found, placement="switched") if found.placement == "specialized" else found
    built = program.build(config, shared, jax.devices(), VOCAB)
    return dataclasses.replace(built, placement=Placement(found.placement, built.tiling.sizes, (place,)))


def inputs(config: TrainConfig, found: Plan, built: Program) -> tuple[Any, ...]:
    state = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        jax.eval_shape(built.init, jax.random.key(0)),
        built.shardings,
    )
    dealer = Dealer(built.mesh, built.tiling, config.microbatch, found.microbatches)
    zeros = np.zeros((config.batch_size, config.seq_len), np.int32)
    batch = dealer(Rows(zeros, zeros, zeros, zeros, zeros.astype(np.float32)))
    return state, batch, dealer.device_counts, built.tables


def compiled(config: TrainConfig, found: Plan, place: Place, *, direct: bool = False) -> tuple[int, int]:
    """Temporary and total bytes."""
    built = own_program(config, found, place)
    built = dataclasses.replace(built, tiling=dataclasses.replace(built.tiling, direct=direct))
    analysis: Any = built.train_step().lower(*inputs(config, found, built)).compile(FASTER).memory_analysis()
    results = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return analysis.temp_size_in_bytes, analysis.argument_size_in_bytes + results + analysis.temp_size_in_bytes


def stored(found: Plan) -> int:
    return stored_bytes(Grid.of(found.cluster, found.order), found.workload)


@pytest.mark.parametrize("name", CASES)
def test_predicted_memory_is_that_of_the_compiled_program(name: str) -> None:
    config, speeds, placement = CASES[name]
    found = planned(config, speeds, placement)
    temporary, total = compiled(config, found, (0, 0))
    predicted = found.predictions[0][0].memory
    assert predicted == pytest.approx(total, rel=TOLERANCE)
    assert predicted - stored(found) == pytest.approx(temporary, rel=TOLERANCE)


def test_direct_collectives_need_little_more() -> None:
    """They hold copies of what is sent, at moments that are not those that need most."""
    config, speeds, placement = CASES["context"]
    found = planned(config, speeds, placement)
    temporary, total = compiled(config, found, (0, 0), direct=True)
    assert found.predictions[0][0].memory == pytest.approx(total, rel=TOLERANCE)
    assert found.predictions[0][0].memory - stored(found) == pytest.approx(temporary, rel=TOLERANCE)


def test_another_share_needs_other_memory() -> None:
    """The twin: the prediction for one device's share is not that for another's, nor for a recomputed layer."""
    config, speeds, placement = CASES["context"]
    found = planned(config, speeds, placement)
    temporary, _ = compiled(config, found, (0, 1))
    first, second = (cost.memory - stored(found) for cost in found.predictions[0])
    again = planned(dataclasses.replace(config, remat="layer"), speeds, placement)
    recomputed = again.predictions[0][1].memory - stored(again)
    assert second == pytest.approx(temporary, rel=TOLERANCE)
    assert first != pytest.approx(temporary, rel=5 * TOLERANCE)
    assert recomputed != pytest.approx(temporary, rel=3 * TOLERANCE)


def scans(jaxpr: Any) -> Iterator[Any]:
    """All scans of a traced program, wherever in it."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            yield equation
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda v: hasattr(v, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from scans(inner)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("remat", ["none", "layer"])
@pytest.mark.parametrize("placement", ["specialized", "switched"])
def test_kept_bytes_are_the_residuals_of_the_traced_layers(placement: Any, remat: Any, dtype: Any) -> None:
    """Compiled programs on CPUs hold float32 copies of 16-bit arrays; the traced one has what accelerators hold."""
    config = dataclasses.replace(BASE, remat=remat, dtype=dtype)
    found = planned(config, (3.0, 1.0), placement)
    built = own_program(config, found, (0, 0))
    state, *rest = inputs(config, found, built)
    traced = jax.make_jaxpr(built.gradient_step())(state["params"], *rest)
    forward = next(scan for scan in scans(traced.jaxpr) if scan.params["length"] == config.layers)
    kept = [out.aval for out in forward.outvars if out.aval.shape[0] == config.layers]
    assert kept_bytes(found) == pytest.approx(sum(a.size * a.dtype.itemsize for a in kept), rel=0.02)


def kept_bytes(found: Plan) -> float:
    """Predicted for the first device of context attention with gathered keys."""
    work, exact = found.workload, found.placement == "specialized"
    own = lengths(tokens=found.tokens[0][0], queries=found.tokens[0][0], heads=4, keys=work.seq_len, kv_heads=2)
    made = Activations(workload=work, own=own, room=own, devices=2, groups=1, exact=exact, ring=False, chained=exact)
    return float(np.max(made.kept))


def lengths(**given: int) -> Lengths:
    return Lengths(**{name: np.array([[value]]) for name, value in given.items()}, arriving=np.zeros((1, 1), int))


def test_mirrored_constants_are_those_of_the_model() -> None:
    assert activations.LOGITS_AT_ONCE == transformer.LOGITS_AT_ONCE
    assert activations.UNROLLED == program.UNROLLED
    assert jnp.dtype(jnp.float32).itemsize == activations.FLOAT


@pytest.mark.parametrize("queries", [1, 31, 64, 129, 520, 1000, 4096, 5000])
@pytest.mark.parametrize("keys", [1, 65, 500, 2048, 9999])
def test_mirrored_blocks_are_those_of_attention(queries: int, keys: int) -> None:
    cut = blocks.layout(queries, keys, (0, 0, 1, 1))
    own = lengths(tokens=queries, queries=queries, heads=4, keys=keys, kv_heads=2)
    assert (own.query_block.item(), own.key_block.item()) == (cut.query_block, cut.key_block)
