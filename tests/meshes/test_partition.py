"""Partitions of graphs: who owns what, what parts send each other, and how near they come to their shares."""

import ctypes
import threading
from typing import Any

import numpy as np
import pytest

from meshes.errors import UsageError
from meshes.partition import Edges, Parts, busiest, owner_digest, partition, random_partition, rebalance

SHARES = (4, 2, 1, 1)
EDGE, VERTEX, HALO = 1.0, 3.0, 2.0  # seconds on a device of speed 1


def random_graph(rng: np.random.Generator, vertices: int, edges: int, power: float = 0.0) -> Edges:
    """Edges between vertices drawn by a power law, flat for power 0; self loops and duplicates happen."""
    chance = np.arange(1, vertices + 1) ** -power
    ends = rng.choice(vertices, (2, edges), p=chance / chance.sum())
    return Edges(ends[0], ends[1], rng.integers(0, 3, edges), rng.random(vertices) < 0.3)


def grid(side: int) -> Edges:
    """A square grid, edges in both directions."""
    at = np.arange(side * side).reshape(side, side)
    pairs = np.concatenate(
        [np.stack([at[:, :-1].ravel(), at[:, 1:].ravel()]), np.stack([at[:-1].ravel(), at[1:].ravel()])], axis=1
    )
    return Edges(np.concatenate([pairs[0], pairs[1]]), np.concatenate([pairs[1], pairs[0]]))


def weights_of(edges: Edges, vertices: int) -> np.ndarray:
    return np.stack([VERTEX * np.ones(vertices), EDGE * np.bincount(edges.receivers, minlength=vertices)], axis=1)


GRAPHS = {
    "random": (random_graph(np.random.default_rng(0), 2000, 16000), 2000),
    "power": (random_graph(np.random.default_rng(1), 2000, 16000, 0.8), 2000),
    "grid": (grid(45), 2025),
    "prime": (random_graph(np.random.default_rng(2), 101, 307), 101),
    "isolated": (random_graph(np.random.default_rng(3), 300, 40), 300),
    "without edges": (Edges(np.zeros(0, np.int64), np.zeros(0, np.int64)), 50),
}


def cut(name: str, shares: Any = SHARES, seed: int = 0) -> np.ndarray:
    edges, vertices = GRAPHS[name]
    return partition(edges.senders, edges.receivers, vertices, shares, weights_of(edges, vertices), seed)


@pytest.mark.parametrize("name", GRAPHS)
def test_the_same_seed_gives_the_same_owners(name: str) -> None:
    first = cut(name)
    assert first.dtype == np.int32 and owner_digest(first) == owner_digest(cut(name))
    edges, vertices = GRAPHS[name]
    one, two = (random_partition(vertices, SHARES, weights_of(edges, vertices), 5) for _ in range(2))
    assert np.array_equal(one, two)


def test_what_other_threads_draw_changes_nothing() -> None:
    """The C library has one random state for all threads, and METIS draws from it."""
    alone, ended = cut("random"), threading.Event()

    def draw() -> None:
        library = ctypes.CDLL(None)
        while not ended.is_set():
            library.rand()

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        assert np.array_equal(cut("random"), alone)
    finally:
        ended.set()
        thread.join()


def test_another_seed_gives_others() -> None:
    """The twin: a digest tells owners apart."""
    assert owner_digest(cut("random", seed=0)) != owner_digest(cut("random", seed=1))


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("shares", [SHARES, (1, 1), (0, 3, 0, 1, 1), (5, 3, 1, 1, 0.5), (1.0,) * 7, (0, 1, 0)])
def test_weights_follow_the_shares(name: str, shares: tuple[float, ...]) -> None:
    edges, vertices = GRAPHS[name]
    weight = weights_of(edges, vertices).sum(axis=1)
    wanted = np.array(shares) / sum(shares)
    chance = random_partition(vertices, shares, weight[:, None], 0)
    for owner in (cut(name, shares), chance):
        assert owner.shape == (vertices,) and owner.min() >= 0 and owner.max() < len(shares)
        held = np.bincount(owner, weights=weight, minlength=len(shares)) / weight.sum()
        assert not held[wanted == 0].any()
        assert np.abs(held - wanted).max() <= 0.01 + weight.max() / weight.sum()


def test_direction_duplicates_and_self_loops_do_not_matter_to_the_cut() -> None:
    edges, vertices = GRAPHS["random"]
    weights = np.ones((vertices, 1))
    loops = np.arange(50)
    messy = [
        np.concatenate([edges.receivers, edges.senders, edges.receivers, loops]),
        np.concatenate([edges.senders, edges.receivers, edges.senders, loops]),
    ]
    plain = partition(edges.senders, edges.receivers, vertices, SHARES, weights, 0)
    assert np.array_equal(plain, partition(messy[0], messy[1], vertices, SHARES, weights, 0))


def test_a_grid_is_cut_along_lines() -> None:
    edges, vertices = GRAPHS["grid"]
    weights = weights_of(edges, vertices)
    by_chance = Parts.of(edges, random_partition(vertices, SHARES, weights, 0), 4)
    assert Parts.of(edges, cut("grid"), 4).cut_edges < 0.1 * by_chance.cut_edges


def counted(edges: Edges, owner: np.ndarray, devices: int) -> dict[str, Any]:
    """The oracle of `Parts`: one edge at a time."""
    senders: dict[tuple[int, int], set[int]] = {}
    fed: dict[tuple[int, int], set[tuple[int, int]]] = {}
    counts = np.zeros((devices, devices), int)
    relations = np.zeros(len(edges.senders), int) if edges.relations is None else edges.relations
    for s, r, kind in zip(edges.senders.tolist(), edges.receivers.tolist(), relations.tolist(), strict=True):
        pair = int(owner[s]), int(owner[r])
        counts[pair] += 1
        if pair[0] != pair[1]:
            senders.setdefault(pair, set()).add(s)
            fed.setdefault(pair, set()).add((r, kind))
    sizes = [
        np.array([[len(of.get((i, j), ())) for j in range(devices)] for i in range(devices)]) for of in (senders, fed)
    ]
    return {"cut": counts, "edges": counts.sum(axis=0), "halo": sizes[0], "fed": sizes[1]}


@pytest.mark.parametrize("seed", range(6))
def test_parts_are_counted_as_one_by_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vertices, devices = int(rng.integers(1, 60)), int(rng.integers(1, 6))
    edges = random_graph(rng, vertices, int(rng.integers(0, 200)), float(rng.choice((0, 1))))
    if seed % 2:
        edges = edges._replace(relations=None, train=None)
    owner = rng.integers(0, devices, vertices).astype(np.int32)
    parts = Parts.of(edges, owner, devices)
    for name, expected in counted(edges, owner, devices).items():
        assert np.array_equal(getattr(parts, name), expected), name
    train = owner[edges.train] if edges.train is not None else []
    assert parts.train.tolist() == [list(train).count(d) for d in range(devices)]
    assert parts.vertices.tolist() == [owner.tolist().count(d) for d in range(devices)]
    assert parts.halo.sum() <= parts.cut_edges and (parts.rows <= parts.halo).all()


def test_a_miscount_would_be_seen() -> None:
    """The twin: owners moved by one vertex have other counts."""
    edges, _ = GRAPHS["prime"]
    owner = cut("prime")
    moved = owner.copy()
    moved[int(edges.receivers[0])] ^= 1
    assert not np.array_equal(Parts.of(edges, moved, 4).cut, counted(edges, owner, 4)["cut"])


def test_a_hub_receives_sums_and_sends_one_row() -> None:
    leaves = np.arange(1, 9)
    inwards = Edges(leaves, np.zeros(8, int))
    owner = np.array([0] + [1] * 6 + [0] * 2, np.int32)
    parts = Parts.of(inwards, owner, 2)
    assert parts.halo[1, 0] == 6 and parts.fed[1, 0] == 1
    assert (parts.fed < parts.halo).tolist() == [[False, False], [True, False]] and parts.rows.sum() == 1
    outwards = Parts.of(Edges(np.zeros(8, int), leaves), owner, 2)
    assert outwards.halo[0, 1] == 1 and outwards.fed[0, 1] == 6 and np.array_equal(outwards.rows, outwards.halo)
    assert busiest(parts.halo) == 6 and busiest(parts.rows) == 1


def seconds_on(speeds: np.ndarray) -> Any:
    def cost(parts: Parts) -> tuple[float, np.ndarray]:
        return 0.0, (VERTEX * parts.vertices + EDGE * parts.edges + HALO * parts.halo.sum(axis=0)) / speeds

    return cost


@pytest.mark.parametrize("name", ["random", "power", "grid", "prime", "isolated"])
@pytest.mark.parametrize("speeds", [SHARES, (1, 1, 1), (5, 3, 1, 1, 0.5)])
def test_moves_balance_halos_too(name: str, speeds: tuple[float, ...]) -> None:
    edges, vertices = GRAPHS[name]
    speed = np.array(speeds, float)
    work, rates = weights_of(edges, vertices), np.ones((len(speed), 2)) / speed[:, None]
    cost = seconds_on(speed)
    before = cut(name, speeds)
    owner, parts = rebalance(edges, before, work, rates, cost)
    assert all(np.array_equal(a, b) for a, b in zip(parts.halo, Parts.of(edges, owner, len(speed)).halo, strict=True))
    seconds = cost(parts)[1]
    assert seconds.max() <= cost(Parts.of(edges, before, len(speed)))[1].max()
    ideal = (seconds * speed).sum() / speed.sum()
    assert seconds.max() <= 1.03 * ideal + work.sum(axis=1).max() / speed.min() * (vertices < 1000)


def test_moves_mend_a_bad_start_and_leave_idle_devices_alone() -> None:
    edges, vertices = GRAPHS["power"]
    speed = np.array([4.0, 2.0, 1.0, 1.0])
    rates = np.ones((4, 2)) / speed[:, None]
    rates[3] = np.inf
    owner, parts = rebalance(edges, np.zeros(vertices, np.int32), weights_of(edges, vertices), rates, seconds_on(speed))
    seconds = seconds_on(speed)(parts)[1]
    assert parts.vertices[3] == 0 and 3 not in owner
    assert seconds.max() < 1.1 * (seconds * speed).sum() / speed[:3].sum()


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "too many": ({"shares": (1,) * 9}, "9 devices for 5 vertices: use at most 5 devices"),
    "negative": ({"shares": (1, -1)}, r"shares are \[1.0, -1.0\]: give numbers, zero or more"),
    "none": ({"shares": (0, 0)}, "one of them above zero"),
    "weights": ({"weights": np.full((5, 1), np.nan)}, r"weights have shape \(5, 1\): give numbers, zero or more"),
    "length": ({"weights": np.ones((4, 1))}, r"weights have shape \(4, 1\).* for 5 vertices"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name: str) -> None:
    changes, message = BAD[name]
    given: dict[str, Any] = {"vertices": 5, "shares": (1, 1), "weights": np.ones((5, 1)), "seed": 0, **changes}
    with pytest.raises(UsageError, match=message):
        partition(np.array([0, 1]), np.array([1, 2]), **given)
    with pytest.raises(UsageError, match=message):
        random_partition(**given)


def test_as_many_devices_as_vertices_and_more_without_a_share() -> None:
    path = np.array([0, 1, 2, 3]), np.array([1, 2, 3, 4])
    owner = partition(*path, 5, (0, 1, 1, 0, 1, 1, 1, 0), np.ones((5, 1)), 0)
    assert len(owner) == 5 and {*owner.tolist()} <= {1, 2, 4, 5, 6}


BAD_EDGES = {
    "range": (Edges(np.array([0, 7]), np.array([1, 2])), "edge 1 has sender 7: the graph has vertices 0 to 4"),
    "negative": (Edges(np.array([0, 1]), np.array([-1, 2])), "edge 0 has receiver -1"),
    "length": (Edges(np.array([0, 1]), np.array([1])), r"receivers has shape \(1,\) and type int64: give 2 whole"),
    "floats": (Edges(np.array([0.0]), np.array([1])), "senders has shape .* and type float64"),
    "train": (Edges(np.array([0]), np.array([1]), None, np.ones(3, bool)), r"train has shape \(3,\): give one entry"),
}


@pytest.mark.parametrize("name", BAD_EDGES)
def test_bad_edges_are_named(name: str) -> None:
    edges, message = BAD_EDGES[name]
    with pytest.raises(UsageError, match=message):
        edges.check(5)
