"""What all plans share: JSON round trip, files, a digest, comparison with what is at hand, and gains."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from meshes import strict_json
from meshes.cluster import Cluster, digest
from meshes.errors import UsageError

PREDICTED = ("predictions", "alternatives", "even_step_seconds", "step_seconds")  # which no device reads


class PlanFile:
    """Base of frozen dataclasses with a cluster, a workload and predictions."""

    cluster: Cluster
    workload: Any
    even_step_seconds: float | None
    step_seconds: float

    @property
    def gain(self) -> float | None:
        """Predicted step time of the best even plan over that of this plan."""
        return None if self.even_step_seconds is None else self.even_step_seconds / self.step_seconds

    @property
    def ideal_gain(self) -> float:
        """Mean speed over slowest speed: what perfect shares would gain over even ones, were messages free."""
        speeds = [device.speed for device in self.cluster.devices]
        return sum(speeds) / (len(speeds) * min(speeds))

    def to_json(self) -> str:
        """JSON text that `from_json` reads back exactly."""
        return json.dumps(self._content(), indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str, name: str = "plan") -> Self:
        """Read a plan, its rules checked.

        Args:
            text: JSON.
            name: where it comes from, for messages.

        Raises:
            UsageError: it is not JSON, has unknown or missing keys, or breaks a rule.
        """
        try:
            data = json.loads(text)
        except ValueError as error:
            raise UsageError(f"{name} is not JSON ({error}): make it with --plan-out") from None
        try:
            plan: Self = strict_json.decode(cls, data, name)
        except UsageError as error:
            message = str(error)
            raise UsageError(message if message.startswith(name) else f"{name}: {message}") from None
        return plan

    def decisions(self) -> dict[str, Any]:
        """What decides a run, as JSON values: all but the predictions, which no device reads."""
        return {key: value for key, value in self._content().items() if key not in PREDICTED}

    def digest(self) -> str:
        """Hash of the decisions, 16 hexadecimal digits."""
        return digest(self.decisions())

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON."""
        Path(path).write_text(self.to_json() + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a saved plan.

        Raises:
            UsageError: the file is missing or does not hold a plan.
        """
        try:
            text = Path(path).read_text()
        except FileNotFoundError:
            raise UsageError(f"plan file {path} does not exist: check the path, or make it with --plan-out") from None
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise UsageError(f"plan file {path} cannot be read ({reason}): give a file made with --plan-out") from None
        return cls.from_json(text, f"plan file {path}")

    def check(self, cluster: Cluster, workload: Any) -> None:
        """Refuse a plan made for something else.

        Args:
            cluster: of this run.
            workload: of this run, of the kind that the plan has.

        Raises:
            UsageError: it was made for another cluster or workload; names the first difference.
        """
        for noun, own, other in (("cluster", self.cluster, cluster), ("workload", self.workload, workload)):
            for where, planned, here in strict_json.differences(asdict(own), asdict(other)):
                raise UsageError(
                    f"the plan was made for another {noun}: {where} is {planned!r} in the plan and {here!r} here:"
                    " run what it was made for, or plan anew without --plan"
                )

    def _content(self) -> dict[str, Any]:
        content: dict[str, Any] = asdict(self)  # type: ignore[call-overload]  # every subclass is a dataclass
        return content
