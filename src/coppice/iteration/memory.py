"""Memory of a job on a GPU, by its parts.

Sources: states of mixed-precision Adam as in ZeRO (Rajbhandari et al., SC 2020, section 3.1); activations of a layer,
and passes in flight of 1F1B and its interleaved form, as in Korthikanti et al. (MLSys 2023, section 4).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import accumulate

from coppice.iteration.frameworks import MEGATRON, Framework
from coppice.iteration.layout import (
    Layout,
    Recompute,
    Shard,
    alike,
    dealt_layers,
    dropped_bytes,
    recomputed_layers,
)
from coppice.iteration.transformer import Transformer
from coppice.iteration.workload.nets import LayeredModel

_WEIGHT, _ADAM = 2, 12  # bytes for each parameter
TIGHT = 0.92, 1.08
"""Of published runs that are said to take less than the first of these shares of the memory of a GPU, one in a hundred
or fewer ran out of it; of those that are said to take more than the second, as few ran."""


class MemoryFit(StrEnum):
    """Whether a job fits."""

    YES = "yes"
    TIGHT = "tight"
    NO = "no"


def fit_of(held_bytes: float, memory_bytes: float) -> MemoryFit:
    """Whether the estimated memory of a job fits a GPU.

    Examples:
        >>> [str(fit_of(held, 80e9)) for held in (70e9, 79e9, 90e9)]
        ['yes', 'tight', 'no']
    """
    least, most = TIGHT
    share = held_bytes / memory_bytes
    return MemoryFit.YES if share <= least else MemoryFit.TIGHT if share <= most else MemoryFit.NO


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on the pipeline device that holds the most."""

    parameters: float  # 16-bit weights, and those that ZeRO-3 has gathered of two layers
    gradients: float  # Gradients, and sums of them over micro-batches
    optimizer: float  # 32-bit weights, momentum and variance
    activations: float  # What the backward passes of the micro-batches in flight need
    logits: float = 0.0  # Scores of words of a micro-batch, their softmax and gradients
    runtime: float = (
        0.0  # Context of the GPU, buffers of collectives, workspaces, and what the allocator wastes
    )

    @property
    def parts(self) -> dict[str, float]:
        """Bytes by what they are."""
        return asdict(self)

    @property
    def total(self) -> float:
        """Total memory."""
        states = self.parameters + self.gradients + self.optimizer
        return states + self.activations + self.logits + self.runtime


def memory_of(model: Transformer | LayeredModel, layout: Layout, framework: Framework = MEGATRON) -> Memory:
    """Memory of the fullest pipeline device.

    Examples:
        GPT-3 without any sharing of states takes 18 bytes for each of its 175 billion parameters where gradients are
        summed in 32 bits:

        >>> from coppice.iteration.frameworks import FRAMEWORKS
        >>> gpt = Transformer(layers=96, hidden=12288, heads=96, ffn=49152, seq=2048, vocab=51200)
        >>> held = memory_of(gpt, Layout(), FRAMEWORKS["megatron-2021"])
        >>> round(held.parameters / 1e9), round((held.gradients + held.optimizer) / 1e9)
        (349, 2793)
    """
    if isinstance(model, LayeredModel):
        return _memory_of_layers(model, layout)
    ends = (0, layout.pipeline - 1) if layout.pipeline > 1 else (0,)
    return max((_of_device(model, layout, framework, each) for each in ends), key=lambda each: each.total)


def _of_device(model: Transformer, layout: Layout, framework: Framework, device: int) -> Memory:
    """Memory of a pipeline device; the first one has the embedding, the last one the output layer."""
    last = device == layout.pipeline - 1
    held = dealt_layers(model.layers, layout.pipeline)[device] + (model.mtp_layers if last else 0)
    tables = 1 if layout.pipeline > 1 or model.tied else 2
    layer = model.dense_parameters / model.layers / layout.tensor
    dense = held * layer + tables * model.vocab * model.hidden / layout.tensor
    routed = held * model.routed_parameters / model.layers / layout.tensor / layout.expert

    def kept(*shards: Shard) -> float:
        """Weights for which something is kept that replicas shard in these cases; experts have fewer replicas."""
        if layout.shard not in shards:
            return dense + routed
        return dense / layout.sharing + routed / layout.sharing_experts

    in_flight = 1.0
    if layout.pipeline > 1:
        in_flight = min(layout.micro_batches, layout.pipeline - device)
        if layout.chunks > 1:
            in_flight *= 1 + (layout.pipeline - 1) / (layout.pipeline * layout.chunks)
    activations = _activations(model, layout, framework, device, held, in_flight)
    tokens = model.seq / layout.context * layout.micro_batch
    scored = (model.scored_tokens or model.seq) / model.seq
    words = model.vocab if framework.gathers_logits else model.vocab / layout.tensor
    gathered = 2 * layer if layout.shard is Shard.ZERO3 and layout.sharing > 1 else 0.0
    if layout.secondary_ranks:  # of experts as many ranks have the same
        gathered += dense / layout.secondary_ranks + routed / max(1, layout.secondary_ranks // layout.expert)
    return Memory(
        parameters=_WEIGHT * (kept(Shard.ZERO3) + gathered),
        gradients=framework.kept_gradient_bytes * kept(Shard.ZERO2, Shard.ZERO3),
        optimizer=_ADAM * kept(Shard.ZERO1, Shard.ZERO2, Shard.ZERO3),
        activations=activations,
        logits=framework.logit_bytes * tokens * scored * words if last else 0.0,
        runtime=framework.runtime_bytes,
    )


def _activations(
    model: Transformer, layout: Layout, framework: Framework, device: int, held: int, in_flight: float
) -> float:
    """Activations of a pipeline device, with what the layer needs whose backward pass runs.

    A layer that is computed again as a whole keeps everything until its backward pass is done; meanwhile those behind
    it, whose backward passes are done, keep nothing of that micro-batch. Modules are computed again one by one.
    """
    stages = dealt_layers(model.layers, layout.pipeline * layout.chunks)
    first = [0, *accumulate(stages)]
    flags = recomputed_layers(model.layers, layout)
    mine = range(device, len(stages), layout.pipeline)
    own = [flag for stage in mine for flag in flags[first[stage] : first[stage + 1]]]
    whole = layer_bytes(model, alike(layout, again=False), framework)
    kept = {False: whole, True: whole}
    if layout.recompute is not Recompute.NONE:
        kept[True] = layer_bytes(model, alike(layout, again=True), framework)
    row = [kept[flag] for flag in own] or [whole]
    every = held * sum(row) / len(row)
    # What is kept of a layer that is computed again whole stays beside it; of operators it is among the rest.
    beside = {Recompute.FULL: whole, Recompute.OPERATORS: whole - kept[True]}.get(layout.recompute, 0.0)
    shares = {flag: held * size / len(row) for flag, size in kept.items()}
    most, below = every, 0.0
    for flag in own:
        below += shares[flag]
        if flag:
            most = max(most, below + beside)
    most = max(most, below)  # of layers that compute nothing again, the last one's
    return min((in_flight - 1) * every + most, in_flight * held * whole)


def layer_bytes(model: Transformer, layout: Layout, framework: Framework = MEGATRON) -> float:
    """Activation bytes of a layer per micro-batch, where all do the same about recomputation."""
    tokens = model.seq / layout.context * layout.micro_batch
    split = layout.tensor if layout.sequence_parallel else 1
    if layout.recompute is Recompute.FULL:
        return 2 * tokens * model.hidden / split
    # Queries, the context, keys and values; then the results of the matrices of the MLP, as 16-bit values each.
    attends, states = model.share("*"), model.share("M")
    inner = 2 * (model.query_width + model.context_width + model.key_value_width) * attends
    inner += 2 * model.mlp_matrices * model.mlp_width
    if states:
        inner += 2 * model.state_space.kept * states
    # What goes to experts and what comes back.
    inner += 4 * model.hidden * model.routed_share * model.expert_layers / model.layers
    norms, latent = (
        framework.kept_norm_bytes * model.hidden * model.sums / 2,
        2 * model.latent_width * attends,
    )
    scores = 0.0 if layout.fused_attention else framework.score_bytes * model.heads * model.seq * attends
    if layout.recompute is Recompute.OPERATORS:
        kept = _kept_by_operators(model)
        inner, latent, scores = min(inner, kept), latent / 2, 0.0
        norms = min(norms, (2 + 2 * model.sums) * model.hidden)
    elif layout.recompute is Recompute.SELECTIVE:
        dropped = dropped_bytes(model, layout, framework)
        norms -= dropped["norms"] * model.hidden
        inner = max(0.0, inner - dropped["inner"])
        scores *= 1 - dropped["scores"]
    return tokens * ((norms + latent) / split + (framework.kept_share * inner + scores) / layout.tensor)


def _kept_by_operators(model: Transformer) -> float:
    """Bytes of operands that recomputation of operators keeps for each token.

    Beside those it keeps the input of the layer and what its sums leave, of the width of the model: results of every
    second product, and the context of attention.
    """
    keys = (model.kv_heads or model.heads) / model.heads
    attention = model.query_width + model.context_width + (0 if model.kv_rank else model.context_width * keys)
    inner = model.share("*") * attention + model.share("-") * model.ffn + model.share("E") * model.shared_ffn
    if states := model.share("M"):
        products = model.state_space.products
        inner += states * sum(n for name, (n, _) in products.items() if name in ("state_in", "state_steps"))
    # What went to experts and came back is not exchanged again.
    return 2 * inner + 4 * model.hidden * model.routed_share * model.share("E")


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
