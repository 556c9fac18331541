"""Published systems of in-network aggregation, a file each: description, closed-form time, and restrictions."""

from __future__ import annotations

from coppice.innetwork.systems.estimate import AggregationCase, AggregationEstimate, SwitchProtocol
from coppice.innetwork.systems.registry import PROTOCOLS, SYSTEMS, estimate, estimates, find_protocol

__all__ = [
    "PROTOCOLS",
    "SYSTEMS",
    "AggregationCase",
    "AggregationEstimate",
    "SwitchProtocol",
    "estimate",
    "estimates",
    "find_protocol",
]
