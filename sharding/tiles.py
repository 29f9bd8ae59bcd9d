"""Attention as tiles: each device works on a part of the rectangle (query tokens x heads) of its data group.

Full-width tiles are context parallelism, full-height tiles head parallelism, any other tiling a hybrid. Rows that
travel are (token, head) pairs, so one exchange serves every tiling. Legend: B batch, T own tokens, S sequence,
H heads, K key/value heads, E head width, R rows of a tile (queries x heads), W rows of its keys (S x its K/V heads).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sharding import exchange
from sharding.chain import follow
from sharding.exchange import Exchange
from sharding.placement import Placement
from sharding.ring import ring
from sharding.routes import fill
from sharding.shares import Shares

NOBODY = 2**30  # position of a padding key: later than every query


class Fact(NamedTuple):
    """What a device's tile is, statically."""

    queries: int
    heads: int
    kv_heads: int
    kv_of_head: tuple[int, ...]
    dense_causal: bool


@dataclass(frozen=True, eq=False)
class Tiling:
    """Who owns which tokens and who attends which tile.

    Args:
        tokens: tokens of a row owned by each device [data groups][devices].
        tiles: for each device (first head, last head + 1, query tokens); devices with the same heads form a band,
            whose queries sum to the sequence; the bands' heads partition all heads.
        heads, kv_heads: of the model; a query head h reads key/value head h * kv_heads // heads.
        ring: stream keys and values round the devices instead of gathering them; needs tiles of all heads whose
            queries are the owned tokens.
        ragged: whether the backend has a ragged all-to-all.
        direct: how blocks of equal size travel, see `sharding.collectives`.
        packed: whether rows may hold several documents; if not, a tile of all queries has the plain causal mask, which
            vendors' kernels know.
    """

    tokens: tuple[tuple[int, ...], ...]
    tiles: tuple[tuple[tuple[int, int, int], ...], ...]
    heads: int
    kv_heads: int
    ring: bool = False
    ragged: bool = False
    direct: bool = False
    packed: bool = True

    @property
    def seq_len(self) -> int:
        """Tokens of a row."""
        return sum(self.tokens[0])

    @cached_property
    def token_index(self) -> list[tuple[np.ndarray, ...]]:
        """Positions of the tokens that each device owns."""
        return [Shares(sizes).indices for sizes in self.tokens]

    @cached_property
    def query_index(self) -> list[list[np.ndarray]]:
        """Positions of the query tokens of each device's tile."""
        return [_band_queries(group) for group in self.tiles]

    @cached_property
    def facts(self) -> np.ndarray:
        """A `Fact` for every device, object array [data groups, devices]; an empty tile has a query of padding."""
        out = np.empty((len(self.tiles), len(self.tiles[0])), object)
        for at in np.ndindex(*out.shape):
            start, stop, queries = self.tiles[at[0]][at[1]]
            stop = max(stop, start + 1)
            kv = [h * self.kv_heads // self.heads for h in range(start, stop)]
            dense = not self.packed and queries == self.seq_len
            out[at] = Fact(max(1, queries), stop - start, len(set(kv)), tuple(h - kv[0] for h in kv), dense)
        return out

    @cached_property
    def sizes(self) -> dict[str, np.ndarray]:
        """Local lengths by axis name: T own tokens, Q queries, R query rows, W key rows.

        None is zero: a device without work computes a row of padding, because the compiler would drop the collectives
        of empty arrays, and the other devices would wait for it.
        """
        facts = self.facts
        each = np.vectorize
        return {
            "T": np.maximum(1, np.array(self.tokens)),
            "Q": each(lambda f: f.queries, otypes=[int])(facts),
            "R": each(lambda f: f.queries * f.heads, otypes=[int])(facts),
            "W": each(lambda f: self.seq_len * f.kv_heads, otypes=[int])(facts),
        }

    @cached_property
    def exchanges(self) -> dict[str, Exchange]:
        """`q` to the tiles, `kv` to the tiles, `o` back to the owners."""
        own_q = [[_rows(t, range(self.heads), self.heads) for t in group] for group in self.token_index]
        own_kv = [[_rows(t, range(self.kv_heads), self.kv_heads) for t in group] for group in self.token_index]
        tile_q, tile_kv = [], []
        for g, group in enumerate(self.tiles):
            tile_q.append([_rows(self.query_index[g][m], range(a, b), self.heads) for m, (a, b, _) in enumerate(group)])
            tile_kv.append([self._keys(a, b) for a, b, _ in group])
        if self.ring:
            if not all(
                np.array_equal(a, b) for x, y in zip(own_q, tile_q, strict=True) for a, b in zip(x, y, strict=True)
            ):
                raise ValueError("a ring needs tiles of all heads over the owned tokens: use gathered keys")
            return {}
        ragged_kv = self.ragged and not _everybody(tile_kv)
        return {
            "q": exchange.build(own_q, tile_q, ragged=self.ragged, direct=self.direct),
            "kv": exchange.build(own_kv, tile_kv, ragged=ragged_kv, direct=self.direct),
            "o": exchange.build(tile_q, own_q, ragged=self.ragged, direct=self.direct),
        }

    def _keys(self, start: int, stop: int) -> np.ndarray:
        """Key rows of a tile: every token, the K/V heads that its heads read."""
        kv = sorted({h * self.kv_heads // self.heads for h in range(start, stop)})
        return _rows(np.arange(self.seq_len), kv, self.kv_heads)

    @cached_property
    def tables(self) -> dict[str, Any]:
        """Index tables [data groups, devices, ...] int32, to be sharded over both mesh axes."""
        tables = {"token_index": fill(self.token_index, NOBODY), "query_index": fill(self.query_index, 0)}
        if self.ring:
            tables["block_index"] = _blocks(tables["token_index"])
        return tables | {name: moved.tables for name, moved in self.exchanges.items()}


def attend(
    tiling: Tiling,
    placement: Placement,
    tables: dict[str, Any],
    kernel: Any,
    q_BTHE: jax.Array,
    k_BTKE: jax.Array,
    v_BTKE: jax.Array,
    segment_BS: jax.Array,
) -> jax.Array:
    """Attention of own queries over the whole sequence, each device computing its tile.

    Args:
        tiling, placement: of the plan.
        tables: this device's slice of `tiling.tables`.
        kernel: `forward`, `backward` and `Mask` of attention on exact local arrays, see `models.attention`.
        q_BTHE, k_BTKE, v_BTKE: local projections of own tokens.
        segment_BS: document number of every token of the rows.

    Returns:
        Outputs of own tokens [B, T, H, E].
    """
    kv_BTKF = jnp.concatenate([k_BTKE, v_BTKE], axis=-1)
    if tiling.ring:
        kv_of_head = tuple(h * tiling.kv_heads // tiling.heads for h in range(tiling.heads))
        return ring(placement, tables["block_index"], kernel, kv_of_head, q_BTHE, kv_BTKF, segment_BS)
    batch, tokens, heads, width = q_BTHE.shape
    q_BRE = q_BTHE.reshape(batch, tokens * heads, width)
    kv_BRE = kv_BTKF.reshape(batch, tokens * k_BTKE.shape[2], 2 * width)
    moves = tiling.exchanges
    q_BRE = moves["q"](q_BRE, tables["q"], placement.extent("R"))
    if placement.chained:
        kv_BRE = follow(kv_BRE, q_BRE)
    kv_BWE = moves["kv"](kv_BRE, tables["kv"], placement.extent("W"))
    q_index_Q = placement.trim(tables["query_index"], 0, "Q")
    o_BRE = _tile(placement, kernel, tiling.facts, q_BRE, kv_BWE, q_index_Q, segment_BS)
    return moves["o"](o_BRE, tables["o"], tokens * heads).reshape(q_BTHE.shape)


def _tile(
    placement: Placement,
    kernel: Any,
    facts: np.ndarray,
    q_BRE: jax.Array,
    kv_BWE: jax.Array,
    q_index_Q: jax.Array,
    segment_BS: jax.Array,
) -> jax.Array:
    """One device's tile, differentiated inside its branch."""

    def unpack(fact: Fact, q: jax.Array, kv: jax.Array, index: jax.Array, segment: jax.Array) -> tuple[Any, ...]:
        q = q.reshape(q.shape[0], fact.queries, fact.heads, q.shape[-1])
        kv = kv.reshape(kv.shape[0], segment.shape[1], fact.kv_heads, kv.shape[-1])
        k, v = jnp.split(kv, 2, axis=-1)
        keys = jnp.arange(segment.shape[1], dtype=jnp.int32)
        return q, k, v, kernel.Mask(index, keys, jnp.take(segment, index, axis=1), segment)

    def forward(fact: Fact, _: Any, *arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
        o, lse = kernel.forward(*unpack(fact, *arrays), kv_of_head=fact.kv_of_head, dense_causal=fact.dense_causal)
        return o.reshape(arrays[0].shape), lse.reshape(arrays[0].shape[:2])

    def backward(fact: Fact, _: Any, o: jax.Array, lse: jax.Array, do: jax.Array, *arrays: jax.Array) -> Any:
        q, k, v, mask = unpack(fact, *arrays)
        o, do, lse = o.reshape(q.shape), do.reshape(q.shape), lse.reshape(q.shape[:3])
        options = {"kv_of_head": fact.kv_of_head, "dense_causal": fact.dense_causal}
        dq, dk, dv = kernel.backward(q, k, v, mask, o, lse, do, **options)
        return dq.reshape(arrays[0].shape), jnp.concatenate([dk, dv], axis=-1).reshape(arrays[1].shape)

    def run(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        signature = "B R E, B W F, Q, B S -> B R E, B R"
        return placement.run(forward, signature, *arrays, facts=facts)

    def vjp(residual: tuple[jax.Array, ...], do: jax.Array) -> tuple[Any, ...]:
        signature = "B R E, B R, B R E, B R E, B W F, Q, B S -> B R E, B W F"
        (*arrays, o, lse) = residual
        return (*placement.run(backward, signature, o, lse, do, *arrays, facts=facts), None, None)

    tile = jax.custom_vjp(lambda *arrays: run(*arrays)[0])
    tile.defvjp(lambda *arrays: (lambda out: (out[0], (*arrays, *out)))(run(*arrays)), vjp)
    return tile(q_BRE, kv_BWE, q_index_Q, segment_BS)


def _band_queries(tiles: Sequence[tuple[int, int, int]]) -> list[np.ndarray]:
    """Query positions of each tile: a band's sequence is striped over its devices."""
    out = [np.zeros(0, np.int32) for _ in tiles]
    for band in dict.fromkeys((a, b) for a, b, _ in tiles if b > a):
        members = [m for m, (a, b, _) in enumerate(tiles) if (a, b) == band]
        indices = Shares(tuple(tiles[m][2] for m in members)).indices
        for m, index in zip(members, indices, strict=True):
            out[m] = index
    return out


def _blocks(token_index: np.ndarray) -> np.ndarray:
    """Positions of a ring's blocks in the order of their coming to each device [groups, devices, devices, tokens]."""
    devices = token_index.shape[1]
    here, turn = np.ogrid[:devices, :devices]
    return token_index[:, (here - turn) % devices]


def _rows(tokens: np.ndarray, heads: Sequence[int], all_heads: int) -> np.ndarray:
    """Ids of (token, head) rows, token by token."""
    return (np.asarray(tokens, np.int64)[:, None] * all_heads + np.asarray(heads, np.int64)[None, :]).reshape(-1)


def _everybody(rows: Sequence[Sequence[np.ndarray]]) -> bool:
    """Whether all devices of every group want the same rows: an all-gather then moves nothing needless."""
    return all(np.array_equal(group[0], wanted) for group in rows for wanted in group)
