"""A graph plan as plain text."""

from typing import TYPE_CHECKING

from meshes.table import aligned, count, milliseconds
from meshes.units import format_bytes

if TYPE_CHECKING:
    from meshes.graph_plan import Alternative, GraphPlan

DEALT = {"vertex": ("vertices",), "feature": ("vertices", "lanes"), "sample": ("seeds",), "batch": ("graphs",)}


def render(plan: "GraphPlan") -> str:
    """A line on what the plan is, a table with a line for each device, what was compared, and what it should gain."""
    names = ["device", "kind", "speed", *DEALT[plan.parallel], "edges", "halo", "halo share"]
    cells = [[*names, "compute ms", "comm ms", "wait ms", "memory"], *_rows(plan)]
    rows = aligned(cells, "<<" + ">" * (len(cells[0]) - 2))
    return "\n".join([_header(plan), "", *rows, "", *_footer(plan)])


def _header(plan: "GraphPlan") -> str:
    work = plan.workload
    graph = f"{work.vertices} vertices and {work.edges} edges"
    step = {
        "sample": f"{count(work.seeds, 'seed')} a step in a graph of {graph}",
        "batch": f"{count(work.graphs, 'graph')} a step of about {graph}",
    }.get(plan.parallel, graph)
    return (
        f"Plan {plan.digest()}: {count(len(plan.vertices), 'device')}, {plan.parallel} parallelism, {step},"
        f" {plan.placement} placement"
    )


def _rows(plan: "GraphPlan") -> list[list[str]]:
    rows = []
    for d, (device, cost) in enumerate(zip(plan.cluster.devices, plan.predictions, strict=True)):
        memory = format_bytes(cost.memory)
        rows.append(
            [
                device.name,
                device.kind,
                f"{device.speed:.4g}",
                *(str(getattr(plan, name)[d]) for name in DEALT[plan.parallel]),
                str(plan.edges[d]),
                str(plan.halo[d]),
                f"{plan.halo_share[d]:.0%}",
                *(milliseconds(s) for s in (cost.compute, cost.communication, cost.waiting)),
                memory if cost.memory_limit is None else f"{memory} of {format_bytes(cost.memory_limit)}",
            ]
        )
    return rows


def _footer(plan: "GraphPlan") -> list[str]:
    lines = []
    if len(plan.alternatives) > 1:
        lines.append(f"Compared, for each pass over training vertices: {', '.join(map(_way, plan.alternatives))}.")
    step, gain = milliseconds(plan.step_seconds), plan.gain
    if plan.even_step_seconds is None or gain is None:
        return [*lines, f"Predicted step {step} ms; no even plan fits in memory."]
    even = milliseconds(plan.even_step_seconds)
    return [
        *lines,
        f"Predicted step {step} ms, {gain:.2f}x as fast as the best even plan ({even} ms);"
        f" mean over slowest speed, the ideal, is {plan.ideal_gain:.2f}x.",
    ]


def _way(way: "Alternative") -> str:
    if way.pass_seconds is None:
        return f"{way.parallel} does not fit in memory"
    return f"{way.parallel} {milliseconds(way.pass_seconds)} ms"
