"""Nothing leaks, bit for bit: later tokens and other documents change neither losses nor gradients."""

from typing import Any

import jax
import numpy as np
import pytest
from test_step import Case, context, crop

from models.transformer import TransformerConfig
from training.data import Rows

S, VOCAB = 16, 40
CONFIG = TransformerConfig(vocab_size=VOCAB, layers=2, d_model=16, heads=4, kv_heads=2, d_ff=24, tied=False)
CASES = {
    "context": Case(((9, 4, 3),), (context(9, 4, 3, heads=4),), (1,), config=CONFIG),
    "ring": Case(((9, 4, 3),), (context(9, 4, 3, heads=4),), (1,), ring=True, config=CONFIG),
    "head": Case(((9, 4, 3),), (((0, 2, S), (2, 3, S), (3, 4, S)),), (1,), config=CONFIG),
    "hybrid": Case(((9, 4, 3),), (((0, 3, 11), (0, 3, 5), (3, 4, S)),), (1,), config=CONFIG),
}


def rows(boundary: int) -> Rows:
    """Two rows of two documents; ids below 20 only in the first documents, the others only in the second."""
    rng = np.random.default_rng(0)
    order = np.broadcast_to(np.arange(S, dtype=np.int32), (2, S))
    second = order >= boundary
    inputs = np.where(second, rng.integers(20, 40, (2, S)), rng.integers(0, 20, (2, S))).astype(np.int32)
    targets = rng.integers(0, VOCAB, (2, S)).astype(np.int32)
    positions = np.where(second, order - boundary, order).astype(np.int32)
    return Rows(inputs, targets, second.astype(np.int32) + 1, positions, np.ones((2, S), np.float32))


def weighted(rows: Rows, picked: np.ndarray) -> Rows:
    return rows._replace(weights_BS=np.broadcast_to(picked, (2, S)).astype(np.float32))


@pytest.mark.parametrize("name", CASES)
def test_nothing_leaks(name: str) -> None:
    program, dealer = CASES[name].build()
    params, step = program.init(jax.random.key(1))["params"], program.gradient_step()

    def run(rows: Rows) -> tuple[float, Any]:
        total, _, grads = step(params, dealer(rows), dealer.device_counts, program.tables)
        return float(total), crop(program, grads)

    order = np.arange(S)
    for boundary in (1, 6, 9):
        second = weighted(rows(boundary), order >= boundary)
        loss, grads = run(second)
        inputs = second.inputs_BS.copy()
        inputs[:, boundary - 1] = (inputs[:, boundary - 1] + 7) % 20
        assert run(second._replace(inputs_BS=inputs))[0] == loss
        assert not np.any(grads["embed"]["embedding"][:20]) and np.any(grads["embed"]["embedding"][20:])
    whole = rows(S)
    early = weighted(whole, order < 10)
    loss, _ = run(early)
    inputs = early.inputs_BS.copy()
    inputs[:, 10:] = 39
    assert run(early._replace(inputs_BS=inputs))[0] == loss
    # The twin: the token just before does matter, and so does the other document once it is the same one.
    inputs = early.inputs_BS.copy()
    inputs[:, 9] = (inputs[:, 9] + 1) % 20
    assert run(early._replace(inputs_BS=inputs))[0] != loss
    joined = weighted(rows(6)._replace(segments_BS=np.ones((2, S), np.int32)), order >= 6)
    assert np.any(run(joined)[1]["embed"]["embedding"][:20])


def test_garbage_in_unused_rows_has_no_effect() -> None:
    """Token arrays are padded to the largest share; what the padding holds changes neither losses nor gradients."""
    program, dealer = CASES["context"].build()
    params, step = program.init(jax.random.key(1))["params"], program.gradient_step()
    batch = dealer(rows(6))

    def spoil(array: jax.Array, value: float) -> jax.Array:
        out = np.array(array)
        for m, size in enumerate(program.tiling.tokens[0]):
            out[:, :, m, :, size:] = value
        return jax.device_put(out.astype(array.dtype), array.sharding)

    plain = step(params, batch, dealer.device_counts, program.tables)
    spoilt = batch._replace(
        tokens_BT=spoil(batch.tokens_BT, 39),
        targets_BT=spoil(batch.targets_BT, 3),
        positions_BT=spoil(batch.positions_BT, 9),
    )
    found = step(params, spoilt, dealer.device_counts, program.tables)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(found), strict=True):
        assert np.array_equal(np.asarray(a), np.asarray(b))
