"""Simulation: when every message of a schedule runs on a topology, and what it waits for."""

from __future__ import annotations

from coppice.simulation.best_pieces import best_pieces
from coppice.simulation.model import Model, Sharing
from coppice.simulation.simulator import simulate
from coppice.simulation.timeline import Timeline

__all__ = ["Model", "Sharing", "Timeline", "best_pieces", "simulate"]
