"""Neighbourhood aggregation by buckets against segment operations and a CSR product: forward and backward, and memory.

Shapes: E edges, V vertices, L heads, C channels of a head, D = L C features.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from report import Report, compare, flags

from models.gnn.buckets import Buckets, build
from models.gnn.segments import Segments
from models.gnn.view import View

HEADS, CHANNELS = 8, 8
EXPONENT = 0.7  # of a vertex's expected degree in its rank: degrees fall off with a power of about -2.4
HUB_DEGREE = 50_000
Edges = tuple[np.ndarray, np.ndarray]


def power_law(vertices: int, edges: int, seed: int) -> Edges:
    """Senders and receivers drawn apart, each vertex in proportion to a power of its place in a random order."""
    rng = np.random.default_rng(seed)
    weight_V = np.arange(1.0, vertices + 1) ** -EXPONENT
    total_V = np.cumsum(weight_V / weight_V.sum())

    def draw() -> np.ndarray:
        rank_E = np.minimum(np.searchsorted(total_V, rng.random(edges)), vertices - 1)
        return rng.permutation(vertices)[rank_E].astype(np.int32)

    return draw(), draw()


def with_hub(vertices: int, degree: int, seed: int) -> Edges:
    """Four random edges to each vertex, and one vertex at which `degree` edges arrive and as many leave."""
    rng = np.random.default_rng(seed)
    senders_E, receivers_E = rng.integers(0, vertices, (2, 4 * vertices + 2 * degree), dtype=np.int32)
    receivers_E[:degree], senders_E[degree : 2 * degree] = 0, 0
    return senders_E, receivers_E


def views(edges: Edges, vertices: int) -> tuple[Buckets, Segments]:
    """The two views of one graph, on the device."""
    buckets = jax.device_put(build(*edges, sources=vertices, targets=vertices))
    senders_E, receivers_E = map(jnp.asarray, edges)
    zeros_E = jnp.zeros_like(senders_E)
    return buckets, Segments(senders_E=senders_E, receivers_E=receivers_E, relation_E=zeros_E, targets=vertices)


def total(view: View, x_VLC: jax.Array) -> jax.Array:
    """Sums over neighbours."""
    return view.sum(x_VLC)[:, 0]


def attention(view: View, x_VLC: jax.Array) -> jax.Array:
    """Graph attention with scores that are differences of a channel."""
    s = jax.tree.map(jnp.subtract, view.senders(x_VLC[..., 0]), view.receivers(x_VLC[..., 1]))
    return view.weighted(x_VLC, view.softmax(s))[:, 0]


def largest(view: View, x_VLC: jax.Array) -> jax.Array:
    """Maxima over neighbours."""
    return view.max(x_VLC)


def plain(edges: tuple[jax.Array, jax.Array], x_VLC: jax.Array) -> jax.Array:
    """Sums over neighbours by `jax.ops.segment_sum`."""
    return jax.ops.segment_sum(x_VLC[edges[0]], edges[1], x_VLC.shape[0])


def both_ways(aggregate: Callable[[Any, jax.Array], jax.Array]) -> Any:
    """Jitted forward and backward: the output and the gradient of the rows."""

    @jax.jit
    def run(graph: Any, x: jax.Array, do: jax.Array) -> tuple[jax.Array, jax.Array]:
        o, vjp = jax.vjp(lambda x: aggregate(graph, x), x)
        return o, *vjp(do)

    return run


def difference(found: Any, right: Any) -> float:
    """The largest difference of two results, relative to the largest number of each array."""
    errors = [np.max(np.abs(a - b)) / np.max(np.abs(b)) for a, b in zip(found, right, strict=True)]
    return float(max(errors))


def rows(vertices: int) -> tuple[jax.Array, jax.Array]:
    """Features and a gradient of the output, [V, L, C]."""
    rng = np.random.default_rng(vertices)
    x, do = rng.normal(size=(2, vertices, HEADS, CHANNELS)).astype(np.float32)
    return jnp.asarray(x), jnp.asarray(do)


def against_segment_sum(report: Report, edges: Edges, buckets: Buckets, vertices: int, rounds: int) -> None:
    """Sums by buckets and by `jax.ops.segment_sum`."""
    (x, do), graph = rows(vertices), jax.device_put(edges)
    ours, theirs = both_ways(total), both_ways(plain)
    found = compare(lambda: ours(buckets, x, do), lambda: theirs(graph, x, do), rounds)
    report.add("sum, ours", found.a_seconds, "s")
    report.add("sum, jax.ops.segment_sum", found.b_seconds, "s")
    report.add("sum, speed against jax.ops.segment_sum", found.ratio, "x", at_least=3.0)
    error = difference(ours(buckets, x, do), theirs(graph, x, do))
    report.add("sum, difference from jax.ops.segment_sum", error, "", at_most=1e-5)
    for name, run, given in (("ours", ours, buckets), ("jax.ops.segment_sum", theirs, graph)):
        memory = run.lower(given, x, do).compile().memory_analysis()
        report.add(f"sum, {name}, temporary memory", memory.temp_size_in_bytes / 2**20, "MiB")


def against_scipy(report: Report, edges: Edges, buckets: Buckets, vertices: int, rounds: int) -> None:
    """Sums by buckets and by scipy's product of a CSR matrix, and of its transpose."""
    x, do = rows(vertices)
    ones = np.ones(len(edges[0]), np.float32)
    matrix = scipy.sparse.coo_matrix((ones, edges[::-1]), shape=(vertices, vertices)).tocsr()
    transposed = matrix.T.tocsr()
    x_VD, do_VD = (np.asarray(a).reshape(vertices, -1) for a in (x, do))
    forward, both = jax.jit(total), both_ways(total)
    found = compare(lambda: forward(buckets, x), lambda: matrix @ x_VD, rounds)
    report.add("sum, forward, speed against scipy CSR", found.ratio, "x")
    found = compare(lambda: both(buckets, x, do), lambda: (matrix @ x_VD, transposed @ do_VD), rounds)
    report.add("sum, forward and backward, speed against scipy CSR", found.ratio, "x")


def against_segments(
    report: Report, name: str, aggregate: Callable[[View, jax.Array], jax.Array], graphs: Any, rounds: int
) -> None:
    """Any aggregation by buckets and by jraph's segment operations."""
    buckets, segments = graphs
    x, do = rows(segments.targets)
    run = both_ways(aggregate)
    found = compare(lambda: run(buckets, x, do), lambda: run(segments, x, do), rounds)
    report.add(f"{name}, ours", found.a_seconds, "s")
    report.add(f"{name}, speed against segment operations", found.ratio, "x")
    error = difference(run(buckets, x, do), run(segments, x, do))
    report.add(f"{name}, difference from segment operations", error, "", at_most=1e-5)


def tables(report: Report, name: str, edges: Edges, vertices: int) -> None:
    """Time to build the buckets, their padding and their memory."""
    start = time.perf_counter()
    buckets = build(*edges, sources=vertices, targets=vertices)
    report.add(f"{name}, building", time.perf_counter() - start, "s")
    report.add(f"{name}, largest degree", float(np.bincount(edges[1]).max()), "")
    report.add(f"{name}, padding share of slots", buckets.padding_share, "", at_most=0.25)
    size = sum(array.nbytes for array in jax.tree.leaves(buckets))
    report.add(f"{name}, tables", size / 2**20, "MiB")
    report.add(f"{name}, tables, bytes of an edge", size / len(edges[0]), "B", at_most=32)


def hub(report: Report, vertices: int, degree: int, rounds: int) -> None:
    """A graph with one hub: nothing is as wide as its degree."""
    edges = with_hub(vertices, degree, seed=2)
    tables(report, "hub", edges, vertices)
    graphs, (x, do) = views(edges, vertices), rows(vertices)
    memory = both_ways(total).lower(graphs[0], x, do).compile().memory_analysis()
    report.add("hub, temporary memory over features", memory.temp_size_in_bytes / x.nbytes, "x", at_most=8)
    against_segments(report, "hub, sum", total, graphs, rounds)


def main() -> None:
    given = flags(__doc__)
    vertices, count, rounds = (20_000, 400_000, 5) if given.quick else (100_000, 2_000_000, 9)
    report = Report("aggregate")
    edges = power_law(vertices, count, seed=1)
    tables(report, "power law", edges, vertices)
    graphs = views(edges, vertices)
    against_segment_sum(report, edges, graphs[0], vertices, rounds)
    against_scipy(report, edges, graphs[0], vertices, rounds)
    against_segments(report, "softmax and weighted sum", attention, graphs, rounds)
    against_segments(report, "max", largest, graphs, rounds)
    hub(report, vertices, min(HUB_DEGREE, vertices // 2), rounds)
    report.show(as_json=given.json)


if __name__ == "__main__":
    main()
