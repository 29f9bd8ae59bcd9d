"""From rows of tokens to the device arrays of a step: rows dealt to data groups, tokens dealt to devices.

Token arrays are [G data groups, K microbatches, M devices, B rows, T capacity], segments [G, K, B, S].
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from models.transformer import Batch
from sharding.tiles import Tiling
from training.data import Rows
from training.step import COUNTS_SPEC, ROWS_SPEC, TOKENS_SPEC
from training.trainable import on_mesh, put, put_pieces

TOKEN_FIELDS = {
    "tokens_BT": "inputs_BS",
    "targets_BT": "targets_BS",
    "positions_BT": "positions_BS",
    "weights_BT": "weights_BS",
}


@dataclass(frozen=True, eq=False)
class Dealer:
    """Deals the rows of a batch.

    Args:
        mesh: axes data and seq.
        tiling: token shares of every device.
        microbatch: rows of a microbatch.
        counts: microbatches of each data group.
    """

    mesh: Mesh
    tiling: Tiling
    microbatch: int
    counts: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Rows of a whole batch."""
        return self.microbatch * sum(self.counts)

    @cached_property
    def group_rows(self) -> list[np.ndarray]:
        """Row numbers of each data group."""
        starts = np.concatenate([[0], np.cumsum(self.counts)]) * self.microbatch
        return [np.arange(a, b) for a, b in pairwise(starts)]

    @cached_property
    def my_rows(self) -> np.ndarray:
        """Row numbers that this process's devices need."""
        here = jax.process_index()
        groups = [g for g, row in enumerate(self.mesh.devices) if any(d.process_index == here for d in row)]
        return np.concatenate([self.group_rows[g] for g in groups])

    def __call__(self, rows: Rows) -> Batch:
        """Device arrays of a batch.

        Args:
            rows: those of `my_rows`, in this order.
        """
        number = {int(row): i for i, row in enumerate(self.my_rows)}

        def of(name: str) -> Callable[[int], np.ndarray]:
            array = getattr(rows, name)

            def group(g: int) -> np.ndarray:
                out = np.zeros((max(self.counts), self.microbatch, array.shape[1]), array.dtype)
                picked = array[[number[int(r)] for r in self.group_rows[g]]]
                out[: self.counts[g]] = picked.reshape(-1, self.microbatch, array.shape[1])
                return out

            return group

        fields = {field: self._tokens(of(name)) for field, name in TOKEN_FIELDS.items()}
        return Batch(**fields, segments_BS=self._segments(of("segments_BS")))

    def _tokens(self, group: Callable[[int], np.ndarray]) -> jax.Array:
        groups, devices = self.mesh.devices.shape
        capacity = max(max(sizes) for sizes in self.tiling.tokens)
        shape = (groups, max(self.counts), devices, self.microbatch, capacity)

        def piece(index: Any) -> np.ndarray:
            g, m = index[0].start or 0, index[2].start or 0
            wanted = self.tiling.token_index[g][m]
            tokens = group(g)[:, :, wanted]
            out = np.zeros((1, tokens.shape[0], 1, tokens.shape[1], capacity), tokens.dtype)
            out[0, :, 0, :, : len(wanted)] = tokens
            return out

        return put_pieces(shape, on_mesh(self.mesh, TOKENS_SPEC), piece)

    def _segments(self, group: Callable[[int], np.ndarray]) -> jax.Array:
        shape = (len(self.counts), max(self.counts), self.microbatch, self.tiling.seq_len)
        sharding = on_mesh(self.mesh, ROWS_SPEC)
        return put_pieces(shape, sharding, lambda index: group(index[0].start or 0)[None])

    @cached_property
    def device_counts(self) -> jax.Array:
        """`counts` on the devices, int32 [G]."""
        return put(np.array(self.counts, np.int32), on_mesh(self.mesh, COUNTS_SPEC))
