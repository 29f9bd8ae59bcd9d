"""Metrics against their definitions, counted one by one."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from training.graphs import accuracy, macro_f1, mae, mrr, roc_auc

Case = tuple[np.ndarray, np.ndarray]


def slow_accuracy(predicted: np.ndarray, labels: np.ndarray) -> float:
    return sum(int(a == b) for a, b in zip(predicted, labels, strict=True)) / len(labels)


def slow_macro_f1(predicted: np.ndarray, labels: np.ndarray) -> float:
    found = []
    for cls in {*predicted.tolist(), *labels.tolist()}:
        hits = sum(a == b == cls for a, b in zip(predicted, labels, strict=True))
        precision = hits / max((predicted == cls).sum(), 1)
        recall = hits / max((labels == cls).sum(), 1)
        found.append(2 * precision * recall / (precision + recall) if hits else 0.0)
    return float(np.mean(found))


def slow_roc_auc(scores: np.ndarray, positive: np.ndarray) -> float:
    pairs = [*itertools.product(scores[positive], scores[~positive])]
    return float(sum((a > b) + (a == b) / 2 for a, b in pairs) / len(pairs))


def slow_mae(predicted: np.ndarray, targets: np.ndarray) -> float:
    return math.fsum(abs(float(a) - float(b)) for a, b in zip(predicted, targets, strict=True)) / len(targets)


def slow_mrr(positive_P: np.ndarray, negative_PM: np.ndarray) -> float:
    found = []
    for positive, negatives in zip(positive_P, negative_PM, strict=True):
        order = sorted([positive, *negatives], reverse=True)
        places = [place for place, score in enumerate(order, start=1) if score == positive]
        found.append(1 / float(np.mean(places)))
    return float(np.mean(found))


def classes(rng: np.random.Generator) -> Case:
    return rng.integers(0, 5, 60), rng.integers(0, 4, 60) * 2


def scores(rng: np.random.Generator) -> Case:
    return rng.integers(0, 6, 50).astype(np.float32), rng.random(50) < 0.3


def values(rng: np.random.Generator) -> Case:
    return rng.normal(size=40).astype(np.float32), rng.normal(size=40).astype(np.float32)


def ranks(rng: np.random.Generator) -> Case:
    return rng.integers(0, 4, 20).astype(np.float32), rng.integers(0, 4, (20, 9)).astype(np.float32)


CASES: list[tuple[Callable[..., float], Callable[..., float], Callable[[np.random.Generator], Case]]] = [
    (accuracy, slow_accuracy, classes),
    (macro_f1, slow_macro_f1, classes),
    (roc_auc, slow_roc_auc, scores),
    (mae, slow_mae, values),
    (mrr, slow_mrr, ranks),
]


@pytest.mark.parametrize(("fast", "slow", "case"), CASES)
@pytest.mark.parametrize("seed", range(3))
def test_metrics_are_their_definitions(fast: Any, slow: Any, case: Any, seed: int) -> None:
    predicted, truth = case(np.random.default_rng(seed))
    assert fast(predicted, truth) == pytest.approx(slow(predicted, truth), rel=1e-12)


@pytest.mark.parametrize(("fast", "slow", "case"), CASES)
def test_a_changed_prediction_would_be_seen(fast: Any, slow: Any, case: Any) -> None:
    """The twin: predictions in another order are judged otherwise."""
    predicted, truth = case(np.random.default_rng(0))
    assert fast(np.roll(predicted, 1), truth) != pytest.approx(slow(predicted, truth), rel=1e-4)


def test_ties_are_worth_half() -> None:
    assert roc_auc(np.zeros(4, np.float32), np.array([True, False, True, False])) == 0.5
    assert mrr(np.zeros(1, np.float32), np.zeros((1, 3), np.float32)) == 1 / 2.5
    assert roc_auc(np.array([2.0, 1.0]), np.array([True, False])) == 1.0


def test_ranks_beyond_what_float32_counts() -> None:
    """One positive below 2^24 + 2 negatives but for two of them."""
    scores = np.zeros(2**24 + 3, np.float32)
    scores[1:-2] = 1
    scores[-2:] = -1
    positive = np.zeros(len(scores), bool)
    positive[0] = True
    assert roc_auc(scores, positive) == 2 / (2**24 + 2)


def test_nothing_to_judge_is_nan() -> None:
    none = np.zeros(0)
    assert all(math.isnan(metric(none, none)) for metric in (accuracy, macro_f1, mae))
    assert math.isnan(roc_auc(np.ones(3), np.ones(3, bool))) and math.isnan(mrr(none, np.zeros((0, 2))))


def test_predictions_that_are_nan_are_not_the_best() -> None:
    assert math.isnan(mrr(np.array([np.nan]), np.zeros((1, 2)))) and math.isnan(mae(np.array([np.nan]), np.ones(1)))
    assert math.isnan(roc_auc(np.array([np.nan, 0.0]), np.array([True, False])))
