"""Zachary's karate club: a graph for a run of seconds."""

import networkx
import numpy as np

from training.graphs.build import build, numbered
from training.graphs.graph import Graph, GraphSet


def karate(seed: int) -> Graph | GraphSet:
    """34 members, 78 friendships in both directions; which of the two clubs that it split into each member joined.

    W. Zachary, An information flow model for conflict and fission in small groups, 1977. Members have no features:
    each is told from the others by a column of its own.
    """
    club = networkx.karate_club_graph()
    one_way = np.array([*club.edges()], np.int64)
    ends = np.concatenate([one_way, one_way[:, ::-1]])
    joined = np.array([club.nodes[member]["club"] for member in club.nodes])
    arrays = {"senders": ends[:, 0], "receivers": ends[:, 1], "features": np.eye(len(joined), dtype=np.float32)}
    labels = numbered("karate club", joined)
    return build("karate club", arrays, vertices=len(joined), labels=labels, seed=seed)
