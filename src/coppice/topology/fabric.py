"""Fabrics: what joins the network ports of several hosts.

Every kind is a small frozen record with a ``wire`` method that turns the ports of all hosts into switches
and links. A fabric never changes a host. Rates are GB/s per direction; a port's own rate is the rate of its
cable unless the fabric says ``port_gb_per_s``. *Oversubscription* r means that a leaf sends 1/r of what its
ports send up the tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import msgspec

from coppice.errors import InputError
from coppice.topology.model import Link, Node, NodeKind

__all__ = [
    "FABRIC_KINDS",
    "Attachment",
    "DirectFabric",
    "DragonflyFabric",
    "Fabric",
    "FatTreeFabric",
    "RailFabric",
    "SwitchFabric",
    "Wiring",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Attachment:
    """A network port of a composed host.

    Attributes:
        node: Id of the node, in the composed topology, that the cable leaves.
        gb_per_s: Rate of the port.
        latency_us: Latency of its cable.
        rail: Rail that the port belongs to.
    """

    node: str
    gb_per_s: Fraction
    latency_us: float
    rail: int


Hosts = Sequence[Sequence[Attachment]]


@dataclass(frozen=True, slots=True)
class Wiring:
    """Switches and cables of a fabric."""

    nodes: list[Node]
    links: list[Link]


class _Common(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """Fields of every kind.

    Attributes:
        port_gb_per_s: Rate of every port, instead of the ports' own.
        latency_us: Latency of each cable of the fabric, microseconds.
        multicast: The switches copy in hardware.
        aggregate: The switches add in hardware.
    """

    port_gb_per_s: Fraction | None = None
    latency_us: float = 0.0
    multicast: bool = False
    aggregate: bool = False

    def _switch(self, name: str) -> Node:
        return Node(id=name, kind=NodeKind.SWITCH, multicast=self.multicast, aggregate=self.aggregate)

    def _rate(self, port: Attachment) -> Fraction:
        return port.gb_per_s if self.port_gb_per_s is None else self.port_gb_per_s

    def _cable(self, a: str, b: str, rate: Fraction, latency_us: float = 0.0) -> Link:
        return Link(src=a, dst=b, gb_per_s=rate, latency_us=max(self.latency_us, latency_us))

    def _plug(self, port: Attachment, switch: str) -> Link:
        return self._cable(port.node, switch, self._rate(port), port.latency_us)


class SwitchFabric(_Common, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="switch"):
    """One non-blocking switch that every port of every host is plugged into.

    Attributes:
        name: Id of the switch.
    """

    name: str = "network"

    def wire(self, hosts: Hosts) -> Wiring:
        """Switch and cables for the ports of ``hosts``."""
        links = [self._plug(port, self.name) for ports in hosts for port in ports]
        return Wiring([self._switch(self.name)], links)


class RailFabric(_Common, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="rail"):
    """Rail-optimised: ports of rail i of all hosts meet in leaf switches of their own.

    Attributes:
        rails: Number of rails; port i of a host is on rail ``i mod rails`` unless the port says otherwise.
            None takes the largest number of ports of a host.
        hosts_per_leaf: Hosts that share the leaf of a rail; None puts all hosts on one leaf per rail.
        spines: Number of spine switches, each linked with every leaf; 0 leaves the rails apart, so that only
            the hosts join them.
        oversubscription: Rate of a leaf's ports over the rate of its links to the spines.
    """

    rails: int | None = None
    hosts_per_leaf: int | None = None
    spines: int = 0
    oversubscription: Fraction = Fraction(1)

    def wire(self, hosts: Hosts) -> Wiring:
        """Switches and cables for the ports of ``hosts``.

        Raises:
            InputError: If a number is out of range, or several leaves of a rail have no spine.
        """
        rails = _at_least(1, self.rails, "rails") or max((len(ports) for ports in hosts), default=1)
        per_leaf = _at_least(1, self.hosts_per_leaf, "hosts_per_leaf") or max(len(hosts), 1)
        spines = _at_least(0, self.spines, "spines") or 0
        if len(hosts) > per_leaf and not spines:
            msg = (
                f"a rail of {len(hosts)} hosts with hosts_per_leaf={per_leaf} expects spines to join its "
                "leaves, found spines=0: set spines, or drop hosts_per_leaf."
            )
            raise InputError(msg)
        one_leaf = len(hosts) <= per_leaf
        down: dict[str, Fraction] = {}
        links = []
        for position, ports in enumerate(hosts):
            for port in ports:
                rail = f"rail{port.rail % rails}"
                leaf = rail if one_leaf else f"{rail}/leaf{position // per_leaf}"
                down[leaf] = down.get(leaf, Fraction(0)) + self._rate(port)
                links.append(self._plug(port, leaf))
        leaves = sorted(down, key=_by_numbers)
        nodes = [self._switch(name) for name in leaves]
        nodes += [self._switch(f"spine{j}") for j in range(spines)]
        share = _positive(self.oversubscription, "oversubscription") * spines
        links += [
            self._cable(leaf, f"spine{j}", down[leaf] / share) for leaf in leaves for j in range(spines)
        ]
        return Wiring(nodes, links)


class FatTreeFabric(_Common, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="fat-tree"):
    """Leaf and spine switches, and with ``leaves_per_pod`` a third level of cores.

    All ports of a host go to one leaf. Each leaf is linked with every spine of its pod; spine j of each pod
    is linked with the cores c for which ``c mod spines = j``.

    Attributes:
        hosts_per_leaf: Hosts on one leaf.
        spines: Spines (of each pod).
        oversubscription: Rate of a leaf's ports over the rate of its links up.
        leaves_per_pod: Leaves of a pod; None makes a tree of two levels.
        cores: Number of cores, a multiple of ``spines``.
        core_oversubscription: Rate of a spine's links down over the rate of its links up.
    """

    hosts_per_leaf: int = 1
    spines: int = 1
    oversubscription: Fraction = Fraction(1)
    leaves_per_pod: int | None = None
    cores: int | None = None
    core_oversubscription: Fraction = Fraction(1)

    def wire(self, hosts: Hosts) -> Wiring:
        """Switches and cables for the ports of ``hosts``.

        Raises:
            InputError: If a number is out of range.
        """
        per_leaf = _at_least(1, self.hosts_per_leaf, "hosts_per_leaf") or 1
        spines = _at_least(1, self.spines, "spines") or 1
        leaves = -(-len(hosts) // per_leaf)
        pod_size = _at_least(1, self.leaves_per_pod, "leaves_per_pod") or max(leaves, 1)
        pods = -(-leaves // pod_size)
        down = [Fraction(0)] * leaves
        links = []
        for position, ports in enumerate(hosts):
            leaf = position // per_leaf
            for port in ports:
                down[leaf] += self._rate(port)
                links.append(self._plug(port, f"leaf{leaf}"))
        nodes = [self._switch(f"leaf{leaf}") for leaf in range(leaves)]
        share = _positive(self.oversubscription, "oversubscription") * spines
        for pod in range(pods):
            members = range(pod * pod_size, min(leaves, (pod + 1) * pod_size))
            names = [
                f"spine{j}" if self.leaves_per_pod is None else f"pod{pod}/spine{j}" for j in range(spines)
            ]
            nodes += [self._switch(name) for name in names]
            links += [
                self._cable(f"leaf{leaf}", name, down[leaf] / share) for leaf in members for name in names
            ]
        if self.leaves_per_pod is not None:
            rates = [sum(down[pod * pod_size : (pod + 1) * pod_size], Fraction(0)) for pod in range(pods)]
            cores = self._cores(rates, share)
            nodes += cores.nodes
            links += cores.links
        return Wiring(nodes, links)

    def _cores(self, rates: list[Fraction], share: Fraction) -> Wiring:
        """Cores and their links; each spine of pod p gets ``rates[p] / share`` from its leaves."""
        cores = _at_least(1, self.cores, "cores") or self.spines
        if cores % self.spines:
            msg = (
                f"fat-tree expects cores to be a multiple of spines={self.spines}, found cores={cores}: "
                "change one of them."
            )
            raise InputError(msg)
        up = share * _positive(self.core_oversubscription, "core_oversubscription") * (cores // self.spines)
        links = [
            self._cable(f"pod{pod}/spine{core % self.spines}", f"core{core}", rate / up)
            for pod, rate in enumerate(rates)
            for core in range(cores)
        ]
        return Wiring([self._switch(f"core{core}") for core in range(cores)], links)


class DragonflyFabric(_Common, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="dragonfly"):
    """Groups of completely linked routers; each pair of groups has one bundle of global links.

    The p-th other group of a group is reached from its router ``p mod routers_per_group``.

    Attributes:
        routers_per_group: Routers in a group.
        hosts_per_router: Hosts on one router.
        local_gb_per_s: Rate between two routers of a group.
        global_gb_per_s: Rate between two groups.
    """

    local_gb_per_s: Fraction
    global_gb_per_s: Fraction
    routers_per_group: int = 2
    hosts_per_router: int = 1

    def wire(self, hosts: Hosts) -> Wiring:
        """Routers and cables for the ports of ``hosts``.

        Raises:
            InputError: If a number is out of range.
        """
        routers = _at_least(1, self.routers_per_group, "routers_per_group") or 1
        per_router = _at_least(1, self.hosts_per_router, "hosts_per_router") or 1
        local = _positive(self.local_gb_per_s, "local_gb_per_s")
        between = _positive(self.global_gb_per_s, "global_gb_per_s")
        groups = -(-len(hosts) // (per_router * routers))
        names = [[f"group{g}/router{r}" for r in range(routers)] for g in range(groups)]
        links = []
        for position, ports in enumerate(hosts):
            router = position // per_router
            name = names[router // routers][router % routers]
            links += [self._plug(port, name) for port in ports]
        for group in names:
            links += [self._cable(group[i], group[j], local) for i in range(routers) for j in range(i)]
        for high in range(groups):
            for low in range(high):
                # Seen from `low`, the group `high` is number high - 1 among the others; seen from `high`,
                # number low.
                a, b = names[low][(high - 1) % routers], names[high][low % routers]
                links.append(self._cable(a, b, between))
        return Wiring([self._switch(name) for group in names for name in group], links)


class Cable(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"src": "from", "dst": "to"}
):
    """One cable between two ports, each named by its node in the composed topology (``box0/gpu1``)."""

    src: str
    dst: str
    gb_per_s: Fraction | None = None
    latency_us: float = 0.0


class DirectFabric(_Common, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="direct"):
    """Cables from host to host without switches.

    Attributes:
        pattern: ``pairs``: port i of each host to port i of the other, for two hosts; ``ring``: odd ports of
            a host to even ports of the next; ``complete``: the ports of a host are dealt out over the other
            hosts in turn; ``cables``: exactly the list.
        cables: Cables for the pattern ``cables``.
    """

    pattern: Literal["pairs", "ring", "complete", "cables"] = "pairs"
    cables: tuple[Cable, ...] = ()

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
            rate = min(self._rate(a), self._rate(b))
            links.append(self._cable(a.node, b.node, rate, max(a.latency_us, b.latency_us)))
        return Wiring([], links)

    def _listed(self, hosts: Hosts, cable: Cable) -> Link:
        ports = {port.node: port for row in hosts for port in row}
        for end in (cable.src, cable.dst):
            if end not in ports:
                msg = f"a cable names {end!r}, which is no port: use one of {', '.join(list(ports)[:8])}, ..."
                raise InputError(msg)
        rate = cable.gb_per_s
        if rate is None:
            rate = min(self._rate(ports[cable.src]), self._rate(ports[cable.dst]))
        return self._cable(cable.src, cable.dst, rate, cable.latency_us)

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


Fabric = SwitchFabric | RailFabric | FatTreeFabric | DragonflyFabric | DirectFabric
"""Any kind of fabric."""

FABRIC_KINDS: dict[str, type[Fabric]] = {
    "switch": SwitchFabric,
    "rail": RailFabric,
    "fat-tree": FatTreeFabric,
    "dragonfly": DragonflyFabric,
    "direct": DirectFabric,
}


def _at_least(low: int, value: int | None, name: str) -> int | None:
    """``value`` if it is None or at least ``low``."""
    if value is not None and value < low:
        msg = f"a fabric expects {name} >= {low}, found {name}={value}."
        raise InputError(msg)
    return value


def _positive(value: Fraction, name: str) -> Fraction:
    if value <= 0:
        msg = f"a fabric expects {name} > 0, found {name}={value}."
        raise InputError(msg)
    return value


def _by_numbers(name: str) -> tuple[int, ...]:
    """Sort key of ``rail3/leaf12``: its numbers."""
    return tuple(int("".join(c for c in part if c.isdigit())) for part in name.split("/"))
