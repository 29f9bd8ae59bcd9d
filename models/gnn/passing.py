"""The form of a layer whose messages have no parameters: send, exchange, receive.

Shapes: U source rows, V target rows, R relations, D width, L lanes, X, Y, Z channels of a lane.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from models.gnn.config import GnnConfig
from models.gnn.dense import activate
from models.gnn.layout import Hop, Layout, Messages, Rows, Weights

__all__ = ["Passing", "update"]


@dataclass(frozen=True, kw_only=True)
class Passing:
    """One kind of layer. All but `messages` are local work on whole weights.

    Args:
        init: `(config, key)` -> weights of one layer: "send" for `send` and `ask` if they have any, "receive".
        send: `(config, weights, h_UD, rows)` -> what source rows send, [U, L, X], from normalised rows.
        ask: `(config, weights, h_VD, rows)` -> what target rows compare messages with, [V, L, Y]; None for nothing.
        messages: `(config) -> (view, x_ULX, y_VLY)` -> what arrives, [V, L, Z]: no parameters, lanes alike and apart.
        receive: `(config, weights, own_VLX, out_VLZ, rows)` -> the update of target rows, [V, D], from what
            they sent themselves and what arrived.
    """

    init: Callable[[GnnConfig, jax.Array], Weights]
    send: Callable[[GnnConfig, Weights, jax.Array, Rows], jax.Array]
    messages: Callable[[GnnConfig], Messages]
    receive: Callable[[GnnConfig, Weights, jax.Array, jax.Array, Rows], jax.Array]
    ask: Callable[[GnnConfig, Weights, jax.Array, Rows], jax.Array] | None = None


def update(config: GnnConfig, kind: Passing, weights: Weights, x_UD: jax.Array, hop: Hop, layout: Layout) -> jax.Array:
    """What one layer adds to its target rows, [V, D]."""
    u, v, ask = hop.source_axis, hop.target_axis, kind.ask
    before, sources = {name: weights[name] for name in ("norm", "send") if name in weights}, (x_UD, *hop.source)

    def send(weights: Weights, x_UD: jax.Array, *rows: jax.Array) -> jax.Array:
        return kind.send(config, weights.get("send", {}), activate(weights["norm"], x_UD), Rows(*rows))

    def send_and_ask(weights: Weights, *arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
        x_VD, *rows = arrays[len(sources) :]
        assert ask is not None
        y_VLY = ask(config, weights["send"], activate(weights["norm"], x_VD), Rows(*rows))
        return send(weights, *arrays[: len(sources)]), y_VLY

    def receive(weights: Weights, own_VLX: jax.Array, out_VLZ: jax.Array, *rows: jax.Array) -> jax.Array:
        return kind.receive(config, weights, own_VLX, out_VLZ, Rows(*rows))

    y_VLY: Any = None
    if ask is None:
        x_ULX = layout.local(send, f"{_rows(u)} -> {u} L X")(before, *sources)
    else:
        targets = (hop.keep(x_UD), *hop.target)
        signature = f"{_rows(u)}, {_rows(v)} -> {u} L X, {v} L Y"
        x_ULX, y_VLY = layout.local(send_and_ask, signature)(before, *sources, *targets)
    out_VLZ = hop.messages(kind.messages(config), x_ULX, y_VLY)
    signature = f"{v} L X, {v} L Z, {v} R, {v}, {v} -> {v} D"
    return layout.local(receive, signature)(weights["receive"], hop.keep(x_ULX), out_VLZ, *hop.target)


def _rows(axis: str) -> str:
    return f"{axis} D, {axis} R, {axis}, {axis}"
