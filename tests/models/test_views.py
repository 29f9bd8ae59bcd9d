"""Views of edges against flat edge lists: values, gradients, hubs, padding and what unused slots hold."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.gnn import tables
from models.gnn.buckets import Buckets, build
from models.gnn.segments import Segments
from models.gnn.slots import Slots
from models.gnn.tables import UNUSED

TOLERANCE = 5e-6  # of the largest number of a method; flat lists add up a hub's hundreds of edges one after another
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}  # to compile, not to run
LANES, CHANNELS = 2, 3
NARROW = (1, 2, 4)  # so that small graphs have hubs of many pieces


class Graph(NamedTuple):
    """Edges between U sources and V targets."""

    senders: np.ndarray
    receivers: np.ndarray
    relation: np.ndarray
    sources: int
    targets: int
    relations: int

    def without(self, edge: int) -> "Graph":
        """The graph with one edge dropped."""
        senders, receivers, relation = (np.delete(a, edge) for a in (self.senders, self.receivers, self.relation))
        return self._replace(senders=senders, receivers=receivers, relation=relation)


class Inputs(NamedTuple):
    """Rows of sources, of targets, and of targets by relation."""

    x: jax.Array
    y: jax.Array
    z: jax.Array


def draw(seed: int, sources: int, targets: int, edges: int, relations: int = 1) -> Graph:
    """Random edges with duplicates and self loops, a hub each way, rows without edges and a relation without."""
    rng = np.random.default_rng(seed)
    senders, receivers = (rng.integers(0, max(size - 1, 1), edges) for size in (sources, targets))
    receivers[: edges // 3], senders[edges // 2 : edges // 2 + edges // 4] = 0, 0
    senders[-edges // 8 :], receivers[-edges // 8 :] = senders[: -(-edges // 8)], receivers[: -(-edges // 8)]
    relation = rng.integers(0, max(relations - 1, 1), edges)
    s, r, t = np.stack([senders, receivers, relation]).astype(np.int32)
    return Graph(s, r, t, sources, targets, relations)


GRAPHS = {
    "one relation": draw(1, 40, 40, 400),
    "relations": draw(2, 40, 30, 600, 4),
    "hubs of hubs": draw(3, 9, 7, 1000, 2),
    "one vertex": draw(4, 1, 1, 20),
    "no edges": draw(5, 6, 5, 0, 2),
    "no sources": draw(6, 0, 5, 0, 2),
    "no targets": draw(7, 5, 0, 0),
    "one edge": draw(8, 3, 3, 1, 2),
}


def inputs(graph: Graph, dtype: Any = jnp.float32) -> Inputs:
    """Rows in steps of a half, so that maxima tie."""
    rng = np.random.default_rng(0)
    shapes = [
        (graph.sources, LANES, CHANNELS),
        (graph.targets, LANES, CHANNELS),
        (graph.targets, graph.relations, LANES),
    ]
    return Inputs(*(jnp.asarray(np.round(2 * rng.normal(size=shape)) / 2, dtype) for shape in shapes))


def segments(graph: Graph) -> Segments:
    return Segments(
        senders_E=jnp.asarray(graph.senders),
        receivers_E=jnp.asarray(graph.receivers),
        relation_E=jnp.asarray(graph.relation),
        targets=graph.targets,
        relations=graph.relations,
    )


def buckets(graph: Graph, widths: tuple[int, ...] = NARROW) -> Buckets:
    return build(
        graph.senders,
        graph.receivers,
        graph.relation,
        sources=graph.sources,
        targets=graph.targets,
        num_relations=graph.relations,
        widths=widths,
    )


def scores(view: Any, x: jax.Array, y: jax.Array) -> Any:
    return jax.tree.map(lambda a, b: jnp.sin(a * b), view.senders(x[..., 0]), view.receivers(y[..., 1]))


def edgewise(view: Any, x: jax.Array, y: jax.Array, z: jax.Array, spoil: Callable[[Any], Any]) -> jax.Array:
    """Every edge operation but `max` and `sum`."""
    a = view.softmax(spoil(scores(view, x, y)))
    a = jax.tree.map(lambda a, b: a + jnp.cos(b), a, view.receivers_by_relation(z))
    return view.weighted(x, spoil(a))


METHODS: dict[str, Callable[..., jax.Array]] = {
    "sum": lambda view, x, y, z, spoil: view.sum(x),
    "max": lambda view, x, y, z, spoil: view.max(x),
    "weighted": lambda view, x, y, z, spoil: view.weighted(x, spoil(scores(view, x, y))),
    "softmax": edgewise,
}


def results(
    view: Any, given: Inputs, spoil: Callable[[Any], Any] = lambda values: values, methods: Sequence[str] = (*METHODS,)
) -> dict[str, jax.Array]:
    """The result of each method and the gradients of what goes in."""
    found: dict[str, jax.Array] = {}
    for name in methods:
        out, vjp = jax.vjp(lambda x, y, z, method=METHODS[name]: method(view, x, y, z, spoil), *given)
        do = jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape).astype(out.dtype)
        found.update(zip((f"{name} {what}" for what in ("out", "dx", "dy", "dz")), (out, *vjp(do)), strict=True))
    return found


def run(view: Any, given: Inputs, **options: Any) -> dict[str, jax.Array]:
    """`results`, compiled."""
    return jax.jit(partial(results, **options), compiler_options=QUICK)(view, given)


def close(found: dict[str, jax.Array], right: dict[str, jax.Array], tolerance: float = TOLERANCE) -> None:
    """Raises AssertionError where an array differs; gradients are measured by the largest of their method."""
    for name, b in right.items():
        a, method = found[name].astype(jnp.float32), name.split()[0]
        size = max(float(jnp.max(jnp.abs(r), initial=1.0)) for other, r in right.items() if other.startswith(method))
        np.testing.assert_allclose(a, b.astype(jnp.float32), rtol=0, atol=tolerance * size, err_msg=f"{name} is off")


@pytest.mark.parametrize("name", GRAPHS)
def test_buckets_equal_segments(name: str) -> None:
    graph = GRAPHS[name]
    close(run(buckets(graph), inputs(graph)), run(segments(graph), inputs(graph)))


def test_buckets_of_the_default_widths_equal_segments() -> None:
    graph = draw(9, 100, 100, 1500)
    close(run(buckets(graph, tables.WIDTHS), inputs(graph)), run(segments(graph), inputs(graph)))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["relations", "one edge"])
def test_the_comparison_sees_a_dropped_edge(name: str, method: str) -> None:
    graph = GRAPHS[name]
    x = jnp.linspace(0, 1, graph.sources * LANES * CHANNELS).reshape(graph.sources, LANES, CHANNELS)
    given = inputs(graph)._replace(x=x)
    found, right = (
        run(view, given, methods=[method]) for view in (buckets(graph.without(lone_largest(graph))), segments(graph))
    )
    for part in ("out", "dx"):
        with pytest.raises(AssertionError, match=f"{method} {part} is off"):
            close({f"{method} {part}": found[f"{method} {part}"]}, {f"{method} {part}": right[f"{method} {part}"]})


def lone_largest(graph: Graph) -> int:
    """An edge whose sender is the largest of all that send to its receiver, and sends there once."""
    for edge in range(len(graph.senders)):
        rivals = np.delete(graph.senders, edge)[np.delete(graph.receivers, edge) == graph.receivers[edge]]
        if graph.senders[edge] > max(rivals, default=-1):
            return edge
    raise AssertionError("no such edge")


@pytest.mark.parametrize("name", ["relations", "hubs of hubs", "no edges", "no sources"])
def test_buckets_equal_segments_whatever_unused_slots_hold(name: str) -> None:
    graph, given = GRAPHS[name], inputs(GRAPHS[name])
    own = buckets(graph)
    close(run(own, given, spoil=lambda values: spoiled(own, values)), run(segments(graph), given))


def spoiled(view: Buckets, values: Any) -> Any:
    """Edge values with NaN in all unused slots."""
    used = (jnp.asarray(entries != UNUSED)[:, :, None] for entries in view.arriving.entries)
    return tuple(jnp.where(u, x, jnp.nan) for u, x in zip(used, values, strict=True))


def test_axes_name_every_array_and_its_length() -> None:
    own = buckets(GRAPHS["hubs of hubs"])
    sizes, signatures, arrays = own.sizes(), own.axes(), jax.tree.leaves(own)
    for signature, array in zip(signatures, arrays, strict=True):
        *width, name = signature.split()
        assert array.ndim == len(width) + 1
        assert array.shape[-1] == sizes[name]
        assert not set(width) & set(sizes)
    assert {signature.split()[-1] for signature in signatures} == set(sizes)


def test_padding_edges_of_segments_are_not_seen() -> None:
    graph, given = GRAPHS["relations"], inputs(GRAPHS["relations"])
    extra = graph._replace(
        senders=np.append(graph.senders, [0, 3]).astype(np.int32),
        receivers=np.append(graph.receivers, [graph.targets] * 2).astype(np.int32),
        relation=np.append(graph.relation, [0, 1]).astype(np.int32),
    )
    found = run(segments(extra), given, spoil=lambda values: values.at[-2:].set(jnp.nan))
    close(found, run(segments(graph), given))


def test_ties_share_the_gradient_equally() -> None:
    zeros = np.zeros(4, np.int32)
    graph = Graph(np.array([0, 1, 2, 1], np.int32), zeros, zeros, 3, 1, 1)
    x = jnp.asarray([1.0, 1.0, 0.0]).reshape(3, 1, 1)
    for view in (segments(graph), buckets(graph)):
        dx = jax.grad(lambda x, view=view: jnp.sum(view.max(x)))(x)
        np.testing.assert_allclose(dx.ravel(), [1 / 3, 2 / 3, 0], atol=TOLERANCE)


def test_negative_maxima_are_not_zero() -> None:
    graph = GRAPHS["relations"]
    x = -1 - jnp.abs(inputs(graph).x)
    some = np.bincount(graph.receivers, minlength=graph.targets) > 0
    assert not some.all()
    for view in (segments(graph), buckets(graph)):
        top = np.asarray(view.max(x))
        assert (top[some] <= -1).all() and not top[~some].any()


def sampled(seed: int, targets: int, slots: int, relations: int) -> tuple[Slots, Graph]:
    """Slots of which some are unused, and the same edges in a list."""
    rng = np.random.default_rng(seed)
    mask = rng.random((targets, slots)) < 0.7
    mask[-1] = False
    relation = rng.integers(0, relations, mask.shape).astype(np.int32)
    v, f = np.nonzero(mask)
    senders = (targets + v * slots + f).astype(np.int32)
    graph = Graph(senders, v.astype(np.int32), relation[v, f], targets * (1 + slots), targets, relations)
    view = Slots(
        mask_VF=jnp.asarray(mask),
        relation_VF=jnp.asarray(relation),
        degree_V=jnp.asarray(mask.sum(axis=1), jnp.float32),
        relations=relations,
    )
    return view, graph


@pytest.mark.parametrize(("slots", "relations"), [(1, 1), (5, 1), (4, 3)])
def test_slots_that_hold_all_edges_equal_segments(slots: int, relations: int) -> None:
    view, graph = sampled(slots, 9, slots, relations)
    given, mask = inputs(graph), view.mask_VF[:, :, None]
    found = run(view, given, spoil=lambda values: jnp.where(mask, values, jnp.nan))
    right = run(segments(graph), given)
    close(found, right)
    with pytest.raises(AssertionError, match="is off"):
        close(run(replace(view, mask_VF=view.mask_VF.at[0].set(False)), given), right)


@pytest.mark.parametrize("method", ["sum", "weighted"])
def test_the_mean_over_all_samples_is_the_sum_over_all_edges(method: str) -> None:
    degree, slots = 5, 3
    rng = np.random.default_rng(3)
    x = jnp.asarray(rng.normal(size=(1 + degree, LANES, CHANNELS)), jnp.float32)
    relation = rng.integers(0, 2, degree).astype(np.int32)
    graph = Graph(np.arange(1, 1 + degree, dtype=np.int32), np.zeros(degree, np.int32), relation, 1 + degree, 1, 2)

    def value(view: Any, x: jax.Array) -> jax.Array:
        return view.sum(x) if method == "sum" else view.weighted(x, jax.tree.map(jnp.sin, view.senders(x[..., 0])))

    def estimate(chosen: tuple[int, ...], known: int) -> jax.Array:
        view = Slots(
            mask_VF=jnp.ones((1, slots), bool),
            relation_VF=jnp.asarray(relation[list(chosen)])[None],
            degree_V=jnp.asarray([known], jnp.float32),
            relations=2,
        )
        return value(view, x[jnp.asarray([0, *(1 + i for i in chosen)])])

    samples, right = [*combinations(range(degree), slots)], value(segments(graph), x)
    mean = sum(estimate(s, degree) for s in samples) / len(samples)
    np.testing.assert_allclose(mean, right, atol=1e-5)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        np.testing.assert_allclose(sum(estimate(s, slots) for s in samples) / len(samples), right, atol=1e-5)


def test_slots_of_another_number_of_rows() -> None:
    view, _ = sampled(0, 4, 3, 1)
    with pytest.raises(ValueError, match="4 targets of 3 slots have 16 source rows, not 15"):
        view.sum(jnp.zeros((15, LANES, CHANNELS)))


def test_buckets_of_another_number_of_rows() -> None:
    with pytest.raises(ValueError, match="the edges leave 40 source rows, 39 are given"):
        buckets(GRAPHS["relations"]).sum(jnp.zeros((39, LANES, CHANNELS)))


@pytest.mark.parametrize("kind", ["segments", "buckets", "slots"])
def test_sixteen_bit_rows_are_summed_in_thirty_two(kind: str) -> None:
    """A thousand small rows after a large one: 16-bit sums would stay at the large one."""
    count = 1000
    view: Any = Slots(
        mask_VF=jnp.ones((1, count), bool),
        relation_VF=jnp.zeros((1, count), jnp.int32),
        degree_V=jnp.asarray([count], jnp.float32),
    )
    if kind != "slots":
        zeros = np.zeros(count, np.int32)
        graph = Graph(np.arange(1, count + 1, dtype=np.int32), zeros, zeros, count + 1, 1, 1)
        view = segments(graph) if kind == "segments" else buckets(graph, tables.WIDTHS)
    x = jnp.full((count + 1, 1, 1), 1 / 256, jnp.bfloat16).at[1].set(1)
    right = 1 + (count - 1) / 256
    for out in (view.sum(x), view.weighted(x, jax.tree.map(jnp.ones_like, view.senders(x[..., 0])))):
        assert out.dtype == jnp.bfloat16
        assert float(out[0, 0, 0, 0]) == pytest.approx(right, rel=2**-8)
    dy = jax.grad(lambda y: sum(jnp.sum(v * v) for v in jax.tree.leaves(view.receivers(y))))(jnp.ones_like(x[:1]))
    assert dy.dtype == jnp.bfloat16
    assert float(dy[0, 0, 0]) == pytest.approx(2 * count, rel=2**-8)


def test_sixteen_bit_results_are_near() -> None:
    graph = GRAPHS["relations"]
    found, right = run(buckets(graph), inputs(graph, jnp.bfloat16)), run(segments(graph), inputs(graph))
    assert {a.dtype for a in found.values()} == {jnp.dtype(jnp.bfloat16)}
    close(found, right, 0.05)


def test_nothing_is_scattered() -> None:
    """Forward and backward of buckets are gathers alone; the twin has scatters to find."""
    graph = GRAPHS["relations"]
    found, twin = (str(jax.make_jaxpr(results)(view, inputs(graph))) for view in (buckets(graph), segments(graph)))
    assert "gather" in found and "scatter" not in found
    assert "scatter" in twin


def test_a_hub_is_not_padded_to() -> None:
    vertices, degree = 60_000, 50_000
    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(0, vertices, (2, 2 * degree)).astype(np.int32)
    receivers[:degree] = 7
    view = build(senders, receivers, sources=vertices, targets=vertices)
    assert max(entries.shape[0] for entries in view.arriving.entries) == tables.WIDTHS[-1]
    assert view.padding_share < 0.25
    assert sum(array.nbytes for array in jax.tree.leaves(view)) < 32 * len(senders)
    assert sum(int(np.sum(entries != UNUSED)) for entries in view.arriving.entries) == len(senders)


def test_padding_of_a_power_law_is_bounded() -> None:
    rng = np.random.default_rng(0)
    weights = np.arange(1, 2001) ** -0.8
    senders, receivers = rng.choice(2000, size=(2, 20_000), p=weights / weights.sum()).astype(np.int32)
    assert 0 < build(senders, receivers, sources=2000, targets=2000).padding_share < 0.25
    assert build(senders, receivers, sources=2000, targets=2000, widths=(64,)).padding_share > 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"senders": [0, 5, 1]}, r"edge 1 has sender 5, outside 0\.\.4"),
        ({"receivers": [0, 1, -1]}, r"edge 2 has receiver -1, outside 0\.\.3"),
        ({"relation": [2, 0, 0]}, r"edge 0 has relation 2, outside 0\.\.1"),
        ({"receivers": [0, 1]}, r"3 edges have receivers of shape \(2,\): give one for each edge"),
        ({"targets": 2**30}, r"1073741824 targets of 2 relations and 5 sources are more rows than the 2147483646"),
    ],
)
def test_edges_that_cannot_be(change: dict[str, Any], message: str) -> None:
    graph = Graph(np.array([0, 1, 2]), np.array([0, 1, 2]), np.array([0, 0, 0]), 5, 4, 2)
    change = {key: np.array(value) if isinstance(value, list) else value for key, value in change.items()}
    with pytest.raises(ValueError, match=message):
        buckets(graph._replace(**change))


def test_more_slots_than_32_bits_count() -> None:
    with pytest.raises(ValueError, match=r"1 edges need 4294967296 slots, more than the 2147483646 that 32-bit"):
        buckets(GRAPHS["one edge"], (2**32,))


def test_a_hub_of_too_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "HUB_WIDTHS", (4, 16))
    with pytest.raises(ValueError, match=r"a row needs \d+ pieces of 4, more than 16: give a larger width"):
        buckets(GRAPHS["hubs of hubs"])
