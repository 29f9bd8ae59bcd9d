"""What was measured, kept in the user's cache for later runs."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax

from meshes.cluster import Cluster, digest


def key(cluster: Cluster, devices: Sequence[jax.Device], model: str) -> str:
    """Names what a measurement depends on: the hardware, the limits on it, the model and the version of JAX.

    Args:
        cluster, devices: in the same order.
        model: digest of the model and of what else was measured.
    """
    kinds = [device.device_kind for device in devices]
    about = {"cluster": asdict(cluster), "kinds": kinds, "cores": os.cpu_count(), "machine": platform.processor()}
    return digest({**about, "model": model, "jax": jax.__version__})


def load(name: str) -> Any:
    """Values that were kept; None if there are none, or not whole."""
    try:
        return json.loads(_path(name).read_text())
    except (OSError, ValueError):
        return None


def keep(name: str, values: Any) -> None:
    """Keep values for later runs; a cache that cannot be written is no error."""
    path = _path(name)
    beside = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(values))
        beside.replace(path)
    except OSError:
        return


def _path(name: str) -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "lopsided" / f"{name}.json"
