"""Protocols of in-network aggregation over simulated links, at random or model-checked through all interleavings."""

from __future__ import annotations

from coppice.innetwork.simulated.all_reduce import (
    LinkTraffic,
    ProtocolSearch,
    SwitchedAllReduce,
    search_interleavings,
    simulate_all_reduce,
)

__all__ = [
    "LinkTraffic",
    "ProtocolSearch",
    "SwitchedAllReduce",
    "search_interleavings",
    "simulate_all_reduce",
]
