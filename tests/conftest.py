"""Test set-up: eight emulated CPU devices, strict dtypes and ranks, chosen before JAX is used."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Emulated devices share the machine's cores; a slow one must not be taken for a dead one.
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_cpu_collective_call_warn_stuck_timeout_seconds=600",
        "--xla_cpu_collective_call_terminate_timeout_seconds=1200",
        # Most of the tests' time is compiling code that then runs for milliseconds.
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
    ]
).strip()

from pathlib import Path

import jax
import pytest
from command_line import succeed, tiny

DEVICES = 8

jax.config.update("jax_num_cpu_devices", DEVICES)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_sessionstart() -> None:
    """Too few devices is a broken set-up: fail at once, never skip."""
    found = jax.device_count()
    if found < DEVICES:
        raise RuntimeError(f"the tests need {DEVICES} emulated devices, JAX shows {found}")


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of every run of the program; what one run has compiled the next ones find."""
    cache = tmp_path_factory.mktemp("compiled")
    found = {key: value for key, value in os.environ.items() if key not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    return {
        **found,
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


@pytest.fixture(scope="session")
def without_jax(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which importing JAX ends the process."""
    folder = tmp_path_factory.mktemp("without_jax")
    (folder / "jax.py").write_text("raise SystemExit('JAX was imported')\n")
    return {**environment, "PYTHONPATH": str(folder)}


@pytest.fixture(scope="session")
def finished(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of seven steps that saved after five; do not write there."""
    folder = tmp_path_factory.mktemp("finished")
    flags = "--steps 7 --save-every 5 --eval-every 3 --plan-out {run}.json"
    (folder / "said").write_text(succeed(environment, *tiny(flags, run=folder / "run")))
    return folder
