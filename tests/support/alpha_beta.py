"""The simulator with nothing but links and a microsecond a message, in one piece: what closed forms are about."""

from __future__ import annotations

from typing import Any

from coppice.simulation import ALPHA_BETA, Model, Timeline
from coppice.simulation import simulate as simulate_with


def simulate(plan: Any, size_bytes: int | str, *, model: Model = ALPHA_BETA, pieces: int = 1) -> Timeline:
    """As :func:`coppice.simulation.simulate`, with the alpha-beta model and chunks that are not cut."""
    return simulate_with(plan, size_bytes, model=model, pieces=pieces)
