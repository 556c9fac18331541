"""Transformers as workloads: what their layers compute, hold and send, and how a job lays them out over GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from coppice.errors import InputError

__all__ = ["Layout", "Recompute", "Shard", "Transformer"]


class Recompute(StrEnum):
    """What is computed again in the backward pass instead of being kept."""

    NONE = "none"
    SELECTIVE = "selective"
    """Scores, softmax and context of attention (Korthikanti et al., MLSys 2023)."""
    FULL = "full"
    """The whole forward pass of every layer."""


class Shard(StrEnum):
    """What data-parallel replicas share out among themselves (Rajbhandari et al., SC 2020)."""

    NONE = "none"
    ZERO1 = "zero1"
    """States of the optimizer."""
    ZERO3 = "zero3"
    """Parameters and gradients as well: they are gathered layer by layer."""


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """A decoder-only transformer, as large as its matrices.

    Attributes:
        layers: Number of layers.
        hidden: Width of the model.
        heads: Heads of attention.
        kv_heads: Heads of keys and values.
        ffn: Width of the MLP.
        mlp_matrices: Matrices of the MLP: 2, or 3 where it is gated.
        seq: Tokens of a sequence.
        vocab: Words of the vocabulary.

    Raises:
        InputError: If a number is out of range, or heads do not divide the width.
    """

    layers: int
    hidden: int
    heads: int
    ffn: int
    seq: int
    vocab: int
    kv_heads: int = 0
    mlp_matrices: int = 2

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "ffn", "seq", "vocab"):
            if getattr(self, name) < 1:
                msg = f"expected `{name}` of 1 or more, found {getattr(self, name)}."
                raise InputError(msg)
        if self.mlp_matrices not in (2, 3):
            msg = f"expected an MLP of 2 or 3 matrices, found {self.mlp_matrices}."
            raise InputError(msg)

    @property
    def kv_width(self) -> float:
        """Width of keys, and of values."""
        return self.hidden * (self.kv_heads or self.heads) / self.heads

    @property
    def layer_parameters(self) -> float:
        """Weights of a layer."""
        attention = 2 * self.hidden * (self.hidden + self.kv_width)
        return attention + self.mlp_matrices * self.hidden * self.ffn

    @property
    def parameters(self) -> float:
        """Weights of the model, those of the embedding once."""
        return self.layers * self.layer_parameters + self.vocab * self.hidden

    def forward_flops(self, sequences: float) -> float:
        """Floating-point operations of a forward pass, attention not halved for causality."""
        tokens = sequences * self.seq
        attention = 4 * tokens * self.seq * self.hidden
        return (
            self.layers * (2 * tokens * self.layer_parameters + attention)
            + 2 * tokens * self.hidden * self.vocab
        )


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a job lies on GPUs: ranks of a tensor-parallel group next to each other, then context, data, and stages.

    Attributes:
        tensor: Degree of tensor parallelism.
        pipeline: Stages in a row.
        data: Replicas.
        context: Ranks that share out the tokens of a sequence.
        chunks: Chunks of the model on each pipeline device.
        micro_batch: Sequences of a micro-batch.
        global_batch: Sequences of an iteration, over all replicas.
        recompute: What is computed again.
        sequence_parallel: What tensor parallelism replicates is shared out along the sequence.
        fused_attention: Scores stay on the chip (FlashAttention), so that none are kept or computed again.
        shard: What replicas share out.

    Raises:
        InputError: If a number is out of range, or the batch is no multiple of the micro-batches of all replicas.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int = 1
    chunks: int = 1
    micro_batch: int = 1
    global_batch: int = 1
    recompute: Recompute = Recompute.NONE
    sequence_parallel: bool = False
    fused_attention: bool = False
    shard: Shard = Shard.NONE

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "data", "context", "chunks", "micro_batch", "global_batch"):
            if getattr(self, name) < 1:
                msg = f"expected `{name}` of 1 or more, found {getattr(self, name)}."
                raise InputError(msg)
        if self.global_batch % (self.micro_batch * self.data):
            msg = (
                f"expected a global batch that is a multiple of {self.micro_batch} sequences x {self.data} replicas, "
                f"found {self.global_batch}."
            )
            raise InputError(msg)

    @property
    def gpus(self) -> int:
        """GPUs that it takes."""
        return self.tensor * self.context * self.pipeline * self.data

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a replica in an iteration."""
        return self.global_batch // (self.micro_batch * self.data)
