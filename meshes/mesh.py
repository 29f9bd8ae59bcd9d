"""From a plan's device order to a JAX mesh, emulated CPU devices included."""

import math
import os
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from meshes.errors import UsageError

AXES = ("data", "seq")
COLLECTIVE_TIMEOUT_SECONDS = 1200


def prepare(devices: int | None) -> None:
    """Set up JAX before its first use: enough emulated CPU devices, patience with uneven work.

    Emulated devices share the machine's cores, so that one may reach a collective minutes after another.

    Args:
        devices: how many devices the run asks for; None leaves the machine's own.
    """
    patience = f"--xla_cpu_collective_call_terminate_timeout_seconds={COLLECTIVE_TIMEOUT_SECONDS}"
    warn = f"--xla_cpu_collective_call_warn_stuck_timeout_seconds={COLLECTIVE_TIMEOUT_SECONDS // 2}"
    flags = os.environ.get("XLA_FLAGS", "")
    for flag in (patience, warn):
        if flag.split("=")[0] not in flags:
            flags = f"{flags} {flag}".strip()
    os.environ["XLA_FLAGS"] = flags
    if devices is not None:
        jax.config.update("jax_num_cpu_devices", devices)


def find(devices: int | None) -> list[jax.Device]:
    """The devices to use: the accelerators if there are enough of them, else emulated CPU devices.

    In a job of several processes, all devices of all processes.

    Raises:
        UsageError: this process sees accelerators of several kinds, which one program cannot serve; or the processes
            have another number of devices.
    """
    found = jax.devices()
    if jax.process_count() > 1:
        if devices is not None and len(found) != devices:
            raise UsageError(
                f"{devices} devices are described, but the {jax.process_count()} processes of the job have"
                f" {len(found)}: start one process for each device, or describe the devices that there are"
            )
    elif devices is not None:
        found = (found if len(found) >= devices else jax.devices("cpu"))[:devices]
    if jax.process_count() == 1 and devices is not None and len(found) < devices:
        raise UsageError(
            f"--devices {devices}, but JAX started with {len(found)} CPU devices: unset JAX_NUM_CPU_DEVICES"
        )
    kinds = sorted({d.device_kind for d in found if d.process_index == jax.process_index()})
    if len(kinds) > 1:
        raise UsageError(
            f"this process sees devices of several kinds ({', '.join(kinds)}), and one process compiles for one kind:"
            " run one process for each kind, each with its own CUDA_VISIBLE_DEVICES"
        )
    return found


def make_mesh(order: Sequence[Sequence[int]], devices: Sequence[jax.Device]) -> Mesh:
    """The mesh of a plan.

    Args:
        order: indices into `devices`, [data groups][devices of a group].
        devices: in the order of the cluster.
    """
    shape = (len(order), len(order[0]))
    grid = np.empty(shape, object)
    for at in np.ndindex(*shape):
        grid[at] = devices[order[at[0]][at[1]]]
    if grid.size != math.prod(shape):
        raise ValueError(f"device order {order} is not rectangular")
    return Mesh(grid, AXES, axis_types=(AxisType.Auto, AxisType.Auto))


def owners(devices: Sequence[jax.Device]) -> tuple[int, ...]:
    """The number of the process that has each device."""
    return tuple(device.process_index for device in devices)
