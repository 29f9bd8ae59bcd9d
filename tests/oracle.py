"""Plain single-device references, written apart from the code they judge: no sharding, no blocks, full score matrix.

Legend: B rows, S tokens, D width, H heads, K key/value heads, E head width, V vocabulary.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from training.data import Rows


def attention(q_BSHE: jax.Array, k_BSKE: jax.Array, v_BSKE: jax.Array, segments_BS: jax.Array) -> jax.Array:
    """Causal grouped-query attention inside segments, in float32."""
    group = q_BSHE.shape[2] // k_BSKE.shape[2]
    k_BSHE, v_BSHE = jnp.repeat(k_BSKE, group, axis=2), jnp.repeat(v_BSKE, group, axis=2)
    scores = jnp.einsum("bqhe,bkhe->bhqk", q_BSHE, k_BSHE) / math.sqrt(q_BSHE.shape[-1])
    order = jnp.arange(q_BSHE.shape[1])
    seen = (order[None, :, None] >= order[None, None, :]) & (segments_BS[:, :, None] == segments_BS[:, None, :])
    scores = jnp.where(seen[:, None], scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhe->bqhe", jax.nn.softmax(scores, axis=-1), v_BSHE)


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Root-mean-square normalisation over the last axis."""
    mean = jnp.mean(x * x, axis=-1, keepdims=True)
    return x / jnp.sqrt(mean + 1e-6) * jnp.broadcast_to(scale, x.shape)


def rotate(x_BSHE: jax.Array, positions_BS: jax.Array, theta: float = 10_000.0) -> jax.Array:
    """Rotary embedding by complex multiplication of the two halves."""
    half = x_BSHE.shape[-1] // 2
    frequency = jnp.asarray([theta ** (-i / half) for i in range(half)], jnp.float32)
    angle = jnp.einsum("bs,e->bse", positions_BS.astype(jnp.float32), frequency)[:, :, None, :]
    turned = jax.lax.complex(x_BSHE[..., :half], x_BSHE[..., half:]) * jax.lax.complex(jnp.cos(angle), jnp.sin(angle))
    return jnp.concatenate([turned.real, turned.imag], axis=-1)


def logits(config: Any, params: Any, rows: Rows) -> jax.Array:
    """Logits [B, S, V] of whole rows."""
    x = jnp.take(params["embed"]["embedding"], rows.inputs_BS, axis=0)
    batch, seq, width = x.shape
    for n in range(config.layers):
        p = jax.tree.map(lambda leaf, n=n: leaf[n], params["layers"])
        h = rms_norm(x, p["attention_norm"]["scale"])
        q = (h @ p["query"]["kernel"]).reshape(batch, seq, config.heads, -1)
        k = (h @ p["key"]["kernel"]).reshape(batch, seq, config.kv_heads, -1)
        v = (h @ p["value"]["kernel"]).reshape(batch, seq, config.kv_heads, -1)
        q, k = rotate(q, rows.positions_BS), rotate(k, rows.positions_BS)
        x = x + attention(q, k, v, rows.segments_BS).reshape(batch, seq, width) @ p["out"]["kernel"]
        h = rms_norm(x, p["mlp_norm"]["scale"])
        x = x + (jax.nn.silu(h @ p["gate"]["kernel"]) * (h @ p["up"]["kernel"])) @ p["down"]["kernel"]
    x = rms_norm(x, params["norm"]["scale"])
    return x @ (params["embed"]["embedding"].T if config.tied else params["head"]["kernel"])


def loss(config: Any, params: Any, rows: Rows) -> jax.Array:
    """Mean loss over the weight of all targets."""
    log_p = jax.nn.log_softmax(logits(config, params, rows), axis=-1)
    picked = jnp.take_along_axis(log_p, rows.targets_BS[..., None], axis=-1)[..., 0]
    return -jnp.sum(picked * rows.weights_BS) / jnp.sum(rows.weights_BS)


def random_rows(rng: np.random.Generator, batch: int, seq_len: int, vocab: int, documents: int = 3) -> Rows:
    """Rows of random tokens in packed random documents, some targets without weight."""
    inputs = rng.integers(0, vocab, (batch, seq_len)).astype(np.int32)
    targets = rng.integers(0, vocab, (batch, seq_len)).astype(np.int32)
    segments = np.zeros((batch, seq_len), np.int32)
    positions = np.zeros((batch, seq_len), np.int32)
    for b in range(batch):
        starts = np.concatenate([[0], np.sort(rng.integers(0, seq_len, documents - 1))])
        segments[b] = np.searchsorted(starts, np.arange(seq_len), side="right")
        positions[b] = np.arange(seq_len) - np.maximum.accumulate(
            np.where(np.isin(np.arange(seq_len), starts), np.arange(seq_len), 0)
        )
    weights = (rng.random((batch, seq_len)) < 0.8).astype(np.float32)
    weights[0, 0] = 1.0
    return Rows(inputs, targets, segments, positions, weights)
