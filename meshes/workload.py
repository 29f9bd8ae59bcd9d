"""What has to be computed: sizes of the transformer and of the batch, and what follows from them."""

import math
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Literal

from meshes.cluster import digest
from meshes.errors import UsageError

Attention = Literal["context", "head", "hybrid"]
KeysValues = Literal["gather", "ring"]
PlacementMode = Literal["single", "uniform", "switched", "specialized"]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One training step.

    Args:
        batch_size: rows of a step over the whole mesh.
        microbatch: rows that a data group works on at a time.
        seq_len: tokens of a row.
        vocab_size, layers, d_model, heads, kv_heads, head_dim, d_ff: of the model.
        tied: the output projection is the embedding.
        compute_bytes: bytes of a number in the compute dtype; parameters, gradients and moments take 4.
        remat: `layer` keeps only each layer's input for the backward.
    """

    batch_size: int
    microbatch: int
    seq_len: int
    vocab_size: int
    layers: int
    d_model: int
    heads: int
    kv_heads: int
    head_dim: int
    d_ff: int
    tied: bool = True
    compute_bytes: int = 4
    remat: Literal["none", "layer"] = "none"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("tied", "remat") and (type(value) is not int or value < 1):
                raise UsageError(f"{field.name} is {value!r}: it must be a whole number, 1 or more")
        if self.heads % self.kv_heads:
            raise UsageError(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}: change one of them")
        if self.remat not in ("none", "layer"):
            raise UsageError(f"remat is {self.remat!r}: it is none or layer")

    @cached_property
    def model(self) -> str:
        """Digest of all but the batch size: names what a device was measured with."""
        return digest({key: value for key, value in asdict(self).items() if key != "batch_size"})

    @property
    def microbatches(self) -> int:
        """Microbatches of a step over the whole mesh."""
        return self.batch_size // self.microbatch

    @property
    def layer_parameters(self) -> int:
        """Projections of attention and MLP, and two norms."""
        attention = 2 * self.d_model * self.head_dim * (self.heads + self.kv_heads)
        return attention + 3 * self.d_model * self.d_ff + 2 * self.d_model

    @property
    def embedding_parameters(self) -> int:
        """One matrix between tokens and channels."""
        return self.vocab_size * self.d_model

    @property
    def parameters(self) -> int:
        """All parameters."""
        outer = self.embedding_parameters * (1 if self.tied else 2) + self.d_model
        return self.layers * self.layer_parameters + outer

    @property
    def token_flops(self) -> float:
        """Forward FLOPs of a token outside attention: 2 m n k for each matrix product, lookups are free."""
        matrices = self.layers * (self.layer_parameters - 2 * self.d_model) + self.embedding_parameters
        return 2.0 * matrices

    @property
    def query_flops(self) -> float:
        """Forward FLOPs of one query token in one head of one layer.

        Scores and weighted values are 2 S E each; half the keys are in the future of an average query and skipped.
        """
        return 4.0 * self.seq_len * self.head_dim / 2

    def step_flops(self) -> float:
        """FLOPs of a step without any recomputation: the backward of a matrix product is twice its forward."""
        query = self.layers * self.heads * self.query_flops
        return 3 * self.batch_size * self.seq_len * (self.token_flops + query)

    def kv_heads_of(self, start: int, stop: int) -> tuple[int, ...]:
        """The key/value head that each query head of a range reads."""
        return tuple(h * self.kv_heads // self.heads for h in range(start, stop))


def divisors(number: int) -> list[int]:
    """All divisors, increasing."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})
