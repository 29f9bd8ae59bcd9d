"""From a plan to a program: the plan's shares become a tiling, a placement and a mesh."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from meshes.errors import PlanError
from meshes.mesh import make_mesh
from meshes.plan import Plan
from models.transformer import TransformerConfig
from sharding import rules
from sharding.collectives import better_direct
from sharding.placement import Placement
from sharding.tiles import Tiling
from sharding.weights import Keep, WeightSharding
from training import optimizer
from training.config import TrainConfig
from training.segments import Segments
from training.step import Program
from training.trainable import Trainable

UNROLLED = 8  # layers that one device's program may hold one by one
RAGGED_BACKENDS = ("gpu", "tpu")


def build(config: TrainConfig, plan: Plan, devices: list[jax.Device], vocab_size: int, packed: bool = True) -> Program:
    """The program of a run.

    Args:
        config: the flags.
        plan: for these devices, in the order of its cluster.
        devices: JAX's.
        vocab_size: of the data.
        packed: whether rows of the data may hold several documents.

    Raises:
        PlanError: specialized placement, but this process's devices are of several kinds.
    """
    mesh = make_mesh(plan.order, devices)
    ragged, direct = devices[0].platform in RAGGED_BACKENDS, better_direct(devices)
    tiles = tiling(plan, ragged=ragged, direct=direct, packed=packed)
    rate = optimizer.schedule(config.schedule, config.lr, config.warmup, config.steps)
    try:
        placement = Placement(plan.placement, tiles.sizes, mesh_places(mesh))
    except ValueError as error:
        raise PlanError(f"--placement {plan.placement}: {error}") from None
    return Program(
        config=_unrolled(model(config, vocab_size), plan.placement == "single"),
        mesh=mesh,
        tiling=tiles,
        placement=placement,
        optimizer=optimizer.adamw(rate, config.weight_decay, config.clip_norm),
        dtype=jnp.dtype(config.dtype),
    )


def model(config: TrainConfig, vocab_size: int) -> TransformerConfig:
    """The model that the flags describe."""
    names = ("layers", "d_model", "heads", "kv_heads", "d_ff", "remat")
    sizes: dict[str, Any] = {name: getattr(config, name) for name in names}
    return TransformerConfig(vocab_size=vocab_size, tied=config.tied_embedding, **sizes)


def segments(config: TrainConfig, vocab_size: int, devices: int) -> Segments:
    """What one of so many devices computes, to be timed."""
    return Segments(
        config=_unrolled(model(config, vocab_size), devices == 1),
        seq_len=config.seq_len,
        microbatch=config.microbatch,
        dtype=jnp.dtype(config.dtype),
        optimizer=optimizer.adamw(lambda _: config.lr, config.weight_decay, config.clip_norm),
        weights=Keep(jnp.dtype(config.dtype)) if devices == 1 else WeightSharding("seq", 1, jnp.dtype(config.dtype)),
    )


def tiling(plan: Plan, ragged: bool = False, direct: bool = False, packed: bool = True) -> Tiling:
    """Token shares and attention tiles of a plan."""
    tiles = tuple(tuple((*tile.heads, tile.tokens) for tile in group) for group in plan.tiles)
    work = plan.workload
    forms = {"ring": plan.kv == "ring", "ragged": ragged, "direct": direct}
    return Tiling(plan.tokens, tiles, work.heads, work.kv_heads, **forms, packed=packed)


def _unrolled(config: TransformerConfig, alone: bool) -> TransformerConfig:
    """A few layers one by one on one device; with branches for several kinds of devices, compiling would take too long.

    Not where they are rematerialised: one by one, the compiler sees that it has computed all that before, and keeps it.
    """
    few = alone and config.remat == "none" and config.layers <= UNROLLED
    return dataclasses.replace(config, unroll=config.layers if few else 1)


def mesh_places(mesh: Mesh) -> tuple[tuple[int, int], ...]:
    """Mesh coordinates of this process's devices."""
    here = jax.process_index()
    groups = enumerate(mesh.devices)
    return tuple((g, m) for g, group in groups for m, d in enumerate(group) if d.process_index == here)


def describe(program: Trainable) -> list[str]:
    """Lines for people: the size of the model and how it is stored."""
    sizes = [math.prod(leaf.shape) for leaf in jax.tree.leaves(program.logical["params"])]
    padding = rules.padding_share(program.stored["params"])
    held = (
        f"cut evenly over {program.mesh.size} devices, {padding:.2%} padding" if program.mesh.size > 1 else "one device"
    )
    return [f"parameters: {sum(sizes):,} ({held})"]


def key(seed: int) -> jax.Array:
    """The random key of a seed."""
    return jax.random.key(seed)
