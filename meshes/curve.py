"""What a device was measured to take for one model: a fixed part, a part for each token, a part for attention.

NumPy and SciPy only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from scipy.optimize import nnls

from meshes.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Seconds of one device, forward and backward of all layers, for microbatches of as many rows as were measured.

    Args:
        model: digest of the model that was measured, `Workload.model`.
        fixed: of a microbatch, whatever its size.
        token: of each token of a row, outside attention.
        pair: of each query and each key token that attention's blocks compute in one head.
        key: of each key/value head that attention reads, for all keys of the row, however many queries there are.
        update: of the optimizer for each parameter that the device stores, once a step.
        knee: tokens of a row from which on each costs more, where arrays outgrow a cache.
        bend: how much more each of them costs, outside attention.
        byte: of the device's own for each byte of weights that a link brings it: packing, unpacking and adding.
        row_byte: likewise of rows of an exchange, which are picked and put into order besides.
    """

    model: str
    fixed: float
    token: float
    pair: float
    update: float
    knee: int = 0
    bend: float = 0.0
    byte: float = 0.0
    row_byte: float = 0.0
    key: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "model":
                continue
            if type(value) not in (int, float) or not np.isfinite(value) or value < 0:
                raise UsageError(f"curve.{field.name} is {value!r}: it must be a number, zero or more")
        if not (self.token > 0 and self.pair > 0):
            raise UsageError("a curve takes time for each token and each pair: token and pair are more than zero")

    def compute(self, tokens: float, pairs: float, kv_heads: int) -> float:
        """Seconds of a microbatch of so many tokens, pairs of attention, and key/value heads that queries read."""
        return self.fixed + float(token_seconds(self, np.asarray(tokens))) + self.pair * pairs + self.key * kv_heads


def token_seconds(curve: Any, tokens: np.ndarray) -> np.ndarray:
    """Seconds outside attention without the fixed part, of a curve or of arrays of curves' parts.

    Args:
        curve: has `token`, `bend` and `knee`, numbers or arrays of the shape of `tokens`.
        tokens: of a row.
    """
    found: np.ndarray = curve.token * tokens + curve.bend * np.maximum(tokens - curve.knee, 0)
    return found


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One measurement of a segment of the model.

    Args:
        tokens: of a row; 0 if only attention was measured.
        pairs: of query and key tokens that attention computes, of all heads; 0 if it was left out.
        seconds: of a microbatch.
        kv_heads: that the queries read.
    """

    tokens: int
    pairs: float
    seconds: float
    kv_heads: int = 0


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A curve, and how far it is from what was measured.

    Args:
        curve: fitted.
        error: largest relative error over the samples.
    """

    curve: Curve
    error: float


def fit(model: str, samples: Sequence[Sample], update: float) -> Fit:
    """The curve that is nearest to the samples in the sense of relative least squares, no part of it negative.

    Token and attention segments were timed apart: each has a fixed part of its own, and the curve has their sum. Token
    work may bend upwards at one of the sizes, where its arrays outgrow a cache. A segment that did not take longer at
    larger sizes is taken to be in proportion to its size, and the error tells.

    Args:
        model: digest of the model.
        samples: at least two sizes of each segment.
        update: seconds for each parameter.
    """
    tokens = _line([(s.tokens, 0, s.seconds) for s in samples if s.tokens], "tokens", bends=True)
    pairs = _line([(s.pairs, s.kv_heads, s.seconds) for s in samples if s.pairs], "pairs", bends=False)
    curve = Curve(
        model=model,
        fixed=tokens.fixed + pairs.fixed,
        token=tokens.each,
        pair=pairs.each,
        update=update,
        knee=tokens.knee,
        bend=tokens.bend,
        key=pairs.key,
    )
    return Fit(curve=curve, error=max(tokens.error, pairs.error))


@dataclass(frozen=True)
class _Line:
    """Seconds of a segment: fixed, for each unit, each unit beyond a knee, and each key head; the relative error."""

    fixed: float
    each: float
    bend: float
    key: float
    knee: int
    error: float


def _line(measured: Sequence[tuple[float, int, float]], kind: str, *, bends: bool) -> _Line:
    sizes = sorted({size for size, _, _ in measured})
    if len(sizes) < 2:
        raise ValueError(f"{len(sizes)} sizes of {kind} were measured, a line needs two")
    straight = _through(measured, sizes[-1])
    bent = [_through(measured, knee) for knee in sizes[1:-1]] if bends else []
    best = min(bent, key=lambda line: line.error, default=straight)
    return best if best.error < straight.error / 2 else straight


def _through(measured: Sequence[tuple[float, int, float]], knee: float) -> _Line:
    """The line that bends at a knee, straight if that is the largest size."""
    size, heads, seconds = (np.array(column, float) for column in zip(*measured, strict=True))
    beyond = np.maximum(size - knee, 0)
    design = np.stack([np.ones_like(size), size, beyond, heads], axis=1) / seconds[:, None]
    scale = np.maximum(np.linalg.norm(design, axis=0), np.finfo(float).tiny)
    parts = nnls(design / scale, np.ones_like(size))[0] / scale
    if not parts[1]:  # noise hides the growth: in proportion to the size, so that no work is free
        share = design[:, 1]
        parts = np.array([0.0, share.sum() / (share**2).sum(), 0.0, 0.0])
    error = float(np.max(np.abs(design @ parts - 1)))
    fixed, each, bend, key = parts.tolist()
    return _Line(fixed, each, bend, key, int(knee) if bend else 0, error)
