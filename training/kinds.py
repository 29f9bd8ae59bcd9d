"""Kinds of values that a configuration holds, chosen by annotation; how text and TOML values become them."""

import functools
import math
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from meshes.units import parse_bytes

NONE = "none"  # what a person writes to unset an optional value


class Bytes(int):
    """A number of bytes; text has a unit, 1000-based (KB, MB, GB, TB) or 1024-based (KiB, MiB, GiB, TiB)."""

    @classmethod
    def of(cls, value: Any) -> "Bytes":
        """From an integer or from text such as 24GB; ValueError when it is neither, or not positive."""
        if not (isinstance(value, str) or _is_int(value)):
            raise ValueError(value)
        return cls(parse_bytes(value, "size"))


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of value.

    Args:
        metavar: its name in the help.
        expected: what a value is, for error messages.
        take: checks and converts a value of a TOML file; ValueError when it does not fit.
        read: the same for the text of a flag.
    """

    metavar: str
    expected: str
    take: Callable[[Any], Any]
    read: Callable[[str], Any]


def kind(annotation: Any) -> Kind:
    """The kind of value that an annotation asks for."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return _union(typing.get_args(annotation))
    if typing.get_origin(annotation) is Literal:
        choices = typing.get_args(annotation)
        take = functools.partial(_choice, choices)
        return Kind(metavar="|".join(choices), expected=_one_of(choices), take=take, read=take)
    if typing.get_origin(annotation) is tuple:
        return _listed(typing.get_args(annotation)[0])
    return SCALARS[annotation]


def _union(members: tuple[Any, ...]) -> Kind:
    wanted = [kind(member) for member in members if member is not type(None)]
    optional = type(None) in members

    def read(text: str) -> Any:
        return None if optional and text == NONE else _first([k.read for k in wanted], text)

    return Kind(
        metavar="|".join(k.metavar for k in wanted),
        expected=" or ".join(k.expected for k in wanted),
        take=lambda value: _first([k.take for k in wanted], value),
        read=read,
    )


def _listed(member: Any) -> Kind:
    one = kind(member)
    example = "24GB,12GB" if member is Bytes else "4,2,1,1"

    def read(text: str) -> tuple[Any, ...]:
        return tuple(one.read(item.strip()) for item in text.split(","))

    def take(value: Any) -> tuple[Any, ...]:
        if isinstance(value, str):
            return read(value)
        if not isinstance(value, list) or not value:
            raise ValueError(value)
        return tuple(one.take(item) for item in value)

    expected = f"values with commas between them, each {one.expected}, such as {example}"
    return Kind(metavar=f"{one.metavar},...", expected=expected, take=take, read=read)


def _first(readers: list[Callable[[Any], Any]], value: Any) -> Any:
    for reader in readers[:-1]:
        try:
            return reader(value)
        except ValueError:
            continue
    return readers[-1](value)


def _choice(choices: tuple[str, ...], value: Any) -> str:
    if value not in choices:
        raise ValueError(value)
    return value


def _int(value: Any) -> int:
    if not _is_int(value):
        raise ValueError(value)
    return value


def _float(value: Any) -> float:
    if not (_is_int(value) or isinstance(value, float)) or not math.isfinite(value):
        raise ValueError(value)
    return float(value)


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(value)
    return value


def _path(value: Any) -> Path:
    if not _str(value):
        raise ValueError(value)
    return Path(value)


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(value)
    return value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _one_of(choices: Sequence[str]) -> str:
    return choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"


SCALARS: dict[Any, Kind] = {
    int: Kind(metavar="N", expected="a whole number", take=_int, read=int),
    float: Kind(metavar="X", expected="a finite number", take=_float, read=lambda text: _float(float(text))),
    str: Kind(metavar="TEXT", expected="text", take=_str, read=_str),
    Path: Kind(metavar="PATH", expected="a path", take=_path, read=_path),
    bool: Kind(metavar="", expected="true or false", take=_bool, read=_bool),
    Bytes: Kind(metavar="SIZE", expected="a positive size in bytes or with a unit", take=Bytes.of, read=Bytes.of),
}
