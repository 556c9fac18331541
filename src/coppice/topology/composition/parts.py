"""What every kind of fabric is made of: ports of hosts, switches, cables, and checks of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import msgspec

from coppice.errors import InputError
from coppice.topology.model import Link, Node, NodeKind

_MAX_COUNT = 2**20
_MAX_LINKS = 2**21


@dataclass(frozen=True, kw_only=True, slots=True)
class Attachment:
    """A network port of a composed host."""

    node: str  # Id of the node, in the composed topology, that the cable leaves
    gb_per_s: Fraction  # Rate of the port
    latency_us: float  # Latency of its cable
    rail: int  # Rail that the port belongs to


Hosts = Sequence[Sequence[Attachment]]


@dataclass(frozen=True, slots=True)
class Wiring:
    """Switches and cables of a fabric."""

    nodes: list[Node]
    links: list[Link]


class Common(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """Fields of every kind."""

    port_gb_per_s: Fraction | None = None  # Rate of every port, instead of the ports' own
    latency_us: float = 0.0  # Latency of each cable of the fabric, microseconds
    multicast: bool = False  # The switches copy in hardware
    aggregate: bool = False  # The switches add in hardware

    def switch(self, name: str) -> Node:
        """A switch of this fabric."""
        return Node(id=name, kind=NodeKind.SWITCH, multicast=self.multicast, aggregate=self.aggregate)

    def port_rate(self, port: Attachment) -> Fraction:
        """Rate of a port in this fabric."""
        return port.gb_per_s if self.port_gb_per_s is None else self.port_gb_per_s

    def cable(self, a: str, b: str, rate: Fraction, latency_us: float = 0.0) -> Link:
        """A cable between two nodes."""
        return Link(src=a, dst=b, gb_per_s=rate, latency_us=max(self.latency_us, latency_us))

    def plug(self, port: Attachment, switch: str) -> Link:
        """The cable from a port to a switch."""
        return self.cable(port.node, switch, self.port_rate(port), port.latency_us)


def at_least(low: int, value: int | None, name: str) -> int | None:
    """``value`` if it is None or in range."""
    if value is not None and not low <= value <= _MAX_COUNT:
        raise InputError(f"a fabric expects {name} of {low} .. {_MAX_COUNT}, found {name}={value}.")
    return value


def check_links(count: int) -> None:
    """Refuse a fabric of more links than any cluster has."""
    if count > _MAX_LINKS:
        raise InputError(
            f"a fabric expects at most {_MAX_LINKS} links between switches, found {count}: use fewer."
        )


def positive(value: Fraction, name: str) -> Fraction:
    """``value`` if it is more than 0."""
    if value <= 0:
        raise InputError(f"a fabric expects {name} > 0, found {name}={value}.")
    return value
