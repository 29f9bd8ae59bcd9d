"""The fewest rows that carry edges between devices, where sums may be added up by the device that sends."""

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_bipartite_matching

__all__ = ["in_sums"]


def in_sums(rows: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Which edges travel in a sum, so that as few rows as possible travel in all; bool [E].

    An edge that is cut travels as the row of its sender, which serves all edges of that row to one device, or within a
    sum, which serves all edges from one device to one target. The fewest rows and sums that serve every edge are a
    minimum vertex cover of the bipartite graph of both, as large as its maximum matching (König, "Gráfok és mátrixok",
    1931; matched by Hopcroft and Karp, 1973). Of covers of that size this takes the one with fewest sums.

    Args:
        rows: of each edge a number for its sender and the device that it goes to, int [E], zero or more.
        sums: of each edge a number for its target and the device that it comes from, likewise.
    """
    if not len(rows):
        return np.zeros(0, bool)
    left, row_E = np.unique(rows, return_inverse=True)
    right, sum_E = np.unique(sums, return_inverse=True)
    pairs = np.unique(row_E * np.int64(len(right)) + sum_E)
    row_P, sum_P = np.divmod(pairs, len(right))
    between = _links(row_P, sum_P, (len(left), len(right)))
    matched = maximum_bipartite_matching(between, perm_type="column")  # the sum of each row, or -1
    return _reached(row_P, sum_P, matched, len(right))[row_E]


def _links(tails: np.ndarray, heads: np.ndarray, shape: tuple[int, int]) -> csr_array:
    return csr_array((np.ones(len(tails), np.float32), (tails, heads)), shape=shape)


def _reached(row_P: np.ndarray, sum_P: np.ndarray, matched: np.ndarray, sums: int) -> np.ndarray:
    """Rows that an alternating path leads to from a row without partner: the cover leaves them out; bool [rows]."""
    rows = len(matched)
    start, pairs, free = rows + sums, np.flatnonzero(matched >= 0), np.flatnonzero(matched < 0)
    tails = np.concatenate([row_P, rows + matched[pairs], np.full(len(free), start)])
    heads = np.concatenate([rows + sum_P, pairs, free])
    paths = _links(tails, heads, (start + 1, start + 1))
    found = np.zeros(start + 1, bool)
    found[breadth_first_order(paths, start, directed=True, return_predecessors=False)] = True
    return found[:rows]
