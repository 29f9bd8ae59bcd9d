"""Text to token ids and back: the 256 bytes, and a separator that begins every document."""

import numpy as np
from numpy.typing import ArrayLike

SEPARATOR = 256


class ByteTokenizer:
    """UTF-8 bytes as ids 0 to 255; id 256 begins a document."""

    vocab_size = SEPARATOR + 1
    separator = SEPARATOR

    def encode(self, text: str) -> np.ndarray:
        """Ids of a text, uint16 [length in bytes], without the separator."""
        return self.encode_bytes(text.encode("utf-8", errors="surrogateescape"))

    def encode_bytes(self, data: bytes) -> np.ndarray:
        """Ids of raw bytes, uint16; any bytes will do."""
        return np.frombuffer(data, np.uint8).astype(np.uint16)

    def decode(self, ids: ArrayLike) -> str:
        """Text of ids; separators are dropped, bytes that are no UTF-8 become the replacement character."""
        array = np.asarray(ids, np.int64).reshape(-1)
        return array[array < SEPARATOR].astype(np.uint8).tobytes().decode("utf-8", errors="replace")
