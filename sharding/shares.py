"""An axis split unevenly: which device owns which logical units, and where they lie in a packed array."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Shares:
    """N logical units dealt to the devices of one mesh axis; any sizes, zero included.

    Args:
        sizes: units of each device; their sum is the length of the axis.
        block: units that stay together when dealing (the last block of a device may be shorter).
        striped: deal blocks by weighted round robin, so that each device's units spread over the whole
            axis in proportion to its share; otherwise each device owns one contiguous range.
    """

    sizes: tuple[int, ...]
    block: int = 1
    striped: bool = True

    def __post_init__(self) -> None:
        if not self.sizes:
            raise ValueError("shares of no devices: give one size for each device")
        if any(size < 0 for size in self.sizes):
            raise ValueError(f"shares {self.sizes} hold a negative size: sizes are zero or more")
        if self.block < 1:
            raise ValueError(f"block {self.block} is not positive: units are dealt in blocks of one or more")

    @property
    def total(self) -> int:
        """Logical length of the axis."""
        return sum(self.sizes)

    @property
    def capacity(self) -> int:
        """Length of the axis of one device in a packed array: the largest size."""
        return max(self.sizes)

    @cached_property
    def indices(self) -> tuple[np.ndarray, ...]:
        """For each device, the logical indices it owns, increasing (int32)."""
        owners = self._striped_owners() if self.striped else np.repeat(np.arange(len(self.sizes)), self.sizes)
        order = np.argsort(owners, kind="stable").astype(np.int32)
        return tuple(np.split(order, np.cumsum(self.sizes)[:-1]))

    def _striped_owners(self) -> np.ndarray:
        """Device of each logical unit: block k of a device wants to lie at the middle of its k-th stretch."""
        centres, lengths, devices = [], [], []
        for device, size in enumerate(self.sizes):
            starts = np.arange(0, size, self.block)
            length = np.minimum(self.block, size - starts)
            centres.append((starts + length / 2) / max(size, 1))
            lengths.append(length)
            devices.append(np.full(len(starts), device))
        order = np.argsort(np.concatenate(centres), kind="stable")
        return np.repeat(np.concatenate(devices)[order], np.concatenate(lengths)[order])

    def pack(self, logical: np.ndarray, axis: int = 0, fill: float = 0) -> np.ndarray:
        """Cut a logical array into one padded block for each device.

        Args:
            logical: array whose `axis` has length `total`.
            axis: the axis to cut.
            fill: value of the padding.

        Returns:
            Array with a new leading axis of devices; `axis` (now one further) has length `capacity`.
        """
        if logical.shape[axis] != self.total:
            raise ValueError(f"axis {axis} of shape {logical.shape} has not the {self.total} units of the shares")
        blocks = []
        for index in self.indices:
            widths = [(0, 0)] * logical.ndim
            widths[axis] = (0, self.capacity - len(index))
            blocks.append(np.pad(np.take(logical, index, axis), widths, constant_values=fill))
        return np.stack(blocks)

    def unpack(self, packed: np.ndarray, axis: int = 0) -> np.ndarray:
        """The inverse of `pack`: padding is left out, units return to logical order."""
        if packed.shape[0] != len(self.sizes) or packed.shape[axis + 1] != self.capacity:
            raise ValueError(
                f"packed shape {packed.shape} does not hold {len(self.sizes)} blocks of {self.capacity} units"
            )
        parts = [np.take(packed[d], np.arange(size), axis) for d, size in enumerate(self.sizes)]
        order = np.concatenate(self.indices)
        return np.take(np.concatenate(parts, axis), np.argsort(order), axis)
