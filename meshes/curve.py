"""What a device was measured to take for one model: a fixed part, a part for each token, a part for attention.

NumPy and SciPy only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

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
        query: of each query token in one head, attention to all keys of the row.
        update: of the optimizer for each parameter that the device stores, once a step.
    """

    model: str
    fixed: float
    token: float
    query: float
    update: float

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "model":
                continue
            if type(value) not in (int, float) or not np.isfinite(value) or value < 0:
                raise UsageError(f"curve.{field.name} is {value!r}: write seconds, zero or more")
        if not (self.token > 0 and self.query > 0):
            raise UsageError("a curve takes time for each token and each query: token and query are more than zero")

    def compute(self, tokens: float, rows: float) -> float:
        """Seconds of a microbatch of so many tokens and query-head rows."""
        return self.fixed + self.token * tokens + self.query * rows


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One measurement of a segment of the model.

    Args:
        tokens: of a row; 0 if only attention was measured.
        rows: query tokens times heads; 0 if attention was left out.
        seconds: of a microbatch.
    """

    tokens: int
    rows: int
    seconds: float


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

    Token and attention segments were timed apart: each has a fixed part of its own, and the curve has their sum. A
    segment that did not take longer at larger sizes is taken to be in proportion to its size, and the error tells.

    Args:
        model: digest of the model.
        samples: at least two sizes of each segment.
        update: seconds for each parameter.
    """
    lines = []
    error = 0.0
    for kind in ("tokens", "rows"):
        sizes = np.array([getattr(s, kind) for s in samples if getattr(s, kind)], float)
        seconds = np.array([s.seconds for s in samples if getattr(s, kind)])
        if len({*sizes}) < 2:
            raise ValueError(f"{len({*sizes})} sizes of {kind} were measured, a line needs two")
        design = np.stack([np.ones_like(sizes), sizes], axis=1) / seconds[:, None]
        scale = np.linalg.norm(design, axis=0)
        line = nnls(design / scale, np.ones_like(sizes))[0] / scale
        if not line[1]:  # noise hides the growth: in proportion to the size, so that no work is free
            line = np.array([0.0, design[:, 1].sum() / (design[:, 1] ** 2).sum()])
        error = max(error, float(np.max(np.abs(design @ line - 1))))
        lines.append(line)
    (fixed, token), (more, query) = lines
    curve = Curve(model=model, fixed=float(fixed + more), token=float(token), query=float(query), update=update)
    return Fit(curve=curve, error=error)
