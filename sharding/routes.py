"""Who sends which rows to whom: from lists of owned and wanted row ids to rounds and index tables. NumPy only.

Tables index `[messages; zero row; local rows]` when they take and `[zero row; local rows]` when they send; an
unused entry names the zero row. Where blocks are gathered and scattered, own rows are among the messages.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

Form = Literal["none", "gather", "swap", "permute", "ragged"]
Rows = Sequence[Sequence[np.ndarray]]  # [data groups][devices] -> ids of rows, in local order
Round = tuple[tuple[tuple[int, int], ...], int]  # ((sender, receiver), ...) and the rows of each message


class Crossing(NamedTuple):
    """Rows that one device sends to another: their places at the sender and at the receiver."""

    sender: int
    receiver: int
    sent: np.ndarray
    placed: np.ndarray

    def reverse(self) -> "Crossing":
        """The same rows the other way."""
        return Crossing(self.receiver, self.sender, self.placed, self.sent)


@dataclass(frozen=True, eq=False)
class Leg:
    """One direction of an exchange.

    Args:
        form: how messages travel; `scatter` is the reverse of `gather`.
        tables: index tables [data groups, devices, ...] int32: `send` picks what leaves, `take` [rows, slots] picks
            results, which add over slots.
        rounds: of `permute`.
        received: rows of messages that a device receives, before its own rows.
    """

    form: Literal["none", "gather", "scatter", "swap", "permute", "ragged"]
    tables: dict[str, np.ndarray]
    rounds: tuple[Round, ...] = ()
    received: int = 0


def crossings(have: Rows, want: Rows) -> list[list[Crossing]]:
    """For every data group, who sends what to whom; rows that stay count as sent to oneself.

    Raises:
        ValueError: an id has two owners, or none, or is wanted twice by one device.
    """
    return [_crossings(group, haves, wants) for group, (haves, wants) in enumerate(zip(have, want, strict=True))]


def _crossings(group: int, haves: Sequence[np.ndarray], wants: Sequence[np.ndarray]) -> list[Crossing]:
    owned = np.concatenate([np.asarray(h, np.int64) for h in haves])
    ids = np.concatenate([owned, *(np.asarray(w, np.int64) for w in wants)])
    owner = np.full(int(ids.max(initial=-1)) + 1, -1)
    place = np.zeros_like(owner)
    counts = np.bincount(owned, minlength=len(owner))
    if np.any(counts > 1):
        raise ValueError(f"data group {group}: row {np.argmax(counts > 1)} has {counts.max()} owners, it needs one")
    for device, rows in enumerate(haves):
        owner[rows] = device
        place[rows] = np.arange(len(rows))
    found = []
    for receiver, rows in enumerate(wants):
        rows = np.asarray(rows, np.int64)
        if len(np.unique(rows)) != len(rows):
            raise ValueError(f"data group {group}: device {receiver} wants a row twice")
        if np.any(owner[rows] < 0):
            raise ValueError(
                f"data group {group}: device {receiver} wants row {rows[owner[rows] < 0][0]}, nobody has it"
            )
        order = np.argsort(owner[rows], kind="stable")
        senders, starts = np.unique(owner[rows][order], return_index=True)
        for sender, at in zip(senders, np.split(order, starts)[1:], strict=True):
            found.append(Crossing(int(sender), receiver, place[rows[at]], at))
    return found


def message_sizes(groups: list[list[Crossing]]) -> dict[tuple[int, int], int]:
    """Rows from each sender to each other device, the largest over data groups."""
    sizes: dict[tuple[int, int], int] = {}
    for c in (c for group in groups for c in group if c.sender != c.receiver):
        sizes[c.sender, c.receiver] = max(sizes.get((c.sender, c.receiver), 0), len(c.sent))
    return sizes


def schedule(sizes: dict[tuple[int, int], int]) -> tuple[Round, ...]:
    """Rounds of partial matchings; messages of similar size share a round, so that little is padded."""
    rounds: list[dict[tuple[int, int], int]] = []
    busy: list[tuple[set[int], set[int]]] = []
    for (sender, receiver), size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        free = (n for n, (senders, receivers) in enumerate(busy) if sender not in senders and receiver not in receivers)
        n = next(free, len(rounds))
        if n == len(rounds):
            rounds.append({})
            busy.append((set(), set()))
        rounds[n][sender, receiver] = size
        busy[n][0].add(sender)
        busy[n][1].add(receiver)
    return tuple((tuple(sorted(taken)), max(taken.values())) for taken in rounds)


def legs(have: Rows, want: Rows, form: Form) -> tuple[Leg, Leg]:
    """The forward and the backward leg of an exchange in the given form."""
    forward = crossings(have, want)
    back = [[c.reverse() for c in group] for group in forward]
    rows_in = [[len(rows) for rows in group] for group in have]
    rows_out = [[len(rows) for rows in group] for group in want]
    if form == "none":
        return Leg("none", {}), Leg("none", {})
    if form == "gather":
        return _gather(forward, rows_in, rows_out), _scatter(back, rows_in)
    make = {"swap": _swap, "permute": _permute, "ragged": _ragged}[form]
    return make(forward, rows_out), make(back, rows_in)


def _gather(groups: list[list[Crossing]], rows_in: list[list[int]], rows_out: list[list[int]]) -> Leg:
    devices, capacity = len(rows_in[0]), max(max(rows) for rows in rows_in)
    send = fill([[np.arange(1, rows + 1) for rows in group] for group in rows_in], 0, (capacity,))
    received = devices * capacity
    sources = [[(c.receiver, c.placed, c.sender * capacity + c.sent) for c in group] for group in groups]
    return Leg("gather", {"send": send, "take": _slots(sources, rows_out, received)}, received=received)


def _scatter(groups: list[list[Crossing]], rows_out: list[list[int]]) -> Leg:
    devices, capacity = len(rows_out[0]), max(max(rows) for rows in rows_out)
    send = np.zeros((len(groups), devices, devices, capacity), np.int32)
    for g, group in enumerate(groups):
        for c in group:
            send[g, c.sender, c.receiver, c.placed] = c.sent + 1
    sources = [[(m, np.arange(rows), np.arange(rows)) for m, rows in enumerate(group)] for group in rows_out]
    return Leg("scatter", {"send": send, "take": _slots(sources, rows_out, capacity)}, received=capacity)


def _swap(groups: list[list[Crossing]], rows_out: list[list[int]]) -> Leg:
    """One all-to-all whose messages are all as long as the longest."""
    devices, size = len(rows_out[0]), max(message_sizes(groups).values(), default=0)
    slot = np.arange(devices) * size
    leaves = np.broadcast_to(slot[None, None, :], (len(groups), devices, devices))
    arrives = np.broadcast_to(slot[None, :, None], (len(groups), devices, devices))
    return Leg("swap", _tables(groups, rows_out, leaves, arrives, (devices * size,) * 2), received=devices * size)


def _permute(groups: list[list[Crossing]], rows_out: list[list[int]]) -> Leg:
    """Rounds of matched sends: a message leaves and arrives at the place of its round."""
    devices, rounds = len(rows_out[0]), schedule(message_sizes(groups))
    place = np.zeros((devices, devices), int)
    received = 0
    for pairs, size in rounds:
        for pair in pairs:
            place[pair] = received
        received += size
    places = np.broadcast_to(place, (len(groups), devices, devices))
    return Leg("permute", _tables(groups, rows_out, places, places, (received,) * 2), rounds, received)


def _ragged(groups: list[list[Crossing]], rows_out: list[list[int]]) -> Leg:
    """Rows leave sorted by receiver and arrive sorted by sender; sizes and offsets are [groups, devices, devices]."""
    devices = len(rows_out[0])
    count = np.zeros((len(groups), devices, devices), np.int32)  # [group, sender, receiver]
    for g, group in enumerate(groups):
        for c in group:
            count[g, c.sender, c.receiver] = len(c.sent) if c.sender != c.receiver else 0
    leaves = np.cumsum(count, axis=2, dtype=np.int32) - count
    arrives = np.cumsum(count, axis=1, dtype=np.int32) - count
    sent, received = int(count.sum(axis=2).max()), int(count.sum(axis=1).max())
    offsets = {
        "input_offsets": leaves,
        "send_sizes": count,
        "output_offsets": arrives,
        "recv_sizes": np.swapaxes(count, 1, 2).copy(),
    }
    tables = _tables(groups, rows_out, leaves, arrives, (sent, received))
    return Leg("ragged", tables | offsets, received=received)


def _tables(
    groups: list[list[Crossing]],
    rows_out: list[list[int]],
    leaves: np.ndarray,
    arrives: np.ndarray,
    lengths: tuple[int, int],
) -> dict[str, np.ndarray]:
    """Send and take tables of messages whose places are given.

    Args:
        groups: crossings of each data group.
        rows_out: rows of the result [groups][devices].
        leaves, arrives: where a message starts in the send table and in the receive buffer [groups, sender, receiver].
        lengths: of the send table and of the receive buffer.
    """
    sent, received = lengths
    send = np.zeros((len(groups), len(rows_out[0]), sent), np.int32)
    sources: list[list[tuple[int, np.ndarray, np.ndarray]]] = []
    for g, group in enumerate(groups):
        sources.append([])
        for c in group:
            if c.sender == c.receiver:
                where = received + 1 + c.sent
            else:
                send[g, c.sender, leaves[g, c.sender, c.receiver] + np.arange(len(c.sent))] = c.sent + 1
                where = arrives[g, c.sender, c.receiver] + np.arange(len(c.sent))
            sources[g].append((c.receiver, c.placed, where))
    return {"send": send, "take": _slots(sources, rows_out, received)}


def _slots(sources: list[list[tuple[int, np.ndarray, np.ndarray]]], rows_out: list[list[int]], zero: int) -> np.ndarray:
    """Take tables [groups, devices, rows, slots]: from (receiver, places, positions) lists."""
    tables: list[list[np.ndarray]] = []
    for group, rows in zip(sources, rows_out, strict=True):
        tables.append([])
        for device, count in enumerate(rows):
            parts = [(placed, where) for receiver, placed, where in group if receiver == device]
            placed = np.concatenate([np.zeros(0, np.int64), *(p for p, _ in parts)])
            where = np.concatenate([np.zeros(0, np.int64), *(w for _, w in parts)])
            order = np.argsort(placed, kind="stable")
            ordered = placed[order]
            slot = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
            table = np.full((count, int(slot.max(initial=0)) + 1), zero)
            table[ordered, slot] = where[order]
            tables[-1].append(table)
    return fill(tables, zero)


def fill(groups: Sequence[Sequence[np.ndarray]], pad: int, least: tuple[int, ...] = ()) -> np.ndarray:
    """Stack index arrays of different shapes as [groups, devices, ...] int32, padded with `pad`."""
    ndim = groups[0][0].ndim
    least = least or (0,) * ndim
    shape = tuple(max(least[d], *(a.shape[d] for group in groups for a in group)) for d in range(ndim))
    out = np.full((len(groups), len(groups[0]), *shape), pad, np.int32)
    for g, group in enumerate(groups):
        for m, array in enumerate(group):
            out[g, m][tuple(slice(0, size) for size in array.shape)] = array
    return out
