"""Text from the trained model, token by token, by the layout that trains it."""

from typing import Any

import jax
import numpy as np

from training.batches import Dealer
from training.data import ByteTokenizer, Rows
from training.step import Program

NEW_TOKENS = 120
TEMPERATURE = 0.8


def sample(
    program: Program,
    params: Any,
    tokenizer: ByteTokenizer,
    prompt: str,
    seed: int,
    new_tokens: int = NEW_TOKENS,
    temperature: float = TEMPERATURE,
) -> str:
    """The prompt and what the model makes of it.

    The whole row is computed again for each token: slow for long texts, but it needs no other program. Once a row
    is full, its first half is forgotten.

    Args:
        program: the model on its mesh.
        params: stored parameters.
        tokenizer: of the data.
        prompt: text that begins a document.
        seed: of the draws.
        new_tokens: how many to draw; a separator ends the text early.
        temperature: of the softmax; 0 takes the likeliest token.
    """
    seq_len, groups = program.tiling.seq_len, program.mesh.shape["data"]
    dealer = Dealer(program.mesh, program.tiling, 1, (1,) * groups)
    step, rng = program.logits_step(), np.random.default_rng(seed)
    text = [tokenizer.separator, *tokenizer.encode(prompt).tolist()]
    window = text[-seq_len:]
    for _ in range(new_tokens):
        if len(window) == seq_len:
            window = window[-(seq_len + 1) // 2 :]
        batch = dealer(_row(window, seq_len, len(dealer.my_rows)))
        at = jax.device_put(np.int32(len(window) - 1))
        token = _draw(jax.device_get(step(params, batch, at, program.tables)), temperature, rng)
        if token == tokenizer.separator:
            break
        text.append(token)
        window.append(token)
    return tokenizer.decode(text)


def _row(window: list[int], seq_len: int, copies: int) -> Rows:
    """One row that begins with the window, once for every data group."""
    inputs = np.zeros((copies, seq_len), np.int32)
    inputs[:, : len(window)] = window
    positions = np.broadcast_to(np.arange(seq_len, dtype=np.int32), inputs.shape)
    return Rows(inputs, np.zeros_like(inputs), np.ones_like(inputs), positions, np.ones(inputs.shape, np.float32))


def _draw(logits_V: np.ndarray, temperature: float, rng: np.random.Generator) -> int:
    if temperature == 0:
        return int(np.argmax(logits_V))
    scaled = logits_V.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    return int(rng.choice(len(weights), p=weights / weights.sum()))
