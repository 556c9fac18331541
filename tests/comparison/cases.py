"""Small problems, and measurements as if they had been simulated."""

from __future__ import annotations

from typing import Any

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.comparison.measurement import SimulatedTime
from coppice.topology.presets import preset


def star(gpus: int = 4, collective: Collective = Collective.ALL_REDUCE, **fields: Any) -> Problem:
    return Problem(topology=preset("star", gpus=gpus, gb_per_s=(10,)), collective=collective, **fields)


def measured(algorithm: str, size_bytes: int, time_us: float, **fields: Any) -> SimulatedTime:
    return SimulatedTime(
        key=f"{algorithm}-{size_bytes}", algorithm=algorithm, size_bytes=size_bytes, time_us=time_us, **fields
    )
