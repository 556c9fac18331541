"""Measurements that are made up, with noise from a seed."""

from __future__ import annotations

import numpy as np

from coppice.collectives import Collective
from coppice.tuning.records import LibraryChoice, TimedRun


def made_runs(
    gains: dict[str, dict[int, float]],
    *,
    repeats: int = 11,
    noise: float = 0.02,
    seed: int = 1,
    library: str = "open-mpi",
    collective: Collective = Collective.ALL_REDUCE,
    paired: bool = True,
    protocol: str = "",
) -> list[TimedRun]:
    """Runs of algorithms whose true gains at each size are given; both times of a pair share a slow drift."""
    random = np.random.default_rng(seed)
    found = []
    for algorithm, by_size in gains.items():
        for size, gain in by_size.items():
            drift = np.exp(random.normal(0, 10 * noise if paired else noise, repeats))
            default = (10 + size / 1000) * drift * np.exp(random.normal(0, noise, repeats))
            times = (10 + size / 1000) / gain * drift * np.exp(random.normal(0, noise, repeats))
            found.append(
                TimedRun(
                    library=library,
                    version="5.0",
                    collective=collective,
                    nodes=2,
                    ranks=4,
                    size_bytes=size,
                    choice=LibraryChoice(algorithm, protocol),
                    default_us=tuple(default.tolist()),
                    time_us=tuple(times.tolist()),
                    paired=paired,
                )
            )
    return found
