"""Simulation: when every message of a schedule runs on a topology, and what it waits for."""

from __future__ import annotations

from coppice.simulation.model import IDEAL, Model, Sharing
from coppice.simulation.models import DEFAULT_MODEL, model_of, named_models
from coppice.simulation.simulator import fastest, simulate
from coppice.simulation.timeline import Timeline

__all__ = [
    "DEFAULT_MODEL",
    "IDEAL",
    "Model",
    "Sharing",
    "Timeline",
    "fastest",
    "model_of",
    "named_models",
    "simulate",
]
