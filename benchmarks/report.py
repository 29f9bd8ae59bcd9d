"""What every benchmark shares: interleaved timing, and results as a table or as one JSON object."""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax


@dataclass(frozen=True, kw_only=True)
class Result:
    """One number; `goal` and `holds` are None where there is nothing to reach."""

    name: str
    value: float
    unit: str
    goal: str | None
    holds: bool | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Medians over the rounds: seconds of each side, and how many times longer b took than a in the same round."""

    a_seconds: float
    b_seconds: float
    ratio: float


@dataclass
class Report:
    """Collects the results of one benchmark."""

    benchmark: str
    results: list[Result] = field(default_factory=list)

    def add(
        self, name: str, value: float, unit: str, *, at_least: float | None = None, at_most: float | None = None
    ) -> None:
        """Note a number, and the bound it should keep if there is one."""
        if at_least is not None:
            goal, holds = f">= {at_least:g}", value >= at_least
        elif at_most is not None:
            goal, holds = f"<= {at_most:g}", value <= at_most
        else:
            goal, holds = None, None
        self.results.append(Result(name=name, value=value, unit=unit, goal=goal, holds=holds))

    def show(self, *, as_json: bool) -> None:
        """Print the table for people, or the JSON object."""
        if as_json:
            results = [asdict(result) for result in self.results]
            about = {"benchmark": self.benchmark, "machine": machine(), "versions": versions()}
            print(json.dumps({**about, "results": results}))
            return
        print("  ".join(f"{key} {value}" for key, value in {**machine(), **versions()}.items()))
        width = max((len(result.name) for result in self.results), default=0)
        for r in self.results:
            verdict = "" if r.goal is None else f"{r.goal:>8}  {'holds' if r.holds else 'MISSED'}"
            print(f"{r.name:{width}}  {r.value:>10.4g} {r.unit:<6} {verdict}".rstrip())


def flags(description: str | None, cases: Sequence[str] = ()) -> argparse.Namespace:
    """The flags of every benchmark: `--quick` and `--json`; and `--only CASE` where there are cases that take long."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller measurements")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    if cases:
        parser.add_argument("--only", choices=cases, action="append", help="this case; may be given several times")
    return parser.parse_args()


def compare(a: Callable[[], Any], b: Callable[[], Any], rounds: int) -> Comparison:
    """Time two sides in turn, the order changing each round, after one call of each that is not counted.

    Args:
        a, b: called without arguments; what they return is waited for.
        rounds: timed calls of each side.
    """
    for side in (a, b):
        jax.block_until_ready(side())
    pairs = []
    for number in range(rounds):
        if number % 2:
            b_seconds, a_seconds = seconds(b), seconds(a)
        else:
            a_seconds, b_seconds = seconds(a), seconds(b)
        pairs.append((a_seconds, b_seconds))
    return Comparison(
        a_seconds=statistics.median(a for a, _ in pairs),
        b_seconds=statistics.median(b for _, b in pairs),
        ratio=statistics.median(b / a for a, b in pairs),
    )


def seconds(call: Callable[[], Any]) -> float:
    """Duration of one call, its result waited for."""
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.system(),
        "devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
    }


def versions() -> dict[str, str]:
    """Versions of what computes."""
    return {"python": platform.python_version(), **{name: version(name) for name in ("jax", "jaxlib", "numpy")}}


def note(text: str) -> None:
    """Say something beside the results; never on the standard output, which may be JSON."""
    print(text, file=sys.stderr)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    names = info.read_text().split("model name")[1:2] if info.exists() else []
    return names[0].split("\n")[0].strip("\t :") if names else platform.processor() or platform.machine()
