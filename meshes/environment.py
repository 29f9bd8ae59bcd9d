"""This process's place among the processes of a job, from what launchers leave in the environment. No JAX.

Understood, the first that applies:

- `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES`, `JAX_PROCESS_ID`: plain variables, `python -m meshes.launch`;
  in a Kubernetes indexed job `JOB_COMPLETION_INDEX` serves as the number of the process;
- Slurm's `srun`, Open MPI's `mpirun`, the hosts of a TPU slice. `JAX_COORDINATOR_ADDRESS` may still name the
  coordinator.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from meshes.errors import UsageError

FIRST_PORT, PORTS = 49152, 16384  # the range that nobody registers


@dataclass(frozen=True, kw_only=True)
class Seat:
    """A place in a job of several processes.

    Args:
        number: of this process, from 0.
        count: of the job's processes, at least 2.
        coordinator: HOST:PORT of the first process; None where JAX finds it from the launcher's variables.
    """

    number: int
    count: int
    coordinator: str | None


def find(environ: Mapping[str, str]) -> Seat | None:
    """The seat that the environment gives this process; None if it is alone.

    Raises:
        UsageError: the variables contradict each other or are not complete.
    """
    seat = _plain(environ) or _open_mpi(environ) or _slurm(environ) or _tpu(environ)
    if seat is None and "JAX_COORDINATOR_ADDRESS" in environ:
        raise UsageError(
            "JAX_COORDINATOR_ADDRESS is set, but the number of this process is unknown: set JAX_NUM_PROCESSES and"
            " JAX_PROCESS_ID too, start with srun or mpirun, or unset it"
        )
    return seat if seat is not None and seat.count > 1 else None


def _plain(environ: Mapping[str, str]) -> Seat | None:
    names = ["JAX_NUM_PROCESSES", "JAX_PROCESS_ID"]
    if "JAX_PROCESS_ID" not in environ and "JOB_COMPLETION_INDEX" in environ:
        names[1] = "JOB_COMPLETION_INDEX"
    given = [name for name in (*names, "JAX_COORDINATOR_ADDRESS") if name in environ]
    if not ({"JAX_NUM_PROCESSES", "JAX_PROCESS_ID"} & {*given}):
        return None
    for name in (*names, "JAX_COORDINATOR_ADDRESS"):
        if name not in environ:
            raise UsageError(f"{' and '.join(given)} are set, but {name} is not: set it, or none of them")
    size, rank = names
    return _seat(environ, size, rank, environ["JAX_COORDINATOR_ADDRESS"])


def _open_mpi(environ: Mapping[str, str]) -> Seat | None:
    size, rank = "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"
    if size not in environ:
        return None
    coordinator = environ.get("JAX_COORDINATOR_ADDRESS")
    if coordinator is None and environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == environ[size]:
        job = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid", "")
        coordinator = f"127.0.0.1:{_port(job)}"
    if coordinator is None and "OMPI_MCA_orte_hnp_uri" not in environ:
        raise UsageError(
            "mpirun on several hosts does not say where the first process is: add -x JAX_COORDINATOR_ADDRESS=HOST:PORT"
        )
    return _seat(environ, size, rank, coordinator)


def _slurm(environ: Mapping[str, str]) -> Seat | None:
    """Under srun; a batch script's own shell has no step."""
    names = ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_NODELIST")
    if not all(name in environ for name in names):
        return None
    return _seat(environ, names[0], names[1], environ.get("JAX_COORDINATOR_ADDRESS"))


def _tpu(environ: Mapping[str, str]) -> Seat | None:
    hosts = [host for host in environ.get("TPU_WORKER_HOSTNAMES", "").split(",") if host]
    if len(hosts) < 2 or "TPU_WORKER_ID" not in environ:
        return None
    number = _whole(environ, "TPU_WORKER_ID")
    return Seat(number=number, count=len(hosts), coordinator=environ.get("JAX_COORDINATOR_ADDRESS"))


def _seat(environ: Mapping[str, str], size: str, rank: str, coordinator: str | None) -> Seat:
    count, number = _whole(environ, size), _whole(environ, rank)
    if number >= count:
        raise UsageError(f"{rank} is {number} and {size} is {count}: processes are numbered from 0 to {size} - 1")
    if coordinator is not None and not coordinator.rpartition(":")[2].isdecimal():
        raise UsageError(f"JAX_COORDINATOR_ADDRESS is {coordinator!r}: write HOST:PORT")
    return Seat(number=number, count=count, coordinator=coordinator)


def _whole(environ: Mapping[str, str], name: str) -> int:
    if not environ[name].isdecimal():
        raise UsageError(f"{name} is {environ[name]!r}: it must be a whole number, 0 or more")
    return int(environ[name])


def _port(job: str) -> int:
    """A port that all processes of a job, and few other jobs, arrive at."""
    return FIRST_PORT + int.from_bytes(hashlib.sha256(job.encode()).digest()[:4]) % PORTS
