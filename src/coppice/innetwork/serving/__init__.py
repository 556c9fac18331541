"""A software switch over UDP, and the client by which workers all-reduce through it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coppice.innetwork.serving.settings import ClientSettings, PacketFaults, SwitchSettings
    from coppice.innetwork.serving.udp import (
        SECRET_VARIABLE,
        SWITCH_VARIABLE,
        SwitchClient,
        SwitchError,
        SwitchServer,
        parse_address,
        read_secret,
    )

__all__ = [
    "SECRET_VARIABLE",
    "SWITCH_VARIABLE",
    "ClientSettings",
    "PacketFaults",
    "SwitchClient",
    "SwitchError",
    "SwitchServer",
    "SwitchSettings",
    "parse_address",
    "read_secret",
]

_PLACES = {
    "ClientSettings": "settings",
    "PacketFaults": "settings",
    "SwitchSettings": "settings",
}


def __getattr__(name: str) -> Any:
    """Load a name on first use, so that settings of a switch do not load the native code."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES.get(name, 'udp')}"), name)
