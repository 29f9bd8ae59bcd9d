"""What was measured, kept in the user's cache for later runs."""

import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import jax

from meshes import strict_json
from meshes.cluster import Cluster, digest
from meshes.job import Job

Values = TypeVar("Values")


def key(cluster: Cluster, devices: Sequence[jax.Device], model: str) -> str:
    """Names what a measurement depends on: the hardware, the limits on it, the model and the version of JAX.

    Args:
        cluster, devices: in the same order.
        model: digest of the model and of what else was measured.
    """
    kinds = [device.device_kind for device in devices]
    about = {"cluster": asdict(cluster), "kinds": kinds, "cores": os.cpu_count(), "machine": platform.processor()}
    return digest({**about, "model": model, "jax": jax.__version__})


def once(job: Job, name: str, kind: type[Values], measure: Callable[[], Values], *, again: bool) -> Values:
    """What the first process has kept, told to all; where there is nothing, what is measured now, and kept.

    Args:
        job: this process among the others, which all call this.
        name: see `key`.
        kind: dataclass of the values.
        measure: makes them, in all processes.
        again: measure whatever is kept.
    """
    old = load(name, kind) if job.number == 0 and not again else None
    told = job.from_first(f"{kind.__name__} that is kept", None if old is None else _text(old))
    if told is not None:
        return strict_json.decode(kind, json.loads(told), kind.__name__)
    found = measure()
    if job.number == 0:
        keep(name, found)
    return found


def load(name: str, kind: type[Values]) -> Values | None:
    """Values that were kept; None if there are none, or not whole, or of another version."""
    try:
        return strict_json.decode(kind, json.loads(_path(name).read_text()), name)
    except (OSError, ValueError):  # of which a `UsageError` is one
        return None


def keep(name: str, values: Any) -> None:
    """Keep a dataclass for later runs; a cache that cannot be written is no error."""
    path = _path(name)
    beside = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(_text(values))
        beside.replace(path)
    except OSError:
        return


def _text(values: Any) -> str:
    return json.dumps(asdict(values))


def _path(name: str) -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "lopsided" / f"{name}.json"
