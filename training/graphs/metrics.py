"""Exact metrics of whole predictions, in NumPy; NaN where there is nothing to judge or a prediction is NaN."""

import math

import numpy as np


def accuracy(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Share of predicted classes that are right; both int [N]."""
    return float(np.mean(predicted == labels)) if len(labels) else math.nan


def macro_f1(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Mean over classes of F1 = 2 TP / (2 TP + FP + FN), every class that is predicted or right somewhere counting
    the same; both int [N]."""
    if not len(labels):
        return math.nan
    classes, codes = np.unique(np.concatenate([predicted, labels]), return_inverse=True)
    guess, truth = codes[: len(labels)], codes[len(labels) :]
    hits = np.bincount(truth[guess == truth], minlength=len(classes))
    named = np.bincount(codes, minlength=len(classes))  # 2 TP + FP + FN
    return float(np.mean(2 * hits / named))


def roc_auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """Probability that a positive scores above a negative, ties counting half (Mann-Whitney U over its largest value).

    Args:
        scores: float [N], higher for what is more likely positive.
        positive: bool [N].
    """
    pairs = int(np.count_nonzero(positive)) * int(np.count_nonzero(~positive))
    if not pairs or np.isnan(scores).any():
        return math.nan
    negatives = np.sort(scores[~positive])
    below, not_above = (np.searchsorted(negatives, scores[positive], side) for side in ("left", "right"))
    return (int(below.sum()) + int(not_above.sum())) / (2 * pairs)


def mae(predicted: np.ndarray, targets: np.ndarray) -> float:
    """Mean absolute error; both float [N], in the unit of the targets."""
    return float(np.mean(np.abs(predicted.astype(np.float64) - targets))) if len(targets) else math.nan


def mrr(positive_P: np.ndarray, negative_PM: np.ndarray) -> float:
    """Mean reciprocal rank of each positive among its own negatives; ties count as the average of their ranks.

    Args:
        positive_P: score of each positive.
        negative_PM: scores of its M negatives.
    """
    if not len(positive_P) or np.isnan(positive_P).any() or np.isnan(negative_PM).any():
        return math.nan
    above = np.count_nonzero(negative_PM > positive_P[:, None], axis=1)
    equal = np.count_nonzero(negative_PM == positive_P[:, None], axis=1)
    return float(np.mean(1 / (1 + above + equal / 2)))
