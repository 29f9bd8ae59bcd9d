"""Data for training and data held out, the same whatever the seed of the run."""

import numpy as np

from meshes.errors import UsageError
from training.data.corpus import Corpus
from training.data.packing import PackedRows

HELD_OUT = 0.05


def split(corpus: Corpus, seq_len: int) -> tuple[PackedRows, PackedRows]:
    """Rows for training and rows held out, about 5 % and at least one.

    Whole documents of text are held out, picked evenly from the whole; a stream of ids, or text whose documents are
    too large to pick from, is cut at its tail.

    Errors:
        UsageError: fewer tokens than one row needs.
    """
    need = max(seq_len + 1, 4)  # two tokens on either side are the least
    if len(corpus) < need:
        raise UsageError(
            f"--data {corpus.name} has {len(corpus)} tokens, but a row of --seq-len {seq_len} needs {need}:"
            " give more data, or a smaller --seq-len"
        )
    wanted = max(round(HELD_OUT * len(corpus)), min(need, len(corpus) // 4), 2)
    picked = _pick(corpus, wanted) if corpus.tokenizer is not None else np.zeros(len(corpus.starts), bool)
    parts = _documents(corpus, picked) if picked.any() else _tail(corpus, wanted)
    fingerprint = corpus.fingerprint()
    train, held_out = (
        PackedRows(name=corpus.name, tokens=tokens, starts=starts, seq_len=seq_len, fingerprint=fingerprint)
        for tokens, starts in parts
    )
    return train, held_out


Part = tuple[np.ndarray, np.ndarray]  # tokens and document starts


def _pick(corpus: Corpus, wanted: int) -> np.ndarray:
    """Which documents to hold out, bool [documents]; none where they do not make about as many tokens as wanted."""
    sizes = np.diff(corpus.starts, append=len(corpus))
    picked = np.zeros(len(sizes), bool)
    total = 0
    for document in np.random.default_rng(0).permutation(len(sizes)):
        if total >= wanted:
            break
        if total + sizes[document] <= 2 * wanted:
            picked[document] = True
            total += int(sizes[document])
    return picked if 2 * total >= wanted and not picked.all() else np.zeros_like(picked)


def _documents(corpus: Corpus, picked: np.ndarray) -> tuple[Part, Part]:
    sizes = np.diff(corpus.starts, append=len(corpus))
    mask = np.repeat(picked, sizes)
    return _part(corpus.tokens[~mask], sizes[~picked]), _part(corpus.tokens[mask], sizes[picked])


def _part(tokens: np.ndarray, sizes: np.ndarray) -> Part:
    return tokens, np.cumsum(sizes, dtype=np.int64) - sizes


def _tail(corpus: Corpus, wanted: int) -> tuple[Part, Part]:
    """Cut where a document begins, where one does near the right place; no copy of the tokens."""
    cut = len(corpus) - wanted
    low, high = np.searchsorted(corpus.starts, [max(cut - wanted, 2), len(corpus) - wanted // 2])
    near = corpus.starts[low:high]
    if len(near):
        cut = int(near[np.argmin(np.abs(near - cut))])
    after = corpus.starts[corpus.starts > cut] - cut
    return (
        (corpus.tokens[:cut], corpus.starts[corpus.starts < cut]),
        (corpus.tokens[cut:], np.concatenate([np.zeros(1, np.int64), after])),
    )
