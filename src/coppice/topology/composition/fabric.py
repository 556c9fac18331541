"""Fabrics: switches or direct cables that connect the network ports of several hosts.

Every kind is a small frozen record with a ``wire`` method that turns the ports of all hosts into switches
and links. A fabric never changes a host. Rates are GB/s per direction; a port's own rate is the rate of its
cable unless the fabric says ``port_gb_per_s``. *Oversubscription* r means that a leaf sends 1/r of what its
ports send up the tree.

What every kind of fabric is made of: ports of hosts, switches, cables, and checks of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeVar

import msgspec

from coppice.decoding import decodable
from coppice.errors import InputError
from coppice.text import suggestion
from coppice.topology.model import Link, Node, NodeKind, exact_rate

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
    """Fields that every fabric has."""

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
    """Return ``value`` if it is None or at least the minimum; refuse it otherwise."""
    if value is not None and not low <= value <= _MAX_COUNT:
        raise InputError(f"a fabric expects {name} of {low} .. {_MAX_COUNT}, found {name}={value}.")
    return value


def check_links(count: int) -> None:
    """Refuse a fabric with too many links."""
    if count > _MAX_LINKS:
        raise InputError(
            f"a fabric expects at most {_MAX_LINKS} links between switches, found {count}: use fewer."
        )


def positive(value: Fraction, name: str) -> Fraction:
    """Return ``value`` if it is above 0; refuse it otherwise."""
    if value <= 0:
        raise InputError(f"a fabric expects {name} > 0, found {name}={value}.")
    return value


class HostCable(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"src": "from", "dst": "to"}
):
    """One cable between two ports, each named by its node in the composed topology (``box0/gpu1``)."""

    src: str
    dst: str
    gb_per_s: Fraction | None = None
    latency_us: float = 0.0


class DirectFabric(Common, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="direct"):
    """Direct cables between hosts, without switches."""

    # `pairs`: port i of each host to port i of the other, for two hosts; `ring`: odd ports of a host to even
    # ports of the next; `complete`: the ports of a host are dealt out over the other hosts in turn; `cables`:
    # exactly the list
    pattern: Literal["pairs", "ring", "complete", "cables"] = "pairs"
    cables: tuple[HostCable, ...] = ()  # Cables for the pattern `cables`

    def wire(self, hosts: Hosts) -> Wiring:
        """Cables for the ports of ``hosts``; there are no switches.

        Raises:
            InputError: If the pattern does not fit the hosts, or a cable names something that is not a port.
        """
        if self.cables and self.pattern != "cables":
            raise InputError(
                f"direct cabling expects cables only with pattern=cables, found pattern={self.pattern}."
            )
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
                raise InputError(
                    f"a cable names {end!r}, which is no port: use one of {', '.join(list(ports)[:8])}, ..."
                )
        rate = cable.gb_per_s
        if rate is None:
            rate = min(self.port_rate(ports[cable.src]), self.port_rate(ports[cable.dst]))
        return self.cable(cable.src, cable.dst, rate, cable.latency_us)

    def _pairs(self, hosts: Hosts) -> Iterator[tuple[Attachment, Attachment]]:
        if self.pattern == "pairs":
            if len(hosts) != 2 or len(hosts[0]) != len(hosts[1]):
                raise InputError(
                    "direct cabling in pairs expects two hosts with equally many ports, found "
                    f"{len(hosts)} hosts with {', '.join(str(len(ports)) for ports in hosts[:8])} ports: "
                    "use pattern=ring or pattern=complete."
                )
            yield from zip(*hosts, strict=True)
        elif self.pattern == "ring":
            for here, there in zip(hosts, [*hosts[1:], hosts[0]], strict=True):
                if len(here) < 2 or len(here) % 2 or len(here) != len(there):
                    raise InputError(
                        f"direct cabling in a ring expects an equal, even number of ports, found {len(here)}."
                    )
                yield from zip(here[1::2], there[::2], strict=True)
        else:
            others = len(hosts) - 1
            for low in range(others):
                for high in range(low + 1, len(hosts)):
                    mine, theirs = hosts[low][high - 1 :: others], hosts[high][low::others]
                    if not mine or not theirs:
                        raise InputError(
                            f"direct cabling of {len(hosts)} hosts with each other expects at least {others} "
                            f"ports per host, found {min(len(ports) for ports in hosts)}: "
                            "use pattern=ring or a switch."
                        )
                    yield from zip(mine, theirs, strict=False)


_T = TypeVar("_T")


class SwitchFabric(Common, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="switch"):
    """A single non-blocking switch that every port of every host is plugged into."""

    name: str = "network"  # Id of the switch

    def wire(self, hosts: Hosts) -> Wiring:
        """Switch and cables for the ports of ``hosts``."""
        links = [self.plug(port, self.name) for ports in hosts for port in ports]
        return Wiring([self.switch(self.name)], links)


class RailFabric(Common, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="rail"):
    """Rail-optimised fabric: ports of rail i of all hosts meet in leaf switches of that rail."""

    # Number of rails; port i of a host is on rail `i mod rails` unless the port says otherwise. None takes
    # the largest number of ports of a host.
    rails: int | None = None
    # Hosts that share the leaf of a rail; None puts all hosts on one leaf per rail
    hosts_per_leaf: int | None = None
    # Number of spine switches, each linked with every leaf; 0 leaves the rails apart, so that only the hosts
    # join them
    spines: int = 0
    # Rate of a leaf's ports over the rate of its links to the spines
    oversubscription: Fraction = Fraction(1)

    def wire(self, hosts: Hosts) -> Wiring:
        """Switches and cables for the ports of ``hosts``.

        Raises:
            InputError: If a number is out of range, or there is no spine where leaves have to be joined or are to be
                oversubscribed.
        """
        rails = at_least(1, self.rails, "rails") or max((len(ports) for ports in hosts), default=1)
        per_leaf = at_least(1, self.hosts_per_leaf, "hosts_per_leaf") or max(len(hosts), 1)
        spines = at_least(0, self.spines, "spines") or 0
        if not spines and self.oversubscription != 1:
            raise InputError(
                "a rail fabric has links to oversubscribe only where there are spines, found spines=0 and "
                f"oversubscription={self.oversubscription}: set `spines=1` or more, or drop oversubscription."
            )
        if len(hosts) > per_leaf and not spines:
            raise InputError(
                f"a rail of {len(hosts)} hosts with hosts_per_leaf={per_leaf} expects spines to join its "
                "leaves, found spines=0: set spines, or drop hosts_per_leaf."
            )
        one_leaf = len(hosts) <= per_leaf
        down: dict[str, Fraction] = {}
        links = []
        for position, ports in enumerate(hosts):
            for port in ports:
                rail = f"rail{port.rail % rails}"
                leaf = rail if one_leaf else f"{rail}/leaf{position // per_leaf}"
                down[leaf] = down.get(leaf, Fraction(0)) + self.port_rate(port)
                links.append(self.plug(port, leaf))
        leaves = sorted(down, key=_by_numbers)
        check_links(len(leaves) * spines)
        nodes = [self.switch(name) for name in leaves]
        nodes += [self.switch(f"spine{j}") for j in range(spines)]
        share = positive(self.oversubscription, "oversubscription") * spines
        links += [self.cable(leaf, f"spine{j}", down[leaf] / share) for leaf in leaves for j in range(spines)]
        return Wiring(nodes, links)


class FatTreeFabric(Common, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="fat-tree"):
    """Leaf and spine switches, and with ``leaves_per_pod`` a third level of cores.

    All ports of a host go to one leaf. Each leaf is linked with every spine of its pod; spine j of each pod
    is linked with the cores c for which ``c mod spines = j``.
    """

    hosts_per_leaf: int = 1  # Hosts on one leaf
    spines: int = 1  # Spines (of each pod)
    oversubscription: Fraction = Fraction(1)  # Rate of a leaf's ports over the rate of its links up
    leaves_per_pod: int | None = None  # Leaves of a pod; None makes a tree of two levels
    cores: int | None = None  # Number of cores, a multiple of `spines`
    # Rate of a spine's links down over the rate of its links up
    core_oversubscription: Fraction = Fraction(1)

    def wire(self, hosts: Hosts) -> Wiring:
        """Switches and cables for the ports of ``hosts``.

        Raises:
            InputError: If a number is out of range, or there are fields of cores but no pods.
        """
        per_leaf = at_least(1, self.hosts_per_leaf, "hosts_per_leaf") or 1
        spines = at_least(1, self.spines, "spines") or 1
        leaves = -(-len(hosts) // per_leaf)
        pod_size = at_least(1, self.leaves_per_pod, "leaves_per_pod") or max(leaves, 1)
        pods = -(-leaves // pod_size)
        check_links(leaves * spines + pods * (self.cores or 0))
        down = [Fraction(0)] * leaves
        links = []
        for position, ports in enumerate(hosts):
            leaf = position // per_leaf
            for port in ports:
                down[leaf] += self.port_rate(port)
                links.append(self.plug(port, f"leaf{leaf}"))
        nodes = [self.switch(f"leaf{leaf}") for leaf in range(leaves)]
        share = positive(self.oversubscription, "oversubscription") * spines
        for pod in range(pods):
            members = range(pod * pod_size, min(leaves, (pod + 1) * pod_size))
            names = [
                f"spine{j}" if self.leaves_per_pod is None else f"pod{pod}/spine{j}" for j in range(spines)
            ]
            nodes += [self.switch(name) for name in names]
            links += [
                self.cable(f"leaf{leaf}", name, down[leaf] / share) for leaf in members for name in names
            ]
        if self.leaves_per_pod is None and (self.cores is not None or self.core_oversubscription != 1):
            raise InputError(
                "a fat-tree has cores only above pods, found cores or core_oversubscription without leaves_per_pod: "
                "set `leaves_per_pod=2` or more, or drop them."
            )
        if self.leaves_per_pod is not None:
            rates = [sum(down[pod * pod_size : (pod + 1) * pod_size], Fraction(0)) for pod in range(pods)]
            cores = self._cores(rates, share)
            nodes += cores.nodes
            links += cores.links
        return Wiring(nodes, links)

    def _cores(self, rates: list[Fraction], share: Fraction) -> Wiring:
        """Cores and their links; each spine of pod p gets ``rates[p] / share`` from its leaves."""
        cores = at_least(1, self.cores, "cores") or self.spines
        if cores % self.spines:
            raise InputError(
                f"fat-tree expects cores to be a multiple of spines={self.spines}, found cores={cores}: "
                "change one of them."
            )
        up = share * positive(self.core_oversubscription, "core_oversubscription") * (cores // self.spines)
        links = [
            self.cable(f"pod{pod}/spine{core % self.spines}", f"core{core}", rate / up)
            for pod, rate in enumerate(rates)
            for core in range(cores)
        ]
        return Wiring([self.switch(f"core{core}") for core in range(cores)], links)


class DragonflyFabric(Common, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="dragonfly"):
    """Groups of completely linked routers; each pair of groups has one bundle of global links.

    The p-th other group of a group is reached from its router ``p mod routers_per_group``.
    """

    local_gb_per_s: Fraction  # Rate between two routers of a group
    global_gb_per_s: Fraction  # Rate between two groups
    routers_per_group: int = 2  # Routers in a group
    hosts_per_router: int = 1  # Hosts on one router

    def wire(self, hosts: Hosts) -> Wiring:
        """Routers and cables for the ports of ``hosts``.

        Raises:
            InputError: If a number is out of range.
        """
        routers = at_least(1, self.routers_per_group, "routers_per_group") or 1
        per_router = at_least(1, self.hosts_per_router, "hosts_per_router") or 1
        local = positive(self.local_gb_per_s, "local_gb_per_s")
        between = positive(self.global_gb_per_s, "global_gb_per_s")
        groups = -(-len(hosts) // (per_router * routers))
        check_links(groups * (routers * (routers - 1) + groups - 1) // 2)
        names = [[f"group{g}/router{r}" for r in range(routers)] for g in range(groups)]
        links = []
        for position, ports in enumerate(hosts):
            router = position // per_router
            name = names[router // routers][router % routers]
            links += [self.plug(port, name) for port in ports]
        for group in names:
            links += [self.cable(group[i], group[j], local) for i in range(routers) for j in range(i)]
        for high in range(groups):
            for low in range(high):
                # Seen from `low`, the group `high` is number high - 1 among the others; seen from `high`,
                # number low.
                a, b = names[low][(high - 1) % routers], names[high][low % routers]
                links.append(self.cable(a, b, between))
        return Wiring([self.switch(name) for group in names for name in group], links)


Fabric = SwitchFabric | RailFabric | FatTreeFabric | DragonflyFabric | DirectFabric
"""Any kind of fabric."""

FABRIC_KINDS: dict[str, type[Fabric]] = {
    "switch": SwitchFabric,
    "rail": RailFabric,
    "fat-tree": FatTreeFabric,
    "dragonfly": DragonflyFabric,
    "direct": DirectFabric,
}


def _by_numbers(name: str) -> tuple[int, ...]:
    """Sort key of ``rail3/leaf12``: its numbers."""
    return tuple(int("".join(c for c in part if c.isdigit())) for part in name.split("/"))


def fabric_from_fields(kind: str, fields: Mapping[str, object]) -> Fabric:
    """Build a fabric from its kind and fields; values may be texts from the command line.

    >>> fabric_from_fields("rail", {"spines": "4", "oversubscription": "2"}).spines
    4
    """
    if kind not in FABRIC_KINDS:
        raise InputError(f"there is no kind of fabric {kind!r}: {suggestion(kind, FABRIC_KINDS)}")
    record = FABRIC_KINDS[kind]
    for field in fields:
        if field not in record.__struct_fields__:
            hint = suggestion(field, record.__struct_fields__)
            raise InputError(f"a fabric of kind {kind} has no field {field!r}: {hint}")
    return converted({"kind": kind, **fields}, record, f"fabric {kind}", strict=False)


def converted(document: object, kind: type[_T], where: str, *, strict: bool = True) -> _T:
    """Decode ``document`` as a record of type ``kind``.

    Args:
        where: Named in messages, before the path.
        strict: Refuse numbers written as text, other than rates.
    """
    try:
        return msgspec.convert(document, decodable(kind), strict=strict, dec_hook=_custom)
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {error}; mend it there.") from None


def _custom(kind: type, value: object) -> object:
    """Rates: numbers or fractions as text."""
    if kind is not Fraction:
        raise NotImplementedError(f"no way to read a {kind.__name__}")
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Fraction)):
        raise ValueError(f'Expected a number or a fraction like "75/2", got {type(value).__name__}')
    try:
        return exact_rate(value, where="")
    except InputError:
        raise ValueError(
            f'Expected a number >= 0 or a fraction like "75/2", got {str(value)[:40]!r}'
        ) from None
