"""What the parts of a graph need of each other: rows of other devices, and sums that their owners add up.

Where messages are plain sums, edges that lead from one device to one target may be added up before they travel, and
that is done wherever it makes fewer rows. Legend: D devices, N own rows, A all vertices, E all edges, S all sums, R
relations.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from meshes.cover import in_sums
from sharding import exchange
from sharding.exchange import Exchange
from training.graphs.spread import Part


class Ends(NamedTuple):
    """Edges of one device: rows at their ends, and relations.

    Args:
        senders: among all rows that the device has.
        receivers: among its targets.
        relations: of the edges.
    """

    senders: np.ndarray
    receivers: np.ndarray
    relations: np.ndarray


class Sums(NamedTuple):
    """All sums that travel, one for each target, relation and device that sends to it; int arrays [S].

    Args:
        targets, relations: what it is a sum for.
        devices: that add it up.
    """

    targets: np.ndarray
    relations: np.ndarray
    devices: np.ndarray


@dataclass(frozen=True, eq=False, kw_only=True)
class Halo:
    """Rows that come from other devices.

    Args:
        part: the graph.
        owner: device of each vertex, int [A].
        devices: how many D.
        ragged, direct: see `sharding.exchange.build`.
    """

    part: Part
    owner: np.ndarray
    devices: int
    ragged: bool = False
    direct: bool = False

    @cached_property
    def rows(self) -> list[np.ndarray]:
        """Own vertices of each device; one without any has a row of padding, that nothing arrives at."""
        return [ids if len(ids) else np.array([-1]) for ids in self._own]

    @cached_property
    def edges(self) -> list[np.ndarray]:
        """Numbers of the edges that arrive at each device's vertices."""
        owner = self.owner[self.part.graph.receivers]
        return [np.flatnonzero(owner == device) for device in range(self.devices)]

    @cached_property
    def away(self) -> list[np.ndarray]:
        """Vertices of others whose rows each device receives."""
        found = []
        for device, edges in enumerate(self.edges):
            senders = np.unique(self.part.graph.senders[edges[~self._summed[edges]]])
            found.append(senders[self.owner[senders] != device])
        return found

    @cached_property
    def sums(self) -> Sums:
        """All sums, in order."""
        (keys, _), D, R = self._numbered, self.devices, self._relations
        return Sums(keys // D // R, keys // D % R, keys % D)

    @cached_property
    def made(self) -> list[np.ndarray]:
        """Numbers of the sums that each device adds up."""
        return [np.flatnonzero(self.sums.devices == device) for device in range(self.devices)]

    @cached_property
    def received(self) -> list[np.ndarray]:
        """Numbers of the sums that each device receives."""
        owner = self.owner[self.sums.targets]
        return [np.flatnonzero(owner == device) for device in range(self.devices)]

    @cached_property
    def ends(self) -> list[Ends]:
        """Edges that arrive on each device: from own rows, then rows of others, then sums, one edge each."""
        graph, found = self.part.graph, []
        for device, edges in enumerate(self.edges):
            rows, away, sums = len(self.rows[device]), self.away[device], self.received[device]
            alone = edges[~self._summed[edges]]
            senders = graph.senders[alone]
            near = np.where(self.owner[senders] == device, self._place[senders], rows + np.searchsorted(away, senders))
            ends = (
                (near, rows + len(away) + np.arange(len(sums))),
                (self._place[graph.receivers[alone]], self._place[self.sums.targets[sums]]),
                (self.part.relations[alone], self.sums.relations[sums]),
            )
            found.append(Ends(*(np.concatenate(pair).astype(np.int32) for pair in ends)))
        return found

    @cached_property
    def added(self) -> list[Ends]:
        """Edges from own rows of each device to the sums that it adds up; of one relation."""
        graph, found = self.part.graph, []
        edges = np.flatnonzero(self._summed)
        number = self._numbered[1]
        for device, made in enumerate(self.made):
            own = self.sums.devices[number] == device
            targets = np.searchsorted(made, number[own])
            ends = (self._place[graph.senders[edges[own]]], targets, np.zeros_like(targets))
            found.append(Ends(*(one.astype(np.int32) for one in ends)))
        return found

    @cached_property
    def exchange(self) -> Exchange:
        """From own rows and own sums to own rows, rows of others and their sums."""
        first = self.part.graph.vertices  # sums are numbered after all vertices
        have = [np.concatenate([own, first + made]) for own, made in zip(self._own, self.made, strict=True)]
        comes = zip(self._own, self.away, self.received, strict=True)
        want = [np.concatenate([own, away, first + sums]) for own, away, sums in comes]
        return exchange.build([have], [want], ragged=self.ragged, direct=self.direct)

    def note(self) -> str:
        """How much travels, for people."""
        rows, sums = sum(map(len, self.away)), len(self.sums.targets)
        return f"{rows:,} rows of vertices and {sums:,} sums travel between devices in a layer"

    @cached_property
    def _own(self) -> list[np.ndarray]:
        return [np.flatnonzero(self.owner == device) for device in range(self.devices)]

    @cached_property
    def _place(self) -> np.ndarray:
        """Row of each vertex on its device [A]."""
        place = np.zeros(len(self.owner), np.int64)
        for own in self._own:
            place[own] = np.arange(len(own))
        return place

    @property
    def _relations(self) -> int:
        return self.part.degree.shape[1]

    @cached_property
    def _summed(self) -> np.ndarray:
        """Which edges are added up by the device of their sender [E]."""
        graph, found = self.part.graph, np.zeros(self.part.graph.edges, bool)
        if not self.part.config.adds_up:
            return found
        sender, receiver = self.owner[graph.senders], self.owner[graph.receivers]
        cut = np.flatnonzero(sender != receiver)
        rows = graph.senders[cut] * self.devices + receiver[cut]
        found[cut] = in_sums(rows, self._key(cut))
        return found

    @cached_property
    def _numbered(self) -> tuple[np.ndarray, np.ndarray]:
        """The key of each sum, and for each summed edge the number of the sum that it is in."""
        keys, numbers = np.unique(self._key(np.flatnonzero(self._summed)), return_inverse=True)
        return keys, numbers

    def _key(self, edges: np.ndarray) -> np.ndarray:
        graph = self.part.graph
        target = graph.receivers[edges].astype(np.int64) * self._relations + self.part.relations[edges]
        return target * self.devices + self.owner[graph.senders[edges]]
