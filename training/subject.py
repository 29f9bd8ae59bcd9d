"""What is trained on what, whatever the model: from data to a plan, a program and a feed."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from meshes.cluster import Cluster
from meshes.job import Job

if TYPE_CHECKING:
    import jax

    from training.comparison import Comparer
    from training.feed import Feed
    from training.metrics import Reporter
    from training.trainable import State, Trainable


class Subject(Protocol):
    """A model and its data, as the flags describe them; made without JAX."""

    @property
    def fingerprint(self) -> str:
        """Of the data; equal in all processes."""

    @property
    def notes(self) -> Sequence[str]:
        """Lines about the data."""

    def plan(self, cluster: Cluster, owners: Sequence[int] = ()) -> Any:
        """The plan of `--plan`, or the planner's.

        Args:
            cluster: the devices.
            owners: the number of each device's process, in a job of several: each process then compiles its own sizes,
                if the devices of each are of one kind.
        """

    def measured(self, job: Job, cluster: Cluster, devices: "list[jax.Device]") -> tuple[Cluster, Sequence[str]]:
        """The cluster with measured speeds, curves and links, if `--profile` wants them; and lines about it."""

    def program(
        self, plan: Any, devices: "list[jax.Device]", done: int = 0, place: dict[str, Any] | None = None
    ) -> "Trainable":
        """What is compiled, for a run from its first step, or from a checkpoint's place after so many steps."""

    def about(self, program: Any) -> Sequence[str]:
        """Lines about the program."""

    def feed(self, program: Any, plan: Any, done: int, place: dict[str, Any] | None) -> "Feed":
        """The data of a run from its first step, or from a checkpoint's place after so many steps."""

    def comparer(self, job: Job, plan: Any, devices: "list[jax.Device]") -> "Comparer | None":
        """What times devices beside the steps; None where that would say nothing."""

    def finish(self, program: Any, feed: Any, state: "State", reporter: "Reporter") -> None:
        """What is told after the last step."""
