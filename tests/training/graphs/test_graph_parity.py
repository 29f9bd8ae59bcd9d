"""Any way of spreading a graph network gives the loss and the gradients of one device."""

from typing import Any

import graph_worlds as worlds
import numpy as np
import pytest

from training.graphs.batch import fitted
from training.graphs.feature import FeatureSpread
from training.graphs.feed import GraphFeed, Order, partly_dealt
from training.graphs.halo import Halo
from training.graphs.link_feed import LinkFeed, PairOrder
from training.graphs.links import Links, split
from training.graphs.paired import PairedSpread
from training.graphs.sample import SampleSpread
from training.graphs.spread import Part, Spread
from training.graphs.vertex import VertexSpread

DEVICES = 3  # one of which has nothing
pytestmark = pytest.mark.long


def vertex(part: Part) -> Spread:
    """Unequal parts, one of them empty."""
    owner = np.random.default_rng(1).choice([0, 2], part.graph.vertices, p=[0.7, 0.3])
    return VertexSpread(halo=Halo(part=part, owner=owner, devices=DEVICES))


def feature(part: Part) -> Spread:
    """Unequal vertices and lanes; one device has no vertices, another no lanes."""
    return FeatureSpread(part=part, vertices=(part.graph.vertices - 5, 5, 0), lanes=(3, 0, 1))


def agrees(found: tuple[float, float, Any], expected: tuple[float, Any], weight: int) -> bool:
    total, weighed, grads = found
    assert weighed == weight
    close = total == pytest.approx(expected[0], rel=worlds.LOSS)
    return bool(close and worlds.distance(grads, expected[1]) < worlds.GRADIENT)


@pytest.mark.parametrize(
    ("model", "way"),
    [(model, way) for model in worlds.MODELS for way in (vertex, feature) if (model, way) != ("graphnet", feature)],
)
def test_a_whole_graph_on_three_devices(model: str, way: Any) -> None:
    of, graph = worlds.config(model), worlds.graph()
    built = worlds.program(of, way(Part(graph=graph, config=of)), DEVICES)
    found = worlds.together(built, {})
    assert agrees(found, worlds.alone(of, graph, graph.train), len(graph.train))
    assert not agrees(found, worlds.alone(of, graph, graph.train, rewired=40), len(graph.train))  # the twin


@pytest.mark.parametrize("model", [model for model in worlds.MODELS if model != "graphnet"])
def test_samples_of_all_neighbours_are_the_whole_graph(model: str) -> None:
    of, graph = worlds.config(model), worlds.graph(hub=0)
    most = int(graph.arrivals.sum(axis=1).max())
    spread = SampleSpread(part=Part(graph=graph, config=of), seeds=(4, 0, 2), fanouts=(most, most))
    built = worlds.program(of, spread, DEVICES)
    order = Order(ids=graph.train, size=6, seed=0, fingerprint="", name="")
    ids = order.batch(0)
    found = worlds.together(built, GraphFeed(built, graph, order).place(ids))
    assert agrees(found, worlds.alone(of, graph, ids), 6)
    assert not agrees(found, worlds.alone(of, graph, ids, rewired=int(np.flatnonzero(graph.receivers == ids[0])[0])), 6)


@pytest.mark.parametrize("model", worlds.MODELS)
def test_small_graphs_dealt_to_three_devices(model: str) -> None:
    of, graphs = worlds.config(model, level="graph"), worlds.graphs()
    counts = (5, 0, 2)
    order = Order(ids=graphs.train, size=7, seed=0, fingerprint="", name="")
    ids = order.batch(0)
    deals = iter([partly_dealt(graphs, ids, counts, (1.0, 1.0))])
    built = worlds.program(of, fitted(Part(graph=graphs, config=of), graphs, deals, counts), DEVICES)
    found = worlds.together(built, GraphFeed(built, graphs, order).place(ids))
    assert agrees(found, worlds.alone(of, graphs, ids), 7)
    edge = int(np.flatnonzero(np.repeat(np.arange(graphs.graphs), graphs.n_edge) == ids[0])[0])
    assert not agrees(found, worlds.alone(of, graphs, ids, rewired=edge), 7)


def pairs(of: Any, spread: Spread, links: Links) -> tuple[Any, np.ndarray, Any]:
    """A program, and the ends and the placed batch of its first step: seven pairs with two negatives each."""
    built = worlds.program(of, spread, DEVICES)
    order = Order(ids=np.arange(len(links.train)), size=7, seed=0, fingerprint="", name="")
    feed = LinkFeed(built, links.graph, PairOrder(links=links, order=order, negatives=2))
    ends = feed.order.batch(0)
    return built, ends, feed.place(ends)


@pytest.mark.parametrize(
    ("model", "way"),
    [(model, way) for model in worlds.MODELS for way in (vertex, feature) if (model, way) != ("graphnet", feature)],
)
def test_links_of_a_whole_graph_on_three_devices(model: str, way: Any) -> None:
    of, links = worlds.config(model, outputs=8), split(worlds.graph(), 0)
    spread = PairedSpread(graph=way(Part(graph=links.graph, config=of)), lanes=(3, 0, 1))
    built, ends, batch = pairs(of, spread, links)
    found = worlds.together(built, batch)
    assert agrees(found, worlds.alone_on_links(of, links.graph, ends), 21)
    assert not agrees(found, worlds.alone_on_links(of, links.graph, ends, rewired=40), 21)  # the twin


@pytest.mark.parametrize("model", [model for model in worlds.MODELS if model != "graphnet"])
def test_links_of_samples_of_all_neighbours_are_the_whole_graph(model: str) -> None:
    of, links = worlds.config(model, outputs=8), split(worlds.graph(hub=0), 0)
    most = int(links.graph.arrivals.sum(axis=1).max())
    part = Part(graph=links.graph, config=of)
    spread = SampleSpread(part=part, seeds=(5 * 4, 0, 2 * 4), fanouts=(most, most), ends=4)
    built, ends, batch = pairs(of, spread, links)
    found = worlds.together(built, batch)
    edge = int(np.flatnonzero(np.isin(links.graph.receivers, ends))[0])
    assert agrees(found, worlds.alone_on_links(of, links.graph, ends), 21)
    assert not agrees(found, worlds.alone_on_links(of, links.graph, ends, rewired=edge), 21)
