"""Blueprint of a lab: namespaces, cables, addresses and routes, without touching the system.

Every node becomes a network namespace, every pair of linked nodes a virtual cable whose two ends are limited to the
scaled rates of the two directions. A node has one identity address, on which its processes listen; routes lead to
the identity of every rank. As in hardware, a route depends on the destination alone: fewest GPUs in between, then
fewest hops, then the widest, then another of the equally good neighbours for each destination.

All ranks and the kernel's TCP share the cores. Measured on two cores: up to 10 Gbit/s arriving at 8 ranks a collective
reaches at least 90% of what the links allow, at 16 ranks up to half of that; beyond, the cores are the bottleneck.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, replace
from fractions import Fraction
from ipaddress import IPv4Address

import numpy as np

from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError, UnreachableError
from coppice.program.dialects.rank.lower import schedule_of
from coppice.schedule.forest import Forest
from coppice.schedule.schedule import Schedule
from coppice.topology.model import Topology

BITS_PER_GB = 8 * 10**9
_IDENTITIES = int(IPv4Address("10.64.0.0"))
_CABLES = int(IPv4Address("10.66.0.0"))
_MAX_NODES = 512
_MIN_BITS_PER_S = 100_000  # below, the kernel's queue holds a packet for longer than TCP waits
_MAX_BITS_PER_S = 32 * 10**9

CableEnd = tuple[str, str, str, int]
"""Name of an interface, its address, the other end's address, bits per second outwards."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LabCable:
    """A cable between two nodes with rates in bits per second; 0 for a missing direction."""

    near: int
    far: int
    near_to_far_bits_per_s: int
    far_to_near_bits_per_s: int
    near_address: str
    far_address: str

    def end(self, node: int) -> CableEnd:
        """Interface at ``node``."""
        if node == self.near:
            return f"to{self.far}", self.near_address, self.far_address, self.near_to_far_bits_per_s
        return f"to{self.near}", self.far_address, self.near_address, self.far_to_near_bits_per_s


@dataclass(frozen=True, kw_only=True, slots=True)
class LabRoute:
    """Route at ``node``: packets to the address of ``to`` leave through ``interface`` towards ``via``."""

    node: int
    to: str
    via: str
    interface: str


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """Description of a lab."""

    topology: Topology  # The topology with its true rates
    scale: Fraction  # What rates are multiplied with
    identity: tuple[str, ...]  # Address of each node
    cables: tuple[LabCable, ...]  # All cables
    routes: tuple[LabRoute, ...]  # All routes

    @property
    def rank_nodes(self) -> list[int]:
        """Node of each rank."""
        found: list[int] = self.topology.rank_nodes.tolist()
        return found

    @property
    def cable_ends(self) -> list[tuple[int, int, CableEnd]]:
        """(node, other node, interface) at both ends of all cables."""
        return [
            (node, cable.near + cable.far - node, cable.end(node))
            for cable in self.cables
            for node in (cable.near, cable.far)
        ]

    def routed(self, body: Schedule | Forest) -> Schedule:
        """Reroute a schedule along the lab's routes, whatever paths it names.

        Args:
            body: On a topology with the nodes and links of this one.

        Examples:
            >>> from coppice.planners.planning import plan
            >>> from coppice.topology.presets import preset
            >>> ring = preset("ring", gpus=4)
            >>> made = plan(ring, "all_reduce", algorithm="recursive-doubling", relay_gpus=True, ring=False).plan
            >>> taken = draw(ring, Fraction(1, 100)).routed(made.body)
            >>> [taken.path_nodes[taken.path_start[p] : taken.path_start[p + 1]].tolist() for p in range(5)]
            [[1, 0], [3, 2], [0, 1], [2, 3], [2, 1, 0]]
        """
        schedule = schedule_of(body)
        node_of = {end[1]: node for node, _, end in self.cable_ends}
        following = {(route.node, route.to): node_of[route.via] for route in self.routes}
        nodes: list[int] = []
        start, known = [0], dict[tuple[int, int], int]()
        path = np.empty(schedule.num_transfers, dtype=np.int32)
        for row, ends in enumerate(zip(schedule.src.tolist(), schedule.dst.tolist(), strict=True)):
            if ends not in known:
                known[ends] = len(known)
                node, last = (self.rank_nodes[rank] for rank in ends)
                nodes.append(node)
                while node != last:
                    node = following[node, self.identity[last]]
                    nodes.append(node)
                start.append(len(nodes))
            path[row] = known[ends]
        return replace(
            schedule,
            path=path,
            path_start=np.array(start, dtype=np.int64),
            path_nodes=np.array(nodes, dtype=np.int32),
        )


def draw(topology: Topology, scale: Fraction) -> Blueprint:
    """Blueprint of ``topology`` at ``scale`` times its rates.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> lab = draw(preset("ring", gpus=4, gb_per_s=25), Fraction(1, 1000))
        >>> lab.identity[1], lab.cables[0].near_to_far_bits_per_s
        ('10.64.0.2', 200000000)
    """
    if topology.num_nodes > _MAX_NODES:
        raise InputError(
            f"expected at most {_MAX_NODES} nodes in a lab, found {topology.num_nodes}: take a part of it."
        )
    if scale <= 0:
        raise InputError(f"expected a scale above 0, found {scale}: 1e-4 turns 300 GB/s into 240 Mbit/s.")
    cables = _cables(topology, scale)
    identity = tuple(str(IPv4Address(_IDENTITIES + node + 1)) for node in range(topology.num_nodes))
    return Blueprint(
        topology=topology,
        scale=scale,
        identity=identity,
        cables=cables,
        routes=tuple(_routes(topology, identity, cables)),
    )


def _cables(topology: Topology, scale: Fraction) -> tuple[LabCable, ...]:
    rate: dict[tuple[int, int], int] = {}
    for link in range(topology.num_links):
        src, dst = int(topology.src[link]), int(topology.dst[link])
        bits = round(topology.gb_per_s(link) * scale * BITS_PER_GB)
        if not _MIN_BITS_PER_S <= bits <= _MAX_BITS_PER_S:
            way = "larger" if bits < _MIN_BITS_PER_S else "smaller"
            raise InputError(
                f"expected links of {_MIN_BITS_PER_S / 1e6:g} Mbit/s to {_MAX_BITS_PER_S / 1e9:g} Gbit/s, found "
                f"{bits / 1e6:g} Mbit/s from {topology.node_ids[src]} to {topology.node_ids[dst]}: "
                f"choose a {way} `scale`."
            )
        rate[src, dst] = bits
    pairs = sorted({(min(pair), max(pair)) for pair in rate})
    return tuple(
        LabCable(
            near=near,
            far=far,
            near_to_far_bits_per_s=rate.get((near, far), 0),
            far_to_near_bits_per_s=rate.get((far, near), 0),
            near_address=str(IPv4Address(_CABLES + 2 * number)),
            far_address=str(IPv4Address(_CABLES + 2 * number + 1)),
        )
        for number, (near, far) in enumerate(pairs)
    )


def _routes(topology: Topology, identity: tuple[str, ...], cables: tuple[LabCable, ...]) -> list[LabRoute]:
    by_pair = {
        (end, cable.near + cable.far - end): cable for cable in cables for end in (cable.near, cable.far)
    }
    routes: list[LabRoute] = []
    rank_nodes: list[int] = topology.rank_nodes.tolist()
    for destination in range(topology.num_nodes):
        nexts = _next_hops(topology, destination)
        if topology.rank[destination] >= 0:
            for node in rank_nodes:
                if node != destination and node not in nexts:
                    ends = f"{topology.node_ids[node]} to {topology.node_ids[destination]}"
                    raise UnreachableError(f"no path leads from {ends}: a lab needs one between all ranks.")
        for node, after in nexts.items():
            interface, _, via, _ = by_pair[node, after].end(node)
            routes.append(LabRoute(node=node, to=identity[destination], via=via, interface=interface))
    return routes


def _next_hops(topology: Topology, destination: int) -> dict[int, int]:
    """The neighbour to which each node hands what is meant for ``destination``."""
    into: list[list[tuple[int, int]]] = [[] for _ in range(topology.num_nodes)]
    for src, dst, capacity in zip(
        topology.src.tolist(), topology.dst.tolist(), topology.capacity.tolist(), strict=True
    ):
        into[dst].append((src, capacity))
    # Distance in (GPUs in between, hops): 0-1 breadth-first search from the destination backwards.
    unseen = (topology.num_nodes + 1, 0)
    distance = [unseen] * topology.num_nodes
    distance[destination] = (0, 0)
    queue = deque([destination])
    while queue:
        node = queue.popleft()
        relays, hops = distance[node]
        relay = int(topology.rank[node] >= 0 and node != destination)
        for src, _ in into[node]:
            candidate = (relays + relay, hops + 1)
            if candidate < distance[src]:
                distance[src] = candidate
                queue.append(src)
    width = [0] * topology.num_nodes
    width[destination] = 2**62
    nexts: dict[int, int] = {}
    choices: dict[int, list[tuple[int, int]]] = {}
    for node in range(topology.num_nodes):
        relay = int(topology.rank[node] >= 0 and node != destination)
        for src, capacity in into[node]:
            if distance[src] == (distance[node][0] + relay, distance[node][1] + 1) != unseen:
                choices.setdefault(src, []).append((node, capacity))
    for node in sorted(choices, key=lambda each: distance[each]):
        widths = [(min(capacity, width[after]), after) for after, capacity in choices[node]]
        width[node] = max(widths)[0]
        best = sorted(after for wide, after in widths if wide == width[node])
        nexts[node] = best[destination % len(best)]
    return nexts


_BITS_PER_S_AND_CORE = 5 * 10**9
_RANKS_AT_THAT_RATE = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """Total receive rate of all ranks in an optimal all-gather, and the CPU limit, in bit/s."""

    bits_per_s: Fraction
    limit_bits_per_s: Fraction

    @property
    def fits(self) -> bool:
        """Whether links, not cores, are the bottleneck."""
        return self.bits_per_s <= self.limit_bits_per_s


def load_of(topology: Topology, scale: Fraction, *, cores: int | None = None) -> Load:
    """Load of ``topology`` at ``scale``, and the limit of this many cores (default: those of this process).

    Examples:
        >>> from coppice.topology.presets import preset
        >>> load = load_of(preset("ring", gpus=8, gb_per_s=25), Fraction(1, 1000), cores=2)
        >>> float(load.bits_per_s / 10**9), float(load.limit_bits_per_s / 10**9), load.fits
        (3.2, 10.0, True)
    """
    ranks = topology.num_ranks
    usable = len(os.sched_getaffinity(0)) if cores is None else cores
    crowd = max(_RANKS_AT_THAT_RATE, ranks)
    limit = Fraction(_BITS_PER_S_AND_CORE * usable * _RANKS_AT_THAT_RATE, crowd)
    if ranks == 1:
        return Load(bits_per_s=Fraction(0), limit_bits_per_s=limit)
    optimum = bound_of(Problem(topology=topology, collective=Collective.ALL_GATHER)).algbw_gb_per_s
    return Load(bits_per_s=(ranks - 1) * optimum * scale * BITS_PER_GB, limit_bits_per_s=limit)
