"""Layers of a model in stages, where stages in front compute more again.

Source: the recomputation-aware partitioning of Lynx (arXiv 2406.08756), our own derivation.

Theory. In 1F1B stage d of p holds the activations of p - d micro-batches, and has as much less memory for each: with as
many layers as the others it computes more again and is slower. The published way moves a layer from the slowest stage
to the quickest as long as the slowest gets quicker. As a stage's time depends on how many layers it has, and grows with
them, the best split is found as well: the least time in which the stages can hold all layers together, each as many as
it runs in that time (``exact``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from coppice.errors import InputError
from coppice.iteration.policies.tensor.recompute_windows import LayerWindows, least_bytes, plan_layer


@dataclass(frozen=True, kw_only=True)
class LayerSplit:
    """What was found."""

    layers: tuple[int, ...]  # Layers of each stage
    seconds: tuple[float, ...]  # Time of a forward and backward pass of each stage


def split_layers(
    layer: LayerWindows,
    *,
    layers: int,
    stages: int,
    micro_batches: int,
    device_bytes: int,
    layer_bytes: int,  # Bytes of a layer's parameters, gradients and states
    exact: bool = False,  # The best split there is, instead of moving layers while that helps
) -> LayerSplit:
    """Layers of each stage of a 1F1B pipeline, every stage with the best choice of what it computes again."""
    if not 1 <= stages <= layers:
        raise InputError(
            f"expected 1 stage or more, and {stages} layers or more for them, found {layers} layers."
        )
    known: dict[tuple[int, int], float] = {}

    def seconds(stage: int, count: int) -> float:
        if (stage, count) not in known:
            room = device_bytes - count * layer_bytes
            in_flight = min(stages - stage, micro_batches)
            known[stage, count] = math.inf
            if room >= least_bytes(layer):
                plan = plan_layer(layer, layers=count, in_flight=in_flight, limit_bytes=room)
                known[stage, count] = count * layer.base_seconds + plan.added_seconds
        return known[stage, count]

    counts = (_best if exact else _moved)(layers, stages, seconds)
    times = tuple(seconds(stage, count) for stage, count in enumerate(counts))
    if math.isinf(max(times)):
        raise InputError(
            f"expected devices with room for {layers} layers in {stages} stages, found {device_bytes} bytes each."
        )
    return LayerSplit(layers=tuple(counts), seconds=times)


def _moved(layers: int, stages: int, seconds: Callable[[int, int], float]) -> list[int]:
    """From an even split, a layer at a time from the slowest stage to the quickest."""
    counts = [layers // stages + (stage >= stages - layers % stages) for stage in range(stages)]
    while True:
        times = [seconds(stage, count) for stage, count in enumerate(counts)]
        slow = max(range(stages), key=lambda stage: times[stage])
        quick = min(range(stages), key=lambda stage: times[stage])
        if counts[slow] == 1 or slow == quick:
            return counts
        moved = list(counts)
        moved[slow] -= 1
        moved[quick] += 1
        if max(seconds(stage, count) for stage, count in enumerate(moved)) >= max(times):
            return counts
        counts = moved


def _best(layers: int, stages: int, seconds: Callable[[int, int], float]) -> list[int]:
    """The least time in which stages hold all layers; the last stages take what is left over."""
    most = layers - stages + 1
    times = sorted({seconds(stage, count) for stage in range(stages) for count in range(1, most + 1)})
    for bound in times:
        room = [
            max((count for count in range(1, most + 1) if seconds(stage, count) <= bound), default=0)
            for stage in range(stages)
        ]
        if min(room) and sum(room) >= layers:
            counts = [1] * stages
            for stage in reversed(range(stages)):
                counts[stage] += min(room[stage] - 1, layers - sum(counts))
            return counts
    return [layers - stages + 1] + [1] * (stages - 1)
