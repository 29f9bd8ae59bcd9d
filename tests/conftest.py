"""Test set-up: eight emulated CPU devices, strict dtypes and ranks, chosen before JAX is used."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Emulated devices share the machine's cores; a slow one must not be taken for a dead one.
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_cpu_collective_call_warn_stuck_timeout_seconds=600",
        "--xla_cpu_collective_call_terminate_timeout_seconds=1200",
    ]
).strip()

import jax

DEVICES = 8

jax.config.update("jax_num_cpu_devices", DEVICES)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_sessionstart() -> None:
    """Too few devices is a broken set-up: fail at once, never skip."""
    found = jax.device_count()
    if found < DEVICES:
        raise RuntimeError(f"the tests need {DEVICES} emulated devices, JAX shows {found}")
