"""Ranks as threads, each with a put/signal engine on the emulated device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coppice.run.engines.numpy import numpy_engines
from coppice.run.engines.put_signal.emulated import EmulatedDevice
from coppice.run.engines.put_signal.engine import PutSignalEngine
from support.rank_groups import in_threads


def on_emulated_device(
    work: Callable[[PutSignalEngine], Any], *, seed: int = -1, ranks: int = 3
) -> list[Any]:
    """What ``work`` returns or raises on every rank, each a thread."""
    below = numpy_engines(ranks)

    def serve(rank: int) -> Any:
        device = EmulatedDevice(rank, ranks, below[rank].exchange, seed=seed)
        engine = PutSignalEngine(device, below[rank], pieces=2)
        try:
            return work(engine)
        finally:
            engine.close()

    return in_threads(ranks, serve)
