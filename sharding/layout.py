"""What a model is handed: where local work runs, and how attention reaches across devices."""

from dataclasses import dataclass, field
from typing import Any

import jax

from sharding.placement import Placement, Work
from sharding.tiles import Tiling, attend


@dataclass(frozen=True, eq=False)
class Layout:
    """A placement and a tiling inside a running step.

    Args:
        placement: runs local work at each device's own sizes.
        tiling: who attends which tile.
        tables: this device's slice of the tiling's index tables.
    """

    placement: Placement
    tiling: Tiling
    tables: dict[str, Any] = field(default_factory=dict)

    def local(self, fn: Work, signature: str) -> Work:
        """`fn(weights, *arrays)` on exact local arrays; see `Placement.local`."""
        return self.placement.local(fn, signature)

    def attend(self, kernel: Any, q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array) -> jax.Array:
        """Attention of own tokens over their whole rows; see `sharding.tiles.attend`."""
        return attend(self.tiling, self.placement, self.tables, kernel, q, k, v, segments)
