"""What parts of a graph need of each other: every edge arrives once, alone or in a sum of its sender's device."""

from typing import Any

import graph_worlds as worlds
import numpy as np
import pytest

from meshes.graph_workload import GraphWorkload
from training.graphs.halo import Halo
from training.graphs.spread import Part

DEVICES = 3


def halo(model: str, seed: int = 1, **changes: Any) -> Halo:
    """Unequal parts of a random graph, one of them empty."""
    of, graph = worlds.config(model, **changes), worlds.graph()
    owner = np.random.default_rng(seed).choice([0, 2], graph.vertices, p=[0.6, 0.4])
    return Halo(part=Part(graph=graph, config=of), owner=owner, devices=DEVICES)


def arrivals(found: Halo) -> np.ndarray:
    """How often each vertex is heard by each target in each relation [A, R, A], from the halo's own tables."""
    count, relations = found.part.graph.vertices, found.part.degree.shape[1]
    sums, total = np.zeros((len(found.sums.targets), count), int), np.zeros((count, relations, count), int)
    for ends, rows, made in zip(found.added, found.rows, found.made, strict=True):
        np.add.at(sums, (made[ends.receivers], rows[ends.senders]), 1)
    for device, ends in enumerate(found.ends):
        own, unit = found.rows[device], np.eye(count, dtype=int)
        rows = np.concatenate([unit[own], unit[found.away[device]], sums[found.received[device]]])
        np.add.at(total, (own[ends.receivers], ends.relations), rows[ends.senders])
    return total


@pytest.mark.parametrize("model", ["gcn", "rgcn", "gat"])
def test_every_edge_arrives_once(model: str) -> None:
    found = halo(model)
    graph, expected = found.part.graph, np.zeros_like(arrivals(found))
    np.add.at(expected, (graph.receivers, found.part.relations, graph.senders), 1)
    assert np.array_equal(arrivals(found), expected)


@pytest.mark.parametrize("model", ["gcn", "gin", "sage", "rgcn"])
def test_sums_make_fewer_rows_travel(model: str) -> None:
    found, plain = halo(model), halo("gat")
    assert len(found.sums.targets)
    assert sum(map(len, found.away)) + len(found.sums.targets) < sum(map(len, plain.away))


@pytest.mark.parametrize(
    ("model", "changes"), [("gat", {}), ("hgt", {}), ("graphnet", {}), ("sage", {"aggregate": "max"})]
)
def test_what_is_no_plain_sum_is_never_added_up_before(model: str, changes: dict[str, str]) -> None:
    assert not len(halo(model, **changes).sums.targets)


@pytest.mark.parametrize("model", worlds.MODELS)
@pytest.mark.parametrize("aggregate", ["mean", "max"])
def test_the_planner_knows_which_messages_are_sums(model: str, aggregate: Any) -> None:
    of = worlds.config(model, aggregate=aggregate)
    sizes = {"layers": 2, "width": 8, "heads": 4, "features": 5, "classes": 3, "vertices": 23, "edges": 90}
    assert GraphWorkload(model=model, aggregate=aggregate, **sizes).adds_up == of.adds_up
