"""What the system costs on one device: its step against the same model written plainly with flax, optax and jit.

Both sides have the same sizes, batch, optimizer and attention kernel, and start from the same parameters.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from report import Report, compare, flags
from rows import random_rows

from meshes.cluster import Cluster
from models import attention
from models.attention import Mask
from models.transformer import Transformer
from training import optimizer, program, setup
from training.batches import Dealer
from training.config import TrainConfig
from training.data import Rows

SIZES: dict[str, Any] = {"layers": 4, "d_model": 256, "heads": 8, "kv_heads": 4, "d_ff": 768, "seq_len": 512}
VOCAB, ROWS = 512, 4


def block(layer: Any, x: jax.Array, rows: Any) -> jax.Array:
    """One layer, on whole rows."""
    q, k, v = layer.project(x, rows.positions_BS)
    index = jnp.arange(x.shape[1], dtype=jnp.int32)
    mask = Mask(index, index, rows.segments_BS, rows.segments_BS)
    heads = tuple(h * layer.kv_heads // layer.heads for h in range(layer.heads))
    return layer.finish(x, attention.attend(q, k, v, mask, kv_of_head=heads))


class Scanned(nnx.Module):
    """The model written plainly: stacked layers that are scanned, no layout."""

    def __init__(self, whole: Transformer) -> None:
        self.embed, self.norm, self.layers = whole.embed, whole.norm, whole.layers

    def __call__(self, rows: Any) -> jax.Array:
        @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
        def through(layer: Any, x: jax.Array) -> jax.Array:
            return block(layer, x, rows)

        return self.embed.attend(self.norm(through(self.layers, self.embed(rows.inputs_BS))))


class Listed(nnx.Module):
    """The same with a list of layers, which the compiler sees one by one."""

    def __init__(self, whole: Transformer, layers: int) -> None:
        graph, state = nnx.split(whole.layers)
        self.embed, self.norm = whole.embed, whole.norm
        self.layers = nnx.List([nnx.merge(graph, jax.tree.map(lambda a, n=n: a[n], state)) for n in range(layers)])

    def __call__(self, rows: Any) -> jax.Array:
        x = self.embed(rows.inputs_BS)
        for layer in self.layers:
            x = block(layer, x, rows)
        return self.embed.attend(self.norm(x))


def plain_step(module: nnx.Module, tx: optax.GradientTransformation) -> tuple[Any, Any]:
    """The jitted step on split state, the state donated, and its first state."""
    graph, params = nnx.split(module)

    def loss(params: Any, rows: Any) -> jax.Array:
        logits = nnx.merge(graph, params)(rows)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, rows.targets_BS)
        return jnp.sum(losses * rows.weights_BS) / jnp.sum(rows.weights_BS)

    def step(state: Any, rows: Any) -> Any:
        params, opt_state = state
        value, grads = jax.value_and_grad(loss)(params, rows)
        updates, opt_state = tx.update(grads, opt_state, params)
        metrics = {"loss": value, "grad_norm": optax.tree.norm(grads)}
        return (optax.apply_updates(params, updates), opt_state), metrics

    return jax.jit(step, donate_argnums=0), (params, tx.init(params))


class Side:
    """One side of the comparison: keeps its own state from step to step."""

    def __init__(self, step: Any, state: Any) -> None:
        self.step, self.state, self.loss = step, state, jnp.zeros(())

    def __call__(self) -> Any:
        """One training step, its metrics fetched."""
        self.state, metrics = self.step(self.state)
        self.loss = metrics["loss"]
        return self.state, metrics


def ours(config: TrainConfig, rows: Rows) -> Side:
    """The step of this project, on one device."""
    plan = setup.make_plan(config, Cluster.from_flags(devices=1), VOCAB)
    built = program.build(config, plan, jax.devices()[:1], VOCAB)
    dealer = Dealer(built.mesh, built.tiling, ROWS, plan.microbatches)
    dealt, step, tables = dealer(rows), built.train_step(), built.tables
    return Side(lambda s: step(s, dealt, dealer.device_counts, tables), built.init(jax.random.key(0)))


def plain(config: TrainConfig, rows: Rows, listed: bool) -> Side:
    """The plain step from the same parameters."""
    whole = Transformer(program.model(config, VOCAB), rngs=nnx.Rngs(jax.random.key(0)))
    rate = optimizer.schedule(config.schedule, config.lr, config.warmup, config.steps)
    tx = optax.adamw(rate, b1=0.9, b2=0.95, weight_decay=config.weight_decay, mask=_no_scales)
    step, state = plain_step(Listed(whole, config.layers) if listed else Scanned(whole), tx)
    given = jax.tree.map(jnp.asarray, rows)
    return Side(lambda s: step(s, given), state)


def _no_scales(params: Any) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, _: "scale" not in jax.tree_util.keystr(path), params)


def main() -> None:
    """Run the comparisons and print them."""
    given = flags(__doc__)
    sizes = SIZES | ({"layers": 2, "seq_len": 256} if given.quick else {})
    config = TrainConfig(**sizes, batch_size=ROWS, microbatch=ROWS, steps=1000, clip_norm=0.0)
    rows, report, rounds = (
        random_rows(ROWS, config.seq_len, VOCAB),
        Report("overhead"),
        15 if given.quick else 21,
    )
    mine, other = ours(config, rows), plain(config, rows, listed=False)
    found = compare(mine, other, rounds)
    report.add("step, ours", found.a_seconds, "s")
    report.add("step, plain flax + optax + jit, scanned layers", found.b_seconds, "s")
    report.add("plain over ours, median of ratios", found.ratio, "x", at_least=0.98)
    drift = abs(float(mine.loss) / float(other.loss) - 1)
    report.add("relative difference of the last losses", drift, "", at_most=1e-3)
    listed = compare(ours(config, rows), plain(config, rows, listed=True), rounds)
    report.add("plain with a list of layers over ours", listed.ratio, "x")
    report.show(as_json=given.json)


if __name__ == "__main__":
    main()
