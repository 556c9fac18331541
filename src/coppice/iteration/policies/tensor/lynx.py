"""Recompute activations during tensor-parallel collectives, within a memory limit (Lynx).

Source: Lynx (arXiv 2406.08756), after its abstract and a derivation of our own; the theory is in
:mod:`~coppice.iteration.policies.tensor.recompute_windows`, the optimum of a stage in
:mod:`~coppice.iteration.policies.tensor.stage_windows`, layers of stages in
:mod:`~coppice.iteration.policies.tensor.recompute_windows`.

What a layer computes again is dealt to its operations by their share of the work and of the bytes in a transformer
(bytes as Korthikanti et al., MLSys 2023, section 4.1). Windows are the exchanges between tensor-parallel ranks of the
backward pass of the layer above; of the forward pass for the last layer of a stage. Without a limit of memory nothing
more is kept, and recomputation only moves. Exchanges of what is computed again stay, or their results are kept
(`silent`), as of Oases.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import msgspec

from coppice.iteration.policies.policy import Bytes, Count
from coppice.iteration.policies.tensor.policy import TensorPolicy, silenced, tensor_exchanges
from coppice.iteration.policies.tensor.recompute_windows import (
    KEPT,
    TICKS,
    LayerWindows,
    RecomputedOp,
    plan_layer,
)
from coppice.iteration.policies.tensor.stage_windows import layers_added, plan_stage, shared_places
from coppice.iteration.step.plan import BACKWARD, FORWARD, LayerBlock
from coppice.planners.synthesis.mip.program import SearchLimits

# Operations of a layer: per mille of its forward pass, and parts of 32 of the bytes that its backward pass needs.
_OPS = (
    ("first norm", 20, 2),
    ("queries, keys, values", 220, 6),
    ("attention", 140, 2),
    ("projection", 90, 3),
    ("second norm", 20, 2),
    ("first matrix", 240, 8),
    ("activation", 40, 8),
    ("second matrix", 230, 1),
)
_NEVER = 2**40  # micro-batches in flight for which nothing can be kept


class WindowOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Memory limit."""

    # All activations of a layer that its backward pass needs of a micro-batch; 0: no more are kept
    layer_bytes: Bytes = 0.0
    limit_bytes: Bytes = 0.0  # Memory of a stage for them
    whole: bool = False  # Operations have to fit into their windows
    silent: bool = False  # Results of exchanges are kept, so that none is made again
    # All layers of a stage share a choice (`layer`), or every layer has its own (`stage`), for stages of a
    # few layers
    search: Literal["layer", "stage"] = "layer"
    # Nodes of the search for a stage beside what all layers share; the first takes seconds for six layers
    nodes: Count = 1


class WindowedRecompute(TensorPolicy):
    """Recompute activations during collectives, as far as memory and communication windows allow."""

    name = "lynx"
    about = "what is computed again runs beside exchanges of the layer above (Lynx, arXiv 2406.08756)"
    assumes = "layers alike; a stage runs in 1F1B; computation beside exchanges at full speed"
    decides: ClassVar[frozenset[str]] = frozenset({"recompute"})
    options: ClassVar[type[msgspec.Struct]] = WindowOptions

    def stage(self, blocks: tuple[LayerBlock, ...], in_flight: int) -> tuple[LayerBlock, ...]:
        """Layers with recomputation, equal ones grouped."""
        kinds: dict[tuple[object, ...], list[int]] = {}
        for number, block in enumerate(blocks):
            if block.recompute:
                windows = self.layer(block)
                kinds.setdefault((block.recompute, windows.backward, windows.forward), []).append(number)
        made = [silenced(each) if self.settings.silent and each.recompute else each for each in blocks]
        for numbers in kinds.values():
            windows = self.layer(blocks[numbers[0]])
            limited = self.settings.layer_bytes and self.settings.limit_bytes
            places = self.planned(
                windows,
                layers=len(numbers),
                in_flight=in_flight,
                limit_bytes=int(self.settings.limit_bytes) if limited else None,
            )
            added = layers_added(windows, places)
            same: dict[tuple[int, int, int], LayerBlock] = {}
            for number, place, left in zip(numbers, places, added, strict=True):
                block = made[number]
                kept = sum(op.size_bytes for op, at in zip(windows.ops, place, strict=True) if at == KEPT)
                kept *= bool(self.settings.layer_bytes)
                key = (id(blocks[number]), left, kept)
                if key not in same:
                    again = min(block.recompute, left / TICKS)
                    same[key] = replace(
                        block, recompute=again, activation_bytes=block.activation_bytes + kept
                    )
                made[number] = same[key]
        return tuple(made)

    def layer(self, block: LayerBlock) -> LayerWindows:
        """Operations and communication windows of a layer."""
        size = self.settings.layer_bytes or 32.0
        backward, forward = (
            [each.seconds for each in tensor_exchanges(block, when)] for when in (BACKWARD, FORWARD)
        )
        count = max(len(backward), len(forward))
        return LayerWindows(
            ops=tuple(
                RecomputedOp(
                    name=name,
                    seconds=block.recompute * share / 1000,
                    size_bytes=int(size * parts / 32),
                    after=(number - 1,) if number else (),
                )
                for number, (name, share, parts) in enumerate(_OPS)
            ),
            backward=(*backward, *[0.0] * (count - len(backward))),
            forward=(*forward, *[0.0] * (count - len(forward))),
        )

    def planned(
        self, windows: LayerWindows, *, layers: int, in_flight: int, limit_bytes: int | None
    ) -> tuple[tuple[int, ...], ...]:
        """Kept and recomputed operations of each layer of a stage, by ``plan_stage``.

        Args:
            in_flight: Micro-batches whose activations the stage holds.
            limit_bytes: Bytes for activations; None: only what takes no bytes is kept.
        """
        settings = self.settings
        flying = _NEVER if limit_bytes is None else in_flight
        limit = 2 * sum(op.size_bytes for op in windows.ops) if limit_bytes is None else limit_bytes
        if settings.search == "stage":
            limits = SearchLimits(gap=0.0, nodes=settings.nodes)
            found = plan_stage(windows, layers=layers, in_flight=flying, limit_bytes=limit, limits=limits)
            return found.places
        plan = plan_layer(windows, layers=layers, in_flight=flying, limit_bytes=limit, whole=settings.whole)
        return shared_places(windows, plan.place, layers)
