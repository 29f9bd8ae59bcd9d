"""Every process will run the same collectives in the same order, or a message that names the first difference.

Processes that trace their own exact sizes compile different programs, and collectives of different processes meet by
order alone: a difference is a hang or a wrong number. So the ordered list is read from the compiled program, and the
lists of all processes are compared before the first step.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property

import jax
import numpy as np

from sharding import hlo

KINDS = (
    "all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute", "ragged-all-to-all",
    "recv", "reduce-scatter", "send",
)  # fmt: skip
REMEDY = "use --placement switched, which compiles one program for all"

_GROUPS = re.compile(r"replica_groups=(.*?)(?=, (?!device_ids)[\w-]+=|$)")
_PAIRS = re.compile(r'source_target_pairs="?(\{.*?\}\}|\{\})')
_DIMENSIONS = re.compile(r"\bdimensions=\{([\d,]*)\}")
_REDUCTION = re.compile(r"\bto_apply=%?([\w.\-]+)")
_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"mesh\[((?:'[^']*'=\d+,?)+)\] \{((?:'[^']*',?)*)\}")
_TYPE = re.compile(r"(\w+)\[([^\]]*)\](?:\{([^}]*)\})?")


@dataclass(frozen=True)
class Collective:
    """One collective of a program: what has to be the same on all its participants.

    Args:
        kind: `all-gather`, `reduce-scatter`, ...; asynchronous ones are not told apart.
        payload: types of the operands, with the layout where it is not row-major, because bytes travel as they lie.
        participants: groups `{0,1},{2,3}` or sends `0>1,1>0` between device numbers, `all`, or as the compiler wrote.
        dimensions: along which it gathers, scatters or exchanges.
        reduction: operations that combine two values, `add` for instance.
        within: loops and branches around it, outermost first, numbered in the order of the program.
    """

    kind: str
    payload: tuple[str, ...]
    participants: str
    dimensions: str = ""
    reduction: str = ""
    within: tuple[str, ...] = ()

    def __str__(self) -> str:
        along = f" along {self.dimensions}" if self.dimensions else ""
        how = f" by {self.reduction}" if self.reduction else ""
        where = "".join(f" in {place}" for place in reversed(self.within))
        return f"{self.kind} {' '.join(self.payload)}{along}{how} among {self.participants}{where}"


def collectives(compiled: jax.stages.Compiled | str) -> tuple[Collective, ...]:
    """The collectives of a compiled program in the order in which it runs them; a loop's are listed once.

    Args:
        compiled: the program, or its text `compiled.as_text()`.

    Raises:
        ValueError: the text has no schedule.
    """
    text = compiled if isinstance(compiled, str) else compiled.as_text()
    program = _Program(hlo.parse(text or ""))
    return tuple(program.walk(program.module.entry, ()))


def digest(listed: Sequence[Collective]) -> str:
    """A short text that is equal for equal lists: to be compared before whole lists are sent."""
    return hashlib.sha256(to_json(listed).encode()).hexdigest()


def to_json(listed: Sequence[Collective]) -> str:
    """A list as JSON: distinct collectives once, then the order as numbers."""
    distinct = {c: n for n, c in enumerate(dict.fromkeys(listed))}
    return json.dumps({"distinct": [astuple(c) for c in distinct], "order": [distinct[c] for c in listed]})


def from_json(text: str) -> tuple[Collective, ...]:
    """The list that `to_json` was given."""
    value = json.loads(text)
    distinct = [
        Collective(kind, tuple(payload), participants, dimensions, reduction, tuple(within))
        for kind, payload, participants, dimensions, reduction, within in value["distinct"]
    ]
    return tuple(distinct[n] for n in value["order"])


def first_difference(lists: Mapping[str, Sequence[Collective]]) -> str | None:
    """One line that names the first collective that is not the same in all processes, and the remedy.

    Whole lists are compared: each program names all groups of participants, also those that it is not in.

    Args:
        lists: the list of each process by the name of the process.

    Returns:
        None if all lists are equal.
    """
    for number, row in enumerate(itertools.zip_longest(*lists.values()), 1):
        if len(set(row)) > 1:
            holders: dict[Collective | None, list[str]] = {}
            for name, found in zip(lists, row, strict=True):
                holders.setdefault(found, []).append(name)
            each = [f"{found or 'missing'} in {', '.join(names)}" for found, names in holders.items()]
            return (
                f"the processes would not run the same collectives: number {number} is {' and '.join(each)}: {REMEDY}"
            )
    return None


class _Program:
    """Walks a module in the order of execution."""

    def __init__(self, module: hlo.Module) -> None:
        self.module = module
        self.loops, self.choices = itertools.count(1), itertools.count(1)

    @cached_property
    def speaking(self) -> set[str]:
        """Computations that run a collective, themselves or in what they call."""
        callers: dict[str, list[str]] = {}
        found: list[str] = []
        for name, instructions in self.module.computations.items():
            for i in instructions:
                if _kind(i):
                    found.append(name)
                for called in i.called:
                    callers.setdefault(called, []).append(name)
        speaking: set[str] = set()
        while found:
            name = found.pop()
            if name not in speaking:
                speaking.add(name)
                found.extend(callers.get(name, ()))
        return speaking

    def walk(self, computation: str, within: tuple[str, ...]) -> Iterator[Collective]:
        """The collectives of a computation and of what it calls."""
        instructions = self.module.computations[computation]
        types = {i.name: i.result for i in instructions}
        for i in instructions:
            if kind := _kind(i):
                yield self._collective(kind, i, types, within)
            elif not i.opcode.endswith(("-done", "-update")):
                yield from self._called(i, within)

    def _called(self, i: hlo.Instruction, within: tuple[str, ...]) -> Iterator[Collective]:
        """The collectives of what an instruction calls."""
        if not self.speaking.intersection(i.called):
            return
        places = [within] * len(i.called)
        if i.opcode == "while":
            times = "" if i.trips is None else f" ({i.trips} times)"
            places = [(*within, f"loop {next(self.loops)}{times}")] * len(i.called)
        elif i.opcode == "conditional":
            choice = next(self.choices)
            places = [(*within, f"branch {n} of choice {choice}") for n in range(len(i.called))]
        for called, place in zip(i.called, places, strict=True):
            if called in self.speaking:
                yield from self.walk(called, place)

    def _collective(self, kind: str, i: hlo.Instruction, types: dict[str, str], within: tuple[str, ...]) -> Collective:
        payload = tuple(_payload(types[name]) for name in re.findall(r"%([\w.\-]+)", i.operands))
        dimensions, reduction = _DIMENSIONS.search(i.unquoted), _REDUCTION.search(i.unquoted)
        return Collective(
            kind,
            payload,
            _participants(i),
            dimensions[1] if dimensions else "",
            self._operations(reduction[1]) if reduction else "",
            within,
        )

    def _operations(self, computation: str) -> str:
        """What a reduction does to two values."""
        return " ".join(i.opcode for i in self.module.computations[computation] if i.opcode != "parameter")


def _kind(i: hlo.Instruction) -> str | None:
    """The kind of a collective, where it starts; messages to the host are none."""
    kind = i.opcode.removesuffix("-start")
    return kind if kind in KINDS and "is_host_transfer=true" not in i.attributes else None


def _payload(types: str) -> str:
    """Types as written, without what does not change the bytes: row-major layout, axes of length 1, memory space."""
    return _TYPE.sub(_plain, types)


def _plain(written: re.Match[str]) -> str:
    dtype, shape, layout = written.groups()
    order, _, tiles = (layout or "").partition(":")
    lengths = shape.split(",")
    minor_to_major = [axis for axis in order.split(",") if axis and lengths[int(axis)] != "1"]
    row_major = minor_to_major == sorted(minor_to_major, key=int, reverse=True)
    marks = ("" if row_major else ",".join(minor_to_major)) + re.sub(r"S\(\d+\)", "", tiles)
    return f"{dtype}[{shape}]" + (f"{{{marks}}}" if marks else "")


def _participants(i: hlo.Instruction) -> str:
    """Groups of devices or pairs of sender and receiver, in one way of writing where there are several."""
    if pairs := _PAIRS.search(i.attributes):
        return ",".join(f"{a}>{b}" for a, b in sorted(_explicit(pairs[1])))
    found = _GROUPS.search(i.unquoted)
    written = found[1] if found else "{}"
    if written == "{}":
        return "all"
    groups = _groups(written)
    return written if groups is None else ",".join(_braced(group) for group in sorted(groups))


def _groups(written: str) -> list[tuple[int, ...]] | None:
    """Groups of device numbers from any of the ways that the compiler writes them."""
    if iota := _IOTA.fullmatch(written):
        shape, dims, order = (_numbers(part) if part else None for part in iota.groups())
        devices = np.arange(np.prod(dims or 1)).reshape(dims or ())
        return _rows(np.transpose(devices, order).reshape(shape))
    if mesh := _MESH.fullmatch(written):
        names, lengths = zip(*re.findall(r"'([^']*)'=(\d+)", mesh[1]), strict=True)
        moved = [names.index(name) for name in re.findall(r"'([^']*)'", mesh[2])]
        devices = np.arange(np.prod(_numbers(",".join(lengths)))).reshape(_numbers(",".join(lengths)))
        kept = [axis for axis in range(len(names)) if axis not in moved]
        size = int(np.prod([devices.shape[axis] for axis in moved], dtype=int))
        return _rows(devices.transpose(kept + moved).reshape(-1, size))
    return _explicit(written) if written.startswith("{{") else None


def _explicit(written: str) -> list[tuple[int, ...]]:
    """Numbers inside inner braces."""
    return [_numbers(group) for group in re.findall(r"\{([\d,]*)\}", written)]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(",") if n)


def _rows(groups: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(row) for row in groups.tolist()]


def _braced(group: tuple[int, ...]) -> str:
    """A group; many devices in equal steps are written by the first two and the last."""
    steps = set(np.diff(group).tolist())
    if len(group) > 8 and len(steps) == 1:
        return f"{{{group[0]},{group[1]},..,{group[-1]}}}"
    return f"{{{','.join(map(str, group))}}}"
