"""A Llama-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU (Touvron et al., 2023).

The model knows no device and no padding: it is handed a layout that runs local work and reaches across devices.
Legend: B batch, T local tokens, S sequence, D model width, H heads, K key/value heads, E head width, F feature
width, V vocabulary, C tokens of a chunk.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from models import attention

Weights = dict[str, Any]
NORM_EPSILON = 1e-6
LOGITS_AT_ONCE = 2**24  # float32 logits held at a time; more tokens are worked on in chunks


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Sizes of the model.

    Args:
        vocab_size, layers, d_model, heads, kv_heads, d_ff: `heads` is a multiple of `kv_heads`, `d_model` of `heads`.
        tied: the output projection is the embedding.
        rope_theta: base of the rotary wavelengths (Su et al., 2021).
        remat: `none`, or `layer` to keep only each layer's input for the backward.
        unroll: layers that the compiler sees at once; more is faster to run and slower to compile.
    """

    vocab_size: int
    layers: int
    d_model: int
    heads: int
    kv_heads: int
    d_ff: int
    tied: bool = True
    rope_theta: float = 10_000.0
    remat: Literal["none", "layer"] = "none"
    unroll: int = 1

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")
        if self.d_model % self.heads or self.head_width % 2:
            raise ValueError(f"d_model {self.d_model} over heads {self.heads} must be a whole even number")

    @property
    def head_width(self) -> int:
        """Channels of one head."""
        return self.d_model // self.heads


class Batch(NamedTuple):
    """One microbatch: local tokens, and the segments of whole rows.

    Args:
        tokens_BT, targets_BT: int32 token ids and the ids that follow them.
        positions_BT: int32 position inside the document.
        weights_BT: float32 weight of each target in the loss.
        segments_BS: int32 document number of every token of the rows.
    """

    tokens_BT: jax.Array
    targets_BT: jax.Array
    positions_BT: jax.Array
    weights_BT: jax.Array
    segments_BS: jax.Array


class Layout(Protocol):
    """Where work runs; `sharding.layout.Layout` is one."""

    def local(self, fn: Callable[..., Any], signature: str) -> Callable[..., Any]:
        """`fn(weights, *arrays)` on exact local arrays."""

    def attend(self, kernel: Any, q: Any, k: Any, v: Any, segments: Any) -> Any:
        """Attention of local tokens over whole rows."""


class RMSNorm(nnx.Module):
    """Root-mean-square normalisation (Zhang & Sennrich, 2019), in float32 whatever the dtype of the input."""

    def __init__(self, width: int, *, rngs: nnx.Rngs) -> None:
        self.scale = nnx.Param(nnx.initializers.ones(rngs.params(), (width,), jnp.float32))

    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        """The input over its root mean square, times the scale [D]."""
        wide_BTD = x_BTD.astype(jnp.float32)
        rate_BT1 = jax.lax.rsqrt(jnp.mean(jnp.square(wide_BTD), axis=-1, keepdims=True) + NORM_EPSILON)
        scale_11D = self.scale[...].astype(jnp.float32)[None, None, :]
        return (wide_BTD * rate_BT1 * scale_11D).astype(x_BTD.dtype)


class Layer(nnx.Module):
    """One decoder layer, in two local pieces around attention."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        def linear(width: int, to: int, scale: float = 1.0) -> nnx.Linear:
            init = nnx.initializers.variance_scaling(scale, "fan_in", "normal")
            return nnx.Linear(width, to, use_bias=False, kernel_init=init, rngs=rngs)

        self.heads, self.kv_heads, self.width = config.heads, config.kv_heads, config.head_width
        self.theta = config.rope_theta
        width, residual = config.d_model, 0.5 / config.layers
        self.attention_norm = RMSNorm(width, rngs=rngs)
        self.query = linear(width, width)
        self.key = linear(width, config.kv_heads * config.head_width)
        self.value = linear(width, config.kv_heads * config.head_width)
        self.out = linear(width, width, residual)
        self.mlp_norm = RMSNorm(width, rngs=rngs)
        self.gate = linear(width, config.d_ff)
        self.up = linear(width, config.d_ff)
        self.down = linear(config.d_ff, width, residual)

    def project(self, x_BTD: jax.Array, positions_BT: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Queries [B, T, H, E], keys and values [B, T, K, E]."""
        batch, tokens, _ = x_BTD.shape
        h_BTD = self.attention_norm(x_BTD)
        q_BTHE = self.query(h_BTD).reshape(batch, tokens, self.heads, self.width)
        k_BTKE = self.key(h_BTD).reshape(batch, tokens, self.kv_heads, self.width)
        v_BTKE = self.value(h_BTD).reshape(k_BTKE.shape)
        return rotate(q_BTHE, positions_BT, self.theta), rotate(k_BTKE, positions_BT, self.theta), v_BTKE

    def finish(self, x_BTD: jax.Array, o_BTHE: jax.Array) -> jax.Array:
        """Residual stream after attention's output projection and the MLP [B, T, D]."""
        x_BTD = x_BTD + self.out(o_BTHE.reshape(x_BTD.shape))
        h_BTD = self.mlp_norm(x_BTD)
        return x_BTD + self.down(nnx.silu(self.gate(h_BTD)) * self.up(h_BTD))


class Transformer(nnx.Module):
    """Embedding, stacked layers, final norm, and an output projection unless it is tied to the embedding."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        @nnx.split_rngs(splits=config.layers)
        @nnx.vmap(in_axes=0, out_axes=0)
        def stack(rngs: nnx.Rngs) -> Layer:
            return Layer(config, rngs=rngs)

        init = nnx.initializers.normal(config.d_model**-0.5)
        self.embed = nnx.Embed(config.vocab_size, config.d_model, embedding_init=init, rngs=rngs)
        self.layers = stack(rngs)
        self.norm = RMSNorm(config.d_model, rngs=rngs)
        if not config.tied:
            self.head = nnx.Linear(config.d_model, config.vocab_size, use_bias=False, rngs=rngs)


def init(config: TransformerConfig, key: jax.Array) -> Weights:
    """Fresh float32 weights as a plain nested dict; layers are stacked on a leading axis.

    The draws depend on the key and the logical shapes alone, never on how arrays are sharded.
    """
    return nnx.to_pure_dict(nnx.state(Transformer(config, rngs=nnx.Rngs(key)), nnx.Param))


def loss_sum(config: TransformerConfig, weights: Weights, batch: Batch, layout: Layout) -> jax.Array:
    """Weighted sum of the next-token losses (nats) of this device's tokens, a float32 scalar."""
    x_BTD = hidden(config, weights, batch, layout)
    output = {"norm": weights["norm"], "output": weights["embed"] if config.tied else weights["head"]}

    def losses(output: Weights, *arrays: jax.Array) -> jax.Array:
        return _loss_sum(config, output, *arrays)

    return layout.local(losses, "B T D, B T, B T -> ")(output, x_BTD, batch.targets_BT, batch.weights_BT)


def logits(config: TransformerConfig, weights: Weights, batch: Batch, layout: Layout) -> jax.Array:
    """Logits of this device's tokens [B, T, V], float32."""
    x_BTD = hidden(config, weights, batch, layout)
    output = {"norm": weights["norm"], "output": weights["embed"] if config.tied else weights["head"]}

    def outputs(output: Weights, x_BTD: jax.Array) -> jax.Array:
        return _logits(config, output, x_BTD)

    return layout.local(outputs, "B T D -> B T V")(output, x_BTD)


def hidden(config: TransformerConfig, weights: Weights, batch: Batch, layout: Layout) -> jax.Array:
    """Residual stream of this device's tokens after the last layer [B, T, D]."""
    layer = _Stateless(lambda: Layer(config, rngs=nnx.Rngs(0)))
    project = layout.local(layer.method(Layer.project), "B T D, B T -> B T H E, B T K E, B T K E")
    finish = layout.local(layer.method(Layer.finish), "B T D, B T H E -> B T D")

    def body(x_BTD: jax.Array, layer_weights: Weights) -> tuple[jax.Array, None]:
        q, k, v = project({name: layer_weights[name] for name in _BEFORE}, x_BTD, batch.positions_BT)
        o_BTHE = layout.attend(attention, q, k, v, batch.segments_BS)
        after = {name: value for name, value in layer_weights.items() if name not in _BEFORE}
        return finish(after, x_BTD, o_BTHE), None

    x_BTD = layout.local(_embed, "B T -> B T D")(weights["embed"], batch.tokens_BT)
    step = jax.checkpoint(body) if config.remat == "layer" else body
    return jax.lax.scan(step, x_BTD, weights["layers"], unroll=config.unroll)[0]


_BEFORE = ("attention_norm", "query", "key", "value")


class _Stateless:
    """A module whose methods take their weights as a first argument, a plain dict with what they use."""

    def __init__(self, make: Callable[[], nnx.Module]) -> None:
        self.graph, state = nnx.split(nnx.eval_shape(make))
        self.shapes = nnx.to_pure_dict(state)

    def method(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """`method(module, *arrays)` as a function of weights and arrays."""
        return lambda weights, *arrays: method(nnx.merge(self.graph, {**self.shapes, **weights}), *arrays)


def rotate(x_BTHE: jax.Array, positions_BT: jax.Array, theta: float) -> jax.Array:
    """Rotary position embedding (Su et al., 2021), halves rotated against each other, angles in float32."""
    half = x_BTHE.shape[-1] // 2
    frequency = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle_BTE = positions_BT[..., None].astype(jnp.float32) * frequency[None, None, :]
    cos, sin = jnp.cos(angle_BTE)[:, :, None, :], jnp.sin(angle_BTE)[:, :, None, :]
    a, b = jnp.split(x_BTHE.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x_BTHE.dtype)


def _embed(weights: Weights, tokens_BT: jax.Array) -> jax.Array:
    return jnp.take(weights["embedding"], tokens_BT, axis=0)


def _logits(config: TransformerConfig, output: Weights, x_BTD: jax.Array) -> jax.Array:
    norm = _Stateless(lambda: RMSNorm(config.d_model, rngs=nnx.Rngs(0)))
    x_BTD = norm.method(RMSNorm.__call__)(output["norm"], x_BTD)
    name, spec = ("embedding", "btd,vd->btv") if config.tied else ("kernel", "btd,dv->btv")
    return jnp.einsum(spec, x_BTD, output["output"][name], preferred_element_type=jnp.float32)


def _loss_sum(
    config: TransformerConfig, output: Weights, x_BTD: jax.Array, targets_BT: jax.Array, weights_BT: jax.Array
) -> jax.Array:
    """Cross-entropy in chunks of tokens, so that the logits in memory stay bounded."""

    def chunk(x_BCD: jax.Array, targets_BC: jax.Array, weights_BC: jax.Array) -> jax.Array:
        logits_BCV = _logits(config, output, x_BCD)
        picked_BC = jnp.take_along_axis(logits_BCV, targets_BC[..., None], axis=-1)[..., 0]
        losses_BC = jax.nn.logsumexp(logits_BCV, axis=-1) - picked_BC
        # A target without weight counts as nothing, even if its loss is not finite.
        return jnp.sum(jnp.where(weights_BC > 0, losses_BC * weights_BC, 0.0))

    batch, tokens, _ = x_BTD.shape
    at_once = max(1, LOGITS_AT_ONCE // max(1, batch * config.vocab_size))
    if tokens <= at_once:
        return chunk(x_BTD, targets_BT, weights_BT)
    total, chunk = jnp.zeros((), jnp.float32), jax.checkpoint(chunk)
    whole = tokens // at_once * at_once

    def step(total: jax.Array, parts: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        return total + chunk(*parts), None

    parts = tuple(
        jnp.moveaxis(a[:, :whole].reshape(batch, -1, at_once, *a.shape[2:]), 1, 0)
        for a in (x_BTD, targets_BT, weights_BT)
    )
    total, _ = jax.lax.scan(step, total, parts)
    if whole < tokens:
        total = total + chunk(x_BTD[:, whole:], targets_BT[:, whole:], weights_BT[:, whole:])
    return total
