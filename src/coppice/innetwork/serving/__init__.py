"""A software switch over UDP, and the client by which workers all-reduce through it."""

from coppice.innetwork.serving.client import (
    SECRET_VARIABLE,
    SWITCH_VARIABLE,
    SwitchClient,
    SwitchError,
    parse_address,
    read_secret,
)
from coppice.innetwork.serving.server import PacketFaults, SwitchServer

__all__ = [
    "SECRET_VARIABLE",
    "SWITCH_VARIABLE",
    "PacketFaults",
    "SwitchClient",
    "SwitchError",
    "SwitchServer",
    "parse_address",
    "read_secret",
]
