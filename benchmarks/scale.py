"""Many devices: the train step on 64 emulated devices of three speeds against 4 devices of the same three speeds.

Each count runs in a process of its own, since JAX fixes the number of devices at its start. Compile time is tracing,
lowering and compiling of the train step.
"""

import json
import statistics
import subprocess
import sys
import time
from typing import Any

import jax
from report import Report, flags, note
from rows import random_rows

from meshes import mesh
from meshes.cluster import Cluster
from training import program, setup
from training.batches import Dealer
from training.config import TrainConfig

SPEEDS = (4.0, 2.0, 1.0, 1.0)
FEW, MANY = 4, 64
VOCAB, ROWS, SEQ_LEN = 257, 4, 1024


def measure(count: int, attention: Any) -> dict[str, float]:
    """Seconds to compile and to run one step, and its loss."""
    mesh.prepare(count)
    jax.config.update("jax_enable_compilation_cache", False)
    devices = mesh.find(count)
    sizes: dict[str, Any] = {"layers": 2, "d_model": 64, "heads": 16, "kv_heads": 16, "d_ff": 128}
    config = TrainConfig(**sizes, seq_len=SEQ_LEN, batch_size=ROWS, microbatch=ROWS, attention=attention, data_groups=1)
    plan = setup.make_plan(config, Cluster.from_flags(speeds=SPEEDS * (count // len(SPEEDS))), VOCAB)
    built = program.build(config, plan, devices, VOCAB)
    dealer = Dealer(built.mesh, built.tiling, ROWS, plan.microbatches)
    state, batch, tables = built.init(jax.random.key(0)), dealer(random_rows(ROWS, SEQ_LEN, VOCAB)), built.tables
    start = time.perf_counter()
    compiled = built.train_step().lower(state, batch, dealer.device_counts, tables).compile()
    compile_seconds = time.perf_counter() - start
    start = time.perf_counter()
    _, metrics = jax.block_until_ready(compiled(state, batch, dealer.device_counts, tables))
    step_seconds = time.perf_counter() - start
    return {"compile": compile_seconds, "step": step_seconds, "loss": float(metrics["loss"])}


def apart(count: int, attention: str) -> dict[str, float]:
    """`measure` in a process of its own."""
    command = [sys.executable, __file__, "--measure", str(count), attention]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{count} devices, {attention} attention: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def against_few(report: Report, attention: str, rounds: int) -> None:
    """Alternate the two counts and report medians of ratios."""
    pairs = [(apart(FEW, attention), apart(MANY, attention)) for _ in range(rounds)]
    for count, side in ((FEW, 0), (MANY, 1)):
        for what in ("compile", "step"):
            seconds = statistics.median(pair[side][what] for pair in pairs)
            report.add(f"{attention}, {count} devices, {what}", seconds, "s")
    ratio = statistics.median(many["compile"] / few["compile"] for few, many in pairs)
    report.add(f"{attention}, compile time of {MANY} over {FEW}", ratio, "x", at_most=2.0)
    few, many = pairs[-1]
    report.add(f"{attention}, relative difference of losses", abs(many["loss"] / few["loss"] - 1), "", at_most=1e-5)


def main() -> None:
    """Run the comparisons and print them."""
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(int(sys.argv[2]), sys.argv[3])))
        return
    given = flags(__doc__)
    report = Report("scale")
    for attention in ("context",) if given.quick else ("context", "head", "hybrid"):
        note(f"{attention} attention")
        against_few(report, attention, 1 if given.quick else 3)
    report.show(as_json=given.json)


if __name__ == "__main__":
    main()
