"""Documents of text: Python's own standard library, a file, or a directory."""

import dataclasses
import os
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from meshes.errors import UsageError
from training.data.corpus import Corpus
from training.data.token_file import SUFFIXES as TOKEN_SUFFIXES
from training.data.tokenizer import ByteTokenizer

STDLIB_EXCLUDED = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "encodings", "pydoc_data", "__pycache__"}
)


def stdlib_corpus() -> Corpus:
    """The sources of Python's standard library, without its tests, tables and installed packages."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = [
        Path(folder, name)
        for folder, folders, names in os.walk(root)
        for name in _in_order(folders, names, STDLIB_EXCLUDED)
        if name.endswith(".py")
    ]
    if not paths:
        raise UsageError(f"no sources of the standard library under {root}: give --data")
    return dataclasses.replace(_corpus("Python's standard library", paths), notes=())  # empty files are no loss


def file_corpus(path: Path) -> Corpus:
    """One text file, one document."""
    return _corpus(str(path), [path])


def directory_corpus(root: Path) -> Corpus:
    """Every file under a directory, a document each, in the order of their names.

    Hidden files and directories, files of token ids and what is no regular file are left out and counted.
    """
    left_out: Counter[str] = Counter()
    paths = list(_documents(root, left_out))
    if not paths:
        said = f" ({_counted(left_out)} left out)" if left_out.total() else ""
        raise UsageError(f"--data {root} has no text files{said}: give a directory with text, or one file")
    return _corpus(str(root), paths, left_out)


def _documents(root: Path, left_out: Counter[str]) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise UsageError(f"--data {error.filename}: {error.strerror}")

    for folder, folders, names in os.walk(root, onerror=refuse):
        left_out["hidden directories"] += sum(name.startswith(".") for name in folders)
        visible = {name for name in folders if not name.startswith(".")}
        left_out["linked directories"] += sum(Path(folder, name).is_symlink() for name in visible)
        for name in _in_order(folders, names, set(folders) - visible):
            path = Path(folder, name)
            if name.startswith("."):
                left_out["hidden files"] += 1
            elif path.suffix in TOKEN_SUFFIXES:
                left_out["files of token ids"] += 1
            elif not path.is_file():
                left_out["irregular files"] += 1
            else:
                yield path


def _in_order(folders: list[str], names: list[str], excluded: Iterable[str]) -> list[str]:
    """Sorted names; `folders`, which os.walk goes into next, is sorted and thinned in place."""
    folders[:] = sorted(set(folders) - set(excluded))
    return sorted(names)


def _corpus(name: str, paths: list[Path], left_out: Counter[str] | None = None) -> Corpus:
    """Documents [separator] text [separator] text ... in one array; empty files are left out and counted."""
    left_out = left_out or Counter()
    tokenizer = ByteTokenizer()
    texts = [data for path in paths if (data := _read(path))]
    left_out["empty files"] += len(paths) - len(texts)
    if not texts:
        raise UsageError(f"--data {name} is empty: give a file with text")
    starts = np.cumsum([0] + [len(text) + 1 for text in texts], dtype=np.int64)
    tokens = np.empty(starts[-1], np.uint16)
    for start, stop, text in zip(starts[:-1], starts[1:], texts, strict=True):
        tokens[start] = tokenizer.separator
        tokens[start + 1 : stop] = tokenizer.encode_bytes(text)
    notes = (f"{name}: left out {_counted(left_out)}",) if left_out.total() else ()
    return Corpus(
        name=name,
        tokens=tokens,
        starts=starts[:-1],
        vocab_size=tokenizer.vocab_size,
        tokenizer=tokenizer,
        notes=notes,
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"--data {path}: {error.strerror}") from None


def _counted(left_out: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in left_out.items() if count)
