"""Quantities as people write them: "24GB", "25GB/s", "10us", "312T"."""

import math
import re
from collections.abc import Mapping
from decimal import Decimal

from meshes.errors import UsageError

_PREFIX = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_DECIMAL = {f"{prefix}B": factor for prefix, factor in _PREFIX.items()}
_BINARY = {f"{prefix}iB": 2.0 ** (10 * power) for power, prefix in enumerate("KMGTP", start=1)}
_BYTES = {"": 1.0, **_DECIMAL, **_BINARY}
_RATES = {"": 1.0, **{f"{unit}/s": factor for unit, factor in {**_DECIMAL, **_BINARY}.items()}}
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_FLOPS = {f"{prefix}{unit}": factor for prefix, factor in _PREFIX.items() for unit in ("", "FLOPS", "FLOP/s")}
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z/]*)\s*")


def parse_bytes(value: object, where: str) -> int:
    """A positive size in bytes, from a number or text like "24GB" (10^9) or "24GiB" (2^30)."""
    size = _parse(value, _BYTES, where, "bytes", "24GB, 24GiB, 512MB")
    if size < 1:
        raise UsageError(f"{where} is {value!r}: write one byte or more, like 24GB")
    return int(size)


def parse_bandwidth(value: object, where: str) -> float:
    """A positive bandwidth in bytes a second, from a number or text like "25GB/s"."""
    return _parse(value, _RATES, where, "bytes a second", "25GB/s, 800MB/s")


def parse_seconds(value: object, where: str) -> float:
    """A duration in seconds, zero allowed, from a number or text like "10us"."""
    return _parse(value, _SECONDS, where, "seconds", "10us, 0.5ms", zero=True)


def parse_flops(value: object, where: str) -> float:
    """A positive rate in FLOP/s, from a number or text like "312T"."""
    return _parse(value, _FLOPS, where, "FLOP/s", "312T, 65TFLOPS")


def positive(value: object, where: str) -> float:
    """A positive finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
        raise UsageError(f"{where} is {value!r}: write a positive finite number")
    return float(value)


def format_bytes(size: float) -> str:
    """A size with three significant digits in decimal units."""
    units = ["B", "KB", "MB", "GB", "TB"]
    while size >= 999.5 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.3g} {units[0]}" if size < 999.5 else f"{size:.0f} {units[0]}"


def _parse(
    value: object, units: Mapping[str, float], where: str, noun: str, examples: str, zero: bool = False
) -> float:
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value)
        if match is None or match[2] not in units:
            raise UsageError(f"{where} is {value!r}: write {noun} like {examples}")
        number = float(Decimal(match[1]) * Decimal(repr(units[match[2]])))  # "30us" is 3e-05, not one bit less
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value)
    else:
        raise UsageError(f"{where} is {value!r}: write {noun} like {examples}")
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
        least = "zero or more" if zero else "positive"
        raise UsageError(f"{where} is {value!r}: it must be finite and {least}, like {examples.split(',')[0]}")
    return number
