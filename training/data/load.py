"""From what `--data` names to a corpus."""

import dataclasses
from pathlib import Path

from meshes.errors import UsageError
from training.data import text, token_file
from training.data.corpus import Corpus


def load(data: Path | None = None, *, token_dtype: str | None = None, vocab_size: int | None = None) -> Corpus:
    """Read a data set.

    Args:
        data: a text file, a directory of text files, or a .npy or .bin file of token ids; None: Python's own
            standard library sources.
        token_dtype: how a .bin file stores ids.
        vocab_size: number of token ids; for text at least the 257 of bytes and separator.

    Errors:
        UsageError: missing, empty, wrongly typed or wrongly described data, an id outside the vocabulary.
    """
    if data is not None and not data.exists():
        raise UsageError(f"--data {data}: no such file or directory")
    if data is not None and data.suffix in token_file.SUFFIXES and not data.is_dir():
        return token_file.token_corpus(data, token_dtype, vocab_size)
    if token_dtype is not None:
        raise UsageError(f"--token-dtype {token_dtype} is for .npy and .bin files; {_name(data)} is text: leave it out")
    corpus = _text(data)
    if vocab_size is None:
        return corpus
    if vocab_size < corpus.vocab_size:
        raise UsageError(
            f"--vocab-size {vocab_size} is too small for text, which has {corpus.vocab_size} ids (256 bytes and a"
            " separator): leave it out"
        )
    return dataclasses.replace(corpus, vocab_size=vocab_size)


def _text(data: Path | None) -> Corpus:
    if data is None:
        return text.stdlib_corpus()
    if data.is_dir():
        return text.directory_corpus(data)
    if not data.is_file():
        raise UsageError(f"--data {data} is neither a file nor a directory")
    return text.file_corpus(data)


def _name(data: Path | None) -> str:
    return "the standard library" if data is None else f"--data {data}"
