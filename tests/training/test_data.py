"""Packing, splitting and the order of rows. Legend: B rows, S tokens of a row."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from meshes.errors import UsageError
from training.data import ByteTokenizer, Corpus, EvalBatches, PackedRows, TrainStream, resume, split
from training.data.packing import PADDING

BOS = ByteTokenizer.separator


def packed(sizes: list[int], seq_len: int, seed: int = 0) -> PackedRows:
    """Documents of these sizes, random ids."""
    tokens = np.random.default_rng(seed).integers(0, 50, sum(sizes)).astype(np.uint16)
    starts = np.cumsum([0, *sizes[:-1]]).astype(np.int64)
    return PackedRows(name="test", tokens=tokens, starts=starts, seq_len=seq_len, fingerprint="f")


def corpus(sizes: list[int], text: bool = True) -> Corpus:
    rows = packed(sizes, 4)
    tokenizer = ByteTokenizer() if text else None
    return Corpus(name="c", tokens=rows.tokens, starts=rows.starts, vocab_size=50, tokenizer=tokenizer)


# Tokens.


@pytest.mark.parametrize("text", ["", "def f(x):\n    return x\n", "é漢🎉\x00"])
def test_text_to_ids_and_back(text: str) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text and ids.dtype == np.uint16
    assert tokenizer.decode([BOS, *ids, BOS]) == text
    assert tokenizer.decode([255, 65]) == "�A"


# Packing.


def reference_rows(rows: PackedRows) -> list[list[tuple[int, int, int, int]]]:
    """Plainly: (input, target, segment, position) of every real token of every row."""
    document = np.zeros(len(rows.tokens), int)
    for start in rows.starts[1:]:
        document[start:] += 1
    out = []
    for first in range(0, len(rows.tokens) - 1, rows.seq_len):
        row: list[tuple[int, int, int, int]] = []
        for at in range(first, min(first + rows.seq_len, len(rows.tokens) - 1)):
            fresh = at > first and document[at] != document[at - 1]
            position = 0 if fresh or at == first else row[-1][3] + 1
            segment = document[at] - document[first] + 1
            row.append((int(rows.tokens[at]), int(rows.tokens[at + 1]), int(segment), position))
        out.append(row)
    return out


@pytest.mark.parametrize("seed", range(12))
def test_rows_equal_a_plain_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 12, rng.integers(1, 9)).tolist()
    sizes[0] += 1
    rows = packed(sizes, int(rng.integers(1, 9)), seed)
    expected = reference_rows(rows)
    assert len(rows) == len(expected)
    got = rows.take(range(len(rows)))
    for i, row in enumerate(expected):
        real = len(row)
        fields = (got.inputs_BS, got.targets_BS, got.segments_BS, got.positions_BS)
        assert list(zip(*(field[i, :real].tolist() for field in fields), strict=True)) == row
        assert got.weights_BS[i].tolist() == [1.0] * real + [0.0] * (rows.seq_len - real)
        assert all((field[i, real:] == 0).all() for field in fields)
        assert real == rows.seq_len or i == len(rows) - 1


@pytest.mark.parametrize(
    ("sizes", "seq_len"), [([7, 3], 4), ([1, 1, 1, 5], 3), ([9], 4), ([9], 8), ([10], 8), ([2], 5)]
)
def test_every_token_but_the_first_is_a_target_once(sizes: list[int], seq_len: int) -> None:
    rows = packed(sizes, seq_len)
    rows.tokens = np.arange(sum(sizes)).astype(np.uint16)  # ids that name their place
    got = rows.take(range(len(rows)))
    targets = got.targets_BS[got.weights_BS > 0]
    assert targets.tolist() == list(range(1, sum(sizes)))
    assert (got.inputs_BS[got.weights_BS > 0] == targets - 1).all()
    assert rows.targets == sum(sizes) - 1


def test_the_check_above_sees_a_lost_target() -> None:
    rows = packed([7, 3], 4)
    rows.tokens = np.arange(10).astype(np.uint16)
    inside = rows.take(range(len(rows))).targets_BS[:, :-1]  # as if targets were shifted within the row
    assert sorted(inside[inside > 0].tolist()) != list(range(1, 10))


def test_segments_and_positions_by_hand() -> None:
    rows = packed([3, 2, 6], 4).take([0, 1, 2])
    assert rows.segments_BS.tolist() == [[1, 1, 1, 2], [1, 2, 2, 2], [1, 1, 0, 0]]
    assert rows.positions_BS.tolist() == [[0, 1, 2, 0], [0, 0, 1, 2], [0, 1, 0, 0]]


def test_types_and_padding_rows() -> None:
    rows = packed([9], 4).take([PADDING, 0])
    assert [str(field.dtype) for field in rows] == ["int32"] * 4 + ["float32"]
    assert not any(field[0].any() for field in rows) and rows.weights_BS[1].all()
    assert packed([9], 4).take([]).inputs_BS.shape == (0, 4)


def test_rows_that_are_not_there() -> None:
    with pytest.raises(IndexError, match="rows 0 to 1, asked for 0 to 2"):
        packed([9], 4).take([0, 2])
    with pytest.raises(ValueError, match="test: 1 tokens"):
        packed([1], 4)


# Splitting.


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_split_loses_nothing(seed: int, text: bool) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 40, rng.integers(1, 60)).tolist()
    whole = corpus(sizes, text)
    train, held = split(whole, 3)
    assert len(train.tokens) + len(held.tokens) == len(whole)
    together = Counter(train.tokens.tolist()) + Counter(held.tokens.tolist())
    assert together == Counter(whole.tokens.tolist())
    assert len(held) >= 1 and held.targets >= 1 and train.targets >= 1
    assert len(held.tokens) <= max(0.2 * len(whole), 8)
    again_train, again_held = split(whole, 3)
    assert (again_held.tokens == held.tokens).all() and (again_train.starts == train.starts).all()


def test_whole_documents_are_held_out() -> None:
    sizes = np.random.default_rng(0).integers(2, 40, 300).tolist()
    whole = corpus(sizes)
    documents = Counter(tuple(d.tolist()) for d in np.split(whole.tokens, whole.starts[1:]))
    parts: Counter[tuple[int, ...]] = Counter()
    for rows in split(whole, 16):
        parts += Counter(tuple(d.tolist()) for d in np.split(rows.tokens, rows.starts[1:]))
    assert parts == documents
    assert 0.04 < len(split(whole, 16)[1].tokens) / len(whole) < 0.07


def test_one_document_is_cut_at_its_tail_without_a_copy() -> None:
    whole = corpus([1000], text=False)
    train, held = split(whole, 8)
    assert (len(train.tokens), len(held.tokens)) == (950, 50)
    assert np.shares_memory(train.tokens, whole.tokens) and np.shares_memory(held.tokens, whole.tokens)


def test_tail_is_cut_where_a_document_begins_if_one_is_near() -> None:
    train, held = split(corpus([930, 60, 10], text=False), 8)
    assert (len(train.tokens), held.starts.tolist()) == (930, [0, 60])


@pytest.mark.parametrize("size", [65, 66, 100, 200])
def test_one_row_is_enough_and_less_is_refused(size: int) -> None:
    train, held = split(corpus([size]), 64)
    assert len(train) >= 1 and len(held) >= 1
    with pytest.raises(UsageError, match="c has 64 tokens, but a row of --seq-len 64 needs 65"):
        split(corpus([64]), 64)


# The order of rows.


def ids(stream: TrainStream, steps: range) -> list[int]:
    return [int(i) for step in steps for i in stream.row_ids(step, range(stream.batch_size))]


def stream_of(rows: int, batch_size: int, seed: int = 0, **start: int) -> TrainStream:
    return TrainStream(packed([rows * 4 + 1], 4), seed=seed, batch_size=batch_size, **start)


@pytest.mark.parametrize(("rows", "batch"), [(10, 4), (16, 8), (5, 8), (1, 3), (7, 7)])
def test_each_epoch_has_every_row_once(rows: int, batch: int) -> None:
    order = ids(stream_of(rows, batch), range(-(-4 * rows // batch)))
    epochs = [order[at : at + rows] for at in range(0, 4 * rows, rows)]
    assert all(sorted(epoch) == list(range(rows)) for epoch in epochs)
    assert rows < 5 or len({tuple(epoch) for epoch in epochs}) > 1  # shuffled anew


def test_order_depends_on_the_seed() -> None:
    order = ids(stream_of(50, 5, seed=1), range(10))
    assert order == ids(stream_of(50, 5, seed=1), range(10))
    assert order != ids(stream_of(50, 5, seed=2), range(10))
    assert order != sorted(order)


def test_processes_together_read_every_row_once() -> None:
    """Rows dealt 3:1:1:1, each process asking only for its own."""
    stream = stream_of(24, 6)
    shares = [[0, 1, 2], [3], [4], [5]]
    read = [int(i) for step in range(4) for numbers in shares for i in stream.row_ids(step, numbers)]
    assert sorted(read) == list(range(24))
    whole = stream.rows(2, range(6))
    part = stream.rows(2, [5, 1])
    assert all((a[[5, 1]] == b).all() for a, b in zip(whole, part, strict=True))


def test_resume_in_a_later_epoch() -> None:
    """Ten rows, batches of four, saved at step 6, in the third pass."""
    straight = stream_of(10, 4)
    state = json.loads(json.dumps(straight.state(6)))
    resumed = resume(straight.source, state, seed=0, batch_size=4, step=6)
    assert ids(resumed, range(6, 12)) == ids(straight, range(6, 12))
    assert [resumed.epoch(step) for step in (6, 7, 8)] == [2, 2, 3]
    assert ids(resumed, range(6, 12)) != ids(straight, range(0, 6))


def test_resume_with_another_batch_size_goes_on_with_the_unseen() -> None:
    straight = stream_of(12, 4)
    resumed = resume(straight.source, straight.state(2), seed=0, batch_size=2, step=2)
    assert ids(resumed, range(2, 4)) == ids(straight, range(2, 3))
    assert resumed.state(4)["rows_seen"] == 12


def test_a_checkpoint_of_other_data_is_refused() -> None:
    first, second = split(corpus([500]), 8)[0], split(corpus([501]), 8)[0]
    state = TrainStream(first, seed=0, batch_size=4).state(3)
    with pytest.raises(UsageError, match=f"{first.fingerprint}.*{second.fingerprint}"):
        resume(second, state, seed=0, batch_size=4, step=3)
    with pytest.raises(UsageError, match="--seed 1, but the checkpoint has 0"):
        resume(first, state, seed=1, batch_size=4, step=3)
    with pytest.raises(UsageError, match="--seq-len 9, but the checkpoint has 8"):
        resume(split(corpus([500]), 9)[0], state, seed=0, batch_size=4, step=3)
    resume(first, state, seed=0, batch_size=4, step=3)  # the twin


def test_fingerprint_sees_tokens_and_documents() -> None:
    prints = {corpus(sizes).fingerprint() for sizes in ([40], [20, 20], [21, 19], [41])}
    assert len(prints) == 4
    assert corpus([20, 20]).fingerprint() == corpus([20, 20]).fingerprint()


def test_rows_outside_the_batch() -> None:
    with pytest.raises(IndexError, match="of a batch of 4"):
        stream_of(10, 4).rows(0, [4])
    with pytest.raises(IndexError, match="step 1 is before 2"):
        stream_of(10, 4, start_step=2).rows(1, [0])


# Ahead of time.


def prefetch_threads() -> int:
    return sum(thread.name.startswith("grain-prefetch") for thread in threading.enumerate())


def wait_for(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def test_prefetch_is_the_rows_in_order() -> None:
    stream = stream_of(10, 4)
    got = list(stream.prefetch(3, 5, [2, 0]))
    assert len(got) == 5
    for step, rows in enumerate(got, start=3):
        assert all((a == b).all() for a, b in zip(rows, stream.rows(step, [2, 0]), strict=True))


def test_prefetch_stops_when_closed() -> None:
    batches = stream_of(10, 4).prefetch(0, 10**6, range(4))
    next(batches)
    assert prefetch_threads() >= 1
    batches.close()
    assert wait_for(lambda: prefetch_threads() == 0)
    with pytest.raises(StopIteration, match=r"^$"):
        next(batches)


def test_prefetch_passes_errors_on() -> None:
    with pytest.raises(IndexError, match="of a batch of 4"):
        next(stream_of(10, 4).prefetch(0, 2, [9]))


# Evaluation.


@pytest.mark.parametrize(("rows", "batch", "limit"), [(10, 4, 0), (8, 4, 0), (3, 8, 0), (10, 4, 7), (10, 4, 99)])
def test_evaluation_has_every_row_once(rows: int, batch: int, limit: int) -> None:
    source = packed([rows * 4 - 1], 4)
    batches = EvalBatches(source=source, batch_size=batch, limit=limit)
    got = [batches.rows(b, range(batch)) for b in range(len(batches))]
    assert len(got) == -(-batches.row_count // batch)
    inputs = [tuple(row) for part in got for row, w in zip(part.inputs_BS, part.weights_BS, strict=True) if w.any()]
    every = [tuple(row) for row in source.take(range(rows)).inputs_BS]
    weight = sum(float(part.weights_BS.sum()) for part in got)
    if limit in (0, 99):
        assert inputs == every and weight == source.targets
    else:
        assert len(inputs) == limit == len(set(inputs)) and set(inputs) < set(every)
    prefetched = list(batches.prefetch(range(batch)))
    assert all((a == b).all() for x, y in zip(got, prefetched, strict=True) for a, b in zip(x, y, strict=True))
