"""Edges between devices travel in as few rows and sums as possible."""

import itertools

import numpy as np
import pytest

from meshes.cover import in_sums


def travels(rows: np.ndarray, sums: np.ndarray, summed: np.ndarray) -> int:
    """Rows and sums of a choice."""
    return len(np.unique(rows[~summed])) + len(np.unique(sums[summed]))


def fewest(rows: np.ndarray, sums: np.ndarray) -> int:
    """By trying every set of rows: edges of others need their sums."""
    every = np.unique(rows)
    choices = itertools.chain.from_iterable(itertools.combinations(every, n) for n in range(len(every) + 1))
    return min(len(kept) + len(np.unique(sums[~np.isin(rows, kept)])) for kept in choices)


@pytest.mark.parametrize("seed", range(30))
def test_no_choice_of_rows_and_sums_is_smaller(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, sums = 7 * rng.integers(0, 8, rng.integers(1, 30)), rng.integers(0, rng.integers(1, 9), 30)
    sums = sums[: len(rows)]
    summed = in_sums(rows, sums)
    assert summed.dtype == bool and summed.shape == rows.shape
    assert travels(rows, sums, summed) == fewest(rows, sums)


def test_a_mixture_beats_rows_alone_and_sums_alone() -> None:
    rows = np.array([0, 0, 0, 0, 1, 2, 3, 4])  # one sender of four targets; four senders of one target
    sums = np.array([0, 1, 2, 3, 9, 9, 9, 9])
    summed = in_sums(rows, sums)
    assert summed.tolist() == [False] * 4 + [True] * 4 and travels(rows, sums, summed) == 2
    for alone in (np.zeros(8, bool), np.ones(8, bool)):
        assert travels(rows, sums, alone) == 5


def test_rows_win_ties_and_no_edges_need_nothing() -> None:
    assert in_sums(np.array([3]), np.array([5])).tolist() == [False]
    assert in_sums(np.array([3] * 300), np.array([5] * 300)).tolist() == [False] * 300  # duplicates
    assert in_sums(np.zeros(0, np.int64), np.zeros(0, np.int64)).tolist() == []
