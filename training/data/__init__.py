"""Text and token ids to rows of a batch: read, split, packed, shuffled by seed and step alone."""

from training.data.corpus import Corpus
from training.data.load import load
from training.data.packing import PackedRows, Rows
from training.data.split import split
from training.data.stream import EvalBatches, TrainStream, check_state, resume
from training.data.token_file import save_tokens
from training.data.tokenizer import ByteTokenizer

__all__ = [
    "ByteTokenizer",
    "Corpus",
    "EvalBatches",
    "PackedRows",
    "Rows",
    "TrainStream",
    "check_state",
    "load",
    "resume",
    "save_tokens",
    "split",
]
