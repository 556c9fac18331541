"""Protocols of aggregation in the network over simulated links, and searched through all interleavings."""

from __future__ import annotations

from coppice.innetwork.simulated.all_reduce import LinkTraffic, SwitchedAllReduce, simulate_all_reduce
from coppice.innetwork.simulated.checking import ProtocolSearch, search_interleavings

__all__ = [
    "LinkTraffic",
    "ProtocolSearch",
    "SwitchedAllReduce",
    "search_interleavings",
    "simulate_all_reduce",
]
