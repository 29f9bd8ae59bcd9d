"""Documents packed into rows without loss. Legend: B rows, S tokens of a row.

Row i holds tokens i*S to i*S + S of the stream as inputs, and their successors as targets. Every token of the stream
but the first is a target exactly once.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

PADDING = -1  # a row number: a row without tokens, all of weight 0


class Rows(NamedTuple):
    """Rows of a batch.

    Args:
        inputs_BS: token ids, int32.
        targets_BS: the next token of each, int32; the first token of the next document where a document ends.
        segments_BS: the number of the document in its row, from 1, int32; 0 for padding.
        positions_BS: the number of the token in its document's part of the row, from 0, int32.
        weights_BS: 1 for a target, 0 for padding, float32.
    """

    inputs_BS: NDArray[np.int32]
    targets_BS: NDArray[np.int32]
    segments_BS: NDArray[np.int32]
    positions_BS: NDArray[np.int32]
    weights_BS: NDArray[np.float32]


class PackedRows:
    """Rows of a stream of documents, made when asked for.

    Args:
        name: what the stream was read from, for messages.
        tokens: the stream [N], at least two tokens.
        starts: where documents begin, int64 ascending, the first one 0.
        seq_len: tokens in a row.
        fingerprint: of the data, to tell a resumed run that it has changed.
    """

    def __init__(self, *, name: str, tokens: np.ndarray, starts: np.ndarray, seq_len: int, fingerprint: str) -> None:
        if len(tokens) < 2 or len(starts) == 0 or starts[0] != 0:
            raise ValueError(f"{name}: {len(tokens)} tokens and document starts {starts[:1]}: need two tokens and a 0")
        self.name = name
        self.tokens = tokens
        self.starts = starts
        self.seq_len = seq_len
        self.fingerprint = fingerprint

    def __len__(self) -> int:
        return -(-self.targets // self.seq_len)

    @property
    def targets(self) -> int:
        """Number of targets in all rows together."""
        return len(self.tokens) - 1

    def take(self, numbers: Sequence[int] | np.ndarray) -> Rows:
        """The rows of these numbers, in this order; `PADDING` asks for a row without tokens."""
        rows = np.asarray(numbers, np.int64)
        if rows.size and not (rows.min() >= PADDING and rows.max() < len(self)):
            raise IndexError(f"{self.name} has rows 0 to {len(self) - 1}, asked for {rows.min()} to {rows.max()}")
        at_BS = rows[:, None] * self.seq_len + np.arange(self.seq_len)
        real_BS = (at_BS < self.targets) & (rows >= 0)[:, None]
        at_BS = np.where(real_BS, at_BS, 0)
        document_BS = np.searchsorted(self.starts, at_BS, side="right") - 1
        begin_BS = np.maximum(self.starts[document_BS], at_BS[:, :1])

        def int32(array: np.ndarray) -> NDArray[np.int32]:
            return np.where(real_BS, array, 0).astype(np.int32)

        return Rows(
            inputs_BS=int32(self.tokens[at_BS]),
            targets_BS=int32(self.tokens[at_BS + 1]),
            segments_BS=int32(document_BS - document_BS[:, :1] + 1),
            positions_BS=int32(at_BS - begin_BS),
            weights_BS=real_BS.astype(np.float32),
        )
