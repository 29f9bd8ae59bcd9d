"""Plan: which device does how much, and what that should cost. Frozen; JSON round trip; a table for people."""

from dataclasses import dataclass

from meshes import plan_rules, table
from meshes.cluster import Cluster
from meshes.plan_file import PlanFile
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
class Plan(PlanFile):
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

    def flops(self, device: int) -> float:
        """Of a step on one device, by its number in the cluster, without any recomputation."""
        g, m = self.place(device)
        work, tile = self.workload, self.tiles[g][m]
        rows = tile.tokens * (tile.heads[1] - tile.heads[0])
        forward = self.tokens[g][m] * work.token_flops + rows * work.layers * work.query_flops
        return 3 * self.microbatches[g] * work.microbatch * forward

    def prediction(self, device: int) -> DevicePrediction:
        """What a step should cost a device, by its number in the cluster."""
        g, m = self.place(device)
        return self.predictions[g][m]

    def part(self, device: int) -> float:
        """Of a step's work, what a device does, by its number in the cluster."""
        return self.flops(device) / self.workload.step_flops()

    def place(self, device: int) -> tuple[int, int]:
        """Data group of a device, by its number in the cluster, and its place in the group."""
        return next((g, group.index(device)) for g, group in enumerate(self.order) if device in group)

    def table(self) -> str:
        """The plan as plain text, one line for each device."""
        return table.render(self)
