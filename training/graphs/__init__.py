"""Graphs as arrays of the host: read, checked, split, and judged."""

from training.graphs.baselines import features_alone, majority
from training.graphs.graph import Graph, GraphSet, both_ways, labelled
from training.graphs.load import load
from training.graphs.metrics import accuracy, macro_f1, mae, mrr, roc_auc

__all__ = [
    "Graph",
    "GraphSet",
    "accuracy",
    "both_ways",
    "features_alone",
    "labelled",
    "load",
    "macro_f1",
    "mae",
    "majority",
    "mrr",
    "roc_auc",
]
