"""Simulation: when every message of a schedule runs on a topology, and what it waits for."""

from __future__ import annotations

from coppice.simulation.model import Model, Sharing
from coppice.simulation.simulator import best_pieces, simulate
from coppice.simulation.timeline import Timeline

__all__ = ["Model", "Sharing", "Timeline", "best_pieces", "simulate"]
