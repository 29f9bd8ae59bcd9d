"""Files of token ids: .npy, and .bin described by flags or by a JSON file beside it.

The JSON file of NAME.bin is NAME.json, an object with `dtype`, `vocab_size` and, where one id begins or ends every
document, `separator`.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from meshes.errors import UsageError
from training.data.corpus import Corpus, chunks

DTYPES = ("uint8", "uint16", "uint32", "int32", "int64")
SUFFIXES = (".npy", ".bin")
TokenDtype = Literal["uint8", "uint16", "uint32", "int32", "int64"]


@dataclass(frozen=True, kw_only=True)
class Description:
    """What is known of a file of ids; None where nobody said."""

    dtype: str | None = None
    vocab_size: int | None = None
    separator: int | None = None


def token_corpus(path: Path, token_dtype: str | None, vocab_size: int | None) -> Corpus:
    """A file of token ids, mapped into memory and checked.

    Args:
        path: .npy or .bin.
        token_dtype: how a .bin file stores ids; must agree with what the file itself says.
        vocab_size: number of token ids; must agree likewise.

    Errors:
        UsageError: the file is missing, empty, of a wrong type or not as described, or an id is outside the vocabulary.
    """
    beside = read_description(path)
    said = _agreed(path, Description(dtype=token_dtype, vocab_size=vocab_size), beside)
    tokens = _map_npy(path, said.dtype) if path.suffix == ".npy" else _map_bin(path, said.dtype)
    if path.suffix == ".bin" and beside.dtype is None:
        _check_not_wider(path, tokens)
    if said.vocab_size is None:
        raise UsageError(f"--data {path} holds token ids: give --vocab-size, the number of different ids")
    _check_width(path, tokens.dtype, said.vocab_size)
    starts = _check_ids(path, tokens, said.vocab_size, said.separator)
    return Corpus(name=str(path), tokens=tokens, starts=starts, vocab_size=said.vocab_size, tokenizer=None)


def save_tokens(path: Path, ids: np.ndarray, vocab_size: int, separator: int | None = None) -> None:
    """Write ids to a .bin file in the narrowest type that holds the vocabulary, and its description beside it."""
    dtype = next(name for name in ("uint8", "uint16", "uint32") if vocab_size - 1 <= np.iinfo(name).max)
    outside = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if len(outside):
        raise UsageError(f"{path}: id {ids[outside[0]]} at position {outside[0]} is outside 0 to {vocab_size - 1}")
    ids.astype(np.dtype(dtype).newbyteorder("<")).tofile(path)
    said = {"dtype": dtype, "vocab_size": vocab_size, "separator": separator}
    text = json.dumps({key: value for key, value in said.items() if value is not None})
    path.with_suffix(".json").write_text(text + "\n", encoding="utf-8")


def read_description(path: Path) -> Description:
    """What the JSON file beside a file of ids says; nothing where there is none."""
    beside = path.with_suffix(".json")
    if not beside.exists():
        return Description()
    try:
        said = json.loads(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{beside}, which describes {path}, is not readable JSON: {error}") from None
    if not isinstance(said, dict) or not said.keys() <= {"dtype", "vocab_size", "separator"}:
        raise UsageError(
            f"{beside} must be an object with dtype, vocab_size and separator alone, as it describes {path}: rename it"
            " if it is something else"
        )
    _check_description(beside, said)
    return Description(**said)


def _check_description(beside: Path, said: dict[str, Any]) -> None:
    if said.get("dtype") not in (None, *DTYPES):
        raise UsageError(f"{beside}: dtype {said['dtype']!r}: expected one of {', '.join(DTYPES)}")
    for key in ("vocab_size", "separator"):
        value = said.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            raise UsageError(f"{beside}: {key} {value!r}: expected a whole number")


def _agreed(path: Path, flags: Description, beside: Description) -> Description:
    for name, flag in (("dtype", "--token-dtype"), ("vocab_size", "--vocab-size")):
        asked, written = getattr(flags, name), getattr(beside, name)
        if asked is not None and written is not None and asked != written:
            raise UsageError(
                f"{flag} {asked}, but {path.with_suffix('.json')} says {name} {written} of {path}: leave {flag} out"
            )
    vocab_size = flags.vocab_size if flags.vocab_size is not None else beside.vocab_size
    if beside.separator is not None and vocab_size is not None and beside.separator >= vocab_size:
        raise UsageError(
            f"{path.with_suffix('.json')}: separator {beside.separator} is outside the vocabulary of {vocab_size}:"
            " mend one of them"
        )
    return Description(dtype=flags.dtype or beside.dtype, vocab_size=vocab_size, separator=beside.separator)


def _map_npy(path: Path, said: str | None) -> np.ndarray:
    _bytes_of(path)
    try:
        tokens = np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError, EOFError) as error:
        reason = str(error).splitlines()[0] if str(error) else "its header is cut off"
        raise UsageError(f"--data {path} is not a .npy file of integers: {reason}") from None
    if tokens.dtype.kind not in "ui":
        raise UsageError(f"--data {path} has dtype {tokens.dtype}; token ids are integers: save it as uint16 or uint32")
    if tokens.ndim != 1:
        raise UsageError(f"--data {path} has shape {tokens.shape}; token ids are one axis: save array.reshape(-1)")
    if not len(tokens):
        raise UsageError(f"--data {path} is empty: it has no token ids")
    if said is not None and tokens.dtype.newbyteorder("=") != np.dtype(said):
        raise UsageError(f"--token-dtype {said}, but {path} has dtype {tokens.dtype}: leave --token-dtype out")
    return tokens


def _map_bin(path: Path, said: str | None) -> np.ndarray:
    size = _bytes_of(path)
    if said is None:
        raise UsageError(f"--data {path}: a .bin file does not say how ids are stored: give --token-dtype")
    width = np.dtype(said).itemsize
    if size % width:
        raise UsageError(
            f"--data {path} has {size} bytes, not a multiple of {width}: it is no file of {said} ids, or cut"
        )
    return np.memmap(path, np.dtype(said).newbyteorder("<"), mode="r")


def _bytes_of(path: Path) -> int:
    try:
        size = path.stat().st_size
        with path.open("rb"):
            pass
    except OSError as error:
        raise UsageError(f"--data {path}: {error.strerror}") from None
    if not size:
        raise UsageError(f"--data {path} is empty: it has 0 bytes")
    return size


def _check_not_wider(path: Path, tokens: np.ndarray) -> None:
    """Refuse what can only be wider ids read as narrower ones: every second one is zero, the others are not."""
    head = np.asarray(tokens[:4096])
    if len(head) >= 64 and not head[1::2].any() and np.count_nonzero(head[::2]) > len(head) // 4:
        wider = {1: "uint16", 2: "uint32"}.get(head.dtype.itemsize, "int64")
        raise UsageError(
            f"--data {path}: every second id is 0 when read as {head.dtype.name}, as when the file was written as"
            f" {wider}: give --token-dtype {wider}, or say dtype in {path.with_suffix('.json')} if it is so"
        )


def _check_width(path: Path, dtype: np.dtype, vocab_size: int) -> None:
    highest = int(np.iinfo(dtype).max)
    if vocab_size - 1 > highest:
        raise UsageError(
            f"--data {path}: {dtype.name} holds ids up to {highest}, too few for a vocabulary of {vocab_size}; larger"
            " ids have wrapped: write the file in a wider type, or give the --vocab-size that it has"
        )


def _check_ids(path: Path, tokens: np.ndarray, vocab_size: int, separator: int | None) -> np.ndarray:
    """Check every id; where documents begin, int64."""
    found = [np.zeros(1, np.int64)]
    for at, chunk in chunks(tokens):
        if int(chunk.min()) < 0 or int(chunk.max()) >= vocab_size:
            first = int(np.flatnonzero((chunk < 0) | (chunk >= vocab_size))[0])
            raise UsageError(
                f"--data {path}: id {chunk[first]} at position {at + first} is outside the vocabulary of {vocab_size}"
                f" (0 to {vocab_size - 1}): give the --vocab-size and --token-dtype that it was written with"
            )
        if separator is not None:
            found.append(at + np.flatnonzero(chunk == separator))
    return np.unique(np.concatenate(found))
