"""What a person insists on, and what that leaves to try."""

from dataclasses import dataclass, fields
from typing import Literal, get_args

from meshes.cluster import Cluster
from meshes.errors import PlanError, UsageError
from meshes.workload import Workload, divisors

AskedAttention = Literal["auto", "context", "head", "hybrid"]
AskedPlacement = Literal["auto", "switched", "specialized"]
AskedKeysValues = Literal["auto", "gather", "ring"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """Choices left open (`auto`) or insisted on; `meshes.planner.plan` says what they mean."""

    attention: AskedAttention = "auto"
    data_groups: int | Literal["auto"] = "auto"
    placement: AskedPlacement = "auto"
    kv: AskedKeysValues = "auto"

    def __post_init__(self) -> None:
        choices = {"attention": AskedAttention, "placement": AskedPlacement, "kv": AskedKeysValues}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in choices and value not in get_args(choices[field.name]):
                raise UsageError(f"{field.name} is {value!r}: it is one of {', '.join(get_args(choices[field.name]))}")
        if self.kv == "ring" and self.attention in ("head", "hybrid"):
            raise PlanError(
                f"a ring of keys and values needs context attention, not {self.attention}: use --attention context"
            )

    @property
    def specialized(self) -> bool:
        """Whether every process compiles its own sizes."""
        return self.placement == "specialized"

    def group_counts(self, cluster: Cluster, workload: Workload) -> list[int]:
        """Numbers of data groups to try.

        Raises:
            PlanError: none can serve the request.
        """
        _check_batch(workload)
        devices = len(cluster.devices)
        if self.data_groups == "auto":
            several = self.attention in ("context", "head") or self.kv == "ring"
            least = 3 if self.attention == "hybrid" else min(2, devices) if several else 1
            counts = [groups for groups in divisors(devices) if devices // groups >= least]
        else:
            counts = [self._given_count(devices)]
        if self.attention == "hybrid":
            self._check_hybrid(devices, devices // counts[0] if counts else devices, workload.heads)
        return counts

    def _given_count(self, devices: int) -> int:
        groups = self.data_groups
        if type(groups) is not int or groups < 1 or devices % groups:
            choices = ", ".join(map(str, divisors(devices)))
            raise PlanError(
                f"{groups!r} data groups do not divide {devices} devices evenly: use --data-groups auto or one of"
                f" {choices}"
            )
        return groups

    def _check_hybrid(self, devices: int, in_group: int, heads: int) -> None:
        if heads < 2:
            raise PlanError(f"hybrid attention needs at least 2 heads, the model has {heads}: use --attention context")
        if in_group < 3:
            fewer = "use fewer --data-groups, or --attention context" if devices >= 3 else "use --attention context"
            raise PlanError(f"hybrid attention needs at least 3 devices in a data group, there are {in_group}: {fewer}")


def _check_batch(workload: Workload) -> None:
    rows, micro = workload.batch_size, workload.microbatch
    if rows % micro:
        near = sorted({rows - rows % micro, rows - rows % micro + micro} - {0})
        smaller = max(d for d in divisors(rows) if d < micro)
        raise PlanError(
            f"batch size {rows} is not a multiple of microbatch {micro}: use --batch-size"
            f" {' or '.join(map(str, near))}, or --microbatch {smaller}"
        )
