"""Cuts queries and keys into blocks, and finds out at run time which blocks see each other.

Shapes: B rows, T local tokens, S keys, H query heads, K key/value heads, D head width, X any width;
L lanes (a key/value head with the group of query heads that read it), N query blocks of R rows (a lane's heads
x tokens), M key blocks of C columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import gcd
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

PADDING = 2**30
"""Index of a key that is not there: no query reaches so far."""


class Mask(NamedTuple):
    """Who sees whom, as run-time data: a query sees the keys of its own segment that are not after it.

    Args:
        q_index_T: int32 position of each local query in the whole sequence; any subset, gaps are fine.
        k_index_S: int32 position of each key; padding keys carry `PADDING`, and nobody sees them.
        q_segment_BT: int32 document of each query.
        k_segment_BS: int32 document of each key.
    """

    q_index_T: jax.Array
    k_index_S: jax.Array
    q_segment_BT: jax.Array
    k_segment_BS: jax.Array


class QueryBlock(NamedTuple):
    """What a query block knows: its rows of the mask and the key blocks to visit. Stacked along N outside loops."""

    index_R: jax.Array
    segment_BR: jax.Array
    visits_M: jax.Array
    n_visits: jax.Array


class KeyBlocks(NamedTuple):
    """The columns of the mask, cut into key blocks."""

    index_MC: jax.Array
    segment_MBC: jax.Array


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How one call is cut: static sizes only.

    Args:
        tokens: T.
        keys: S.
        lanes: key/value head of each lane.
        group: query heads of a lane.
        query_block: tokens of a query block; the last one is padded.
        key_block: C, keys of a key block; the last one is padded.
    """

    tokens: int
    keys: int
    lanes: tuple[int, ...]
    group: int
    query_block: int
    key_block: int

    @property
    def query_blocks(self) -> int:
        """Number of query blocks, the last one padded."""
        return -(-self.tokens // self.query_block)

    @property
    def key_blocks(self) -> int:
        """Number of key blocks, the last one padded."""
        return -(-self.keys // self.key_block)

    def cut_queries(self, x_BTHX: jax.Array) -> jax.Array:
        """[B, T, H, X] to blocks [N, B, L, R, X]."""
        B, T, _, X = x_BTHX.shape
        N, L = self.query_blocks, len(self.lanes)
        x = _pad(x_BTHX, 1, N * self.query_block - T, 0)
        x = x.reshape(B, N, self.query_block, L, self.group, X).transpose(1, 0, 3, 4, 2, 5)
        return x.reshape(N, B, L, self.group * self.query_block, X)

    def join_queries(self, x_NBLRX: jax.Array) -> jax.Array:
        """Blocks [N, B, L, R, X] back to [B, T, H, X]."""
        N, B, L, _, X = x_NBLRX.shape
        x = x_NBLRX.reshape(N, B, L, self.group, self.query_block, X).transpose(1, 0, 4, 2, 3, 5)
        return x.reshape(B, N * self.query_block, L * self.group, X)[:, : self.tokens]

    def cut_keys(self, x_BSKD: jax.Array) -> jax.Array:
        """[B, S, K, D] to blocks [M, B, L, C, D], the key/value head of each lane."""
        B, S, K, D = x_BSKD.shape
        M, C = self.key_blocks, self.key_block
        if self.lanes != tuple(range(K)):
            x_BSKD = jnp.concatenate([x_BSKD[:, :, head : head + 1] for head in self.lanes], axis=2)
        x = _pad(x_BSKD, 1, M * C - S, 0)
        return x.reshape(B, M, C, len(self.lanes), D).transpose(1, 0, 3, 2, 4)

    def join_keys(self, x_MBLCD: jax.Array, heads: int) -> jax.Array:
        """Blocks [M, B, L, C, D] back to [B, S, K, D], the lanes of a key/value head added up."""
        if self.lanes != tuple(range(heads)):
            x_MBLCD = jnp.stack([self._head(x_MBLCD, head) for head in range(heads)], axis=2)
        M, B, _, C, D = x_MBLCD.shape
        return x_MBLCD.transpose(1, 0, 3, 2, 4).reshape(B, M * C, heads, D)[:, : self.keys]

    def cut_mask(self, mask: Mask) -> tuple[QueryBlock, KeyBlocks]:
        """The mask in blocks, with the list of key blocks that each query block visits."""
        N, M, C = self.query_blocks, self.key_blocks, self.key_block
        B = mask.q_segment_BT.shape[0]
        extra_q, extra_k = N * self.query_block - self.tokens, M * C - self.keys
        q_index_NT = _pad(mask.q_index_T, 0, extra_q, -1).reshape(N, self.query_block)
        k_index_MC = _pad(mask.k_index_S, 0, extra_k, PADDING).reshape(M, C)
        q_segment_BNT = _pad(mask.q_segment_BT, 1, extra_q, 0).reshape(B, N, self.query_block)
        k_segment_BMC = _pad(mask.k_segment_BS, 1, extra_k, 0).reshape(B, M, C)
        seen_NM = _seen(q_index_NT, k_index_MC, q_segment_BNT, k_segment_BMC)
        queries = QueryBlock(
            index_R=jnp.tile(q_index_NT, (1, self.group)),
            segment_BR=jnp.tile(q_segment_BNT.swapaxes(0, 1), (1, 1, self.group)),
            visits_M=jnp.argsort(~seen_NM, axis=1, stable=True),
            n_visits=jnp.sum(seen_NM, axis=1, dtype=jnp.int32),
        )
        return queries, KeyBlocks(k_index_MC, k_segment_BMC.swapaxes(0, 1))

    def _head(self, x_MBLCD: jax.Array, head: int) -> jax.Array:
        parts = [x_MBLCD[:, :, lane] for lane, source in enumerate(self.lanes) if source == head]
        return sum(parts[1:], start=parts[0]) if parts else jnp.zeros_like(x_MBLCD[:, :, 0])


def layout(tokens: int, keys: int, kv_of_head: Sequence[int]) -> Layout:
    """Choose the lanes and the block lengths of a call; neither the counts nor the list may be 0.

    About four blocks or more each way, so that causal skipping pays for any share of the tokens; then the area of a
    pair of blocks is held: smaller ones leave cores idle, larger ones leave the caches.
    """
    group = gcd(*(len(list(run)) for _, run in groupby(kv_of_head)))
    query_block = _block(tokens, shortest=32, longest=512, step=4)  # shares are any number: little padding
    return Layout(
        tokens=tokens,
        keys=keys,
        lanes=tuple(kv_of_head[::group]),
        group=group,
        query_block=query_block,
        key_block=_block(keys, shortest=64, longest=max(256, 2**17 // query_block), step=16),
    )


def pick(x: jax.Array, at: jax.Array) -> jax.Array:
    """`x[at]` for an index that is known to be inside."""
    return lax.dynamic_index_in_dim(x, at, keepdims=False)


def visible(row: QueryBlock, keys: KeyBlocks, at: jax.Array) -> jax.Array:
    """Which rows of one query block see which keys of key block `at`: bool [B, 1, R, C]."""
    causal_RC = pick(keys.index_MC, at)[None, :] <= row.index_R[:, None]
    same_BRC = pick(keys.segment_MBC, at)[:, None, :] == row.segment_BR[:, :, None]
    return (causal_RC[None] & same_BRC)[:, None]


def _seen(
    q_index_NT: jax.Array, k_index_MC: jax.Array, q_segment_BNT: jax.Array, k_segment_BMC: jax.Array
) -> jax.Array:
    """Pairs of blocks [N, M] of which some query may see some key; false means that none does."""
    q_low, q_high = _ranges(q_index_NT, q_segment_BNT, q_index_NT >= 0)
    k_low, k_high = _ranges(k_index_MC, k_segment_BMC, k_index_MC < PADDING)
    low_reaches_high = k_low[:, None, :] <= q_high[:, :, None]
    high_reaches_low = q_low[1:, :, None] <= k_high[1:, None, :]
    return low_reaches_high[0] & jnp.any(low_reaches_high[1:] & high_reaches_low, axis=0)


def _ranges(index: jax.Array, segment_B: jax.Array, real: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Lowest and highest index, then segment of each row, of each block [1 + B, blocks].

    Padding is left out; a block of padding alone has an empty range.
    """
    values = jnp.concatenate([index[None], segment_B])
    both = jnp.where(real[None, None], jnp.stack([values, ~values]), jnp.iinfo(jnp.int32).max)
    low, inverted_high = jnp.min(both, axis=-1)
    return low, ~inverted_high


def _block(length: int, *, shortest: int, longest: int, parts: int = 4, step: int) -> int:
    """Length of a block: about `parts` equal blocks within the bounds, a multiple of `step`."""
    count = max(-(-length // longest), min(parts, length // shortest), 1)
    size = -(-length // count)
    return -(-size // step) * step


def _pad(x: jax.Array, axis: int, extra: int, value: int) -> jax.Array:
    if extra == 0:
        return x
    widths = [(0, extra if a == axis else 0) for a in range(x.ndim)]
    return jnp.pad(x, widths, constant_values=value)
