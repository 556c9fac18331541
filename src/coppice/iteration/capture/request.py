"""Request to a capturing process, and its answer; PyTorch is not needed to read them."""

from __future__ import annotations

from typing import Any

import msgspec

from coppice.iteration.modules.tracing import ModuleLayer, ModuleOperation


class CaptureRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request to the capturing process."""

    script: str  # File of the script
    arguments: list[str]  # Its arguments
    ranks: int  # Ranks of the job
    rank: int  # The rank that runs
    box: int  # GPUs of a box, which are the local ranks
    steps: int  # Training steps after which it is stopped; the last one is recorded
    device: str  # GPU that the script is told about
    strict: bool  # Refuse every value of a GPU tensor that is not assumed
    assume: dict[str, Any]  # Values that lines read, by `FILE:LINE`
    folder: str  # Where ranks send each other objects


class ParameterFact(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter."""

    name: str  # Its qualified name
    shape: list[int]  # Its shape, that of all shards of a DTensor
    local: int  # Elements on this rank
    element_bytes: int  # Bytes of an element
    kind: str  # Class of its module
    block: int = -1  # Index of the layer of the transformer that it is in; -1: none
    whole: bool = False  # Whether the shape is known to be that of all ranks (DTensor)


class AttentionFact(msgspec.Struct, frozen=True, kw_only=True):
    """A call of attention."""

    query: list[int]  # Shape of queries: samples, heads, tokens, width
    key: list[int]  # Shape of keys
    value: list[int]  # Shape of values
    causal: bool  # Whether a token sees only those before it


class ScriptFacts(msgspec.Struct, kw_only=True):
    """What a script was seen to do, from which a job is recognised."""

    parameters: list[ParameterFact] = []  # Parameters of the modules that ran
    attention: list[AttentionFact] = []  # Kinds of calls of attention, each once
    embeddings: list[list[int]] = []  # Shapes of tokens looked up in the step, call by call
    embedding_rows: int = 0  # Rows of the table of words on this rank
    embedding_layer: int = -1  # Layer of the table
    embedding_table: str = ""  # Name of the table
    tied: bool = False  # The table of words is a matrix of the output layer as well
    top_k: list[int] = []  # Experts of a token, and experts that they are chosen from
    mesh: dict[str, int] = {}  # Degrees by the names of device meshes
    mesh_groups: list[tuple[list[int], str]] = []  # Groups of this rank, with the names of their dimensions
    pipeline_ranks: list[int] = []  # Ranks of the group that sends between stages
    sharded_ranks: list[list[int]] = []  # Groups that FSDP shards parameters over
    reshards: bool = True  # FSDP gathers parameters again in the backward pass
    data_parallel: bool = False  # DistributedDataParallel
    sharded_optimizer: bool = False  # ZeroRedundancyOptimizer
    schedule: str = ""  # Class of the pipeline's schedule
    stages: int = 0  # Stages of the pipeline, counting chunks of a device
    micro_batches: int = 0  # Micro-batches that the schedule was told
    roots: int = 0  # Modules that the script calls
    forwards: int = 0  # Calls of the first of them in the step
    recomputed_flops: int = 0  # FLOPs of forward passes in the backward pass
    layer_blocks: dict[int, int] = {}  # Layer of the transformer that each module with parameters is in
    heads: int = 0  # Heads that a module of attention says it has, where none is called


class CapturedRank(msgspec.Struct, frozen=True, kw_only=True):
    """A step of one rank."""

    rank: int  # The rank
    steps: int  # Training steps that ran
    layers: list[ModuleLayer]  # Modules with parameters, in the order in which they first ran
    operations: list[ModuleOperation]  # Operations of the last step, in the order in which they are issued
    setup: list[ModuleOperation]  # Collectives before the first forward pass
    peak_bytes: int  # Most memory on the GPU, by PyTorch's tracker
    peak_parts: dict[str, int]  # Of it by kind, as the tracker names them
    notes: list[str]  # What was assumed or left out
    facts: ScriptFacts  # What was seen
    torch: str  # Version of PyTorch

    @property
    def flops(self) -> int:
        """FLOPs of the step."""
        return sum(each.flops for each in self.operations)

    @property
    def collectives(self) -> list[ModuleOperation]:
        """Collectives and sends of the step, in order."""
        return [each for each in self.operations if each.collective]


class CaptureResult(msgspec.Struct, frozen=True, kw_only=True):
    """Output of the capturing process: a step, or the reason why there is none."""

    captured: CapturedRank | None = None
    error: str = ""
    traceback: str = ""  # Of the script, where it crashed
