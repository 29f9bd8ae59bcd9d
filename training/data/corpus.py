"""All tokens of a data set as one stream of documents."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from training.data.tokenizer import ByteTokenizer

CHUNK = 1 << 22  # tokens that are looked at together


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """A data set.

    Args:
        name: what it was read from, for messages.
        tokens: the stream, unsigned or non-negative ids [N]; may be mapped from a file.
        starts: where documents begin in the stream, int64 ascending, the first one 0.
        vocab_size: ids are below it.
        tokenizer: reads and writes its text; None where the data are ids.
        notes: one line for whatever was left out, to be printed.
    """

    name: str
    tokens: np.ndarray
    starts: np.ndarray
    vocab_size: int
    tokenizer: ByteTokenizer | None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    def fingerprint(self) -> str:
        """A hash of the tokens and of where documents begin, whatever they were read from."""
        digest = hashlib.blake2b(digest_size=12)
        for _, chunk in chunks(self.tokens):
            digest.update(chunk.astype("<u4").tobytes())
        digest.update(self.starts.astype("<i8").tobytes())
        return digest.hexdigest()


def chunks(tokens: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Position and tokens of successive parts of a stream, small enough to hold in memory."""
    for at in range(0, len(tokens), CHUNK):
        yield at, np.ascontiguousarray(tokens[at : at + CHUNK])
