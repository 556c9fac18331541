"""Layout of a job on GPUs: parallel degrees, what replicas shard, and what backward passes compute again.

Computed again are layers, parts of layers, and exchanges inside them:

* *full*: the forward pass of a layer, of which its input is kept.
* *operators*: all but attention, sums over tensor-parallel ranks and every second product, in the order of queries,
  keys, values, output, router, and the matrices of the MLP, whose results are kept. Experts that tokens are sent to are
  computed again; what was exchanged for them is kept (torchtitan's selective checkpointing of operators; Purandare et
  al., PyTorch 2.4, `create_selective_checkpoint_contexts`).
* *selective*: scores, softmax and context of attention where they leave the chip (Korthikanti et al., MLSys 2023), or
  the modules that are named, as Megatron-LM's `--recompute-modules`.

All of them may be done in every n-th layer, or in the first n layers of each stage (Megatron-LM's `--recompute-method
block --recompute-num-layers n`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

from coppice.errors import InputError
from coppice.iteration.frameworks import Framework
from coppice.iteration.transformer import Transformer, layer_kinds, layer_views
from coppice.text import suggestion

_COUNTS = (
    *("tensor", "pipeline", "data", "context", "expert", "chunks", "micro_batch", "global_batch"),
    "recompute_every",
)
MODULES = ("core_attn", "mlp", "layernorm", "moe", "moe_act", "shared_experts", "mla_up_proj")
"""Modules that selective recomputation computes again, as Megatron-LM's `--recompute-modules` calls them."""


class Recompute(StrEnum):
    """Activation recomputation in the backward pass."""

    NONE = "none"
    SELECTIVE = "selective"
    """Scores, softmax and context of attention (Korthikanti et al., MLSys 2023)."""
    OPERATORS = "operators"
    """What is not costly to keep: every second product, norms and activations (torchtitan)."""
    FULL = "full"
    """The whole forward pass of every layer."""


class Shard(StrEnum):
    """What data-parallel replicas shard (Rajbhandari et al., SC 2020); `fsdp` is ZeRO-3.

    Examples:
        >>> Shard("fsdp") is Shard.ZERO3, Shard("zero0") is Shard.NONE
        (True, True)
    """

    NONE = "none"
    ZERO1 = "zero1"
    """States of the optimizer."""
    ZERO2 = "zero2"
    """Gradients as well."""
    ZERO3 = "zero3"
    """Parameters as well: they are gathered layer by layer."""

    @classmethod
    def _missing_(cls, value: object) -> Shard | None:
        return {"fsdp": cls.ZERO3, "zero0": cls.NONE}.get(str(value))


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Parallel degrees of a job; ranks are ordered by tensor, then context, data, and pipeline.

    Raises:
        InputError: If a number is out of range, or the batch is no multiple of the micro-batches of all replicas.
    """

    tensor: int = 1  # Degree of tensor parallelism
    pipeline: int = 1  # Stages in a row
    data: int = 1  # Replicas
    context: int = 1  # Ranks that shard the tokens of a sequence
    # Blocks of keys and values go around a ring of these while attention is computed; otherwise they are gathered
    context_ring: bool = False
    expert: int = 1  # Ranks that shard the experts of a layer, out of replicas and ranks of context
    chunks: int = 1  # Chunks of the model on each pipeline device
    micro_batch: int = 1  # Sequences of a micro-batch
    global_batch: int = 1  # Sequences of an iteration, over all replicas
    recompute: Recompute = Recompute.NONE  # What is computed again
    recompute_every: int = 1  # In every so many layers
    recompute_layers: int = 0  # In the first so many layers of each stage; 0: in all
    # Modules of a layer that selective recomputation computes again; none: scores, softmax and context of attention
    recompute_modules: tuple[str, ...] = ()
    sequence_parallel: bool = False  # What tensor parallelism replicates is sharded along the sequence
    # Scores stay on the chip (FlashAttention), so that none are kept or computed again
    fused_attention: bool = False
    shard: Shard = Shard.NONE  # What replicas shard
    # Replicas next to each other that shard it, of which all such groups hold the same (hybrid sharding); 0: all do
    shard_ranks: int = 0
    # Replicas that shard a second copy of parameters, which backward passes gather (hpZ); 0: there is none
    secondary_ranks: int = 0
    # Tokens cross to a box once for all experts that they have there, and fan out inside
    deduplicated: bool = False
    # Shared experts are computed while tokens go to the others and come back; otherwise one after the other
    shared_beside: bool = False

    def __post_init__(self) -> None:
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise InputError(f"expected `{name}` of 1 or more, found {getattr(self, name)}.")
        for name in ("recompute_layers", "shard_ranks", "secondary_ranks"):
            if getattr(self, name) < 0:
                raise InputError(f"expected `{name}` of 0 or more, found {getattr(self, name)}.")
        self._check_recomputation()
        if self.global_batch % (self.micro_batch * self.data):
            raise InputError(
                f"expected a global batch that is a multiple of {self.micro_batch} sequences x {self.data} replicas, "
                f"found {self.global_batch}."
            )
        if self.replicas % self.expert:
            raise InputError(
                f"expected ep that divides {self.replicas} replicas (dp x cp), found {self.expert}."
            )
        self._check_shards()

    def _check_recomputation(self) -> None:
        """Check what is computed again, and where."""
        where = (
            "recompute_every"
            if self.recompute_every > 1
            else "recompute_layers" * (self.recompute_layers > 0)
        )
        if where and self.recompute is Recompute.NONE:
            raise InputError(
                f"expected what is computed again beside `{where}`, found `recompute` none: give it, or leave {where} "
                "out."
            )
        if self.recompute_every > 1 and self.recompute_layers:
            raise InputError(
                "expected every so many layers or the first of a stage, found `recompute_every` "
                f"{self.recompute_every} and `recompute_layers` {self.recompute_layers}: leave one out."
            )
        if self.recompute_modules and self.recompute is not Recompute.SELECTIVE:
            raise InputError(
                f"expected `recompute` selective beside `recompute_modules`, found {self.recompute.value}: change one."
            )
        for each in self.recompute_modules:
            if each not in MODULES:
                raise InputError(
                    f"expected `recompute_modules` out of {', '.join(MODULES)}, found {each!r}: "
                    f"{suggestion(each, MODULES)}"
                )

    def _check_shards(self) -> None:
        """Check groups of replicas that shard."""
        for name in ("shard_ranks", "secondary_ranks"):
            group = getattr(self, name)
            if not group:
                continue
            if self.replicas % group:
                raise InputError(
                    f"expected `{name}` that divides {self.replicas} replicas (dp x cp), found {group}."
                )
            if self.shard is Shard.NONE:
                raise InputError(
                    f"expected something that replicas shard beside `{name}` {group}, found `shard` none: give it, or "
                    f"leave {name} out."
                )
        if self.shard_ranks and self.shard_ranks % self.expert and self.expert % self.shard_ranks:
            raise InputError(
                f"expected `shard_ranks` and ep of which one divides the other, found {self.shard_ranks} and "
                f"{self.expert}."
            )
        if self.secondary_ranks and self.shard is not Shard.ZERO3:
            raise InputError(
                f"expected `shard` zero3 beside `secondary_ranks`, found {self.shard.value}: backward passes gather "
                "parameters there alone."
            )
        if self.secondary_ranks > self.sharing:
            raise InputError(
                f"expected `secondary_ranks` of at most the {self.sharing} replicas that shard, found "
                f"{self.secondary_ranks}."
            )

    @property
    def sharing(self) -> int:
        """Replicas that shard states together; other groups of them hold the same."""
        return self.shard_ranks or self.replicas

    @property
    def sharing_experts(self) -> int:
        """Of the replicas with the same experts, those that shard what is kept for them."""
        return max(1, self.sharing // self.expert)

    @property
    def replicas(self) -> int:
        """Ranks that hold the same weights of layers without experts: data-parallel and context-parallel ones."""
        return self.data * self.context

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return self.tensor * self.context * self.pipeline * self.data

    @property
    def micro_batches(self) -> int:
        """Micro-batches per replica and iteration."""
        return self.global_batch // (self.micro_batch * self.data)


def dealt_layers(layers: int, stages: int, head: float | None = None, layer: float = 1.0) -> list[int]:
    """Layers of each stage.

    Where stages do not divide the layers, the last ones before the head, and the first with the embedding, have fewer.

    Args:
        head: Seconds of the output layer, with which the last stage is to be no slower than the others; None: stages
            get as many layers each.
        layer: Seconds of a layer.

    Examples:
        >>> dealt_layers(12, 4), dealt_layers(10, 4), dealt_layers(61, 16)[-3:]
        ([3, 3, 3, 3], [2, 3, 3, 2], [4, 3, 3])
        >>> dealt_layers(32, 4, head=4.0)
        [9, 9, 9, 5]
    """
    if stages == 1:
        return [layers]
    last = layers // stages
    if head is not None:
        last = min(
            range(layers - stages + 2),
            key=lambda few: max(few * layer + head, -(-(layers - few) // (stages - 1)) * layer),
        )
    elif not layers % stages:
        return [last] * stages
    each, more = divmod(layers - last, stages - 1)
    # The first stage has the embedding, so that it is the last to get one more.
    return [each, *(each + (place <= more) for place in range(1, stages - 1)), last]


_NORMS_READ = 4.0
"""Passes over activations of two norms: each reads and writes them."""
_NORMS_KEPT = 4.0
"""Bytes of a value of activations that two norms leave for the products behind them."""


@lru_cache(maxsize=64)
def recomputed_layers(layers: int, layout: Layout) -> tuple[bool, ...]:
    """Whether each layer computes something again.

    Examples:
        >>> layout = Layout(pipeline=2, recompute=Recompute.FULL, recompute_layers=1)
        >>> recomputed_layers(4, layout), recomputed_layers(3, Layout(recompute=Recompute.FULL, recompute_every=2))
        ((True, False, True, False), (False, True, False))
    """
    if layout.recompute is Recompute.NONE:
        return (False,) * layers
    if layout.recompute_layers:
        held = dealt_layers(layers, layout.pipeline * layout.chunks)
        return tuple(place < layout.recompute_layers for own in held for place in range(own))
    return tuple((layer + 1) % layout.recompute_every == 0 for layer in range(layers))


@lru_cache(maxsize=1024)
def alike(layout: Layout, *, again: bool) -> Layout:
    """A layout in which every layer computes again what some do, or none does.

    Examples:
        >>> some = Layout(recompute=Recompute.FULL, recompute_every=2)
        >>> alike(some, again=True) == Layout(recompute=Recompute.FULL), alike(some, again=False) == Layout()
        (True, True)
    """
    everywhere = layout.recompute_every == 1 and not layout.recompute_layers
    if again:
        return layout if everywhere else replace(layout, recompute_every=1, recompute_layers=0)
    if everywhere and layout.recompute is Recompute.NONE and not layout.recompute_modules:
        return layout
    return replace(
        layout, recompute=Recompute.NONE, recompute_every=1, recompute_layers=0, recompute_modules=()
    )


def recomputation_text(layout: Layout) -> str:
    """What is computed again, and where, in words.

    Examples:
        >>> recomputation_text(Layout(recompute=Recompute.FULL, recompute_every=2)), recomputation_text(Layout())
        ('full in layers 2, 4 and so on', 'none')
        >>> recomputation_text(Layout(recompute=Recompute.SELECTIVE, recompute_modules=("mlp",), recompute_layers=3))
        'selective (mlp) in the first 3 layers of a stage'
    """
    words = layout.recompute.value
    if layout.recompute_modules:
        words += f" ({', '.join(layout.recompute_modules)})"
    if layout.recompute_layers:
        return f"{words} in the first {layout.recompute_layers} layers of a stage"
    every = layout.recompute_every
    return words if every == 1 else f"{words} in layers {every}, {2 * every} and so on"


def layers_of(model: Transformer, layout: Layout) -> list[tuple[Transformer, Layout]]:
    """Every layer: a model of such layers alone, and a layout that does the same in all of them."""
    flags = recomputed_layers(model.layers, layout)
    layouts = {again: alike(layout, again=again) for again in set(flags)}
    return [(view, layouts[again]) for view, again in zip(layer_views(model), flags, strict=True)]


def kinds_of(model: Transformer, layout: Layout) -> list[tuple[Transformer, Layout, int]]:
    """The kinds of layers of a job, as :func:`layers_of` has them, and how many there are of each."""
    if layout.recompute_every == 1 and not layout.recompute_layers:
        return [(view, layout, count) for view, count in layer_kinds(model)]
    flags = recomputed_layers(model.layers, layout)
    found = Counter(zip(layer_views(model), flags, strict=True))
    return [(view, alike(layout, again=again), count) for (view, again), count in found.items()]


def repeated_parts(model: Transformer, layout: Layout, framework: Framework) -> dict[str, float]:
    """Share of each part of the forward pass that is computed again, where all layers are alike.

    Parts are operators by name (:mod:`coppice.iteration.workload.transformers`); full recomputation repeats all.
    """
    if layout.recompute is Recompute.OPERATORS:
        again = _every_second(model)
        passes = ("norms", "latent_norms", "rotation", "activation", "routed_activation", "shared_activation")
        # The scan is no operator that is kept.
        again |= dict.fromkeys((*passes, "routed", "permutation", "convolution", "scan"), 1.0)
        return again
    if layout.recompute is not Recompute.SELECTIVE:
        return {}
    if not layout.recompute_modules:
        # What attention computes that keeps its scores on the chip is not kept in any case.
        return {} if layout.fused_attention else {"attention": 1.0}
    shared = ("up", "down", "shared_activation") if model.experts else ()
    dense = () if model.experts or not model.share("-") else ("up", "down", "activation")
    parts = {
        "core_attn": ("attention",),
        "mlp": dense,
        "moe": (*shared, "router", "routed", "routed_activation", "permutation") if model.experts else (),
        "moe_act": ("routed_activation",),
        "shared_experts": shared,
        "mla_up_proj": ("query_up", "key_value_up"),
    }
    found = {part: 1.0 for each in layout.recompute_modules for part in parts.get(each, ())}
    if "layernorm" in layout.recompute_modules:
        found["norms"] = min(1.0, _NORMS_READ / max(_NORMS_READ, framework.norm_passes))
    return found


def product_order(model: Transformer) -> list[tuple[str, float]]:
    """Products of a layer in their order: the part that each is of, and the share of it that it makes up.

    Examples:
        >>> model = Transformer(layers=1, hidden=8, heads=2, ffn=32, seq=4, vocab=9, mlp_matrices=3)
        >>> [part for part, _ in product_order(model)]
        ['queries', 'queries', 'queries', 'output', 'up', 'up', 'down']
    """
    found: list[tuple[str, float]] = []
    if model.share("M"):
        found = [(name, 1.0) for name in model.state_space.products]
    attends = model.share("*") > 0
    if attends and model.kv_rank:
        queries = model.query_rank or model.query_width
        keys = model.kv_rank + model.rope_width
        found.append(("latent", queries / (queries + keys)))
        found += [("query_up", 1.0)] if model.query_rank else []
        found += [("latent", keys / (queries + keys)), ("key_value_up", 1.0)]
    elif attends:
        grouped = (model.kv_heads or model.heads) / model.heads
        widths = (model.query_width, model.query_width * grouped, model.context_width * grouped)
        found += [("queries", width / sum(widths)) for width in widths]
    if attends:
        found.append(("output", 1.0))
    if model.experts:
        found.append(("router", 1.0))
    if (model.shared_ffn if model.experts else model.share("-")) > 0:
        wide = model.mlp_matrices - 1
        found += [("up", 1 / wide)] * wide + [("down", 1.0)]
    return found


def _every_second(model: Transformer) -> dict[str, float]:
    """Share of each part's products that come second, fourth and so on."""
    found: dict[str, float] = {}
    for number, (part, share) in enumerate(product_order(model)):
        found[part] = found.get(part, 0.0) + share * (number % 2)
    return found


def repeated_sums(model: Transformer, layout: Layout) -> tuple[str, ...]:
    """Collectives of tensor parallelism that a backward pass repeats of the forward pass of a layer.

    With sequence parallelism a sum is a reduce-scatter and an all-gather.
    """
    split = layout.sequence_parallel
    whole = ("all_gather", "reduce_scatter") if split else ("all_reduce",)
    if layout.recompute is Recompute.FULL:
        return model.sums * whole
    if layout.recompute is Recompute.OPERATORS:
        # Without sequence parallelism that behind attention is repeated; what ends a layer is not needed.
        return model.sums * ("all_gather",) if split else (model.sums - 1) * whole
    module = "moe" if model.experts else "mlp" if model.share("-") else ""
    return whole if module in layout.recompute_modules else ()


def sums_of(model: Transformer, layout: Layout) -> float:
    """Sums over tensor-parallel ranks of the passes over a layer; a gather or scatter alone counts half."""
    again = repeated_sums(model, layout)
    return 2 * model.sums + sum(1.0 if each == "all_reduce" else 0.5 for each in again)


def repeats_routing(layout: Layout) -> bool:
    """Whether tokens go to their experts and back once more."""
    return layout.recompute is Recompute.FULL or "moe" in layout.recompute_modules


def dropped_bytes(model: Transformer, layout: Layout, framework: Framework) -> Mapping[str, float]:
    """Bytes for each token that modules which are computed again do not keep.

    They are in values of `norms` (of the width of the model), `inner` (of operands of products) and `scores` (1: all).
    """
    found = {"norms": 0.0, "inner": 0.0, "scores": 0.0}
    modules = layout.recompute_modules
    matrices = 2.0 * model.mlp_matrices
    routed = model.routed_share * (model.expert_ffn or model.ffn) if model.experts else 0.0
    if layout.recompute is Recompute.SELECTIVE and (not modules or "core_attn" in modules):
        found["scores"] = 1.0
    if "layernorm" in modules:
        found["norms"] = min(_NORMS_KEPT, max(0.0, framework.kept_norm_bytes - 2)) * model.sums / 2
    if "mla_up_proj" in modules and model.kv_rank:
        found["inner"] += 2 * model.share("*") * (model.query_width + model.key_value_width)
    if model.experts and "moe" in modules:
        found["inner"] += matrices * (routed + model.shared_ffn) + 4 * model.hidden * model.routed_share
    elif model.experts:
        found["inner"] += 2 * routed * ("moe_act" in modules)
        found["inner"] += matrices * model.shared_ffn * ("shared_experts" in modules)
    elif "mlp" in modules:
        found["inner"] += matrices * model.ffn * model.share("-")
    return found
