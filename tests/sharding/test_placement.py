"""Local work sees exact arrays in every mode; padding, whatever is in it, changes neither values nor gradients."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from sharding.placement import Placement, parse, single
from sharding.weights import Keep, Shard, WeightSharding

SIZES = [(5, 3, 1, 1), (0, 7, 0, 2), (13, 0, 0, 0), (1, 1, 0, 0), (2, 2, 2, 2)]


def softmax_work(weights: Any, x_TD: jax.Array, scale_T: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Work that any padding would spoil: a softmax over the tokens."""
    h_TD = jnp.tanh(x_TD @ weights["w"]) * scale_T[:, None]
    return jax.nn.softmax(h_TD, axis=0) if h_TD.shape[0] else h_TD, jnp.sum(h_TD * h_TD)


def evaluate(sizes: tuple[int, ...], fill: float, work: Any = softmax_work) -> tuple[list[Any], list[Any]]:
    """Results of the switched form on emulated devices and of plain calls, one device after another."""
    rng, n = np.random.default_rng(0), len(sizes)
    placement = Placement("switched" if len(set(sizes)) > 1 else "uniform", {"T": np.array([sizes])})
    capacity = max(sizes)
    weights = {"w": rng.normal(size=(3, 3)).astype(np.float32)}
    x, scale = (np.full((1, n, capacity, *more), fill, np.float32) for more in ((3,), ()))
    ct = np.zeros((1, n, capacity, 3), np.float32)
    for m, size in enumerate(sizes):
        x[0, m, :size], scale[0, m, :size] = rng.normal(size=(size, 3)), rng.normal(size=size)
        ct[0, m, :size] = rng.normal(size=(size, 3))

    def both(run: Any, weights: Any, x: Any, scale: Any, ct: Any) -> Any:
        out, vjp = jax.vjp(run, weights, x, scale)
        return out, vjp((ct, jnp.ones(())))

    def device(weights: Any, x: Any, scale: Any, ct: Any) -> Any:
        run = placement.local(work, "T D, T -> T D, ")
        out = both(run, weights, x[0, 0], scale[0, 0], ct[0, 0])
        return jax.tree.map(lambda a: a[None, None], out)

    mesh = jax.make_mesh((1, n), ("data", "seq"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:n])
    at = P("data", "seq")
    mapped = jax.shard_map(device, mesh=mesh, in_specs=(P(), at, at, at), out_specs=at, check_vma=False)
    got = jax.jit(mapped)(weights, x, scale, ct)
    found, expected = [], []
    for m, size in enumerate(sizes):
        cut = (x[0, m, :size], scale[0, m, :size], ct[0, m, :size])
        expected.append(jax.tree.map(np.asarray, both(softmax_work, weights, *map(jnp.asarray, cut))))
        found.append(jax.tree.map(lambda a, m=m: np.asarray(a[0, m]), got))
    return found, expected


def assert_equal(found: Any, expected: Any) -> None:
    """Values and gradients at exact sizes; what is beyond a device's own size is zero."""
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        inside = tuple(slice(0, n) for n in b.shape)
        np.testing.assert_allclose(a[inside], b, rtol=1e-5, atol=1e-6)
        rest = a.copy()
        rest[inside] = 0
        assert not np.any(rest)


@pytest.mark.parametrize("fill", [0.0, 1e4, np.nan])
@pytest.mark.parametrize("sizes", SIZES)
def test_switched_work_is_plain_work(sizes: tuple[int, ...], fill: float) -> None:
    found, expected = evaluate(sizes, fill)
    for a, b in zip(found, expected, strict=True):
        assert_equal(a, b)


def test_work_that_looks_beyond_its_share_would_be_seen() -> None:
    """The twin: a softmax over the padded length is not the plain one."""

    def padded(weights: Any, x_TD: jax.Array, scale_T: jax.Array) -> tuple[jax.Array, jax.Array]:
        wide = jnp.pad(x_TD, ((0, 1), (0, 0)))
        out, total = softmax_work(weights, wide, jnp.pad(scale_T, (0, 1)))
        return out[:-1], total

    found, expected = evaluate((5, 3, 1, 1), 0.0, padded)
    with pytest.raises(AssertionError):
        for a, b in zip(found, expected, strict=True):
            assert_equal(a, b)


def test_single_is_a_plain_call() -> None:
    placement = single(T=4)
    run = placement.local(softmax_work, "T D, T -> T D, ")
    x, scale, weights = jnp.ones((4, 3)), jnp.ones(4), {"w": jnp.ones((3, 3))}
    np.testing.assert_array_equal(run(weights, x, scale)[0], softmax_work(weights, x, scale)[0])
    assert placement.extent("T") == 4


def test_extents_by_mode() -> None:
    sizes = {"T": np.array([[5, 3, 3]])}
    assert Placement("switched", sizes).extent("T") == 5
    assert Placement("specialized", sizes, mine=((0, 1), (0, 2))).extent("T") == 3


def test_a_mode_that_does_not_fit_names_the_sizes() -> None:
    sizes = {"T": np.array([[5, 3, 3]])}
    with pytest.raises(ValueError, match=r"uniform placement, but axis T has sizes \[\[5, 3, 3\]\]"):
        Placement("uniform", sizes)
    with pytest.raises(ValueError, match=r"different sizes \[5, 3\] of axis T"):
        Placement("specialized", sizes, mine=((0, 0), (0, 1)))


def test_signatures() -> None:
    assert parse("B T D, B T -> B T, ") == ((("B", "T", "D"), ("B", "T")), (("B", "T"), ()))
    with pytest.raises(ValueError, match="no '->'"):
        parse("B T")
    with pytest.raises(ValueError, match="is named 'T D' in the signature"):
        evaluate((5, 3), 0.0, lambda w, x, s: (x[:, 0], s))[0]


@pytest.mark.parametrize("shapes", [((7, 3), (5,)), ((8, 4), (1,)), ((3, 2), (9,))])
@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("direct", [False, True])
def test_gathered_weights_are_whole_and_gradients_add(
    direct: bool, n: int, shapes: tuple[tuple[int, ...], ...]
) -> None:
    """Pieces of any axis, padded where it does not divide, in one all-gather; backward one reduce-scatter."""
    rng = np.random.default_rng(0)
    wholes = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    pieces = []
    for whole in wholes:
        local = -(-whole.shape[0] // n)
        padded = np.pad(whole, [(0, local * n - whole.shape[0])] + [(0, 0)] * (whole.ndim - 1))
        pieces.append(padded.reshape(n, local, *whole.shape[1:]))
    factor = rng.normal(size=n).astype(np.float32)

    def device(pieces: Any, factor: Any) -> Any:
        shards = [Shard(p[0], -w.ndim, w.shape[0]) for p, w in zip(pieces, wholes, strict=True)]
        sharding = WeightSharding("seq", n, direct=direct)
        out = sharding.gather(shards)
        grads = sharding.scatter([o * factor[0] for o in out], shards)
        return [o[None] for o in out], [g.value[None] for g in grads]

    mesh = jax.make_mesh((n,), ("seq",), axis_types=(AxisType.Auto,), devices=jax.devices()[:n])
    mapped = jax.shard_map(device, mesh=mesh, in_specs=(P("seq"), P("seq")), out_specs=P("seq"), check_vma=False)
    out, grads = jax.jit(mapped)(pieces, factor)
    for o, g, piece, whole in zip(out, grads, pieces, wholes, strict=True):
        assert all(np.array_equal(np.asarray(o[m]), whole) for m in range(n))
        np.testing.assert_allclose(np.asarray(g), piece * factor.sum(), rtol=1e-5, atol=1e-6)


def test_keep_casts_and_returns_the_dtype() -> None:
    keep, weights = Keep(jnp.bfloat16), {"w": jnp.ones(3)}
    assert keep.gather(weights)["w"].dtype == jnp.bfloat16
    assert keep.scatter(keep.gather(weights), weights)["w"].dtype == jnp.float32
