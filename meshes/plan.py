"""Plan: which device does how much, and what that should cost. Frozen; JSON round trip; a table for people."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from meshes import plan_rules, strict_json, table
from meshes.cluster import Cluster, digest
from meshes.errors import UsageError
from meshes.workload import Attention, KeysValues, PlacementMode, Workload


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One device's part of attention.

    Args:
        heads: first query head and last + 1; (0, 0) is none.
        tokens: query tokens.
    """

    heads: tuple[int, int]
    tokens: int


@dataclass(frozen=True, kw_only=True)
class DevicePrediction:
    """What a step should cost one device.

    Args:
        compute, communication, waiting: seconds; they add up to the step.
        memory: bytes needed.
        memory_limit: bytes it has; None is unlimited.
    """

    compute: float
    communication: float
    waiting: float
    memory: int
    memory_limit: int | None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Who does what. Nested tuples are [data groups][devices of a group].

    Args:
        cluster, workload: what the plan is for.
        order: numbers of the devices in the cluster.
        microbatches: how many each data group runs in a step.
        tokens: tokens of a row that each device owns outside attention; a group's sum to the sequence length.
        tiles: devices of a group with the same heads form a band; a band's tokens sum to the sequence length, the
            bands' heads partition all heads.
        attention: `context` (one band), `head` (one device in each band), or `hybrid`.
        kv: how keys and values reach a tile; `ring` needs context tiles of the owned tokens.
        placement: how local work runs at unequal sizes.
        predictions: what a step should cost each device.
        even_step_seconds: of the best even plan that fits; None if none fits.
        step_seconds: of this plan.
    """

    cluster: Cluster
    workload: Workload
    order: tuple[tuple[int, ...], ...]
    microbatches: tuple[int, ...]
    tokens: tuple[tuple[int, ...], ...]
    tiles: tuple[tuple[Tile, ...], ...]
    attention: Attention
    kv: KeysValues
    placement: PlacementMode
    predictions: tuple[tuple[DevicePrediction, ...], ...]
    even_step_seconds: float | None
    step_seconds: float

    def __post_init__(self) -> None:
        plan_rules.check(self)

    @property
    def gain(self) -> float | None:
        """Predicted step time of the best even plan over that of this plan."""
        return None if self.even_step_seconds is None else self.even_step_seconds / self.step_seconds

    @property
    def ideal_gain(self) -> float:
        """Mean speed over slowest speed: what perfect shares would gain over even ones, were messages free."""
        speeds = [device.speed for device in self.cluster.devices]
        return sum(speeds) / (len(speeds) * min(speeds))

    def flops(self, device: int) -> float:
        """Of a step on one device, by its number in the cluster, without any recomputation."""
        g, m = self.place(device)
        work, tile = self.workload, self.tiles[g][m]
        rows = tile.tokens * (tile.heads[1] - tile.heads[0])
        forward = self.tokens[g][m] * work.token_flops + rows * work.layers * work.query_flops
        return 3 * self.microbatches[g] * work.microbatch * forward

    def place(self, device: int) -> tuple[int, int]:
        """Data group of a device, by its number in the cluster, and its place in the group."""
        return next((g, group.index(device)) for g, group in enumerate(self.order) if device in group)

    def to_json(self) -> str:
        """JSON text that `from_json` reads back exactly."""
        return json.dumps(asdict(self), indent=1, allow_nan=False)

    @staticmethod
    def from_json(text: str, name: str = "plan") -> "Plan":
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
            plan = strict_json.decode(Plan, data, name)
        except UsageError as error:
            message = str(error)
            raise UsageError(message if message.startswith(name) else f"{name}: {message}") from None
        return plan

    def decisions(self) -> dict[str, Any]:
        """What decides a run, as JSON values: all but the predictions, which no device reads."""
        predicted = ("predictions", "even_step_seconds", "step_seconds")
        return {key: value for key, value in asdict(self).items() if key not in predicted}

    def digest(self) -> str:
        """Hash of the decisions, 16 hexadecimal digits."""
        return digest(self.decisions())

    def table(self) -> str:
        """The plan as plain text, one line for each device."""
        return table.render(self)

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON."""
        Path(path).write_text(self.to_json() + "\n")

    @staticmethod
    def load(path: str | Path) -> "Plan":
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
        return Plan.from_json(text, f"plan file {path}")

    def check(self, cluster: Cluster, workload: Workload) -> None:
        """Refuse a plan made for something else.

        Raises:
            UsageError: it was made for another cluster or workload; names the first difference.
        """
        for noun, own, other in (("cluster", self.cluster, cluster), ("workload", self.workload, workload)):
            for where, planned, here in strict_json.differences(asdict(own), asdict(other)):
                raise UsageError(
                    f"the plan was made for another {noun}: {where} is {planned!r} in the plan and {here!r} here:"
                    " run what it was made for, or plan anew without --plan"
                )
