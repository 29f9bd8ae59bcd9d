"""Predicted bytes of each device, from the arrays that live at the same time. NumPy only.

An estimate to plan by, not an account of the compiler's buffers. Legend: arrays are [G data groups, M devices].
"""

from collections.abc import Callable

import numpy as np

from meshes.cost import Division, Grid
from meshes.workload import Workload

LOGITS_AT_ONCE = 2**24  # float32 logits that the loss holds at a time; it works on chunks of tokens


def bytes_needed(grid: Grid, workload: Workload, division: Division, *, specialized: bool = False) -> np.ndarray:
    """Bytes that each device needs, int [G, M].

    In one switched program every device allocates the arrays of the largest share in the mesh.
    """
    sizes = [division.tokens, division.queries * division.heads, workload.seq_len * division.kv_heads]
    if not specialized:
        sizes = [np.full_like(size, size.max()) for size in sizes]
    if division.kv == "ring":
        sizes[2] = np.full_like(sizes[2], int(division.tokens.max()) * workload.kv_heads)
    exact = specialized or division.even_tokens
    return _bytes(grid, workload, *sizes, ring=division.kv == "ring", exact=exact)


def token_caps(grid: Grid, workload: Workload, division: Division, *, specialized: bool = False) -> np.ndarray:
    """Most tokens of each device that its memory holds, int [G, M]; -1 where not even none.

    Tiles stay as they are, except that aligned devices attend from the tokens that they own.
    """
    ring, aligned = division.kv == "ring", division.aligned
    rows, keys = division.queries * division.heads, workload.seq_len * division.kv_heads
    if not specialized:
        rows, keys = np.full_like(rows, rows.max()), np.full_like(keys, keys.max())

    def needed(tokens: np.ndarray) -> np.ndarray:
        here = tokens * workload.heads if aligned else rows
        blocks = tokens * workload.kv_heads if ring else keys
        return _bytes(grid, workload, tokens, here, blocks, ring=ring, exact=specialized)

    caps = _largest(workload.seq_len, grid.limit, needed)
    return caps if specialized and not ring else np.full_like(caps, caps.min())


def head_caps(grid: Grid, workload: Workload, division: Division, *, specialized: bool = False) -> np.ndarray:
    """Most heads of each device whose tiles span all tokens that its memory holds, int [G, M]; -1 where none."""
    tokens = division.tokens if specialized else np.full_like(division.tokens, division.tokens.max())

    def needed(heads: np.ndarray) -> np.ndarray:
        kv = np.minimum(-(-heads * workload.kv_heads // workload.heads) + (heads > 0), workload.kv_heads)
        rows, keys = heads * workload.seq_len, kv * workload.seq_len
        return _bytes(grid, workload, tokens, rows, keys, ring=False, exact=specialized)

    caps = _largest(workload.heads, grid.limit, needed)
    return caps if specialized else np.full_like(caps, caps.min())


def _largest(most: int, limit: np.ndarray, needed: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The largest number up to `most` that needs no more than the limit, by bisection; -1 where zero needs more."""
    low, high = np.full(limit.shape, -1), np.full(limit.shape, most)
    for _ in range(most.bit_length() + 1):
        middle = (low + high + 1) // 2
        fits = needed(np.maximum(middle, 0)) <= limit
        low, high = np.where(fits, middle, low), np.where(fits, high, np.maximum(middle - 1, low))
    return low


def _bytes(
    grid: Grid,
    workload: Workload,
    tokens: np.ndarray,
    rows: np.ndarray,
    keys: np.ndarray,
    *,
    ring: bool,
    exact: bool,
) -> np.ndarray:
    """Bytes of devices that allocate the given tokens, tile rows (queries x heads) and key rows (keys x heads)."""
    needed = (
        state_bytes(grid, workload)
        + _layer_bytes(workload, tokens, exact)
        + _attention_bytes(workload, rows, keys)
        + _exchange_bytes(workload, rows, keys, ring=ring, alone=grid.shape[1] == 1)
        + _logits_bytes(workload, tokens)
    )
    return needed.astype(np.int64)


def state_bytes(grid: Grid, workload: Workload) -> int:
    """Parameters, gradients, moments and gathered weights.

    float32 parameters, gradients and two moments are sharded over all devices. With several microbatches or groups,
    a group's share of the gradients is held twice (sum and newest), of the parameters once. One piece of the model
    is whole at a time: its weights and float32 gradients, and a copy of each as they travel.
    """
    groups, devices = grid.shape
    looped = workload.microbatches > 1 or groups > 1
    stored = 16 * -(-workload.parameters // (groups * devices))
    group = 4 * -(-workload.parameters // devices) * ((groups > 1) + 2 * looped)
    whole = max(workload.layer_parameters, workload.embedding_parameters)
    return stored + group + whole * 2 * (workload.compute_bytes + 4)


def _layer_bytes(workload: Workload, tokens: np.ndarray, exact: bool) -> np.ndarray:
    """Activations of token work.

    Kept of each layer: a plain program keeps the operands of its matrix products and nonlinearities (five arrays of
    width D, attention's output, four of width F), a switched one its inputs, a rematerialised one the layer's input.
    One layer at a time has all of them and their gradients.
    """
    width, out, wide = workload.d_model, workload.heads * workload.head_dim, workload.d_ff
    full = 5 * width + out + 4 * wide
    kept = width if workload.remat == "layer" else full if exact else width + out
    return tokens * workload.microbatch * workload.compute_bytes * (workload.layers * kept + 2 * full)


def _attention_bytes(workload: Workload, rows: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Queries, outputs, log-sum-exps, keys and values of tiles: of every layer, or of one with rematerialisation."""
    row = 2 * workload.head_dim * workload.compute_bytes + 4
    key = 2 * workload.head_dim * workload.compute_bytes
    layers = 1 if workload.remat == "layer" else workload.layers
    return layers * workload.microbatch * (rows * row + keys * key)


def _exchange_bytes(workload: Workload, rows: np.ndarray, keys: np.ndarray, *, ring: bool, alone: bool) -> np.ndarray:
    """Messages and gradients in flight around the attention of one layer."""
    number = workload.microbatch * workload.head_dim
    if ring:  # blocks and their float32 gradients, twice as they turn; float32 sums of outputs and query gradients
        return number * (4 * keys * (workload.compute_bytes + 4) + 2 * 4 * rows)
    copies = 1 if alone else 2
    return number * workload.compute_bytes * copies * (rows + 2 * keys)


def _logits_bytes(workload: Workload, tokens: np.ndarray) -> np.ndarray:
    """float32 logits of a chunk of tokens, and their gradient."""
    chunk = np.minimum(tokens * workload.microbatch, max(LOGITS_AT_ONCE // workload.vocab_size, workload.microbatch))
    return 2 * 4 * workload.vocab_size * chunk
