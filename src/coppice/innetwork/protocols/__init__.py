"""Protocols of aggregation in the network, a file for each."""

from __future__ import annotations

from coppice.innetwork.protocols.protocol import SwitchProtocol
from coppice.innetwork.protocols.registry import PROTOCOLS, find_protocol

__all__ = ["PROTOCOLS", "SwitchProtocol", "find_protocol"]
