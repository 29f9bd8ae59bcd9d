"""JSON text to frozen dataclasses: unknown or missing keys and wrong types are errors that name the place."""

import types
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from meshes.errors import UsageError, check_keys


def decode(kind: Any, value: Any, where: str) -> Any:
    """A value of type `kind`: dataclasses, tuples, unions with None, literals, int, float, str, bool.

    Args:
        kind: the type, as annotated.
        value: what `json.loads` gives.
        where: the place, for messages.

    Raises:
        UsageError: the value does not have the type.
    """
    origin = get_origin(kind)
    if is_dataclass(kind):
        return _record(kind, value, where)
    if origin is tuple:
        return _tuple(get_args(kind), value, where)
    if origin in (Union, types.UnionType):
        inner = [arg for arg in get_args(kind) if arg is not type(None)]
        return None if value is None else decode(inner[0], value, where)
    if origin is Literal:
        if value not in get_args(kind):
            raise UsageError(f"{where} is {value!r}: it is one of {', '.join(map(str, get_args(kind)))}")
        return value
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise UsageError(f"{where} is {value!r}: it must be {kind.__name__}")
    return value


def _record(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise UsageError(f"{where} is {value!r}: it must be an object")
    hints = get_type_hints(kind)
    check_keys(value, hints, where)
    for field in fields(kind):
        if field.name not in value and field.default is MISSING:
            raise UsageError(f"{where}: key {field.name!r} is missing")
    return kind(**{key: decode(hints[key], item, f"{where}.{key}") for key, item in value.items()})


def _tuple(args: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise UsageError(f"{where} is {value!r}: it must be a list")
    if len(args) == 2 and args[1] is Ellipsis:
        args = (args[0],) * len(value)
    if len(args) != len(value):
        raise UsageError(f"{where} has {len(value)} entries: it must have {len(args)}")
    return tuple(decode(arg, item, f"{where}[{i}]") for i, (arg, item) in enumerate(zip(args, value, strict=True)))


def differences(a: Any, b: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Places where two JSON values differ, with both values there."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in a:
            yield from differences(a[key], b.get(key), f"{where}.{key}" if where else key)
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple):
        if len(a) != len(b):
            yield f"number of {where}", len(a), len(b)
        for i, (x, y) in enumerate(zip(a, b, strict=False)):
            yield from differences(x, y, f"{where}[{i}]")
    elif a != b:
        yield where, a, b
