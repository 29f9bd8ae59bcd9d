"""Sizes of a graph network."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["GnnConfig", "Model"]

Model = Literal["gcn", "sage", "gat", "gin", "graphnet", "rgcn", "hgt"]


@dataclass(frozen=True, kw_only=True)
class GnnConfig:
    """Sizes of the model.

    Args:
        model: how vertices pass messages.
        layers: number of message passing layers.
        width: channels of a vertex between layers, a multiple of `heads`.
        heads: lanes that the width is seen as; attention heads of `gat` and `hgt`.
        hidden: inner width of the multi-layer perceptrons of `gin` and `graphnet`; 0 means `width`.
        inputs: features of a vertex.
        outputs: classes, targets, or channels of an embedding.
        level: whether vertices have outputs, or whole graphs by the mean of their vertices.
        relations: types of edges, which `rgcn` and `hgt` tell apart.
        kinds: types of vertices, which `hgt` tells apart.
        bases: basis matrices that the relations of `rgcn` share.
        aggregate: how `sage` joins neighbours.
        edge_features: features of an edge, which `graphnet` reads; may be 0.
        dropout: share of channels of each layer's update that training drops.
        remat: `none`, or `layer` to keep only each layer's input for the backward.
    """

    model: Model
    layers: int
    width: int
    heads: int = 8
    hidden: int = 0
    inputs: int
    outputs: int
    level: Literal["vertex", "graph"] = "vertex"
    relations: int = 1
    kinds: int = 1
    bases: int = 4
    aggregate: Literal["mean", "max"] = "mean"
    edge_features: int = 0
    dropout: float = 0.0
    remat: Literal["none", "layer"] = "none"

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "inputs", "outputs", "relations", "kinds", "bases"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must be at least 0 and below 1, got {self.dropout}")

    @property
    def channels(self) -> int:
        """Channels of one lane."""
        return self.width // self.heads

    @property
    def inner(self) -> int:
        """Inner width of a multi-layer perceptron."""
        return self.hidden or self.width

    @property
    def typed(self) -> bool:
        """Whether the model tells relations apart; others read edges best as one relation."""
        return self.model in ("rgcn", "hgt")

    @property
    def adds_up(self) -> bool:
        """Whether messages are plain sums over edges, so that some may be added up before others."""
        return self.model in ("gcn", "gin", "rgcn") or (self.model == "sage" and self.aggregate == "mean")
