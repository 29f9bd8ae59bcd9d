"""A process finds its place in the job from what launchers leave in the environment."""

import pytest

from meshes import environment
from meshes.environment import Seat
from meshes.errors import UsageError

PLAIN = {"JAX_COORDINATOR_ADDRESS": "big:1234", "JAX_NUM_PROCESSES": "3", "JAX_PROCESS_ID": "2"}
KUBERNETES = {"JAX_COORDINATOR_ADDRESS": "big:1234", "JAX_NUM_PROCESSES": "3", "JOB_COMPLETION_INDEX": "2"}
SLURM = {"SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "2", "SLURM_STEP_NODELIST": "node[1-3]", "SLURM_JOB_ID": "7"}
MPI = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "2"}
OLD_MPI = {**MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_MCA_orte_hnp_uri": "1;tcp://10.0.0.1:99"}
ONE_HOST = {**MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "3", "PMIX_NAMESPACE": "job-1"}
TPU = {"TPU_WORKER_HOSTNAMES": "a,b,c", "TPU_WORKER_ID": "2"}


@pytest.mark.parametrize(
    ("environ", "coordinator"),
    [
        (PLAIN, "big:1234"),
        (KUBERNETES, "big:1234"),
        (SLURM, None),
        ({**SLURM, "JAX_COORDINATOR_ADDRESS": "big:1"}, "big:1"),
        (OLD_MPI, None),
        ({**MPI, "JAX_COORDINATOR_ADDRESS": "big:1"}, "big:1"),
        (TPU, None),
    ],
)
def test_the_third_of_three(environ: dict[str, str], coordinator: str | None) -> None:
    assert environment.find(environ) == Seat(number=2, count=3, coordinator=coordinator)


def test_processes_of_one_mpi_job_meet_at_one_port_and_those_of_another_elsewhere() -> None:
    seats = [environment.find({**ONE_HOST, "OMPI_COMM_WORLD_RANK": str(rank)}) for rank in range(3)]
    ports = {seat.coordinator for seat in seats if seat is not None}
    other = environment.find({**ONE_HOST, "PMIX_NAMESPACE": "job-2"})
    assert len(ports) == 1 and other is not None and other.coordinator not in ports
    assert [seat.number for seat in seats if seat is not None] == [0, 1, 2]


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {**PLAIN, "JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"},
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "3", "SLURM_PROCID": "0"},  # a batch script's own shell
        {"JOB_COMPLETION_INDEX": "2"},  # some other job of Kubernetes
        {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
        {"TPU_WORKER_HOSTNAMES": "a", "TPU_WORKER_ID": "0"},
    ],
)
def test_alone(environ: dict[str, str]) -> None:
    assert environment.find(environ) is None


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"JAX_COORDINATOR_ADDRESS": "big:1"}, "number of this process is unknown: set JAX_NUM_PROCESSES"),
        ({"JAX_PROCESS_ID": "1"}, "JAX_PROCESS_ID are set, but JAX_NUM_PROCESSES is not"),
        ({"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}, "but JAX_COORDINATOR_ADDRESS is not"),
        ({**PLAIN, "JAX_PROCESS_ID": "3"}, "JAX_PROCESS_ID is 3 and JAX_NUM_PROCESSES is 3: .*from 0"),
        ({**PLAIN, "JAX_PROCESS_ID": "two"}, "JAX_PROCESS_ID is 'two': it must be a whole number"),
        ({**PLAIN, "JAX_COORDINATOR_ADDRESS": "big"}, "JAX_COORDINATOR_ADDRESS is 'big': write HOST:PORT"),
        ({**MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, "mpirun on several hosts .*-x JAX_COORDINATOR_ADDRESS"),
    ],
)
def test_what_is_not_complete_is_refused(environ: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        environment.find(environ)
