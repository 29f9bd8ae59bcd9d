"""Reads the text of a compiled program: its computations and their instructions, in the order in which they run."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) (?:\(.*)?\{$")
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_CALLED = re.compile(
    r"\b(?:condition|body|calls|to_apply|true_computation|false_computation|branch_computations|called_computations)="
    r"(\{[^}]*\}|%?[\w.\-]+)"
)
_TRIPS = re.compile(r"known_trip_count\W+n\W+(\d+)")


@dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    Args:
        name: unique in its computation.
        result: its type as written, layout included.
        opcode: as written, `-start` and `-done` included.
        operands: the text between the parentheses.
        attributes: the text after them.
    """

    name: str
    result: str
    opcode: str
    operands: str
    attributes: str

    @cached_property
    def unquoted(self) -> str:
        """The attributes without the contents of quoted strings, which may look like anything."""
        return _QUOTED.sub('""', self.attributes)

    @property
    def called(self) -> tuple[str, ...]:
        """Names of the computations that it runs, in the order of running: a loop's condition before its body."""
        found = [name for group in _CALLED.findall(self.unquoted) for name in re.findall(r"[\w.\-]+", group)]
        return tuple(found)

    @property
    def trips(self) -> int | None:
        """How often a loop runs, if the compiler knows."""
        found = _TRIPS.search(self.attributes)
        return int(found[1]) if found else None


@dataclass(frozen=True)
class Module:
    """A program.

    Args:
        computations: instructions by name of the computation, in the order of the schedule.
        entry: name of the computation where it starts.
    """

    computations: dict[str, list[Instruction]]
    entry: str


def parse(text: str) -> Module:
    """The computations of a scheduled program.

    Raises:
        ValueError: the text has no schedule, so that the order of its lines means nothing.
    """
    lines = text.splitlines()
    if not lines or "is_scheduled=true" not in lines[0]:
        raise ValueError("the order of collectives is that of a schedule, and the program has none: compile it")
    computations: dict[str, list[Instruction]] = {}
    entry, inside = "", ""
    for line in lines[1:]:
        if line[:1].isspace():
            if inside and (found := _instruction(line)):
                computations[inside].append(found)
        elif header := _COMPUTATION.match(line):
            inside = header[2]
            computations[inside] = []
            entry = inside if header[1] else entry
        else:
            inside = ""
    return Module(computations, entry)


def _instruction(line: str) -> Instruction | None:
    found = _INSTRUCTION.match(line)
    if not found:
        return None
    name, result, opcode, rest = found.groups()
    close = next(_closing(rest), len(rest))
    return Instruction(name, result, opcode, rest[:close], rest[close + 1 :])


def _closing(text: str) -> Iterator[int]:
    """Places where a parenthesis closes that was opened before the text."""
    marks = list(re.finditer(r"[()]", text))
    depths = accumulate(1 if mark[0] == "(" else -1 for mark in marks)
    return (mark.start() for mark, depth in zip(marks, depths, strict=True) if depth < 0)
