"""What happens between the flags and the first step. Everything a user can get wrong is checked before anything is
compiled or written; JAX is first imported where the devices are looked at."""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshes import environment, picture
from meshes.cluster import Cluster
from meshes.cost import Workload
from meshes.errors import UsageError
from meshes.job import Job, meet, member
from meshes.plan import Plan
from meshes.plan_rules import kinds
from meshes.planner import plan as make
from training.config import TrainConfig, resolve
from training.lock import held

if TYPE_CHECKING:
    import jax

    from training.checkpoint import Checkpoints
    from training.subject import Subject

METRICS = "metrics.jsonl"
DEFAULT_SPEEDS = (4.0, 2.0, 1.0, 1.0)  # emulated where the machine has one CPU device and nobody says otherwise


MAY_DIFFER = ("config", "cluster", "plan", "data", "plan_out", "plan_picture")  # paths; what they hold must not


def join(config: TrainConfig) -> AbstractContextManager[Job]:
    """Meet the other processes of the job, if there are any, and agree on the flags.

    Raises:
        UsageError: the environment is not complete, or the processes were started with different flags.
        JobError: they could not be reached.
    """
    seat = environment.find(os.environ)
    if seat is None:
        return member(Job())
    from meshes import mesh

    described = _described(config)
    here = described.processes if described is not None else ()
    given = "JAX_NUM_CPU_DEVICES" in os.environ or len(here) != seat.count
    mesh.prepare(None if given else len(here[seat.number]))
    return member(meet(seat), lambda job: job.agree("flags", _comparable(config)))


def _comparable(config: TrainConfig) -> dict[str, Any]:
    """Flags that all processes must have in common; of files, what they hold is compared."""
    return {key: value for key, value in config.to_dict().items() if key not in MAY_DIFFER}


def owners(job: Job, devices: "list[jax.Device]") -> tuple[int, ...]:
    """The number of each device's process; empty if there is only one process."""
    if job.alone:
        return ()
    from meshes import mesh

    return mesh.owners(devices)


def subject(config: TrainConfig) -> "Subject":
    """The model and the data of the flags.

    Raises:
        UsageError: the data cannot be used.
    """
    if config.model != "transformer":
        from training.graphs.subject import Graphs

        return Graphs(config)
    from training.text import Text

    return Text(config)


def wants_profile(config: TrainConfig, job: Job, cluster: Cluster, devices: "list[jax.Device]") -> bool:
    """Whether `--profile` wants the devices measured.

    Emulated devices of one process share its cores, so that `auto` leaves them alone.
    """
    emulated = job.alone and devices[0].platform == "cpu"
    if config.profile == "never" or config.plan is not None:
        return False
    return not (config.profile == "auto" and (cluster.declared or emulated or len(devices) == 1))


def agree(job: Job, plan: Any, devices: "list[jax.Device]", fingerprint: str) -> None:
    """Refuse to train if the processes have different devices, plans or data.

    Raises:
        UsageError: names the first difference.
    """
    if job.alone:
        return
    from meshes import mesh

    job.agree("devices", asdict(plan.cluster))
    job.agree("plans", plan.decisions())
    job.agree("data", {"fingerprint": fingerprint})
    names: list[list[str]] = [[] for _ in range(job.count)]
    for owner, device in zip(mesh.owners(devices), plan.cluster.devices, strict=True):
        names[owner].append(device.name)
    job.name_devices([", ".join(mine) for mine in names])


def find_cluster(config: TrainConfig, alone: bool = True) -> "tuple[Cluster, list[jax.Device]]":
    """The cluster that the flags describe; or what JAX finds, and then JAX's devices too."""
    cluster = _described(config)
    if cluster is not None:
        return cluster, []
    from meshes import mesh

    if alone:
        mesh.prepare(len(DEFAULT_SPEEDS))
    devices = mesh.find(None)
    if devices[0].platform == "cpu" and alone:
        return Cluster.from_flags(speeds=DEFAULT_SPEEDS), devices
    return Cluster.from_jax_devices(devices), devices


def find_devices(cluster: Cluster, alone: bool = True) -> "list[jax.Device]":
    """JAX's devices for a cluster that the flags describe, in its order."""
    from meshes import mesh

    if alone:
        mesh.prepare(len(cluster.devices))
    return mesh.find(len(cluster.devices))


def _described(config: TrainConfig) -> Cluster | None:
    if config.cluster is not None:
        return Cluster.from_toml(config.cluster)
    if config.devices is None and config.speeds is None and config.memory is None:
        return None
    memory = tuple(str(size) for size in config.memory) if config.memory is not None else None
    return Cluster.from_flags(devices=config.devices, speeds=config.speeds, memory=memory)


def make_plan(config: TrainConfig, cluster: Cluster, vocab_size: int, owners: Sequence[int] = ()) -> Plan:
    """The plan of `--plan`, or the planner's.

    Args:
        config: the flags.
        cluster: the devices.
        vocab_size: of the data.
        owners: the number of each device's process, in a job of several: each process then compiles its own sizes,
            if the devices of each are of one kind.
    """
    work = workload(config, vocab_size)
    if config.plan is not None:
        plan = Plan.load(config.plan)
        plan.check(cluster, work)
        return plan
    choices: dict[str, Any] = {name: getattr(config, name) for name in ("attention", "data_groups", "placement", "kv")}
    if owners and config.placement == "auto":
        plan = make(cluster, work, **choices | {"placement": "specialized"})
        if _one_kind_each(plan, owners):
            return plan
    return make(cluster, work, **choices)


def _one_kind_each(plan: Plan, owners: Sequence[int]) -> bool:
    """Whether the devices of each process have equal shares."""
    flat = [
        (owners[device], tokens, tile)
        for order, shares, tiles in zip(plan.order, plan.tokens, plan.tiles, strict=True)
        for device, tokens, tile in zip(order, shares, tiles, strict=True)
    ]
    for owner in set(owners):
        tokens = tuple(share for process, share, _ in flat if process == owner)
        tiles = tuple(tile for process, _, tile in flat if process == owner)
        if len(kinds(plan.workload, (tokens,), (tiles,))) > 1:
            return False
    return True


def workload(config: TrainConfig, vocab_size: int) -> Workload:
    """What a step has to compute."""
    names = ("batch_size", "microbatch", "seq_len", "layers", "d_model", "heads", "kv_heads", "head_dim", "d_ff")
    sizes: dict[str, Any] = {name: getattr(config, name) for name in names}
    width = {"float32": 4, "bfloat16": 2}[config.dtype]
    return Workload(**sizes, vocab_size=vocab_size, tied=config.tied_embedding, compute_bytes=width, remat=config.remat)


def check_writable(config: TrainConfig) -> None:
    """Refuse places that cannot be written, before anything is.

    Raises:
        UsageError: `--run-dir`, `--checkpoint-dir`, `--plan-out` or `--plan-picture` cannot be made or written.
    """
    directories = (("--run-dir", config.run_dir or Path("runs")), ("--checkpoint-dir", config.checkpoint_dir))
    for flag, path in directories:
        if path is not None and (reason := _unwritable(path)):
            raise UsageError(f"{flag} {path}: {reason}: name a directory that can be written")
    for flag, out in (("--plan-out", config.plan_out), ("--plan-picture", config.plan_picture)):
        if out is None:
            continue
        reason = "it is a directory" if out.is_dir() else "" if os.path.exists(out.parent) else "no such directory"
        if reason := reason or _unwritable(out.parent):
            raise UsageError(f"{flag} {out}: {reason}: name a file that can be written")


def _unwritable(directory: Path) -> str:
    """Why a directory cannot be made or written; empty if it can."""
    nearest = next(path for path in (directory, *directory.parents, Path("/")) if os.path.exists(path))
    if not nearest.is_dir():
        return f"{nearest} is not a directory"
    return "" if os.access(nearest, os.W_OK | os.X_OK) else f"{nearest} is not writable"


def write_plan(config: TrainConfig, plan: Plan) -> None:
    """Write `--plan-out` and `--plan-picture`."""
    flag, path = "--plan-out", config.plan_out
    try:
        if path is not None:
            plan.save(path)
        flag, path = "--plan-picture", config.plan_picture
        if path is not None:
            picture.save(plan, path)
    except OSError as error:
        raise UsageError(f"{flag} {path}: {error.strerror}: name a file that can be written") from None


def run(
    config: TrainConfig, job: Job, plan: Any, devices: "list[jax.Device]", subject: "Subject", notes: Sequence[str]
) -> int:
    """Build or restore the state, train, and tell what came of it.

    Returns:
        The exit code: 0, or 128 + the signal that stopped the run.
    """
    from training import loop, program
    from training.checkpoint import Checkpoints
    from training.metrics import Reporter

    config = _resolved(config, job)
    assert config.run_dir is not None and config.checkpoint_dir is not None
    agree(job, plan, devices, subject.fingerprint)
    checkpoints = Checkpoints(config.checkpoint_dir, config.keep)
    done, place, begun = _begin(config, checkpoints)
    built = subject.program(plan, devices, done, place)
    if done:
        checkpoints.check(done, built)
    feed = subject.feed(built, plan, done, place)
    job.agree("checkpoints", {"newest step": done})
    first = job.number == 0
    with Reporter(config.steps, done, config.log_every, show=first) as reporter:
        about = (*subject.notes, *notes, plan.table(), *subject.about(built), *begun)
        for line in (*about, f"run directory: {config.run_dir}"):
            reporter.say(line)
        restored = checkpoints.restore(done, built) if done else None
        state = restored or built.init(program.key(config.seed))
        with held(*((config.run_dir, config.checkpoint_dir) if first else ())), loop.stopping() as stop:
            if first:
                _write_records(config, plan)
            comparer = subject.comparer(job, plan, devices)
            training = loop.Training(config, job, plan, built, feed, checkpoints, state, done, reporter, comparer, stop)
            training.run()
    if stop.signal:
        reporter.say(f"stopped by signal {stop.signal} after step {training.done}, which is saved")
        return stop.exit_code
    subject.finish(built, feed, training.state, reporter)
    return 0


def _resolved(config: TrainConfig, job: Job) -> TrainConfig:
    """The directories of the first process are those of all."""
    mine = resolve(config) if job.number == 0 else config
    run_dir, checkpoint_dir = job.from_first("directories", [str(mine.run_dir), str(mine.checkpoint_dir)])
    return replace(config, run_dir=Path(run_dir), checkpoint_dir=Path(checkpoint_dir))


def _begin(config: TrainConfig, checkpoints: "Checkpoints") -> tuple[int, dict[str, Any] | None, list[str]]:
    """Where to start: the steps done, the place in the data, and what to tell about it."""
    latest = checkpoints.latest
    if latest is None and config.resume == "must":
        raise UsageError(f"--resume must, but {checkpoints.directory} holds no checkpoint: give its directory")
    if config.resume == "never":
        _check_unused(config, checkpoints)
    if latest is None:
        return 0, None, _schedule_notes(config)
    about = checkpoints.about(latest)
    if latest > config.steps:
        raise UsageError(f"--steps {config.steps}, but the checkpoint has {latest} already: give more --steps")
    resumed = f"resumed after step {latest} of {checkpoints.directory}"
    if latest == config.steps:
        resumed += ", the last of --steps: nothing is left to train"
    return latest, about["data"], [resumed, *_changes(config, about["config"]), *_schedule_notes(config)]


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


def _write_records(config: TrainConfig, plan: Any) -> None:
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
