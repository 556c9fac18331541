"""What a job keeps in the memory of a GPU, by its parts.

Sources: states of mixed-precision Adam as in ZeRO (Rajbhandari et al., SC 2020, section 3.1); activations of a layer,
and passes in flight of 1F1B and its interleaved form, as in Korthikanti et al. (MLSys 2023, section 4).
"""

from __future__ import annotations

from dataclasses import dataclass

from coppice.iteration.transformer import Layout, Recompute, Shard, Transformer

__all__ = ["Memory", "layer_bytes", "memory_of"]

_WEIGHT, _GRADIENT, _ADAM = 2, 2, 12  # bytes for each parameter


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on the first pipeline device, which holds the most.

    Attributes:
        parameters: 16-bit weights.
        gradients: 16-bit gradients.
        optimizer: 32-bit weights, momentum and variance.
        activations: What the backward passes of the micro-batches in flight need.
    """

    parameters: float
    gradients: float
    optimizer: float
    activations: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.parameters + self.gradients + self.optimizer + self.activations


def memory_of(model: Transformer, layout: Layout) -> Memory:
    """What the first pipeline device holds.

    Examples:
        GPT-3 without any sharing of states takes 16 bytes for each of its 175 billion parameters:

        >>> gpt = Transformer(layers=96, hidden=12288, heads=96, ffn=49152, seq=2048, vocab=51200)
        >>> held = memory_of(gpt, Layout())
        >>> round(held.parameters / 1e9), round((held.gradients + held.optimizer) / 1e9)
        (349, 2444)
    """
    held = model.layers / layout.pipeline
    own = (model.layer_parameters * held + model.vocab * model.hidden) / layout.tensor
    replicas = layout.data * layout.context
    sharded = replicas if layout.shard is Shard.ZERO3 else 1
    stepped = replicas if layout.shard is not Shard.NONE else 1
    in_flight = 1.0
    if layout.pipeline > 1:
        in_flight = min(layout.micro_batches, layout.pipeline)
        if layout.chunks > 1:
            in_flight *= 1 + (layout.pipeline - 1) / (layout.pipeline * layout.chunks)
    return Memory(
        parameters=_WEIGHT * own / sharded,
        gradients=_GRADIENT * own / sharded,
        optimizer=_ADAM * own / stepped,
        activations=in_flight * held * layer_bytes(model, layout),
    )


def layer_bytes(model: Transformer, layout: Layout) -> float:
    """Bytes that a layer keeps of a micro-batch."""
    unit = model.seq / layout.context * layout.micro_batch * model.hidden
    split = layout.tensor if layout.sequence_parallel else 1
    if layout.recompute is Recompute.FULL:
        return 2 * unit / split
    scores = 5 * model.heads * model.seq / model.hidden / layout.tensor
    if layout.fused_attention or layout.recompute is Recompute.SELECTIVE:
        scores = 0.0
    return unit * (10 / split + 24 / layout.tensor + scores)
