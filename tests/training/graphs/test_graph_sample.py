"""Sampled neighbours: different ones, each set equally likely, unbiased, the same on any plan, compiled once."""

import math
from collections import Counter
from typing import Any

import graph_worlds as worlds
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from training.graphs.feed import GraphFeed, Order
from training.graphs.sample import SampleSpread, distinct
from training.graphs.spread import Part

DRAWS = 4000
FAR = 5.0  # standard errors; one of a few hundred numbers is beyond that once in ten thousand seeds


def drawn(count: int, fanout: int) -> np.ndarray:
    """Numbers that many rows draw [rows, F]."""
    places = jnp.arange(DRAWS, dtype=jnp.int32)
    counts = jnp.full((DRAWS,), count, jnp.int32)
    return np.asarray(jax.vmap(distinct, in_axes=(None, 0, 0, None))(jax.random.key(3), places, counts, fanout))


@pytest.mark.parametrize(("count", "fanout"), [(1, 1), (4, 4), (3, 5)])
def test_few_neighbours_are_all_taken(count: int, fanout: int) -> None:
    np.testing.assert_array_equal(drawn(count, fanout)[:, :count], np.tile(np.arange(count), (DRAWS, 1)))


@pytest.mark.parametrize(("count", "fanout"), [(2, 1), (7, 3), (5, 4), (1000, 6)])
def test_neighbours_are_different_and_each_equally_likely(count: int, fanout: int) -> None:
    found = drawn(count, fanout)
    assert found.min() >= 0 and found.max() < count
    assert all(len(set(row)) == fanout for row in found.tolist())
    share = fanout / count
    frequency = np.bincount(found.reshape(-1), minlength=count) / DRAWS
    error = np.sqrt(share * (1 - share) / DRAWS)
    assert np.abs(frequency - share).max() < FAR * max(error, 1e-9)
    if (sets := math.comb(count, fanout)) <= 35:
        chance, seen = 1 / sets, Counter(tuple(sorted(row)) for row in found.tolist())
        assert len(seen) == sets
        worst = max(abs(times / DRAWS - chance) for times in seen.values())
        assert worst < FAR * np.sqrt(chance * (1 - chance) / DRAWS)


def hop_sums(scaled: bool) -> tuple[np.ndarray, np.ndarray]:
    """Errors of sampled sums and of their gradients, in standard errors of the mean over many steps."""
    of, graph = worlds.config("gcn"), worlds.graph()
    spread = SampleSpread(part=Part(graph=graph, config=of), seeds=(len(graph.train),), fanouts=(3, 2))
    built = worlds.program(of, spread, 1)
    common = {name: jnp.asarray(array) for name, array in spread.common.items()}
    seeds = jnp.asarray(graph.train, jnp.int32)
    own = {"seeds": seeds, "places": jnp.arange(len(seeds), dtype=jnp.int32)}
    weight = jnp.asarray(np.random.default_rng(5).normal(size=(len(seeds), worlds.FEATURES)), jnp.float32)

    def one(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        hop = spread.enter(built.placement, own, common, key).layout.hops[-1]  # at the seeds

        def total(features: jax.Array) -> tuple[jax.Array, jax.Array]:
            x_ULC = features[jnp.maximum(hop.source.id_N, 0)][:, None, :]
            sums = hop.messages(lambda view, x, y: view.sum(x)[:, 0], x_ULC)[:, 0]
            if not scaled:
                count = jnp.minimum(jnp.maximum(jnp.sum(hop.target.degree_NR, axis=1), 1.0), 3.0)
                sums = sums * (count / jnp.maximum(jnp.sum(hop.target.degree_NR, axis=1), 1.0))[:, None]
            return jnp.sum(sums * weight), sums

        grads, sums = jax.grad(total, has_aux=True)(common["features"])
        return sums, grads

    found = jax.lax.map(one, jax.random.split(jax.random.key(7), DRAWS))
    adjacency = np.zeros((graph.vertices, graph.vertices))
    np.add.at(adjacency, (graph.receivers, graph.senders), 1.0)
    rows = adjacency[graph.train]
    expected = rows @ graph.features, rows.T @ np.asarray(weight)
    errors = []
    for samples, truth in zip(map(np.asarray, found), expected, strict=True):
        deviation = samples.std(axis=0) / np.sqrt(DRAWS) + 1e-4
        errors.append(np.abs(samples.mean(axis=0, dtype=np.float64) - truth) / deviation)
    return errors[0], errors[1]


def test_sampled_sums_and_their_gradients_are_unbiased() -> None:
    sums, grads = hop_sums(scaled=True)
    assert sums.max() < FAR and grads.max() < FAR
    wrong, wrong_grads = hop_sums(scaled=False)  # the twin: plain sums over the sample are not
    assert wrong.max() > 10 * FAR and wrong_grads.max() > 10 * FAR


def test_a_sample_is_the_same_on_any_plan() -> None:
    of, graph = worlds.config("gcn"), worlds.graph()
    found: list[Any] = []
    for seeds in ((6,), (3, 0, 3), (1, 5)):
        spread = SampleSpread(part=Part(graph=graph, config=of), seeds=seeds, fanouts=(3, 2))
        built = worlds.program(of, spread, len(seeds))
        order = Order(ids=graph.train, size=6, seed=0, fingerprint="", name="")
        found.append(worlds.together(built, GraphFeed(built, graph, order).place(order.batch(1))))
    for total, _, grads in found[1:]:
        assert total == pytest.approx(found[0][0], rel=worlds.LOSS)
        assert worlds.distance(grads, found[0][2]) < worlds.GRADIENT


def test_an_epoch_and_its_evaluation_compile_once() -> None:
    of, graph = worlds.config("sage"), worlds.graph()
    spread = SampleSpread(part=Part(graph=graph, config=of), seeds=(3, 2), fanouts=(3, 2))
    built = worlds.program(of, spread, 2)
    order = Order(ids=graph.train, size=5, seed=0, fingerprint="", name="")
    feed, state, step = GraphFeed(built, graph, order), built.init(jax.random.key(0)), built.train_step()
    assert len(graph.train) % order.size  # an epoch ends within a batch
    for number in range(2 * len(graph.train) // order.size):
        state, metrics = step(state, feed.place(order.batch(number)), *feed.rest)
        assert float(metrics["weight"]) == order.size
    assert step._cache_size() == 1  # type: ignore[attr-defined]
    outputs = built.output_step()
    feed._run = outputs
    assert len(graph.valid) % order.size  # the last batch is not full
    scored = feed.score(state, "valid")
    assert scored is not None and np.isfinite(scored["loss"])
    assert outputs._cache_size() == 1  # type: ignore[attr-defined]
