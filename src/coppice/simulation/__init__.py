"""Discrete-event simulation of schedules on topologies.

Loaded when asked for: who only needs a model of time loads no simulator.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coppice.simulation.models import ALPHA_BETA, DEFAULT_MODEL, Model, Sharing, model_of, named_models
    from coppice.simulation.simulator import fastest, simulate
    from coppice.simulation.timeline import Timeline

__all__ = [
    "ALPHA_BETA",
    "DEFAULT_MODEL",
    "Model",
    "Sharing",
    "Timeline",
    "fastest",
    "model_of",
    "named_models",
    "simulate",
]

_MODULES = {
    "DEFAULT_MODEL": "models",
    "ALPHA_BETA": "models",
    "Model": "models",
    "Sharing": "models",
    "Timeline": "timeline",
    "fastest": "simulator",
    "model_of": "models",
    "named_models": "models",
    "simulate": "simulator",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
