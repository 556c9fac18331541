"""Read off a captured step what its backward passes compute again, and in which layers.

Theory. A forward operator that runs in the backward pass is computed again. In a layer that is checkpointed as a whole
these are all, but those behind the last tensor that a gradient needs (early stop of `torch.utils.checkpoint`). Where
attention is kept and some of the products around it are not, a policy chose among operators
(`create_selective_checkpoint_contexts`). Otherwise modules are checkpointed one by one: attention itself, the MLP or
mixture, norms. Products are told by their place: those before attention make queries, keys and values, the first one
behind it is its output, the others are of the MLP.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from coppice.iteration.capture.request import CapturedRank
from coppice.iteration.layout import MODULES

_MOST = 0.9
"""Share of an operator's passes from which on it is computed again in all micro-batches."""


@dataclass(frozen=True, kw_only=True)
class Recomputation:
    """Settings of a job about recomputation, as its file has them."""

    recompute: Literal["none", "selective", "operators", "full"] = "none"
    every: int = 1  # In every so many layers
    layers: int = 0  # In the first so many layers of each stage; 0: in all
    modules: tuple[str, ...] = ()  # What `selective` computes again


_NOTHING = Recomputation()


@dataclass(kw_only=True)
class _LayerRuns:
    """How often the operators of a layer run: forward, and again."""

    before: list[int] = field(default_factory=lambda: [0, 0])  # Products before attention
    behind: list[int] = field(default_factory=lambda: [0, 0])  # Its output
    mlp: list[int] = field(default_factory=lambda: [0, 0])  # Products of the MLP, the router and experts
    attention: list[int] = field(default_factory=lambda: [0, 0])  # Calls of attention
    norms: list[int] = field(default_factory=lambda: [0, 0])  # Operators of norms
    others: list[int] = field(default_factory=lambda: [0, 0])  # Activations and the like

    def settings(self, notes: dict[str, None], *, mixture: bool) -> Recomputation:
        """What it computes again."""
        if not any(
            each[1] for each in (self.before, self.behind, self.mlp, self.attention, self.norms, self.others)
        ):
            return _NOTHING
        around = self.before[1] + self.behind[1]
        core = self.attention[1] >= _MOST * self.attention[0] > 0
        if core and around and self.mlp[1]:
            return Recomputation(recompute="full")
        if around and not core:
            products = [self.before, self.behind, self.mlp]
            share = sum(each[1] for each in products) / max(1, sum(each[0] for each in products))
            if not 0.25 <= share <= 0.75:
                notes[
                    f"recomputation of {share:.0%} of the products of a layer without attention: every second one is "
                    "assumed"
                ] = None
            return Recomputation(recompute="operators")
        if around:
            notes["recomputation of the products around attention, which jobs do not have"] = None
        norms = self.norms[1] >= _MOST * self.norms[0] > 0
        if self.norms[1] and not norms:
            notes["recomputation of some norms of a layer: none of them is assumed"] = None
        found = {"core_attn": core, ("moe" if mixture else "mlp"): self.mlp[1] > 0, "layernorm": norms}
        modules = tuple(each for each in MODULES if found.get(each))
        if not modules:
            notes["recomputation of activations alone, which jobs do not have: none is assumed"] = None
            return _NOTHING
        return Recomputation(recompute="selective", modules=modules)


def recomputation_of(
    stages: Sequence[CapturedRank], chunks: int, mixtures: Collection[tuple[int, int]], notes: list[str]
) -> Recomputation:
    """What backward passes compute again.

    Args:
        stages: Ranks of a pipeline, each with layers of its own.
        chunks: Chunks of the model on each of them.
        mixtures: Layers with experts: the place of the stage, and the number of the layer there.
        notes: What was not recognised is added to these.
    """
    said: dict[str, None] = {}
    rows = [
        [
            layer.settings(said, mixture=(place, number) in mixtures)
            for number, layer in sorted(_layers_of(stage).items())
        ]
        for place, stage in enumerate(stages)
    ]
    notes += said
    kinds = {each for row in rows for each in row} - {_NOTHING}
    if not kinds:
        if any(each.again and each.flops for stage in stages for each in stage.operations):
            notes.append("recomputation outside of layers: none is assumed")
        return _NOTHING
    every = [each for row in rows for each in row]
    most = max(kinds, key=lambda kind: (every.count(kind), kind.recompute))
    if len(kinds) > 1:
        notes.append(
            f"recomputation that differs between layers: {_words(most)} is assumed, which {every.count(most)} of "
            f"{len(every)} have"
        )
    flags = [[each == most for each in row] for row in rows]
    return _where(most, flags, chunks, notes)


def _words(kind: Recomputation) -> str:
    return " ".join([kind.recompute, *kind.modules])


def _where(
    kind: Recomputation, flags: Sequence[Sequence[bool]], chunks: int, notes: list[str]
) -> Recomputation:
    """In which layers, as jobs have it: all, every n-th one, or the first n of each stage."""
    every = [flag for row in flags for flag in row]
    if all(every):
        return kind
    places = [place for place, flag in enumerate(every) if flag]
    gaps = {b - a for a, b in pairwise(places)} or {len(every)}
    parts = [
        list(row[chunk * len(row) // chunks : (chunk + 1) * len(row) // chunks])
        for row in flags
        for chunk in range(chunks)
    ]
    counts = {sum(part) for part in parts}
    if len(counts) == 1 and all(part == sorted(part, reverse=True) for part in parts):
        return Recomputation(recompute=kind.recompute, modules=kind.modules, layers=counts.pop())
    gap = min(gaps)
    if len(gaps) > 1 or len(places) != len(every) // gap:
        notes.append(
            f"which layers compute again ({', '.join(map(str, places))} of {len(every)}): every "
            f"{max(1, round(len(every) / len(places)))} is assumed"
        )
        gap = max(1, round(len(every) / len(places)))
    return Recomputation(recompute=kind.recompute, modules=kind.modules, every=gap)


def _layers_of(stage: CapturedRank) -> dict[int, _LayerRuns]:
    """The layers of a stage, with what runs in each."""
    found = {each.block: _LayerRuns() for each in stage.facts.parameters if each.block >= 0}
    places: dict[int, str] = {}  # Of each module with products, by its first pass
    for each in stage.operations:
        block = stage.facts.layer_blocks.get(each.layer, -1)
        if block not in found or each.collective or each.update or (each.backward and not each.again):
            continue
        layer = found[block]
        if "scaled_dot_product" in each.name:
            layer.attention[each.again] += 1
        elif each.flops:
            place = "before" if not layer.attention[False] else "mlp" if layer.behind[False] else "behind"
            products: list[int] = getattr(layer, places.setdefault(each.layer, place))
            products[each.again] += 1
        elif "norm" in f"{each.name} {stage.layers[each.layer].kind}".lower():
            layer.norms[each.again] += 1
        else:
            layer.others[each.again] += 1
    return found
