"""Tables and keys of a job file.

A key that is left out is None in its table, so that options of a command can replace it.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

_MOST = 10**9  # more is a slip of the pen, and takes for ever to count through
_Count = Annotated[int, Meta(ge=1, le=_MOST)]
_Size = Annotated[int, Meta(ge=0, le=_MOST)]
_Rate = Annotated[float, Meta(gt=0, le=100_000)]
_Layers = Annotated[int, Meta(ge=1, le=100_000)]


class ModelTable(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A model: its name, its dimensions, or a name with some dimensions changed."""

    name: Annotated[str, Meta(description="name of a model")] | None = None
    layers: Annotated[_Layers, Meta(description="number of layers")] | None = None
    hidden: Annotated[_Count, Meta(description="width of the model")] | None = None
    heads: Annotated[_Count, Meta(description="heads of attention")] | None = None
    kv_heads: Annotated[_Size, Meta(description="heads of keys and values; 0: as many as heads")] | None = (
        None
    )
    head_width: Annotated[_Size, Meta(description="width of a head; 0: hidden / heads")] | None = None
    value_width: Annotated[_Size, Meta(description="width of a head of values; 0: head_width")] | None = None
    kv_rank: (
        Annotated[
            _Size, Meta(description="latent attention: width of what keys and values are made from; 0: none")
        ]
        | None
    ) = None
    query_rank: (
        Annotated[_Size, Meta(description="latent attention: width of what queries are made from; 0: hidden")]
        | None
    ) = None
    rope_width: (
        Annotated[_Size, Meta(description="latent attention: of head_width, what carries positions")] | None
    ) = None
    window: Annotated[_Size, Meta(description="tokens before it that a token sees; 0: all")] | None = None
    full_every: (
        Annotated[_Size, Meta(description="every so many layers have no window; 0: all have it")] | None
    ) = None
    mtp_layers: (
        Annotated[_Size, Meta(description="layers behind the last that predict further words (MTP)")] | None
    ) = None
    ffn: Annotated[_Count, Meta(description="width of the MLP")] | None = None
    gated: Annotated[bool, Meta(description="the MLP is gated: three matrices instead of two")] | None = None
    seq: Annotated[_Count, Meta(description="tokens of a sequence")] | None = None
    vocab: Annotated[_Count, Meta(description="words of the vocabulary")] | None = None
    tied: Annotated[bool, Meta(description="the output layer has the weights of the embedding")] | None = None
    causal: Annotated[bool, Meta(description="a token sees only those before it")] | None = None
    biases: Annotated[bool, Meta(description="matrices have biases")] | None = None
    experts: Annotated[_Size, Meta(description="experts of a mixture; 0: none")] | None = None
    experts_per_token: Annotated[_Count, Meta(description="experts that a token passes (top-k)")] | None = (
        None
    )
    expert_ffn: Annotated[_Size, Meta(description="width of an expert; 0: ffn")] | None = None
    shared_ffn: Annotated[_Size, Meta(description="width of experts that every token passes")] | None = None
    expert_every: Annotated[_Count, Meta(description="every so many layers are mixtures")] | None = None
    first_dense: Annotated[_Size, Meta(description="layers at the start without experts")] | None = None
    capacity_factor: (
        Annotated[
            float, Meta(ge=0, le=1e6, description="slots of experts over tokens sent to them; 0: as many")
        ]
        | None
    ) = None

    pattern: (
        Annotated[
            str,
            Meta(
                description="kinds of layers, over and over: M state space (Mamba), * attention, - MLP, E mixture; "
                "empty: each is attention and an MLP"
            ),
        ]
        | None
    ) = None
    state_width: (
        Annotated[_Size, Meta(description="state-space layers: values of the state of an inner value")] | None
    ) = None
    state_heads: Annotated[_Size, Meta(description="state-space layers: heads")] | None = None
    state_head_width: Annotated[_Size, Meta(description="state-space layers: width of a head")] | None = None
    state_groups: (
        Annotated[
            _Count, Meta(description="state-space layers: groups of heads that share what steers the state")
        ]
        | None
    ) = None
    step_rank: (
        Annotated[
            _Size, Meta(description="state-space layers: rank of the matrix of steps (Mamba); 0: Mamba-2")
        ]
        | None
    ) = None


class BoxesTable(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Boxes of one kind in a cluster of several."""

    topology: Annotated[str, Meta(description="preset or topology file of these boxes")]
    boxes: Annotated[_Count, Meta(description="how many")]
    device: Annotated[str, Meta(description="their GPUs, or a device file")] | None = None
    power_watts: Annotated[_Rate, Meta(description="limit of their power, in watts")] | None = None
    clock_mhz: Annotated[_Rate, Meta(description="cap of their clock, in MHz")] | None = None


class ClusterTable(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Boxes of GPUs and their network."""

    topology: Annotated[str, Meta(description="preset or topology file")] | None = None
    boxes: Annotated[_Count, Meta(description="boxes of a preset")] | None = None
    rates: Annotated[Literal["nominal", "measured"], Meta(description="rates of a preset")] | None = None
    settings: (
        Annotated[dict[str, str | int | float | bool], Meta(description="parameters of a preset")] | None
    ) = None
    device: Annotated[str, Meta(description="GPU, or a device file (.json)")] | None = None
    power_watts: Annotated[_Rate, Meta(description="limit of the power of a GPU, in watts")] | None = None
    clock_mhz: Annotated[_Rate, Meta(description="cap of the clock of a GPU, in MHz")] | None = None
    mixed: (
        Annotated[list[BoxesTable], Meta(description="boxes of several kinds, instead of topology")] | None
    ) = None


class LayoutTable(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Parallel degrees of the job."""

    tp: Annotated[_Count, Meta(description="tensor parallelism")] | None = None
    pp: Annotated[_Count, Meta(description="pipeline: stages in a row")] | None = None
    dp: Annotated[_Count, Meta(description="replicas; left out: what the other degrees leave")] | None = None
    cp: Annotated[_Count, Meta(description="ranks that shard the tokens of a sequence")] | None = None
    cp_comm: (
        Annotated[
            Literal["all_gather", "p2p"],
            Meta(
                description="how cp ranks get keys and values: all at once, or block by block beside attention"
            ),
        ]
        | None
    ) = None
    ep: Annotated[_Count, Meta(description="ranks, out of dp x cp, that shard experts")] | None = None
    chunks: Annotated[_Count, Meta(description="chunks of the model on each device of a pipeline")] | None = (
        None
    )
    micro_batch: Annotated[_Count, Meta(description="samples of a micro-batch")] | None = None
    global_batch: Annotated[_Count, Meta(description="samples of an iteration, over all replicas")] | None = (
        None
    )
    ep_comm: (
        Annotated[
            Literal["all_to_all", "deduplicated"],
            Meta(
                description="how tokens reach experts: a copy for each, or one for each box, which fans out in it"
            ),
        ]
        | None
    ) = None
    shared_experts: (
        Annotated[
            Literal["after", "beside"],
            Meta(description="shared experts are computed after exchanges of tokens, or beside them"),
        ]
        | None
    ) = None
    recompute: (
        Annotated[
            Literal["none", "selective", "operators", "full"], Meta(description="what is computed again")
        ]
        | None
    ) = None
    recompute_every: (
        Annotated[_Count, Meta(description="every so many layers compute again; 1: all do")] | None
    ) = None
    recompute_layers: (
        Annotated[_Size, Meta(description="so many layers at the start of each stage do; 0: all")] | None
    ) = None
    recompute_modules: (
        Annotated[
            list[str],
            Meta(
                description="modules that `selective` computes again, as Megatron-LM calls them: core_attn, mlp, "
                "layernorm, moe, moe_act, shared_experts, mla_up_proj"
            ),
        ]
        | None
    ) = None
    shard: (
        Annotated[Literal["none", "zero1", "zero2", "zero3", "fsdp"], Meta(description="what replicas shard")]
        | None
    ) = None
    shard_ranks: (
        Annotated[
            _Size,
            Meta(
                description="replicas that shard together, as HSDP and MiCS have it; groups hold the same; 0: all"
            ),
        ]
        | None
    ) = None
    secondary_ranks: (
        Annotated[
            _Size,
            Meta(
                description="replicas that shard a second copy, which backward passes gather (hpZ); 0: none"
            ),
        ]
        | None
    ) = None
    sequence_parallel: (
        Annotated[bool, Meta(description="tensor parallelism shards norms along the sequence")] | None
    ) = None
    fused_attention: Annotated[bool, Meta(description="scores of attention stay on the chip")] | None = None


class RunTable(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Run options."""

    policy: (
        Annotated[
            str,
            Meta(
                description="policies, joined by +, such as dear+breadth-first+lynx; none: nothing overlaps"
            ),
        ]
        | None
    ) = None
    settings: (
        Annotated[dict[str, str | int | float | bool], Meta(description="options of the policies")] | None
    ) = None
    collectives: (
        Annotated[
            str,
            Meta(description="what collectives cost: calibrated, nccl, forest, or an algorithm such as ring"),
        ]
        | None
    ) = None
    model: (
        Annotated[
            str, Meta(description="what messages of simulated collectives cost: a model of time, or its file")
        ]
        | None
    ) = None
    framework: (
        Annotated[
            str,
            Meta(description="what runs it: megatron, fsdp, deepspeed, foundry, nanotron or another profile"),
        ]
        | None
    ) = None
    attention: (
        Annotated[
            str,
            Meta(description="kernel of attention: auto, softmax, eager, flash-1, flash-2, triton or cudnn"),
        ]
        | None
    ) = None
    contention: (
        Annotated[
            float,
            Meta(
                ge=0, le=1, description="share of a GPU that communication takes from concurrent computation"
            ),
        ]
        | None
    ) = None
    precision: (
        Annotated[float, Meta(gt=0, le=1000, description="how much faster products are than with 16 bits")]
        | None
    ) = None


FORMER_POLICY_KEYS = {
    "order": "order of the pipeline",
    "overlap": "what runs beside computation",
    "inside": "policies inside layers",
}
"""Keys of the run table that named policies before ``policy`` named all of them, and are still read."""


class JobRecord(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A job file."""

    model: ModelTable = msgspec.field(default_factory=ModelTable)
    cluster: ClusterTable = msgspec.field(default_factory=ClusterTable)
    layout: LayoutTable = msgspec.field(default_factory=LayoutTable)
    run: RunTable = msgspec.field(default_factory=RunTable)
