"""Compose hosts, equal or different, and a fabric into one topology.

Nodes of a host are prefixed with its name (``box0/gpu3``), ranks follow each other host by host in the order
of each host's own ranks, and the fabric's switches come last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from coppice.errors import InputError
from coppice.topology.composition.fabric import Attachment, Fabric
from coppice.topology.model import Link, Node, NodeKind, Topology

MAX_NODES = 2**21
"""More nodes than this are taken for a slip of the keyboard."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Port:
    """Network port of a host: the node it leaves from and its rate."""

    at: str  # Node of the host: a NIC, or the GPU or switch that the NIC hangs on
    gb_per_s: Fraction  # Rate of the cable
    nic: str | None = None  # Name of a NIC to put between `at` and the cable; None plugs the cable into `at`
    nic_gb_per_s: Fraction | None = None  # Rate between `at` and that NIC; None takes `gb_per_s`
    rail: int | None = None  # Rail of the port; None takes its position among the ports of the host
    latency_us: float = 0.0  # Latency of the cable, microseconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """A box and its network ports."""

    name: str  # Unique among the composed hosts
    topology: Topology  # Inside of the box
    ports: tuple[Port, ...]  # In rail order


def default_ports(topology: Topology) -> tuple[Port, ...]:
    """One port per NIC of ``topology``, at the rate at which its GPUs can reach the NIC.

    >>> box = Topology.of("box", [Node(id="gpu0"), Node(id="nic0", kind=NodeKind.NIC)],
    ...                   [Link(src="gpu0", dst="nic0", gb_per_s=Fraction(25))])
    >>> [(port.at, port.gb_per_s) for port in default_ports(box)]
    [('nic0', Fraction(25, 1))]
    """
    into = topology.capacity_in
    return tuple(
        Port(at=topology.node_ids[v], gb_per_s=Fraction(int(into[v]), topology.denominator))
        for v in np.flatnonzero(topology.kind == NodeKind.NIC).tolist()
        if into[v] > 0
    )


def gpu_ports(topology: Topology, gb_per_s: Fraction) -> tuple[Port, ...]:
    """One port of this rate on each rank, in rank order, without NIC nodes."""
    return tuple(Port(at=topology.node_ids[v], gb_per_s=gb_per_s) for v in topology.rank_nodes.tolist())


def repeated(host: Host, count: int) -> list[Host]:
    """Repeat a host ``count`` times, numbering the names (a single host keeps its name).

    Raises:
        InputError: If ``count`` is less than 1.
    """
    if count < 1:
        raise InputError(f"expected a number of hosts of 1 or more, found {count} for {host.name}.")
    if count == 1:
        return [host]
    separator = "-" if host.name[-1:].isdigit() else ""
    return [replace(host, name=f"{host.name}{separator}{i}") for i in range(count)]


def compose(hosts: Sequence[Host], fabric: Fabric | None, *, name: str, source: str = "") -> Topology:
    """Join ``hosts`` by ``fabric``.

    Args:
        hosts: Hosts with unique names, in rank order.
        fabric: Joins their ports; None for a single host, which then keeps its node names and gets no NICs.
        name: Name of the result.
        source: Where the figures come from.

    Raises:
        InputError: If there are too many nodes, names repeat, a port names no node, several hosts have no
            fabric, or a host has no port.

    Examples:
        >>> from coppice.topology.composition.fabric import SwitchFabric
        >>> gpu = Topology.of("gpu", [Node(id="gpu0")], [])
        >>> host = Host(name="box", topology=gpu, ports=gpu_ports(gpu, Fraction(25)))
        >>> compose(repeated(host, 2), SwitchFabric(), name="pair").node_ids
        ('box0/gpu0', 'box1/gpu0', 'network')
    """
    size = sum(host.topology.num_nodes + len(host.ports) for host in hosts)
    if size > MAX_NODES:
        raise InputError(
            f"expected hosts with at most {MAX_NODES} nodes in all, found {size}: compose fewer."
        )
    if fabric is None:
        if len(hosts) != 1:
            raise InputError(
                f"{len(hosts)} hosts need a fabric to join them, found none: choose one, such as rail."
            )
        return _alone(hosts[0], name=name, source=source)
    nodes: list[Node] = []
    links: list[Link] = []
    ports: list[list[Attachment]] = []
    parts: dict[int, _Parts] = {}
    seen: set[str] = set()
    rank = 0
    for host in hosts:
        if host.name in seen:
            raise InputError(f"names of hosts must be unique, found {host.name!r} twice: rename one.")
        seen.add(host.name)
        if not host.ports:
            raise InputError(
                f"host {host.name!r} has no network port: give it NICs or ports "
                "(`ports` in a cluster file, or `port_rate`)."
            )
        part = parts.get(id(host.topology))
        if part is None:
            part = parts[id(host.topology)] = _Parts.of(host.topology)
        part.copy_into(nodes, links, host=host.name, first_rank=rank)
        ports.append(_attach(host, nodes, links))
        rank += host.topology.num_ranks
    wiring = fabric.wire(ports)
    return Topology.of(name, [*nodes, *wiring.nodes], [*links, *wiring.links], source=source)


@dataclass(frozen=True, slots=True)
class _Parts:
    """Nodes and links of a host topology, described once and copied under many names."""

    nodes: list[Node]
    links: list[Link]
    several_hosts: bool

    @classmethod
    def of(cls, topology: Topology) -> _Parts:
        links = topology.links()
        back = {(link.src, link.dst): link for link in links}
        merged = []
        for link in links:
            other = back.get((link.dst, link.src))
            if other is not None and (other.gb_per_s, other.latency_us) == (link.gb_per_s, link.latency_us):
                if link.src < link.dst:  # the other direction comes, or came, as a link of its own
                    merged.append(replace(link, duplex=True))
            else:
                merged.append(link)
        return cls(topology.nodes(), merged, len(topology.hosts) > 1)

    def copy_into(self, nodes: list[Node], links: list[Link], *, host: str, first_rank: int) -> None:
        for node in self.nodes:
            inner = self.several_hosts and node.host is not None
            nodes.append(
                replace(
                    node,
                    id=f"{host}/{node.id}",
                    host=f"{host}/{node.host}" if inner else host,
                    rank=None if node.rank is None else first_rank + node.rank,
                )
            )
        links.extend(replace(link, src=f"{host}/{link.src}", dst=f"{host}/{link.dst}") for link in self.links)


def _attach(host: Host, nodes: list[Node], links: list[Link]) -> list[Attachment]:
    """Put in the NICs of ``host`` and name its ports."""
    attachments = []
    for position, port in enumerate(host.ports):
        if port.at not in host.topology.node_index:
            raise InputError(
                f"port {position} of host {host.name!r} expects the id of a node of it, found {port.at!r}: "
                "name a NIC, GPU or switch."
            )
        if port.gb_per_s <= 0:
            raise InputError(
                f"port {position} of host {host.name!r} expects a rate > 0 GB/s, found {port.gb_per_s}."
            )
        node = f"{host.name}/{port.at}"
        if port.nic is not None:
            nic = f"{host.name}/{port.nic}"
            rate = port.gb_per_s if port.nic_gb_per_s is None else port.nic_gb_per_s
            nodes.append(Node(id=nic, kind=NodeKind.NIC, host=host.name))
            links.append(Link(src=node, dst=nic, gb_per_s=rate))
            node = nic
        attachments.append(
            Attachment(
                node=node,
                gb_per_s=port.gb_per_s,
                latency_us=port.latency_us,
                rail=position if port.rail is None else port.rail,
            )
        )
    return attachments


def _alone(host: Host, *, name: str, source: str) -> Topology:
    """The host by itself, under its own node names."""
    topology = host.topology
    if len(topology.hosts) > 1:
        return replace(topology, name=name, source=source)
    return replace(
        topology,
        name=name,
        source=source,
        hosts=(host.name,),
        host=np.zeros(topology.num_nodes, dtype=np.int32),
    )
