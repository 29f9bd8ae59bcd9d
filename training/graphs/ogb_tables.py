"""The compressed tables that folders of the Open Graph Benchmark are made of."""

import gzip
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TextIO, TypeVar

import numpy as np

from meshes.errors import UsageError
from training.graphs.build import Labels, numbered
from training.graphs.splits import Split

PARTS = ("train", "valid", "test")

Read = TypeVar("Read")


def table(path: Path, dtype: type[np.generic], *, empty: bool = False) -> np.ndarray:
    """Numbers of a csv.gz, [rows, columns].

    Args:
        path: the file.
        dtype: integers are refused where they are written as fractions.
        empty: fields may be empty, which gives NaN.

    Errors:
        UsageError: missing, cut off, another number of columns or something else than numbers in a row.
    """
    numbers = (lambda text: float(text or "nan")) if empty else None

    def load(file: TextIO) -> np.ndarray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of no rows
            return np.loadtxt(file, dtype, delimiter=",", ndmin=2, quotechar='"', converters=numbers)

    return _read(path, load)


def texts(path: Path) -> list[list[str]]:
    """Fields of the rows of a csv.gz; errors as `table`."""
    return _read(path, lambda file: [line.split(",") for line in file.read().splitlines()])


def labels_of(where: Path, found: np.ndarray) -> Labels:
    """Whole numbers are classes, NaN being none; others are values."""
    if found.dtype.kind == "f" and not (found[np.isfinite(found)] % 1).any():
        found = np.where(np.isnan(found), -1, found).astype(np.int64)
    return numbered(str(where), found)


def split_of(folder: Path, within: str = "") -> Split | None:
    """Ids of train, valid and test; None where there is no folder of splits.

    Args:
        folder: it has one folder, named by how it was split.
        within: folder inside that one.
    """
    if not folder.is_dir():
        return None
    schemes = sorted(path for path in folder.iterdir() if path.is_dir())
    if len(schemes) != 1:
        names = ", ".join(path.name for path in schemes) or "none"
        raise UsageError(f"{folder} has {len(schemes)} ways to split ({names}): keep one, or remove {folder}")
    if (schemes[0] / "split_dict.pt").exists():
        raise UsageError(f"{schemes[0]}/split_dict.pt is for PyTorch alone: write {', '.join(PARTS)} .csv.gz instead")
    train, valid, test = (table(schemes[0] / within / f"{part}.csv.gz", np.int64).reshape(-1) for part in PARTS)
    return train, valid, test


def _read(path: Path, load: Callable[[TextIO], Read]) -> Read:
    if not path.is_file():
        raise UsageError(f"{path} is missing: get the data set again")
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return load(file)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{path} is not a readable csv.gz of numbers: {reason}; get the data set again") from None
