"""What happens between the flags and the first step. Everything a user can get wrong is checked before anything is
compiled or written; JAX is first imported where the devices are looked at."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshes.cluster import Cluster
from meshes.cost import Workload
from meshes.errors import UsageError
from meshes.plan import Plan
from meshes.planner import plan as make
from training.config import TrainConfig, resolve
from training.data import Corpus, EvalBatches, PackedRows, TrainStream, load, resume
from training.lock import held

if TYPE_CHECKING:
    import jax

    from training.checkpoint import Checkpoints
    from training.program import Program

METRICS = "metrics.jsonl"
DEFAULT_SPEEDS = (4.0, 2.0, 1.0, 1.0)  # emulated where the machine has one CPU device and nobody says otherwise


def load_data(config: TrainConfig) -> Corpus:
    """The data set of `--data`."""
    return load(config.data, token_dtype=config.token_dtype, vocab_size=config.vocab_size)


def find_cluster(config: TrainConfig) -> "tuple[Cluster, list[jax.Device]]":
    """The cluster that the flags describe; or what JAX finds, and then JAX's devices too."""
    cluster = _described(config)
    if cluster is not None:
        return cluster, []
    from meshes import mesh

    mesh.prepare(len(DEFAULT_SPEEDS))
    devices = mesh.find(None)
    if devices[0].platform == "cpu" and mesh.processes() == 1:
        return Cluster.from_flags(speeds=DEFAULT_SPEEDS), devices
    return Cluster.from_jax_devices(devices), devices


def find_devices(cluster: Cluster) -> "list[jax.Device]":
    """JAX's devices for a cluster that the flags describe, in its order."""
    from meshes import mesh

    mesh.prepare(len(cluster.devices))
    return mesh.find(len(cluster.devices))


def _described(config: TrainConfig) -> Cluster | None:
    if config.cluster is not None:
        return Cluster.from_toml(config.cluster)
    if config.devices is None and config.speeds is None and config.memory is None:
        return None
    memory = tuple(str(size) for size in config.memory) if config.memory is not None else None
    return Cluster.from_flags(devices=config.devices, speeds=config.speeds, memory=memory)


def make_plan(config: TrainConfig, cluster: Cluster, vocab_size: int) -> Plan:
    """The plan of `--plan`, or the planner's."""
    work = workload(config, vocab_size)
    if config.plan is not None:
        plan = Plan.load(config.plan)
        plan.check(cluster, work)
        return plan
    choices: dict[str, Any] = {name: getattr(config, name) for name in ("attention", "data_groups", "placement", "kv")}
    return make(cluster, work, **choices)


def workload(config: TrainConfig, vocab_size: int) -> Workload:
    """What a step has to compute."""
    names = ("batch_size", "microbatch", "seq_len", "layers", "d_model", "heads", "kv_heads", "head_dim", "d_ff")
    sizes: dict[str, Any] = {name: getattr(config, name) for name in names}
    width = {"float32": 4, "bfloat16": 2}[config.dtype]
    return Workload(**sizes, vocab_size=vocab_size, tied=config.tied_embedding, compute_bytes=width, remat=config.remat)


def check_writable(config: TrainConfig) -> None:
    """Refuse places that cannot be written, before anything is.

    Raises:
        UsageError: `--run-dir`, `--checkpoint-dir` or `--plan-out` cannot be made or written.
    """
    directories = (("--run-dir", config.run_dir or Path("runs")), ("--checkpoint-dir", config.checkpoint_dir))
    for flag, path in directories:
        if path is not None and (reason := _unwritable(path)):
            raise UsageError(f"{flag} {path}: {reason}: name a directory that can be written")
    if (out := config.plan_out) is not None:
        reason = "it is a directory" if out.is_dir() else "" if os.path.exists(out.parent) else "no such directory"
        if reason := reason or _unwritable(out.parent):
            raise UsageError(f"--plan-out {out}: {reason}: name a file that can be written")


def _unwritable(directory: Path) -> str:
    """Why a directory cannot be made or written; empty if it can."""
    nearest = next(path for path in (directory, *directory.parents, Path("/")) if os.path.exists(path))
    if not nearest.is_dir():
        return f"{nearest} is not a directory"
    return "" if os.access(nearest, os.W_OK | os.X_OK) else f"{nearest} is not writable"


def write_plan(config: TrainConfig, plan: Plan) -> None:
    """Write `--plan-out`."""
    if config.plan_out is not None:
        try:
            plan.save(config.plan_out)
        except OSError as error:
            raise UsageError(
                f"--plan-out {config.plan_out}: {error.strerror}: name a file that can be written"
            ) from None


def run(
    config: TrainConfig,
    plan: Plan,
    devices: "list[jax.Device]",
    corpus: Corpus,
    train_rows: PackedRows,
    held_out: PackedRows,
) -> int:
    """Build or restore the state, train, and print a sample.

    Returns:
        The exit code: 0, or 128 + the signal that stopped the run.
    """
    from training import loop, program
    from training.checkpoint import Checkpoints
    from training.metrics import Reporter
    from training.sampling import sample

    config = resolve(config)
    assert config.run_dir is not None and config.checkpoint_dir is not None
    built = program.build(config, plan, devices, corpus.vocab_size, packed=len(corpus.starts) > 1)
    checkpoints = Checkpoints(config.checkpoint_dir, config.keep)
    stream, done, notes = _begin(config, checkpoints, built, train_rows)
    with Reporter(config.steps, done, config.log_every, show=program.is_first_process()) as reporter:
        for line in (*corpus.notes, plan.table(), *program.describe(built), *notes, f"run directory: {config.run_dir}"):
            reporter.say(line)
        restored = checkpoints.restore(done, built) if done else None
        state = restored or built.init(program.key(config.seed))
        batches = EvalBatches(source=held_out, batch_size=config.batch_size, limit=config.eval_rows)
        mine = (config.run_dir, config.checkpoint_dir) if program.is_first_process() else ()
        with held(*mine), loop.stopping() as stop:
            _write_records(config, plan)
            training = loop.Training(config, plan, built, stream, batches, checkpoints, state, done, reporter, stop)
            training.run()
    if stop.signal:
        reporter.say(f"stopped by signal {stop.signal} after step {training.done}, which is saved")
        return stop.exit_code
    prompt = config.sample if config.sample is not None else "def "
    if corpus.tokenizer is not None and prompt:
        text = sample(built, training.state["params"], corpus.tokenizer, prompt, config.seed)
        reporter.say(f"sample:\n{text}")
    return 0


def _begin(
    config: TrainConfig, checkpoints: "Checkpoints", built: "Program", rows: PackedRows
) -> tuple[TrainStream, int, list[str]]:
    """Where to start: the stream, the steps done, and what to tell about it."""
    latest = checkpoints.latest
    if latest is None and config.resume == "must":
        raise UsageError(f"--resume must, but {checkpoints.directory} holds no checkpoint: give its directory")
    if config.resume == "never":
        _check_unused(config, checkpoints)
    if latest is None:
        return TrainStream(rows, seed=config.seed, batch_size=config.batch_size), 0, _schedule_notes(config)
    checkpoints.check(latest, built)
    about = checkpoints.about(latest)
    if latest > config.steps:
        raise UsageError(f"--steps {config.steps}, but the checkpoint has {latest} already: give more --steps")
    stream = resume(rows, about["data"], seed=config.seed, batch_size=config.batch_size, step=latest)
    resumed = f"resumed after step {latest} of {checkpoints.directory}"
    if latest == config.steps:
        resumed += ", the last of --steps: nothing is left to train"
    return stream, latest, [resumed, *_changes(config, about["config"]), *_schedule_notes(config)]


def _check_unused(config: TrainConfig, checkpoints: "Checkpoints") -> None:
    """`--resume never` writes over no other run."""
    assert config.run_dir is not None
    if checkpoints.latest is not None:
        raise UsageError(
            f"--resume never, but {checkpoints.directory} holds step {checkpoints.latest}: name an empty"
            " --checkpoint-dir, or resume"
        )
    if (config.run_dir / METRICS).exists():
        raise UsageError(f"--resume never, but {config.run_dir} holds another run's {METRICS}: name another --run-dir")


def _schedule_notes(config: TrainConfig) -> list[str]:
    """A peak of the learning rate that no step reaches."""
    if config.warmup <= config.steps:
        return []
    peak = config.lr * config.steps / config.warmup
    return [f"--warmup {config.warmup} is more than --steps {config.steps}: the learning rate ends at {peak:g}"]


def _changes(config: TrainConfig, saved: dict[str, Any]) -> list[str]:
    """Flags of the optimizer and the data whose saved values no longer hold."""
    names = ("steps", "lr", "warmup", "schedule", "weight_decay", "clip_norm", "batch_size", "dtype")
    now = config.to_dict()
    return [
        f"--{n.replace('_', '-')}: {now[n]} from here on, {saved[n]} before" for n in names if now[n] != saved.get(n)
    ]


def _write_records(config: TrainConfig, plan: Plan) -> None:
    """Make the directories; write what the run was and the plan."""
    from training import loop

    flag = "--run-dir"
    try:
        assert config.run_dir is not None and config.checkpoint_dir is not None
        loop.write_records(config.run_dir, config, plan)
        flag = "--checkpoint-dir"
        config.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{flag}: {error.filename}: {error.strerror}: name a directory that can be written") from None
    write_plan(config, plan)
