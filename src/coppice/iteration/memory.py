"""Memory of a job per GPU: parameters, gradients, optimizer states, activations.

Sources: states of mixed-precision Adam as in ZeRO (Rajbhandari et al., SC 2020, section 3.1); activations of a layer,
and passes in flight of 1F1B and its interleaved form, as in Korthikanti et al. (MLSys 2023, section 4).
"""

from __future__ import annotations

from dataclasses import dataclass

from coppice.iteration.transformer import Layout, Recompute, Shard, Transformer
from coppice.iteration.workload.model import LayeredModel

_WEIGHT, _GRADIENT, _ADAM = 2, 2, 12  # bytes for each parameter


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on the first pipeline stage, which holds the most."""

    parameters: float  # 16-bit weights
    gradients: float  # 16-bit gradients
    optimizer: float  # 32-bit weights, momentum and variance
    activations: float  # What the backward passes of the micro-batches in flight need

    @property
    def total(self) -> float:
        """Total memory."""
        return self.parameters + self.gradients + self.optimizer + self.activations


def memory_of(model: Transformer | LayeredModel, layout: Layout) -> Memory:
    """Memory of the first pipeline stage.

    Examples:
        GPT-3 without any sharing of states takes 16 bytes for each of its 175 billion parameters:

        >>> gpt = Transformer(layers=96, hidden=12288, heads=96, ffn=49152, seq=2048, vocab=51200)
        >>> held = memory_of(gpt, Layout())
        >>> round(held.parameters / 1e9), round((held.gradients + held.optimizer) / 1e9)
        (349, 2444)
    """
    if isinstance(model, LayeredModel):
        return _memory_of_layers(model, layout)
    held = model.layers / layout.pipeline
    dense = (model.dense_parameters / layout.pipeline + model.vocab * model.hidden) / layout.tensor
    routed = model.routed_parameters / layout.pipeline / layout.tensor / layout.expert

    def kept(*shards: Shard) -> float:
        """Weights for which something is kept that replicas shard in these cases; experts have fewer replicas."""
        if layout.shard not in shards:
            return dense + routed
        return dense / layout.replicas + routed * layout.expert / layout.replicas

    in_flight = 1.0
    if layout.pipeline > 1:
        in_flight = min(layout.micro_batches, layout.pipeline)
        if layout.chunks > 1:
            in_flight *= 1 + (layout.pipeline - 1) / (layout.pipeline * layout.chunks)
    return Memory(
        parameters=_WEIGHT * kept(Shard.ZERO3),
        gradients=_GRADIENT * kept(Shard.ZERO2, Shard.ZERO3),
        optimizer=_ADAM * kept(Shard.ZERO1, Shard.ZERO2, Shard.ZERO3),
        activations=in_flight * held * layer_bytes(model, layout),
    )


def layer_bytes(model: Transformer, layout: Layout) -> float:
    """Activation bytes of a layer per micro-batch."""
    tokens = model.seq / layout.context * layout.micro_batch
    unit = tokens * model.hidden
    split = layout.tensor if layout.sequence_parallel else 1
    if layout.recompute is Recompute.FULL:
        return 2 * unit / split
    scores = 5 * model.heads * model.seq / layout.tensor
    if layout.fused_attention or layout.recompute is Recompute.SELECTIVE:
        scores = 0.0
    # Queries and the context, keys and values; then the results of the matrices of the MLP, as 16-bit values each.
    inner = 4 * model.query_width + 4 * model.kv_width + 2 * model.mlp_matrices * model.mlp_width
    # What goes to experts and what comes back.
    inner += 4 * model.hidden * model.routed_share * model.expert_layers / model.layers
    return unit * 10 / split + tokens * (inner / layout.tensor + scores)


def _memory_of_layers(model: LayeredModel, layout: Layout) -> Memory:
    """Memory of a sequential model's replica: its shard of the tables, and a copy of everything else."""
    tables = model.table_parameters / layout.replicas
    copied = model.parameters - model.table_parameters
    stepped = layout.replicas if layout.shard is not Shard.NONE else 1
    summed = layout.replicas if layout.shard is Shard.ZERO2 else 1
    return Memory(
        parameters=model.weight_bytes * (copied + tables),
        # Gradients of tables are those of the rows that a batch looks up.
        gradients=model.gradient_bytes * copied / summed,
        optimizer=model.state_bytes * copied / stepped + model.table_state_bytes * tables,
        activations=layout.micro_batch * sum(each.activation_bytes for each in model.row),
    )
