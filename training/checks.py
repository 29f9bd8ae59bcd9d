"""What a configuration must satisfy before any device is looked at; every failure is a UsageError of one line."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from meshes.errors import UsageError
from meshes.picture import SUFFIXES

if TYPE_CHECKING:
    from training.config import TrainConfig

MOST = 2**31 - 1  # of every count: sizes and ids are int32 on the devices
LARGEST = 3e38  # of what float32 holds
MAX_SEED = 2**32 - 1
TOKEN_SUFFIXES = (".npy", ".bin")

# The smallest value of each count.
LEAST = {
    "devices": 1, "data_groups": 1, "layers": 1, "d_model": 1, "heads": 1, "kv_heads": 1, "d_ff": 1, "vocab_size": 2,
    "seq_len": 2, "batch_size": 1, "microbatch": 1, "steps": 1, "warmup": 0, "eval_every": 0, "eval_rows": 0,
    "save_every": 0, "keep": 1, "log_every": 1, "seed": 0, "seeds": 1, "links": 1, "negatives": 1, "bases": 1,
}  # fmt: skip


def check(config: TrainConfig) -> None:
    """Raise the first problem of a configuration as a UsageError."""
    for part in (_counts, _numbers, _devices, _plan, _model, _graph, _rows, _files):
        for problem in part(config):
            raise UsageError(problem)


def _counts(config: TrainConfig) -> Iterator[str]:
    for name, least in LEAST.items():
        value, most = getattr(config, name), MAX_SEED if name == "seed" else MOST
        if isinstance(value, int) and value < least:
            yield f"{_flag(name)} {value}: must be at least {least}"
        if isinstance(value, int) and value > most:
            yield f"{_flag(name)} {value}: must be at most {most}"


def _numbers(config: TrainConfig) -> Iterator[str]:
    if not 0 < config.lr < LARGEST:
        yield f"--lr {config.lr:g}: must be above 0 and below {LARGEST:g}, what float32 holds"
    for name in ("weight_decay", "clip_norm"):
        value = getattr(config, name)
        if not 0 <= value < LARGEST:
            yield f"{_flag(name)} {value:g}: must be at least 0 and below {LARGEST:g}, what float32 holds"


def _devices(config: TrainConfig) -> Iterator[str]:
    lists = {"speeds": config.speeds, "memory": config.memory}
    counts = {name: len(values) for name, values in lists.items() if values is not None}
    if config.devices is not None:
        counts = {"devices": config.devices} | counts
    if config.cluster is not None and counts:
        given = ", ".join(map(_flag, counts))
        yield f"--cluster {config.cluster} already describes the devices: leave out {given}, or --cluster"
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{_flag(name)} has {n}" for name, n in counts.items() if name in lists)
        of = f"--devices is {config.devices}" if config.devices is not None else "one value for each device"
        yield f"{said}, but {of}: give as many values as devices"
    for at, speed in enumerate(config.speeds or ()):
        if not (math.isfinite(speed) and speed > 0):
            yield f"--speeds: device {at} has speed {speed:g}; speeds must be finite and above 0: leave the device out"
    for at, size in enumerate(config.memory or ()):
        if size <= 0:
            yield f"--memory: device {at} has {size} bytes; memory must be above 0: leave the device out"


def _plan(config: TrainConfig) -> Iterator[str]:
    if config.kv == "ring" and config.attention in ("head", "hybrid"):
        yield f"--kv ring needs --attention context, not {config.attention}: change one of the two"
    names = ("attention", "kv", "data_groups", "placement")
    given = [_flag(name) for name in names if getattr(config, name) != "auto"]
    if config.plan is not None and given:
        yield f"--plan {config.plan} already fixes {', '.join(given)}: leave out one or the other"
    if config.plan_picture is not None and config.plan_picture.suffix.lower() not in SUFFIXES:
        yield f"--plan-picture {config.plan_picture}: name a file that ends in {' or '.join(SUFFIXES)}"


def _model(config: TrainConfig) -> Iterator[str]:
    transformer = config.model == "transformer"
    if transformer and config.heads % config.kv_heads:
        yield (
            f"--heads {config.heads} is not a multiple of --kv-heads {config.kv_heads}:"
            f" use --kv-heads {_divisors(config.heads, config.kv_heads)}"
        )
    if config.d_model % config.heads:
        near = _divisors(config.d_model, config.heads)
        yield f"--d-model {config.d_model} is not a multiple of --heads {config.heads}: use --heads {near}"
    if transformer and config.head_dim % 2:
        yield (
            f"--d-model {config.d_model} over --heads {config.heads} makes heads of width {config.head_dim}; rotary"
            f" positions need an even width: use --d-model {config.d_model + config.heads}"
        )


def _graph(config: TrainConfig) -> Iterator[str]:
    if not 0 <= config.dropout < 1:
        yield f"--dropout {config.dropout:g}: must be at least 0 and below 1"
    if config.model == "transformer":
        given = [_flag(name) for name in ("graph_parallel", "task") if getattr(config, name) != "auto"]
        given += ["--fanouts"] if config.fanouts is not None else []
        if given:
            yield f"{', '.join(given)}: for graph networks alone: give --model gcn or another of them"
        return
    for fanout in config.fanouts or ():
        if not 1 <= fanout <= MOST:
            yield f"--fanouts: {fanout} is not a number of neighbours: each must be at least 1"
    if config.fanouts is not None and len(config.fanouts) != config.layers:
        yield f"--fanouts has {len(config.fanouts)} values for --layers {config.layers}: give one for each layer"
    if config.graph_parallel == "sample" and config.fanouts is None:
        yield "--graph-parallel sample needs --fanouts, such as 10,5: neighbours of each vertex, one for each layer"
    if config.fanouts is not None and config.graph_parallel in ("vertex", "feature", "batch"):
        yield f"--fanouts are for --graph-parallel sample, not {config.graph_parallel}: leave one of them out"
    if config.model == "graphnet" and config.graph_parallel in ("feature", "sample"):
        yield (
            f"--graph-parallel {config.graph_parallel} cannot carry the states of edges that graphnet has: use vertex"
            " or batch, or another --model"
        )
    if config.plan_picture is not None:
        yield f"--plan-picture {config.plan_picture} draws tiles of attention, --model {config.model} has none"


def _rows(config: TrainConfig) -> Iterator[str]:
    if config.model == "transformer" and config.batch_size % config.microbatch:
        near = _divisors(config.batch_size, config.microbatch)
        yield (
            f"--batch-size {config.batch_size} is not a multiple of --microbatch {config.microbatch}:"
            f" use --microbatch {near}"
        )


def _files(config: TrainConfig) -> Iterator[str]:
    if config.resume == "must" and config.checkpoint_dir is None and config.run_dir is None:
        yield "--resume must needs to know where: give --checkpoint-dir, or the --run-dir of the run to go on with"
    if config.sample and config.data is not None and config.data.suffix in TOKEN_SUFFIXES:
        yield f"--sample {config.sample!r} is text, but --data {config.data} holds token ids: leave --sample out"


def _divisors(total: int, near: int) -> str:
    """The divisors of `total` next to `near`, for a remedy."""
    small = [d for d in range(1, math.isqrt(total) + 1) if total % d == 0]
    divisors = sorted({*small, *(total // d for d in small)})
    below, above = [d for d in divisors if d < near], [d for d in divisors if d > near]
    return " or ".join(str(d) for d in (*below[-1:], *above[:1]))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
