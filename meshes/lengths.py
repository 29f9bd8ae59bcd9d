"""Lengths of the arrays that devices work on, and of the blocks that attention cuts them into. NumPy only.

Legend: arrays are [G data groups, M devices].
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

SHORTEST_QUERIES, LONGEST_QUERIES = 32, 512  # tokens of one of attention's blocks
SHORTEST_KEYS, LONGEST_KEYS = 64, 256
BLOCK_AREA = 2**17  # queries x keys, where that allows longer blocks of keys
QUERY_STEP, KEY_STEP = 4, 16  # that blocks are multiples of
COUNTED = 8  # query blocks whose visits are counted one by one


@dataclass(frozen=True, eq=False, kw_only=True)
class Lengths:
    """Lengths of devices' local arrays, int arrays [G, M].

    Args:
        tokens: owned outside attention.
        queries, heads: of the tile.
        keys, kv_heads: tokens whose keys and values the tile reads at a time, and their heads.
        arriving: key rows that exchanges bring at a time, padding included.
    """

    tokens: np.ndarray
    queries: np.ndarray
    heads: np.ndarray
    keys: np.ndarray
    kv_heads: np.ndarray
    arriving: np.ndarray

    @cached_property
    def rows(self) -> np.ndarray:
        """Query rows: queries x heads."""
        return self.queries * self.heads

    @cached_property
    def key_rows(self) -> np.ndarray:
        """Key rows: keys x key/value heads."""
        return self.keys * self.kv_heads

    @cached_property
    def query_block(self) -> np.ndarray:
        """Tokens of a block of queries."""
        return _block_length(self.queries, SHORTEST_QUERIES, LONGEST_QUERIES, QUERY_STEP)

    @cached_property
    def key_block(self) -> np.ndarray:
        """Tokens of a block of keys."""
        return _block_length(self.keys, SHORTEST_KEYS, _longest_keys(self.query_block), KEY_STEP)

    def widest(self) -> "Lengths":
        """The longest arrays of any device: what all allocate in one switched program."""
        one = np.ones_like(self.tokens)
        rows, keys = one * int(self.rows.max()), one * int(self.key_rows.max())
        tokens = one * int(self.tokens.max())
        return Lengths(tokens=tokens, queries=rows, heads=one, keys=keys, kv_heads=one, arriving=self.arriving)


def visited(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Part of all pairs of queries and keys that blocks of attention compute, in causal order; of int arrays.

    Queries and keys spread over a row alike, as they are dealt. Block n of N query blocks sees every key block that
    begins before it ends; of more than `COUNTED` query blocks the further ones see half a block more than they reach.
    """
    queries, keys = np.maximum(queries, 1), np.maximum(keys, 1)
    rows = _block_length(queries, SHORTEST_QUERIES, LONGEST_QUERIES, QUERY_STEP)
    columns = _block_length(keys, SHORTEST_KEYS, _longest_keys(rows), KEY_STEP)
    blocks, wide = -(-queries // rows), -(-keys // columns)
    visits = wide.astype(float)  # of the last block
    for number in range(1, COUNTED):
        visits += np.where(number < blocks, -(-number * rows * keys // (queries * columns)), 0)
    further = np.maximum(blocks - COUNTED, 0)
    each = rows * keys / (queries * columns)
    visits += further * (each * (COUNTED + blocks - 1) / 2 + 0.5)
    return visits / (blocks * wide)


def _longest_keys(query_block: np.ndarray) -> np.ndarray:
    return np.maximum(LONGEST_KEYS, BLOCK_AREA // query_block)


def _block_length(length: np.ndarray, shortest: int, longest: np.ndarray | int, step: int) -> np.ndarray:
    """About four equal blocks within the bounds, rounded up to multiples of a step."""
    length = np.maximum(length, 1)
    count = np.maximum(np.maximum(-(-length // longest), np.minimum(4, length // shortest)), 1)
    return -(-length // (step * count)) * step
