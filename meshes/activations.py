"""Bytes of what a device computes with, from the arrays that live at the same time. NumPy only.

What the backward needs is kept of every layer. On top of it come the arrays of the moment, and few moments can be the
one that needs most: keys, values and weights arriving; the loss; in a layer's backward the MLP, attention, and
gradients of weights leaving. The counts of arrays are those of compiled programs' live ranges, see
`benchmarks/memory.py`.

Legend: arrays are [G data groups, M devices]; B rows, T own tokens, D model width, F feature width, E head width,
R query rows (queries x heads) and W key rows (keys x key/value heads) of a tile.
"""

import functools
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshes.lengths import Lengths
from meshes.workload import Workload

FLOAT = 4  # bytes of a float32 number
LOGITS_AT_ONCE = 2**24  # float32 logits that the loss holds at a time; it works on chunks of tokens
UNROLLED = 8  # layers that one device's program may hold one by one


@dataclass(frozen=True, eq=False, kw_only=True)
class Activations:
    """Bytes of activations, and of weights and gradients that are whole for a while.

    Args:
        workload: sizes.
        own: what each device works on.
        room: what it allocates outside its branch; the same in a plain program.
        devices, groups: of the mesh.
        exact: token work is plain, so that it keeps what the backward needs; else branches recompute it.
        ring: keys and values travel in blocks.
        chained: collectives follow one another, so that nothing is gathered before its turn.
    """

    workload: Workload
    own: Lengths
    room: Lengths
    devices: int
    groups: int
    exact: bool
    ring: bool
    chained: bool

    def peak(self, gradients: int) -> np.ndarray:
        """Bytes [G, M] of the moment that needs most, besides the gradients.

        Args:
            gradients: their bytes; the optimizer has them twice, scaled and not, when nothing else is left. In an
                unrolled program they come as what is kept goes.
        """
        moments = functools.reduce(np.maximum, self.moments().values())
        return np.maximum(self.kept + moments - gradients * self._unrolled, gradients)

    def moments(self) -> dict[str, np.ndarray]:
        """Bytes [G, M] of each moment, besides what is kept and gradients."""
        before = {"arriving": self._arriving(), "loss": self._loss()}
        after = {"MLP": self._mlp(), "attention": self._attention(), "leaving": self._leaving()}
        if self._rematerialised:
            after["arriving again"] = self._arriving_again()
        early, late = self._before_backward(), self._in_backward()
        return {name: size + early for name, size in before.items()} | {
            name: size + late for name, size in after.items()
        }

    @cached_property
    def kept(self) -> np.ndarray:
        """Bytes [G, M] from the forward of a layer to its backward, of all layers.

        A rematerialised layer keeps its input. Otherwise attention keeps queries, outputs and their log-sum-exps,
        keys and values. Branches keep their inputs: the layer's input and attention's output. Plain work keeps six
        arrays of width F (gate, up, the gate's sigmoid and its complement, and two products), and nine of width D:
        attention's output, the results of both norms, and in float32 three factors of each.
        An unrolled program has one array of width F and one of width D less, and attention's operands in blocks.
        """
        work, size = self.workload, self.workload.compute_bytes
        if work.remat == "layer":
            return work.layers * self._columns(1)
        if not self.exact:
            return work.layers * (self._columns(2) + self._attended())
        floats = work.microbatch * self.own.tokens * work.d_model * FLOAT
        if self._unrolled:
            layer = self._tokens(5 * work.d_ff + 3 * work.d_model) + 5 * floats + self._blocks(2, 4)
            return work.layers * (layer + work.layer_parameters * size)
        return work.layers * (self._tokens(6 * work.d_ff + 3 * work.d_model) + 6 * floats + self._attended())

    @property
    def _alone(self) -> bool:
        return self.devices * self.groups == 1

    @property
    def _looped(self) -> bool:
        return looped(self.workload, self.groups)

    @property
    def _rematerialised(self) -> bool:
        return self.exact and self.workload.remat == "layer"

    @property
    def _unrolled(self) -> bool:
        return self._alone and self.workload.remat == "none" and self.workload.layers <= UNROLLED

    # Moments.

    def _in_backward(self) -> int:
        """A whole float32 gradient, the embedding's or the output's; in a loop, matrices as they arrived.

        The output's is gone by then in a chain.
        """
        if self._alone:
            return 0
        arrived = (2 - self.chained) * self._looped * self.workload.compute_bytes
        return self.workload.embedding_parameters * (FLOAT + arrived)

    def _before_backward(self) -> int:
        """The same, but a branch has no such gradient yet; and nobody has this device's gradients of the matrices."""
        work = self.workload
        early = 0 if self.exact or self._alone else work.embedding_parameters * FLOAT
        outside = work.parameters - work.layers * work.layer_parameters
        missing = 0 if self._unrolled else FLOAT * outside // self.devices
        return self._in_backward() - early - missing

    def _arriving(self) -> np.ndarray:
        """In the forward: keys and values of all, the tile's, and blocks; whole weights of the layer.

        In a chain they come one after the other; without one the output matrix is gathered as early.
        """
        pairs = self._blocks(2, 0) + self._received(1.5)
        weights = 0 if self._alone else self._whole(2, 1)
        if self.chained:
            return self._columns(2) + np.maximum(pairs, weights)
        output = self._output() if self.exact else 0
        return self._columns(2) + pairs + weights + output

    def _arriving_again(self) -> np.ndarray:
        """The same in the backward, where a layer runs again."""
        work = self.workload
        return self._tokens(work.d_ff + 6 * work.d_model) + self._blocks(3, 2) + self._received(1) + self._early()

    def _loss(self) -> np.ndarray:
        """Logits and their gradient; the output matrix; its gradient, which in a chained loop comes after theirs.

        Of several chunks one is there at a time, of a single one the logits of the forward, too. Plain work has the
        tokens that do not fill a chunk besides, branches only besides a single chunk.
        """
        work = self.workload
        most = max(LOGITS_AT_ONCE // (work.microbatch * work.vocab_size), 1)
        chunks, rest = self.own.tokens // most, self.own.tokens % most
        whole = np.where((chunks == 1) & (rest > 0) & self.exact, 3, 2) * most * (chunks > 0)
        logits = whole + 2 * rest * (self.exact | (chunks <= 1))
        logits = work.microbatch * logits * work.vocab_size * FLOAT
        gradient = work.embedding_parameters * FLOAT
        both = np.maximum(logits, gradient) if self.chained and self._looped else logits + gradient
        return both + self._output() + self._columns(3)

    def _mlp(self) -> np.ndarray:
        """What is read of what was kept or computed again, gradients, weights, and blocks made ready for attention."""
        work = self.workload
        if self._unrolled:
            return self._tokens(3 * work.d_ff + 2 * work.d_model)
        if not self.exact:
            own, again = self._tokens(8 * work.d_ff + 5 * work.d_model), work.remat == "layer"
            return own + self._columns(2) + self._tile(1 if again else 2, 1) + self._whole(1, again)
        if self._rematerialised:
            return self._tokens(8 * work.d_ff + 10 * work.d_model) + self._blocks(3, 4) + self._weights_again()
        own = self._tokens(5 * work.d_ff + 8 * work.d_model)
        return own + self._tile(1, 0) + self._blocks(2, 4) + self._weights_again()

    def _attention(self) -> np.ndarray:
        """Blocks of queries, outputs' and queries' gradients, keys, values and their gradients; scores."""
        work = self.workload
        blocks = self._blocks(5 if self.ring else 3, 4) + self._scores()
        if self.ring:
            blocks = blocks + self._tile(0, 2) + self._columns(1)
        if not self.exact:
            return blocks + self._columns(3) + self._tile(3, 1) + self._whole(0, 0, gradients=1)
        if self._rematerialised:
            return blocks + self._tokens(work.d_ff + 6 * work.d_model) + self._early()
        return blocks + self._columns(4)

    def _leaving(self) -> np.ndarray:
        """Float32 gradients of the weights after attention, and a copy as they leave.

        Before the copy there are weights where they were gathered again, or a branch has them.
        """
        work = self.workload
        if self._alone:
            return self._columns(4) + self._whole(0, 0, gradients=1)
        copied = self._whole(0, 1, gradients=2)
        held = 0
        if self._rematerialised:
            held = self._whole(1, 2, gradients=1) + work.d_model * work.d_ff * FLOAT
        elif not self.exact:
            held = self._whole(1, 1, gradients=1)
        return self._columns(4) + max(copied, held)

    # Arrays of one kind.

    def _tokens(self, width: int) -> np.ndarray:
        """Numbers of own tokens [B, T, width]."""
        return self._token * width

    def _columns(self, arrays: int) -> np.ndarray:
        """Arrays [B, T, D] at the room's length."""
        return self._column * arrays

    def _tile(self, queries: float, pairs: float) -> np.ndarray:
        """Arrays [B, R, E], and [B, W, 2E] of keys and values."""
        return self._row * queries + self._pair * pairs

    def _attended(self) -> np.ndarray:
        """Queries, outputs, keys and values, and float32 log-sum-exps."""
        return self._tile(2, 1) + self.workload.microbatch * self.room.rows * FLOAT

    def _received(self, pairs: float) -> np.ndarray:
        """Keys and values as they arrive, and arrays [B, W, 2E] of the tile's."""
        if self.ring or self.devices == 1:
            return np.zeros_like(self.own.tokens)
        number = 2 * self.workload.microbatch * self.workload.head_dim * self.workload.compute_bytes
        return number * self.room.arriving + self._tile(0, pairs)

    def _blocks(self, queries: int, keys: int) -> np.ndarray:
        """Arrays of queries and of keys cut into blocks, the last one padded; most are float32."""
        return self._query_blocks * queries + self._key_blocks * keys

    def _scores(self) -> np.ndarray:
        """Of a block of queries and one of keys: scores and their gradients, and what those are computed from."""
        work = self.workload
        query_block, key_block = self.own.query_block, self.own.key_block
        scores = 2 * self.own.heads * query_block * key_block
        operands = work.head_dim * (3 * self.own.heads * query_block + 4 * self._lanes * key_block)
        return FLOAT * work.microbatch * (scores + operands)

    # One array each.

    @cached_property
    def _token(self) -> np.ndarray:
        return self.own.tokens * (self.workload.microbatch * self.workload.compute_bytes)

    @cached_property
    def _column(self) -> np.ndarray:
        return self.room.tokens * (self.workload.microbatch * self.workload.d_model * self.workload.compute_bytes)

    @cached_property
    def _row(self) -> np.ndarray:
        return self.room.rows * (self.workload.microbatch * self.workload.head_dim * self.workload.compute_bytes)

    @cached_property
    def _pair(self) -> np.ndarray:
        size = 2 * self.workload.microbatch * self.workload.head_dim * self.workload.compute_bytes
        return self.room.key_rows * size

    @cached_property
    def _query_blocks(self) -> np.ndarray:
        size = self.workload.microbatch * self.workload.head_dim * FLOAT
        block = self.own.query_block
        return -(-self.own.queries // block) * block * self.own.heads * size

    @cached_property
    def _key_blocks(self) -> np.ndarray:
        size = self.workload.microbatch * self.workload.head_dim * FLOAT
        block = self.own.key_block
        return -(-self.own.keys // block) * block * self._lanes * size

    @cached_property
    def _lanes(self) -> np.ndarray:
        """Key/value heads, one more than once if tiles part the query heads that read it."""
        group = self.workload.heads // self.workload.kv_heads
        return np.maximum(self.own.heads // np.gcd(self.own.heads, group), self.own.kv_heads)

    def _weights_again(self) -> int:
        """Weights that a rematerialised layer has gathered again: as they arrive, and two of the MLP's matrices."""
        work = self.workload
        pieces = 0 if self._alone else self._whole(1, 1)
        return pieces + 2 * work.d_model * work.d_ff * work.compute_bytes

    def _output(self) -> int:
        """The output matrix, whole, and in plain work as it arrives, which in a loop is counted already."""
        if self._alone:
            return 0
        copies = 2 if self.exact and (self.chained or not self._looped) else 1
        return copies * self.workload.embedding_parameters * self.workload.compute_bytes

    def _early(self) -> int:
        """Weights that a rematerialised layer has before its attention has run again."""
        return self._whole(0, 1) if self.chained else self._weights_again()

    def _whole(self, after: int, before: int, gradients: int = 0) -> int:
        """A layer's whole weights after attention and before it, and float32 gradients of those after it."""
        work = self.workload
        early = work.d_model * (work.head_dim * (work.heads + 2 * work.kv_heads) + 1)
        late = work.layer_parameters - early
        return (after * late + before * early) * work.compute_bytes + gradients * late * FLOAT


def looped(workload: Workload, groups: int) -> bool:
    """Whether a step adds up gradients in a loop over microbatches."""
    return workload.microbatches > 1 or groups > 1
