"""Predicted memory against the compiled program's own analysis, of every device of random plans.

The program of each kind of device is compiled for emulated devices, as its own process would, and not run. Total is
arguments and temporary arrays; results take the place of arguments.

XLA's CPU backend has no bfloat16 products: it works on float32 copies, also of all that is kept for the backward, which
no accelerator does. Plans in bfloat16 are therefore shown, but not held to the bound.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import jax
import numpy as np
from report import Report, flags, note

from meshes import mesh
from meshes.cluster import Cluster
from meshes.cost import Grid
from meshes.errors import PlanError
from meshes.memory import stored_bytes
from meshes.plan import Plan
from meshes.planner import plan
from sharding.placement import Placement
from training import program, setup
from training.batches import Dealer
from training.config import TrainConfig
from training.data import Rows
from training.step import Program

DEVICES, PLANS, QUICK_PLANS, BFLOAT16_PLANS = 6, 10, 3, 2
BOUND = 0.1  # of the compiled size
FASTER: dict[str, Any] = {"xla_backend_optimization_level": 0}  # code, which comes after buffers are assigned
MEGABYTE = 1e6


@dataclass(frozen=True, kw_only=True)
class Case:
    """A plan and the flags that it serves."""

    config: TrainConfig
    plan: Plan
    vocab_size: int

    @property
    def name(self) -> str:
        """What it is, in a few words."""
        found = self.plan
        groups = f"{len(found.order)} x {len(found.order[0])}"
        return f"{groups} {found.attention} {found.kv} {found.placement} remat {self.config.remat}"


@dataclass(frozen=True, kw_only=True)
class Size:
    """Predicted and compiled bytes of one kind of device."""

    name: str
    predicted: float
    compiled: float

    @property
    def error(self) -> float:
        """Relative to the compiled size."""
        return abs(self.predicted / self.compiled - 1)


def cases(count: int, dtype: str) -> Iterator[Case]:
    """Random plans, the same every time; devices, sizes and kinds of plans that cannot be are drawn anew."""
    rng = np.random.default_rng(2)
    while count:
        config, speeds, vocab_size = draw(rng, dtype)
        placement = str(rng.choice(["specialized", "specialized", "switched"]))
        try:
            work = setup.workload(config, vocab_size)
            found = plan(
                Cluster.from_flags(speeds=speeds),
                work,
                attention=config.attention,
                kv=config.kv,
                data_groups=config.data_groups,
                placement=placement,
            )
        except PlanError:
            continue
        count -= 1
        yield Case(config=config, plan=found, vocab_size=vocab_size)


def draw(rng: np.random.Generator, dtype: str) -> tuple[TrainConfig, tuple[float, ...], int]:
    """Flags, speeds of devices and a vocabulary."""

    def one(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    devices = int(rng.integers(1, DEVICES + 1))
    kv = one("gather", "gather", "ring")
    heads = one(4, 8)
    microbatch = one(1, 2, 4)
    config = TrainConfig(
        layers=one(2, 3, 6),
        d_model=one(128, 256),
        heads=heads,
        kv_heads=one(heads, heads // 2),
        d_ff=one(384, 640, 1024),
        seq_len=one(512, 1000, 2048),
        microbatch=microbatch,
        batch_size=microbatch * one(1, 2, 4),
        remat=one("none", "layer"),
        attention="context" if kv == "ring" else one("context", "head", "hybrid"),
        kv=kv,
        data_groups=one(1, 1, 2),
        tied_embedding=one(True, False),
        dtype=dtype,
    )
    return config, tuple(float(speed) for speed in rng.choice([1, 1.5, 2, 4], devices)), one(300, 2000, 9000)


def sizes(case: Case) -> Iterator[tuple[Size, Size]]:
    """Temporary and total bytes of every kind of device."""
    found = case.plan
    stored = stored_bytes(Grid.of(found.cluster, found.order), found.workload)
    built = program.build(case.config, _shared(found), mesh.find(len(found.cluster.devices)), case.vocab_size)
    seen = set()
    for place in np.ndindex(len(found.order), len(found.order[0])):
        g, m = place
        kind = (found.tokens[g][m], found.tiles[g][m]) if found.placement == "specialized" else None
        if kind in seen:
            continue
        seen.add(kind)
        placement = Placement(found.placement, built.tiling.sizes, (place,))
        temporary, total = compiled_bytes(dataclasses.replace(built, placement=placement), case)
        predicted = found.predictions[g][m].memory
        name = f"{case.name}, {found.tokens[g][m]} tokens, {found.tiles[g][m].tokens} queries"
        yield (
            Size(name=name, predicted=predicted - stored, compiled=temporary),
            Size(name=name, predicted=predicted, compiled=total),
        )


def _shared(found: Plan) -> Plan:
    """The plan in a placement that one process may build for all devices."""
    return dataclasses.replace(found, placement="switched") if found.placement == "specialized" else found


def compiled_bytes(built: Program, case: Case) -> tuple[int, int]:
    """Temporary and total bytes of one device, from the compiled step."""
    state = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        jax.eval_shape(built.init, jax.random.key(0)),
        built.shardings,
    )
    dealer = Dealer(built.mesh, built.tiling, case.config.microbatch, case.plan.microbatches)
    shape = (case.config.batch_size, case.config.seq_len)
    zeros, weights = np.zeros(shape, np.int32), np.ones(shape, np.float32)
    batch = dealer(Rows(zeros, zeros, zeros, zeros, weights))
    lowered = built.train_step().lower(state, batch, dealer.device_counts, built.tables)
    found: Any = lowered.compile(FASTER).memory_analysis()
    results = found.output_size_in_bytes - found.alias_size_in_bytes
    return found.temp_size_in_bytes, found.argument_size_in_bytes + results + found.temp_size_in_bytes


def show(report: Report, dtype: str, count: int, *, held: bool) -> None:
    """Compare plans of one compute dtype, device by device, and name the worst."""
    found: list[tuple[Size, Size]] = []
    for number, case in enumerate(cases(count, dtype)):
        for pair in sizes(case):
            found.append(pair)
            note(f"{dtype} plan {number}: {pair[0].name}")
            for what, size in zip(("temporary", "total"), pair, strict=True):
                for side in ("predicted", "compiled"):
                    value = getattr(size, side) / MEGABYTE
                    report.add(f"{dtype} plan {number}: {size.name}: {what}, {side}", value, "MB")
    for what, all_sizes in zip(("temporary", "total"), zip(*found, strict=True), strict=True):
        worst = max(all_sizes, key=lambda size: size.error)
        report.add(f"{dtype}, {what}, median error", median(size.error for size in all_sizes), "")
        bound = {"at_most": BOUND} if held else {}
        report.add(f"{dtype}, {what}, worst error: {worst.name}", worst.error, "", **bound)


def main() -> None:
    """Compile the plans and print the comparison."""
    given = flags(__doc__)
    mesh.prepare(DEVICES)
    jax.config.update("jax_enable_compilation_cache", False)
    report = Report("memory")
    show(report, "float32", QUICK_PLANS if given.quick else PLANS, held=True)
    show(report, "bfloat16", 1 if given.quick else BFLOAT16_PLANS, held=False)
    report.show(as_json=given.json)


if __name__ == "__main__":
    main()
