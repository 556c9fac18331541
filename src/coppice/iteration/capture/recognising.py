"""Read a job off what a script was seen to do: its model, its parallel degrees, and how it runs.

Theory. Shapes tell a transformer. Attention is called with heads and tokens, norms have the width of the model, and of
the matrices of a layer those with as many columns as that width make queries, keys, values and the hidden layer of the
MLP, the others bring it back; so heads of keys and values follow from what is left of the rows. What cannot be told
is said, and never made up.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from coppice.errors import InputError
from coppice.iteration.capture.degrees import (
    Degrees,
    degrees_of,
    expert_of,
    is_of_tensors,
    is_sharded,
    table_of_words,
    whole_elements,
)
from coppice.iteration.capture.recomputing import recomputation_of
from coppice.iteration.capture.request import CapturedRank, ParameterFact
from coppice.iteration.job.job import model_of
from coppice.iteration.job.tables import ClusterTable, JobRecord, LayoutTable, ModelTable, RunTable
from coppice.iteration.transformer import Transformer

_SCHEDULES = {
    "ScheduleGPipe": "gpipe",
    "Schedule1F1B": "1f1b",
    "ScheduleInterleaved1F1B": "interleaved",
    "ScheduleLoopedBFS": "breadth-first",
    "ScheduleInterleavedZeroBubble": "zero-bubble",
    "ScheduleZBVZeroBubble": "zero-bubble",
    "ScheduleDualPipeV": "dualpipe-v",
}
_CLOSE = 0.01
"""Share by which weights of a recognised model may differ from those of the script."""


@dataclass(kw_only=True)
class RecognisedJob:
    """What is known of a job."""

    record: JobRecord | None  # Its tables; None: it trains no transformer that shapes tell
    degrees: Degrees
    weights: int  # Weights of the script, on all ranks together
    notes: list[str] = field(default_factory=list)  # What was not recognised

    @property
    def recognised_weights(self) -> int | None:
        """Weights by the tables."""
        if self.record is None:
            return None
        model = model_of(self.record.model)
        return round(model.parameters) if isinstance(model, Transformer) else None


def recognise(
    found: Mapping[int, CapturedRank], ranks: int, cluster: ClusterTable | None = None
) -> RecognisedJob:
    """Read a job off a captured rank and those of its pipeline.

    Args:
        found: What was captured, by rank; the first is the one that was asked for.
        ranks: Ranks of the job.
        cluster: Where it is to run.
    """
    notes: list[str] = []
    stages = list(found.values())
    hidden = _hidden(stages)
    degrees = degrees_of(stages, ranks, hidden, notes)
    weights = sum(
        whole_elements(each, stage, degrees, hidden) for stage in stages for each in stage.facts.parameters
    )
    model = _model(stages, degrees, hidden, notes)
    if model is None:
        return RecognisedJob(record=None, degrees=degrees, weights=weights, notes=notes)
    layout = _layout(stages, degrees, notes)
    run = _run(stages[0], degrees, layout, notes)
    record = JobRecord(model=model, cluster=cluster or ClusterTable(), layout=layout, run=run)
    job = RecognisedJob(record=record, degrees=degrees, weights=weights, notes=notes)
    try:
        told = job.recognised_weights
    except InputError as error:
        notes.append(f"a model of these numbers: {str(error).rstrip('.')}")
        return RecognisedJob(record=None, degrees=degrees, weights=weights, notes=notes)
    if told is not None and abs(told - weights) > _CLOSE * weights:
        notes.append(f"{weights - told:+,} of the {weights:,} weights, which these numbers do not have")
    return job


def _hidden(stages: Sequence[CapturedRank]) -> int:
    """Width of the model: that of norms, or of the table of words."""
    sizes = Counter(
        each.shape[0]
        for stage in stages
        for each in stage.facts.parameters
        if len(each.shape) == 1 and "norm" in f"{each.kind}.{each.name}".lower() and each.block >= 0
    )
    if sizes:
        most = max(sizes.values())
        return max(size for size, count in sizes.items() if count == most)
    table = table_of_words(stages)
    return table.shape[1] if table is not None else 0


def _model(
    stages: Sequence[CapturedRank], degrees: Degrees, hidden: int, notes: list[str]
) -> ModelTable | None:
    """Numbers of the transformer."""
    attention = next(
        (each for stage in stages for each in stage.facts.attention if len(each.query) == 4), None
    )
    table = table_of_words(stages)
    blocks = [(stage, number) for stage in stages for number in sorted(_blocks(stage))]
    missing = [
        what
        for what, there in (
            ("list of modules that are alike, which are its layers", blocks),
            ("table of words", table),
            ("call of scaled_dot_product_attention, which has its heads", attention),
        )
        if not there
    ]
    if missing or table is None or attention is None:
        notes.append(f"the model: it has no {', and no '.join(missing)}")
        return None
    width, heads = attention.query[-1], attention.query[1] * degrees.tp
    kinds = [_layer(stage, number, degrees, hidden, heads * width) for stage, number in blocks]
    plain = next((each for each in kinds if not each.experts), None)
    mixed = next((each for each in kinds if each.experts), None)
    one = plain or mixed
    if one is None or not (one.ffn or one.expert_ffn):
        notes.append("the width of the MLP: no matrix of a layer brings one back to the width of the model")
        return None
    first = stages[0].facts
    vocab = table.shape[0]
    if not table.whole and any(
        is_sharded(table, stage, degrees, hidden) for stage in stages if _has(stage, table)
    ):
        vocab *= degrees.tp
    heads_of_keys = one.kv_heads(heads, width)
    if heads_of_keys is None:
        notes.append("heads of keys and values, which are taken to be as many as those of queries")
    made = ModelTable(
        layers=len(blocks),
        hidden=hidden,
        heads=heads,
        ffn=one.ffn or one.expert_ffn,
        gated=one.gated(heads, width),
        seq=attention.query[-2] * degrees.cp,
        vocab=vocab,
        tied=any(stage.facts.tied for stage in stages) or not _has_head(stages, table),
        causal=attention.causal,
        biases=one.biases,
    )
    if heads_of_keys not in (None, heads):
        made.kv_heads = heads_of_keys
    if heads * width != hidden:
        made.head_width = width
    if mixed is not None:
        _add_experts(made, kinds, mixed, first.top_k, notes)
    if not attention.causal:
        notes.append("a causal mask, which attention was not called with (`is_causal`): causal is false")
    return made


def _has(stage: CapturedRank, table: ParameterFact) -> bool:
    return any(each.name == table.name for each in stage.facts.parameters)


def _has_head(stages: Sequence[CapturedRank], table: ParameterFact) -> bool:
    """Whether the output layer has a matrix of its own."""
    return any(
        each.block < 0 and len(each.shape) == 2 and each.shape == table.shape and each.name != table.name
        for stage in stages
        for each in stage.facts.parameters
    )


def _blocks(stage: CapturedRank) -> set[int]:
    return {each.block for each in stage.facts.parameters if each.block >= 0}


@dataclass(kw_only=True)
class _Layer:
    """Matrices of a layer."""

    ffn: int  # Width of the MLP; 0: none
    up_rows: int  # Rows of what makes the hidden layer of the MLP, with those of attention
    experts: int  # Experts; 0: none
    expert_ffn: int
    expert_matrices: int  # Two, or three where they are gated
    biases: bool
    names: str  # Names of all, for what shapes leave open

    def kv_heads(self, heads: int, width: int) -> int | None:
        """Heads of keys and values, or None."""
        for ups in self._ups():
            left = self.up_rows - heads * width - ups * self.ffn
            count, rest = divmod(left, 2 * width)
            if not rest and 1 <= count <= heads and not heads % count:
                return count
        return None

    def gated(self, heads: int, width: int) -> bool:
        """Whether the MLP has three matrices."""
        if not self.ffn:
            return self.expert_matrices == 3
        for ups in self._ups():
            count, rest = divmod(self.up_rows - heads * width - ups * self.ffn, 2 * width)
            if not rest and 1 <= count <= heads and not heads % count:
                return ups == 2
        return bool(re.search(r"gate|w3", self.names))

    def _ups(self) -> tuple[int, ...]:
        """How many matrices may make the hidden layer, the likely one first."""
        if not self.ffn:
            return (0,)
        return (2, 1) if re.search(r"gate|w3", self.names) else (1, 2)


def _layer(stage: CapturedRank, number: int, degrees: Degrees, hidden: int, context: int) -> _Layer:
    """Matrices of a layer, those of all ranks."""
    ups: list[int] = []
    downs: list[int] = []
    experts: list[tuple[int, int, int]] = []
    biases, names = False, []
    top = stage.facts.top_k
    local = {expert_of(each.name) for each in stage.facts.parameters if each.block == number} - {None}
    for each in stage.facts.parameters:
        if each.block != number:
            continue
        names.append(each.name)
        shape = each.shape
        if len(shape) == 1:
            biases |= each.name.endswith("bias") and "norm" not in f"{each.kind}.{each.name}".lower()
        elif len(shape) == 3:
            experts.append((shape[0] * (1 if each.whole else degrees.ep), shape[1], shape[2]))
        elif expert_of(each.name) is not None:
            if expert_of(each.name) == min(one for one in local if one is not None):
                experts.append((len(local) * degrees.ep, shape[0], shape[1]))
        elif top and shape[0] == top[1] and shape[1] == hidden:
            continue  # the router
        else:
            scale = degrees.tp if is_sharded(each, stage, degrees, hidden) else 1
            square = shape[0] == shape[1] == hidden and scale == 1
            if (square and _comes_back(each.name)) or (shape[0] == hidden != shape[1]):
                downs.append(shape[1] * scale)
            else:
                ups.append(shape[0] * scale)
    back = list(downs)
    if context in back:
        back.remove(context)
    elif context == hidden and hidden in ups:
        ups.remove(hidden)  # of square matrices one brings attention back
    wide = experts[-1] if experts else (0, 0, 0)
    expert_ffn = next((size for size in wide[1:] if size != hidden), hidden) if experts else 0
    elements = sum(count * a * b for count, a, b in experts)
    matrices = round(elements / (wide[0] * hidden * expert_ffn)) if experts else 0
    return _Layer(
        ffn=back[0] if back else 0,
        up_rows=sum(ups),
        experts=wide[0],
        expert_ffn=expert_ffn,
        expert_matrices=matrices,
        biases=biases,
        names=" ".join(names),
    )


def _comes_back(name: str) -> bool:
    """Whether a square matrix is the one behind attention, by its name."""
    return bool(re.search(r"(^|\.)(o|wo|o_proj|out|out_proj|c_proj|dense|proj|output)\.weight$", name))


def _add_experts(
    made: ModelTable, kinds: Sequence[_Layer], mixed: _Layer, top: Sequence[int], notes: list[str]
) -> None:
    """Numbers of the experts."""
    made.experts, made.expert_ffn = mixed.experts, mixed.expert_ffn
    made.gated = mixed.expert_matrices == 3
    if top:
        made.experts_per_token = top[0]
    else:
        notes.append("how many experts a token passes (no `topk`): one is assumed")
    if mixed.ffn:
        made.shared_ffn = mixed.ffn
    places = [place for place, each in enumerate(kinds) if each.experts]
    if len(places) == len(kinds):
        return
    gaps = {b - a for a, b in pairwise(places)} or {1}
    every = gaps.pop()
    made.expert_every, made.first_dense = every, places[0] - every + 1
    if gaps:
        notes.append(f"which layers have experts ({', '.join(map(str, places))})")


def _layout(stages: Sequence[CapturedRank], degrees: Degrees, notes: list[str]) -> LayoutTable:
    """How the model lies on the ranks."""
    first = stages[0]
    facts = next((stage.facts for stage in stages if stage.facts.embeddings), first.facts)
    micro = first.facts.attention[0].query[0]
    count = first.facts.micro_batches or len(facts.embeddings) or first.facts.forwards or 1
    chunks = max(1, first.facts.stages // degrees.pp)
    again = recomputation_of(stages, chunks, _mixtures(stages), notes)
    made = LayoutTable(
        tp=degrees.tp,
        pp=degrees.pp,
        dp=degrees.dp,
        micro_batch=micro,
        global_batch=micro * count * degrees.dp,
        recompute=again.recompute,
        shard=_shard(first, degrees),
        sequence_parallel=degrees.tp > 1 and _scatters(first, degrees),
        fused_attention=True,
    )
    if degrees.cp > 1:
        made.cp = degrees.cp
    if degrees.ep > 1:
        made.ep = degrees.ep
    if chunks > 1:
        made.chunks = chunks
    if again.every > 1:
        made.recompute_every = again.every
    if again.layers:
        made.recompute_layers = again.layers
    if again.modules:
        made.recompute_modules = list(again.modules)
    return made


def _mixtures(stages: Sequence[CapturedRank]) -> set[tuple[int, int]]:
    """Layers with experts: the place of their stage, and their number there."""
    return {
        (place, each.block)
        for place, stage in enumerate(stages)
        for each in stage.facts.parameters
        if len(each.shape) == 3 or expert_of(each.name) is not None
    }


def _shard(stage: CapturedRank, degrees: Degrees) -> Literal["none", "zero1", "zero2", "zero3"]:
    """What replicas shard."""
    facts = stage.facts
    if facts.sharded_ranks:
        return "zero3" if facts.reshards else "zero2"
    if facts.sharded_optimizer:
        return "zero1"
    local = sum(each.local * each.element_bytes for each in facts.parameters)
    kinds = {
        each.collective
        for each in stage.collectives
        if len(each.ranks) == degrees.dp > 1
        and tuple(each.ranks) != degrees.tp_ranks
        and 2 * each.size_bytes >= local
        and not each.backward
    }
    return "zero1" if {"reduce_scatter", "all_gather"} <= kinds else "none"


def _scatters(stage: CapturedRank, degrees: Degrees) -> bool:
    """Whether tensor parallelism scatters tokens."""
    return any(
        each.collective == "reduce_scatter"
        and is_of_tensors(each.ranks, stage, degrees)
        and not each.backward
        for each in stage.collectives
    )


def _run(stage: CapturedRank, degrees: Degrees, layout: LayoutTable, notes: list[str]) -> RunTable:
    """Policies of the run."""
    facts, names = stage.facts, []
    if degrees.pp > 1:
        order = _SCHEDULES.get(facts.schedule)
        if order is None:
            seen = f"schedule {facts.schedule}" if facts.schedule else "hand-written order of the pipeline"
            notes.append(f"the {seen}: 1f1b is assumed")
        names.append(order or "1f1b")
    if layout.shard == "zero3":
        names.append("fsdp")
    elif facts.data_parallel and degrees.dp > 1:
        names.append("ddp")
    elif degrees.dp > 1 and layout.shard == "none":
        notes.append("when replicas sum their gradients: behind all passes is assumed")
    products = [each for each in stage.operations if each.flops]
    wide = sum(each.flops for each in products if each.element_bytes > 2)
    if 2 * wide > sum(each.flops for each in products):
        notes.append("the type of its matrices: they have 4 bytes an element, and a job is of 2")
    return RunTable(policy="+".join(names) or "none")
