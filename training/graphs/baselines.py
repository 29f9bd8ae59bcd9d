"""What is reached without a graph network: the commonest class, and features alone."""

from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize

from meshes.errors import UsageError
from training.graphs.graph import Graph, GraphSet
from training.graphs.metrics import accuracy, mae

RIDGES = (1e-3, 1e-2, 1e-1, 1.0)
ITERATIONS = 200

Predict = Callable[[np.ndarray], np.ndarray]


def majority(data: Graph | GraphSet) -> float:
    """Test accuracy of the largest class of train, or mean absolute test error of the mean of train."""
    targets = _targets(data)
    train, test = targets[data.train], targets[data.test]
    if data.task == "classification":
        return accuracy(np.full_like(test, np.bincount(train).argmax()), test)
    return mae(np.full_like(test, train.mean(dtype=np.float64)), test)


def features_alone(data: Graph | GraphSet) -> float:
    """Test accuracy of multinomial logistic regression, or mean absolute test error of ridge regression, on features.

    Fitted on train with features in units of their deviation; the ridge is the best of a few on valid, the smallest
    if there is no valid. A graph among many has the mean of its vertices' features.
    """
    targets, inputs = _targets(data), standardized(_inputs(data), data.train)
    best: tuple[float, Predict] | None = None
    for ridge in RIDGES:
        predict = _fit(inputs[data.train], targets[data.train], len(data.classes), ridge)
        score = _score(data, predict(inputs[data.valid]), targets[data.valid]) if len(data.valid) else 0.0
        if best is None or score > best[0]:
            best = score, predict
    assert best is not None
    return abs(_score(data, best[1](inputs[data.test]), targets[data.test]))


def standardized(inputs: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Columns less their mean, over their deviation, of the rows of train; a column of ones is added."""
    mean, deviation = inputs[train].mean(0), inputs[train].std(0)
    scaled = (inputs - mean) / np.where(deviation > 0, deviation, 1)
    return np.concatenate([scaled, np.ones((len(inputs), 1))], axis=1)


def _targets(data: Graph | GraphSet) -> np.ndarray:
    if data.labels is None:
        raise UsageError(f"{data.name} has no labels, so that there is no baseline: predict links")
    return data.labels


def _inputs(data: Graph | GraphSet) -> np.ndarray:
    if isinstance(data, Graph):
        return data.features.astype(np.float64)
    sums = np.zeros((data.graphs, data.features.shape[1]))
    np.add.at(sums, np.repeat(np.arange(data.graphs), data.n_node), data.features.astype(np.float64))
    return sums / np.maximum(data.n_node, 1)[:, None]


def _score(data: Graph | GraphSet, predicted: np.ndarray, targets: np.ndarray) -> float:
    """Higher is better."""
    return accuracy(predicted, targets) if data.task == "classification" else -mae(predicted, targets)


def _fit(inputs_NF: np.ndarray, targets: np.ndarray, classes: int, ridge: float) -> Predict:
    if classes:
        weights = logistic(inputs_NF, targets, classes, ridge)
        return lambda rows: (rows @ weights).argmax(axis=1)
    gram = inputs_NF.T @ inputs_NF / len(inputs_NF) + ridge * np.eye(inputs_NF.shape[1])
    solved = np.linalg.solve(gram, inputs_NF.T @ targets.astype(np.float64) / len(inputs_NF))
    return lambda rows: rows @ solved


def logistic(inputs_NF: np.ndarray, labels_N: np.ndarray, classes: int, ridge: float) -> np.ndarray:
    """Weights [F, classes] of least mean cross entropy plus ridge / 2 times their squared length."""
    wanted_NK = np.eye(classes)[labels_N]

    def loss_and_gradient(flat: np.ndarray) -> tuple[float, np.ndarray]:
        scores_NK = inputs_NF @ flat.reshape(-1, classes)
        scores_NK -= scores_NK.max(axis=1, keepdims=True)
        logs_NK = scores_NK - np.log(np.exp(scores_NK).sum(axis=1, keepdims=True))
        gradient = inputs_NF.T @ (np.exp(logs_NK) - wanted_NK) / len(labels_N)
        loss = -(logs_NK * wanted_NK).sum() / len(labels_N) + ridge / 2 * flat @ flat
        return float(loss), gradient.ravel() + ridge * flat

    start = np.zeros(inputs_NF.shape[1] * classes)
    found = minimize(loss_and_gradient, start, jac=True, method="L-BFGS-B", options={"maxiter": ITERATIONS})
    return found.x.reshape(-1, classes)
