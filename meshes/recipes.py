"""Ways to divide a row's work over the devices of each data group: even ones, and ones that follow the paces."""

from collections.abc import Iterator
from typing import NamedTuple

from meshes.workload import Attention, KeysValues, divisors

MANY = 12  # up to here every number of bands, or of working devices, is tried


class Recipe(NamedTuple):
    """How to divide.

    Args:
        attention: `context`, `head` or `hybrid`.
        kv: `gather` or `ring`.
        bands: of a hybrid; each band shares some heads.
        chunked: bands are runs of devices in the group's order, equally many in each; else they differ in number,
            so that each is as fast as its heads need.
        even: every share as equal as whole numbers allow; else shares follow the paces.
        apart: query tokens of context tiles follow the pace of attention alone, owned tokens that of the rest.
        few: number of devices that work, the fastest of each group; 0 is all.
    """

    attention: Attention
    kv: KeysValues = "gather"
    bands: int = 0
    chunked: bool = False
    even: bool = False
    apart: bool = False
    few: int = 0


def recipes(attention: str, kv: str, devices: int, heads: int) -> Iterator[Recipe]:
    """The recipes for groups of some devices, even ones first, simple ones first.

    Args:
        attention: a kind, or `auto` for all.
        kv: `gather`, `ring`, or `auto` for both.
        devices: of each group.
        heads: query heads.
    """
    for same in (True, False):
        if attention in ("auto", "context"):
            if kv in ("auto", "gather"):
                yield Recipe("context", even=same)
                if not same:
                    yield Recipe("context", apart=True)
            if kv == "ring" or (kv == "auto" and devices > 1):
                yield Recipe("context", "ring", even=same)
        if kv == "ring":
            continue
        if attention == "head" or (attention == "auto" and devices > 1):
            yield Recipe("head", even=same)
            if not same:
                yield from (Recipe("head", few=few) for few in few_counts(devices))
        if attention in ("auto", "hybrid"):
            for bands in band_counts(devices, heads):
                yield Recipe("hybrid", bands=bands, chunked=True, even=same)
                if not same:
                    yield Recipe("hybrid", bands=bands)


def band_counts(devices: int, heads: int) -> list[int]:
    """Numbers of bands of a hybrid worth a try: all of a few, else divisors of the heads and round numbers."""
    most = min(devices - 1, heads)
    if most <= MANY:
        return list(range(2, most + 1))
    wanted = {*divisors(heads), *(2**i for i in range(1, 11)), *(3 * 2**i for i in range(10))}
    return sorted(count for count in wanted if 2 <= count <= most)


def few_counts(devices: int) -> list[int]:
    """Numbers of working devices worth a try: all of a few, else powers of two."""
    if devices <= MANY:
        return list(range(1, devices))
    return [2**i for i in range(devices.bit_length()) if 2**i < devices]
