"""Workloads for tests of policies: those of exact times, and random ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from coppice.iteration.layers import LayerWorkload
from coppice.iteration.predicted import predict


def workload_of(
    forward: Sequence[float],
    backward: Sequence[float],
    sizes: Sequence[float],
    *,
    rate: float = 1.0,
    message: float = 0.0,
    **more: Any,
) -> LayerWorkload:
    """Layers with their passes and gradients, on a network of so many bytes/s."""
    return LayerWorkload(
        forward=tuple(forward),
        backward=tuple(backward),
        bytes=tuple(sizes),
        bytes_per_second=rate,
        message_seconds=message,
        **more,
    )


def alike(
    forward: float, backward: float, sizes: Sequence[float], message: float = 0.0, **more: Any
) -> LayerWorkload:
    """Layers whose passes take the same time, on a network of 1 byte/s."""
    count = len(sizes)
    return workload_of((forward,) * count, (backward,) * count, sizes, message=message, **more)


THREE = alike(1, 2, (2, 2, 8))
SIX = alike(1, 1, (0.5, 0.1, 0.1, 2, 0.2, 3), 0.6)
VGG_LIKE = alike(1, 2, (*(0.1,) * 7, 20, 3, 1))
MANY = alike(0.05, 0.1, (0.2,) * 200, 0.05)


def ten(size: float, message: float = 0.0) -> LayerWorkload:
    return alike(1, 2, (size,) * 10, message)


def seconds(work: LayerWorkload, policy: str, **settings: Any) -> float:
    return predict(work, policy, settings).iteration_seconds


def random_workload(
    draw: random.Random, *, most: int = 8, graph: bool = False, free: bool = False
) -> LayerWorkload:
    """Up to `most` layers, in a chain or a graph; `free`: messages cost nothing by themselves."""
    layers = draw.randint(1, most)
    backward = tuple(draw.choice([0, 1, 2, 0.7]) for _ in range(layers))
    inputs = [draw.sample(range(layer), draw.randint(1, min(2, layer))) for layer in range(1, layers)]
    return LayerWorkload(
        forward=tuple(draw.choice([0, 1, 2, 0.3]) for _ in range(layers)),
        backward=backward,
        bytes=tuple(draw.choice([0, 0.1, 1, 5, draw.random() * 8]) for _ in range(layers)),
        bytes_per_second=draw.choice([0.5, 1, 3]),
        message_seconds=0.0 if free else draw.choice([0, 0.05, 1]),
        workers=draw.choice([1, 2, 4, 8]),
        inputs=((), *map(tuple, inputs)) if graph else (),
        weight_backward=tuple(draw.choice([0, 0.25, 0.5, 1]) * own for own in backward)
        if draw.random() < 0.5
        else (),
        separable=tuple(draw.random() < 0.6 for _ in range(layers)) if draw.random() < 0.3 else (),
        round_trip_seconds=draw.choice([0, 0.1, 1]),
        dtypes=tuple(draw.choice(["half", "float"]) for _ in range(layers)) if draw.random() < 0.3 else (),
    )
