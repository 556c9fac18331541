"""What backward passes compute again: which layers, which parts of a layer, and which exchanges inside it.

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
from dataclasses import replace
from functools import lru_cache

from coppice.iteration.frameworks import Framework
from coppice.iteration.layout import Layout, Recompute, dealt_layers
from coppice.iteration.transformer import Transformer, layer_kinds, layer_views

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
    if again:
        return replace(layout, recompute_every=1, recompute_layers=0)
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
