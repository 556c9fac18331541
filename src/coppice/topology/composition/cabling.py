"""The fabric without switches: cables from host to host, by a pattern or one by one."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Literal

import msgspec

from coppice.errors import InputError
from coppice.topology.composition.parts import Attachment, Common, Hosts, Wiring
from coppice.topology.model import Link

__all__ = ["DirectFabric", "HostCable"]


class HostCable(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"src": "from", "dst": "to"}
):
    """One cable between two ports, each named by its node in the composed topology (``box0/gpu1``)."""

    src: str
    dst: str
    gb_per_s: Fraction | None = None
    latency_us: float = 0.0


class DirectFabric(Common, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="direct"):
    """Cables from host to host without switches.

    Attributes:
        pattern: ``pairs``: port i of each host to port i of the other, for two hosts; ``ring``: odd ports of
            a host to even ports of the next; ``complete``: the ports of a host are dealt out over the other
            hosts in turn; ``cables``: exactly the list.
        cables: Cables for the pattern ``cables``.
    """

    pattern: Literal["pairs", "ring", "complete", "cables"] = "pairs"
    cables: tuple[HostCable, ...] = ()

    def wire(self, hosts: Hosts) -> Wiring:
        """Cables for the ports of ``hosts``; there are no switches.

        Raises:
            InputError: If the pattern does not fit the hosts, or a cable names something that is not a port.
        """
        if self.cables and self.pattern != "cables":
            msg = f"direct cabling expects cables only with pattern=cables, found pattern={self.pattern}."
            raise InputError(msg)
        if self.pattern == "cables":
            return Wiring([], [self._listed(hosts, cable) for cable in self.cables])
        links = []
        for a, b in self._pairs(hosts):
            rate = min(self.port_rate(a), self.port_rate(b))
            links.append(self.cable(a.node, b.node, rate, max(a.latency_us, b.latency_us)))
        return Wiring([], links)

    def _listed(self, hosts: Hosts, cable: HostCable) -> Link:
        ports = {port.node: port for row in hosts for port in row}
        for end in (cable.src, cable.dst):
            if end not in ports:
                msg = f"a cable names {end!r}, which is no port: use one of {', '.join(list(ports)[:8])}, ..."
                raise InputError(msg)
        rate = cable.gb_per_s
        if rate is None:
            rate = min(self.port_rate(ports[cable.src]), self.port_rate(ports[cable.dst]))
        return self.cable(cable.src, cable.dst, rate, cable.latency_us)

    def _pairs(self, hosts: Hosts) -> Iterator[tuple[Attachment, Attachment]]:
        if self.pattern == "pairs":
            if len(hosts) != 2 or len(hosts[0]) != len(hosts[1]):
                msg = (
                    "direct cabling in pairs expects two hosts with equally many ports, found "
                    f"{len(hosts)} hosts with {', '.join(str(len(ports)) for ports in hosts[:8])} ports: "
                    "use pattern=ring or pattern=complete."
                )
                raise InputError(msg)
            yield from zip(*hosts, strict=True)
        elif self.pattern == "ring":
            for here, there in zip(hosts, [*hosts[1:], hosts[0]], strict=True):
                if len(here) < 2 or len(here) % 2 or len(here) != len(there):
                    msg = (
                        f"direct cabling in a ring expects an equal, even number of ports, found {len(here)}."
                    )
                    raise InputError(msg)
                yield from zip(here[1::2], there[::2], strict=True)
        else:
            others = len(hosts) - 1
            for low in range(others):
                for high in range(low + 1, len(hosts)):
                    mine, theirs = hosts[low][high - 1 :: others], hosts[high][low::others]
                    if not mine or not theirs:
                        msg = (
                            f"direct cabling of {len(hosts)} hosts with each other expects at least {others} "
                            f"ports per host, found {min(len(ports) for ports in hosts)}: "
                            "use pattern=ring or a switch."
                        )
                        raise InputError(msg)
                    yield from zip(mine, theirs, strict=False)
