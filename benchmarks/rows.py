"""Rows of random tokens, for benchmarks."""

import numpy as np

from training.data import Rows


def random_rows(count: int, seq_len: int, vocab_size: int, seed: int = 0) -> Rows:
    """So many rows of one document each."""
    shape = (count, seq_len)
    tokens = np.random.default_rng(seed).integers(0, vocab_size, (count, seq_len + 1)).astype(np.int32)
    positions = np.broadcast_to(np.arange(seq_len, dtype=np.int32), shape)
    return Rows(tokens[:, :-1], tokens[:, 1:], np.ones(shape, np.int32), positions, np.ones(shape, np.float32))
