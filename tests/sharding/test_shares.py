"""Shares deal every unit once, in proportion, and pack and unpack are inverses."""

import numpy as np
import pytest

from sharding.shares import Shares

SIZES = [(1,), (0,), (5, 3, 1, 1), (0, 7, 0), (13, 0, 0, 0), (1, 1, 0, 0), (2, 3, 5, 7, 11), (0, 0, 0), (97, 1)]


def random_sizes(seed: int) -> tuple[int, ...]:
    rng = np.random.default_rng(seed)
    return tuple(int(n) for n in rng.integers(0, 40, rng.integers(1, 9)) * rng.integers(0, 2, 1))


@pytest.mark.parametrize("striped", [True, False])
@pytest.mark.parametrize("block", [1, 3, 16])
@pytest.mark.parametrize("sizes", SIZES + [random_sizes(seed) for seed in range(12)])
def test_every_unit_has_one_owner(sizes: tuple[int, ...], block: int, striped: bool) -> None:
    shares = Shares(sizes, block, striped)
    assert tuple(len(index) for index in shares.indices) == sizes
    assert np.array_equal(np.sort(np.concatenate(shares.indices)), np.arange(sum(sizes)))
    assert all(np.all(np.diff(index) > 0) for index in shares.indices)


@pytest.mark.parametrize("sizes", SIZES)
def test_unpack_is_the_inverse_of_pack(sizes: tuple[int, ...]) -> None:
    shares, rng = Shares(sizes), np.random.default_rng(0)
    logical = rng.normal(size=(2, sum(sizes), 3))
    packed = shares.pack(logical, axis=1, fill=np.nan)
    assert packed.shape == (len(sizes), 2, shares.capacity, 3)
    assert np.array_equal(shares.unpack(packed, axis=1), logical)


def test_a_wrong_order_would_be_seen() -> None:
    """The twin: contiguous blocks unpacked as striped ones are not the logical array."""
    logical = np.arange(12)
    packed = Shares((6, 6), striped=False).pack(logical)
    assert not np.array_equal(Shares((6, 6)).unpack(packed), logical)


@pytest.mark.parametrize("sizes", [(400, 200, 100, 100), (61, 67, 3), (1000, 1)])
def test_striping_balances_causal_work(sizes: tuple[int, ...]) -> None:
    """A device's causal work, the sum of positions it owns, is in proportion to its share."""
    total = sum(sizes)
    for size, index in zip(sizes, Shares(sizes).indices, strict=True):
        assert abs(np.sum(index + 0.5) / (total * total / 2) - size / total) < 1.0 / total


def test_contiguous_shares_do_not_balance_it() -> None:
    """The twin: the last contiguous half does three quarters of the causal work."""
    index = Shares((500, 500), striped=False).indices[1]
    assert np.sum(index + 0.5) / (1000 * 1000 / 2) == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("sizes", "block", "message"),
    [((), 1, "no devices"), ((3, -1), 1, "negative"), ((3,), 0, "block 0")],
)
def test_impossible_shares(sizes: tuple[int, ...], block: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Shares(sizes, block)


def test_pack_names_a_wrong_length() -> None:
    with pytest.raises(ValueError, match="has not the 4 units"):
        Shares((3, 1)).pack(np.zeros(5))
    with pytest.raises(ValueError, match="does not hold 2 blocks of 3"):
        Shares((3, 1)).unpack(np.zeros((2, 4)))
