"""What arrays of a graph must satisfy; every failure is a UsageError of one line with the place, position and value."""

from collections.abc import Mapping

import numpy as np

from meshes.errors import UsageError

MOST = 2**31 - 1  # of ids on the devices, which are int32


def whole_numbers(where: str, array: np.ndarray) -> np.ndarray:
    """The array as int64; refuses what is no integer type, or does not fit."""
    if array.dtype.kind not in "ui":
        raise UsageError(f"{where} has dtype {array.dtype}, but ids are integers: save it as int64")
    if array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise UsageError(f"{where}: {array.max()} is larger than int64 holds: save it as int64")
    return array.astype(np.int64, copy=False)


def real_numbers(where: str, array: np.ndarray, *, missing: bool = False) -> np.ndarray:
    """The array as float32; refuses what is no number, and NaN unless values may be missing."""
    if array.dtype.kind not in "uifb":
        raise UsageError(f"{where} has dtype {array.dtype}, but numbers are wanted: save it as float32")
    with np.errstate(over="ignore"):
        values = array.astype(np.float32, copy=False)
    bad = np.argwhere(np.isinf(values) if missing else ~np.isfinite(values))
    if len(bad):
        at = tuple(int(i) for i in bad[0])
        place = f"row {at[0]}" + (f", column {at[1]}" if len(at) > 1 else "")
        raise UsageError(f"{where}: {array[at]} in {place}: values must be finite in float32; mend it or leave it out")
    return values


def shape(where: str, array: np.ndarray, wanted: tuple[int | None, ...], of: str) -> None:
    """Refuse an array of another shape; None stands for any size, `of` says what has the rows."""
    fits = array.ndim == len(wanted) and all(n in (None, have) for n, have in zip(wanted, array.shape, strict=True))
    if not fits:
        text = ", ".join("any" if n is None else str(n) for n in wanted)
        raise UsageError(f"{where} has shape {array.shape}, wanted [{text}] for the {of}: mend it")


def ids(where: str, array: np.ndarray, limit: int, of: str) -> None:
    """Refuse ids that are not below a limit."""
    bad = np.flatnonzero((array < 0) | (array >= limit))
    if len(bad):
        at = int(bad[0])
        there = f"there are {limit} (0 to {limit - 1})" if limit else "there are none"
        raise UsageError(f"{where}: {of} {array[at]} at position {at} does not exist, {there}: mend it or leave it out")


def labels(where: str, array: np.ndarray, classes: int) -> None:
    """Refuse class ids that are neither -1, no label, nor of a class."""
    bad = np.flatnonzero((array < -1) | (array >= classes))
    if len(bad):
        at = int(bad[0])
        raise UsageError(
            f"{where}: label {array[at]} at position {at} is outside the {classes} classes (0 to {classes - 1}, or -1"
            " for none): mend it, or name all classes"
        )


def parts(where: str, named: Mapping[str, np.ndarray], labelled: np.ndarray | None, count: int, of: str) -> None:
    """Refuse ids of train, valid and test that do not exist, stand twice or have no label, and an empty train.

    Args:
        where: file, for messages.
        named: sorted ids of each part.
        labelled: bool [count]; None where there are no labels to have.
        count: number of what is split.
        of: what it is, "vertex" or "graph".
    """
    for name, chosen in named.items():
        ids(f"{where}: {name}", chosen, count, of)
        without = chosen[~labelled[chosen]] if labelled is not None else chosen[:0]
        if len(without):
            raise UsageError(f"{where}: {name}: {of} {without[0]} has no label: leave it out, or give it one")
    together = np.sort(np.concatenate([*named.values()]))
    twice = together[1:][together[1:] == together[:-1]]
    if len(twice):
        inside = [name for name, chosen in named.items() if (chosen == twice[0]).any()]
        raise UsageError(f"{where}: {of} {twice[0]} stands twice in {' and '.join(inside)}: leave one out")
    if labelled is not None and not len(named["train"]):
        raise UsageError(f"{where}: no training {of}: train has 0 of {count} ids; give labels and ids to train on")


def to_int32(where: str, what: str, array: np.ndarray) -> np.ndarray:
    """The array as int32, which devices count in.

    Errors:
        UsageError: a value is above 2^31 - 1, instead of wrapping.
    """
    if array.size and int(array.max()) > MOST:
        raise UsageError(
            f"{where}: {what} reach {int(array.max()):,}, but devices count to {MOST:,}: cut the graph into more"
            " parts, one for each device"
        )
    return array.astype(np.int32)
