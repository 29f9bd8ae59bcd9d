"""Graph networks against dense matrices, and what must hold for every one of them."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.gnn import losses, network
from models.gnn.config import GnnConfig
from models.gnn.dropout import dropout, kept
from models.gnn.layout import Rows
from models.gnn.segments import Segments
from models.gnn.single import Single, SingleHop, degrees
from tests.models import gnn_oracle
from tests.models.gnn_oracle import GRADIENT, VALUE, Case, close, draw, layout

SIZES: dict[str, Any] = {"layers": 2, "width": 12, "heads": 3, "inputs": 5, "outputs": 4, "relations": 3, "kinds": 3}
CONFIGS = {
    "gcn": GnnConfig(model="gcn", **SIZES),
    "sage mean": GnnConfig(model="sage", **SIZES),
    "sage max": GnnConfig(model="sage", aggregate="max", **SIZES),
    "gat": GnnConfig(model="gat", **SIZES),
    "gin": GnnConfig(model="gin", hidden=8, **SIZES),
    "graphnet": GnnConfig(model="graphnet", hidden=8, edge_features=2, **SIZES),
    "rgcn": GnnConfig(model="rgcn", bases=2, **SIZES),
    "hgt": GnnConfig(model="hgt", **SIZES),
}
each_model = pytest.mark.parametrize("name", CONFIGS)


@functools.cache
def weights_of(config: GnnConfig) -> Any:
    """Weights of which none is 0 or 1, so that each of them matters."""
    rng = np.random.default_rng(1)

    def fill(path: Any, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        stacked = jax.tree_util.keystr(path, simple=True, separator="/").startswith("layers")
        matrix = leaf.ndim - stacked == 2
        values = rng.normal(0.0 if matrix else 0.5, leaf.shape[-2] ** -0.5 if matrix else 0.2, leaf.shape)
        return jnp.asarray(values, jnp.float32)

    shapes = jax.eval_shape(functools.partial(network.init, config), jax.random.key(0))
    return jax.tree_util.tree_map_with_path(fill, shapes)


def loss(config: GnnConfig, weights: Any, case: Case, key: Any = None) -> tuple[jax.Array, jax.Array]:
    """Sum of the losses, and the outputs."""
    found = network.outputs(config, weights, case.features, layout(config, case), key=key)
    return losses.classification(found, case.labels)[0], found


# ((loss, outputs), gradients); compiled once for graphs of the same sizes, and quickly.
compiled = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
loss_and_gradients = jax.value_and_grad(loss, argnums=1, has_aux=True)
run = compiled(loss_and_gradients, static_argnums=0)
run_plainly = compiled(jax.value_and_grad(gnn_oracle.loss, argnums=1, has_aux=True), static_argnums=0)


def compare(config: GnnConfig, case: Case, ours: Case | None = None) -> None:
    """Loss, outputs and gradients, ours perhaps of another graph."""
    found = run(config, weights_of(config), jax.tree.map(jnp.asarray, case if ours is None else ours))
    right = run_plainly(config, weights_of(config), gnn_oracle.dense(config, case))
    close(found[0], right[0], VALUE)
    close(found[1], right[1], GRADIENT)


@each_model
def test_outputs_and_gradients_equal_dense_matrices(name: str) -> None:
    compare(CONFIGS[name], draw(3, CONFIGS[name]))
    compare(CONFIGS[name], draw(4, CONFIGS[name], relations=(2,), kinds=(1,)))  # types that do not occur


@each_model
def test_the_comparison_sees_an_edge_from_elsewhere(name: str) -> None:
    case = draw(3, CONFIGS[name])
    moved = case.senders.copy()
    moved[20] = 16 if moved[20] != 16 else 15
    with pytest.raises(AssertionError, match="is off"):
        compare(CONFIGS[name], case, case._replace(senders=moved))


@pytest.mark.parametrize("name", ["gcn", "hgt", "graphnet"])
def test_many_small_graphs_have_outputs_of_their_own(name: str) -> None:
    config = dataclasses.replace(CONFIGS[name], level="graph", remat="layer")
    case = draw(5, config, sizes=(6, 1, 9))
    compare(config, case)
    with pytest.raises(AssertionError, match="is off"):
        compare(config, case, case._replace(n_node=np.array([5, 2, 9], np.int32)))


@pytest.mark.parametrize("config", [CONFIGS["gcn"], GnnConfig(model="graphnet", **SIZES)], ids=["gcn", "graphnet"])
def test_a_graph_without_edges(config: GnnConfig) -> None:
    compare(config, draw(3, config, edges=0))


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "graphnet"])
def test_edges_of_padding_are_none(name: str) -> None:
    config, none = CONFIGS[name], np.zeros((0,), np.int32)
    case = draw(3, config)
    without = case._replace(senders=none, receivers=none, relation=none)
    compare(config, without, case._replace(receivers=np.full_like(case.receivers, 17)))


@each_model
def test_permuted_vertices_have_permuted_outputs(name: str) -> None:
    config, case = CONFIGS[name], draw(3, CONFIGS[name])
    order = np.random.default_rng(6).permutation(len(case.kind))
    whole, other = (
        run(config, weights_of(config), jax.tree.map(jnp.asarray, c))[0][1]
        for c in (case, gnn_oracle.permuted(case, order))
    )
    close(other, whole[order], VALUE)
    with pytest.raises(AssertionError, match="is off"):
        close(other, whole, VALUE)


def hops_to(case: Case, seeds: np.ndarray, config: GnnConfig) -> tuple[Single, np.ndarray]:
    """Layers that compute only what the seeds need, each hop with rows of its own; and the rows of the first hop."""
    arrays = jnp.asarray(case.receivers), jnp.asarray(case.relation)
    degree = np.asarray(degrees(*arrays, len(case.kind), config.relations))
    rows, hops = seeds, []
    for number in range(config.layers, 0, -1):
        arrive = np.isin(case.receivers, rows)
        senders, receivers, relation = (getattr(case, n)[arrive] for n in ("senders", "receivers", "relation"))
        before = np.concatenate([rows, np.setdiff1d(senders, rows)])
        place = np.zeros(len(case.kind), np.int32)
        place[before] = np.arange(len(before))
        facts = [Rows(*map(jnp.asarray, (degree[at], case.kind[at], at))) for at in (before, rows)]
        view = Segments(
            senders_E=jnp.asarray(place[senders]),
            receivers_E=jnp.asarray(place[receivers]),
            relation_E=jnp.asarray(relation),
            targets=len(rows),
            relations=config.relations,
        )
        none = jnp.zeros((1,), jnp.int32)
        hops.append(
            SingleHop(
                view=view,
                source=facts[0],
                target=facts[1],
                n_node_G=none,
                n_edge_G=none,
                source_axis=f"N{number - 1}",
                target_axis=f"N{number}",
            )
        )
        rows = before
    return Single(hops=tuple(hops[::-1]), edges=jnp.zeros((0, 0)), n_node_G=jnp.zeros((1,), jnp.int32)), rows


@pytest.mark.parametrize("name", ["gcn", "sage max", "gat", "rgcn", "hgt"])
def test_hops_with_rows_of_their_own(name: str) -> None:
    """Whole neighbourhoods of a few seeds give their rows of the whole graph, dropout included."""
    config = dataclasses.replace(CONFIGS[name], dropout=0.3, remat="layer")
    plain, weights, key = draw(7, config, sizes=(30,), edges=30), weights_of(config), jax.random.key(3)
    seeds, case = np.array([2, 3, 29], np.int32), jax.tree.map(jnp.asarray, plain)
    small, first = hops_to(plain, seeds, config)
    assert len(first) < 30

    def whole(weights: Any) -> jax.Array:
        return network.outputs(config, weights, case.features, layout(config, case), key=key)[seeds]

    def part(weights: Any) -> jax.Array:
        return network.outputs(config, weights, case.features[first], small, key=key)

    def both(run: Any) -> Any:
        def waves(weights: Any) -> tuple[jax.Array, jax.Array]:
            found = run(weights)
            return jnp.sum(jnp.sin(found)), found

        return compiled(jax.value_and_grad(waves, has_aux=True))(weights)

    found, right = both(part), both(whole)
    close(found[0], right[0], VALUE)
    close(found[1], right[1], GRADIENT)


def test_graphnet_refuses_hops_with_rows_of_their_own() -> None:
    config = CONFIGS["graphnet"]
    case = draw(7, config)
    small, first = hops_to(case, np.array([0, 1], np.int32), config)
    with pytest.raises(ValueError, match="all hops must be one and the same"):
        network.outputs(config, weights_of(config), jnp.asarray(case.features[first]), small)


@pytest.mark.parametrize("name", ["gcn", "gat", "graphnet"])
def test_jit_equals_eager(name: str) -> None:
    config, case = CONFIGS[name], jax.tree.map(jnp.asarray, draw(3, CONFIGS[name]))
    close(loss(config, weights_of(config), case), run(config, weights_of(config), case)[0], VALUE)


def test_remat_changes_nothing_and_dropout_something() -> None:
    config = dataclasses.replace(CONFIGS["gcn"], dropout=0.2)
    case, weights, key = jax.tree.map(jnp.asarray, draw(3, config)), weights_of(config), jax.random.key(4)
    plain, dropped = run(config, weights, case), run(config, weights, case, key)
    close(run(dataclasses.replace(config, remat="layer"), weights, case, key), dropped, VALUE)
    with pytest.raises(AssertionError, match="is off"):
        close(dropped, plain, VALUE)


@each_model
def test_16_bit_weights_have_16_bit_gradients(name: str) -> None:
    config, case = CONFIGS[name], jax.tree.map(jnp.asarray, draw(3, CONFIGS[name]))
    small = jax.tree.map(lambda w: w.astype(jnp.bfloat16), weights_of(config))
    shapes = jax.eval_shape(functools.partial(loss_and_gradients, config), small, case)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(shapes[0])} == {"float32"}
    assert {leaf.dtype.name for leaf in jax.tree.leaves(shapes[1])} == {"bfloat16"}


def test_16_bit_is_near() -> None:
    config, case = CONFIGS["gat"], jax.tree.map(jnp.asarray, draw(3, CONFIGS["gat"]))
    small = jax.tree.map(lambda w: w.astype(jnp.bfloat16), weights_of(config))
    found, right = (run(config, weights, case) for weights in (small, weights_of(config)))
    close(found[0], right[0], 0.1)
    assert all(bool(jnp.all(jnp.isfinite(g))) for g in jax.tree.leaves(found[1]))


@each_model
def test_weights_have_the_names_and_ranks_of_the_rule_table(name: str) -> None:
    ranks = {"kernel": 2, "bias": 1, "scale": 1}
    shapes = jax.eval_shape(functools.partial(network.init, CONFIGS[name]), jax.random.key(0))
    for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
        names = jax.tree_util.keystr(path, simple=True, separator="/").split("/")
        assert leaf.ndim == ranks[names[-1]] + (names[0] == "layers")
        assert leaf.dtype == jnp.float32


@pytest.mark.parametrize("name", ["gat", "hgt"])
def test_attention_stays_finite_where_scores_are_large(name: str) -> None:
    config, case = CONFIGS[name], jax.tree.map(jnp.asarray, draw(3, CONFIGS[name]))
    weights = dict(weights_of(config))
    weights["layers"] = jax.tree.map(lambda w: 100.0 * w, weights["layers"])
    assert all(bool(jnp.all(jnp.isfinite(x))) for x in jax.tree.leaves(run(config, weights, case)))


def test_fresh_weights_are_drawn_by_fan_in() -> None:
    config = dataclasses.replace(CONFIGS["gcn"], width=48)
    kernels = compiled(network.init, static_argnums=0)(config, jax.random.key(0))["layers"]["send"]["kernel"]
    np.testing.assert_allclose(jnp.std(kernels), 48**-0.5, rtol=0.1)
    assert abs(float(jnp.mean(kernels[0] * kernels[1]))) < 0.1 / 48


def test_a_missing_hop_and_sizes_that_do_not_fit_are_refused() -> None:
    config = CONFIGS["gcn"]
    case = jax.tree.map(jnp.asarray, draw(1, config))
    more = dataclasses.replace(config, layers=3)
    with pytest.raises(ValueError, match="3 layers need as many hops, the layout has 2"):
        network.outputs(more, weights_of(more), case.features, layout(config, case))
    with pytest.raises(ValueError, match="width 12 is not a multiple of heads 5"):
        dataclasses.replace(config, heads=5)
    with pytest.raises(ValueError, match="outputs must be at least 1, got 0"):
        dataclasses.replace(config, outputs=0)
    with pytest.raises(ValueError, match=r"below 1, got 1\.0"):
        dataclasses.replace(config, dropout=1.0)


def test_dropout_follows_the_vertex_wherever_it_is() -> None:
    key, ids = jax.random.key(5), jnp.arange(400, dtype=jnp.int32)
    draw = compiled(kept, static_argnums=(3, 4))
    whole = draw(key, 1, ids, 50, 0.3)
    np.testing.assert_array_equal(draw(key, 1, ids[7::3], 50, 0.3), whole[7::3])
    assert abs(float(jnp.mean(whole)) - 0.7) < 0.01
    for other in (draw(key, 2, ids, 50, 0.3), draw(jax.random.key(6), 1, ids, 50, 0.3), whole[:, ::-1], whole[::-1]):
        assert 0.4 < float(jnp.mean(other != whole)) < 0.44  # as often as independent draws: 2 * 0.3 * 0.7
    dropped = compiled(dropout, static_argnums=4)(jnp.ones((400, 50)), key, 1, ids, 0.3)
    np.testing.assert_allclose(jnp.unique(dropped), [0.0, 1 / 0.7], rtol=1e-4)
    np.testing.assert_array_equal(dropped > 0, whole)


def test_losses_are_sums_over_what_has_labels() -> None:
    rng = np.random.default_rng(2)
    logits = rng.normal(size=(5, 3)).astype(np.float32)
    labels = np.array([2, -1, 0, 1, -1], np.int32)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    right = -(log_p[0, 2] + log_p[2, 0] + log_p[3, 1])
    np.testing.assert_allclose(losses.classification(*map(jnp.asarray, (logits, labels))), (right, 3), rtol=1e-5)
    targets = np.where(rng.random((5, 3)) < 0.5, np.nan, 1.0).astype(np.float32)
    right = np.nansum((logits - targets) ** 2)
    found = losses.regression(*map(jnp.asarray, (logits, targets)))
    np.testing.assert_allclose(found, (right, np.isfinite(targets).sum()), rtol=1e-5)
    scores = logits[:, 0]
    edge = np.array([1, 0, -1, 1, 0], np.int32)
    p = 1 / (1 + np.exp(-scores))
    right = -np.log(np.where(edge > 0, p, 1 - p))[edge >= 0].sum()
    np.testing.assert_allclose(losses.link(*map(jnp.asarray, (scores, edge))), (right, 4), rtol=1e-5)
    ends = np.array([[0, 1, 4], [4, 4, 2]])
    products = np.array([[logits[a] @ logits[b], logits[a] @ logits[c]] for a, b, c in ends]) / np.sqrt(12)
    found = losses.link_scores(jnp.asarray(logits)[ends], 12)
    np.testing.assert_allclose(found, products, rtol=1e-5)
    right = np.logaddexp(0, -products[1, 0]) + np.logaddexp(0, products[1, 1])
    np.testing.assert_allclose(losses.links(found, jnp.array([False, True])), (right, 2), rtol=1e-5)


def test_what_has_no_label_reaches_neither_loss_nor_gradient() -> None:
    @compiled
    @jax.value_and_grad
    def total(x: jax.Array, wrong: float) -> jax.Array:
        none = jnp.asarray([0, -1], jnp.int32)
        targets = jnp.asarray([[1.0, 2.0], [np.nan, np.nan]], jnp.float32)
        x = x.at[1].multiply(wrong)
        found = (losses.classification(x, none), losses.regression(x, targets), losses.link(x[:, 0], none))
        return sum((value for value, _ in found), start=jnp.zeros(()))

    x = jnp.asarray([[0.5, -1.0], [3.0, 4.0]], jnp.float32)
    right, found = (total(x, wrong) for wrong in (1.0, np.inf))
    np.testing.assert_array_equal(found[0], right[0])
    np.testing.assert_array_equal(right[1][1], 0.0)
    assert np.all(np.isfinite(found[1][0])) and np.all(np.asarray(right[1][0]) != 0.0)


def test_readout_gathers_what_it_sums() -> None:
    config = dataclasses.replace(CONFIGS["gcn"], level="graph")
    at = layout(config, jax.tree.map(jnp.asarray, draw(5, config, sizes=(2, 3))))
    x = jnp.arange(10.0).reshape(5, 2)
    np.testing.assert_array_equal(at.graph_sum(x), [[2, 4], [18, 21]])
