"""Which vertices or graphs are trained on and which are held out, where the data do not say."""

import numpy as np

from training.graphs.graph import labelled

SHARES = (0.6, 0.2, 0.2)  # of train, valid and test

Split = tuple[np.ndarray, np.ndarray, np.ndarray]  # ids of train, valid and test


def at_random(labels: np.ndarray, seed: int) -> Split:
    """About 60 % of what has a label for training, 20 % for choosing and 20 % for testing, by seed alone.

    Classes are split one by one, so that each stands in train if it has any label; values are split as one. Only what
    has a label is split.

    Args:
        labels: int [N] with -1, or float [N] with NaN, where there is none.
        seed: of the draw.

    Returns:
        Ascending ids, int64.
    """
    rng = np.random.default_rng(seed)
    groups = np.zeros(len(labels), np.int64) if labels.dtype.kind == "f" else labels
    known = np.flatnonzero(labelled(labels))
    taken: tuple[list[np.ndarray], ...] = ([], [], [])
    for group in np.unique(groups[known]):
        members = rng.permutation(known[groups[known] == group])
        cuts = np.ceil(np.cumsum(SHARES[:2]) * len(members) - 1e-9).astype(np.int64)
        for part, ids in zip(taken, np.split(members, cuts), strict=True):
            part.append(ids)
    train, valid, test = (np.sort(np.concatenate([np.zeros(0, np.int64), *part])) for part in taken)
    return train, valid, test


def by_group(sizes: np.ndarray, seed: int) -> np.ndarray:
    """Deal whole groups to train, valid and test, largest first, each to the part that lacks most.

    Groups of one size are dealt in an order drawn by seed. With three groups or more no part stays empty.

    Args:
        sizes: members of each group, int [groups].
        seed: of the draw.

    Returns:
        Part of each group, int64 [groups]: 0 train, 1 valid, 2 test.
    """
    order = np.random.default_rng(seed).permutation(len(sizes))
    order = order[np.argsort(-sizes[order], kind="stable")]
    lacking = np.array(SHARES) * sizes.sum()
    parts = np.zeros(len(sizes), np.int64)
    for place, group in enumerate(order):
        empty = [part for part in range(3) if part not in parts[order[:place]]]
        last = len(order) - place <= len(empty)
        parts[group] = empty[0] if last else int(np.argmax(lacking))
        lacking[parts[group]] -= sizes[group]
    return parts
