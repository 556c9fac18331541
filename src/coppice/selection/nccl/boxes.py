"""Boxes of a topology: their nodes and links by places, equal ones once, as NCCL's ranks see them.

A box is what shares a host; everything is one box where no host is said for some rank. Names are left out, so that
equal boxes are searched once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from coppice.topology.model import NodeKind, Topology

NVSWITCH_GB_PER_S = 100
"""A switch of GPUs alone is taken for an NVSwitch from this rate on: no PCIe switch is so fast."""
_CPU = re.compile(r"(.*/)?cpu[-_.]?[0-9]*(#[0-9]+)?")


@dataclass(frozen=True, kw_only=True)
class Box:
    """A box: nodes by place, links by places of their ends."""

    topology: Topology  # What it belongs to
    nodes: tuple[int, ...]  # Its nodes
    links: dict[tuple[int, int], Fraction]  # (place, place) with GB/s, for links inside
    # Place and GB/s of every link to the outside, the least of both directions
    cables: tuple[tuple[int, Fraction], ...]

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Places of its ranks, by rank."""
        rank = self.topology.rank
        found = [place for place, node in enumerate(self.nodes) if rank[node] >= 0]
        return tuple(sorted(found, key=lambda place: int(rank[self.nodes[place]])))

    @cached_property
    def gpus(self) -> tuple[int, ...]:
        """Places of all GPUs, relays too."""
        return tuple(place for place in range(len(self.nodes)) if self.kind(place) is NodeKind.GPU)

    def kind(self, place: int) -> NodeKind:
        """What a node is."""
        return NodeKind(self.topology.kind[self.nodes[place]])

    def slot(self, place: int) -> str | None:
        """Place of a node in the PCIe tree of its machine."""
        return self.topology.slot[self.nodes[place]] if self.topology.slot else None

    def maker(self, place: int) -> str | None:
        """Maker of the processors of a GPU."""
        return self.topology.cpu[self.nodes[place]] if self.topology.cpu else None

    def is_cpu(self, place: int) -> bool:
        """Whether a node is a processor: readers and presets call them so."""
        return _CPU.fullmatch(self.topology.node_ids[self.nodes[place]].lower()) is not None

    def copies(self, place: int) -> bool:
        """Whether a switch copies and adds."""
        node = self.nodes[place]
        return bool(self.topology.multicast[node] and self.topology.aggregate[node])

    @cached_property
    def gpu_switches(self) -> frozenset[int]:
        """NVSwitches: switches with no neighbour but GPUs, too fast for PCIe or able to copy and add."""
        cabled = {place for place, _ in self.cables}
        near: dict[int, list[tuple[int, Fraction]]] = {}
        for (a, b), rate in self.links.items():
            near.setdefault(b, []).append((a, rate))
        return frozenset(
            place
            for place, others in near.items()
            if self.kind(place) is NodeKind.SWITCH
            and place not in cabled
            and all(self.kind(other) is NodeKind.GPU for other, _ in others)
            and (max(rate for _, rate in others) >= NVSWITCH_GB_PER_S or self.copies(place))
        )

    @cached_property
    def bridges(self) -> frozenset[int]:
        """Switches that are no NVSwitches: of PCIe, and processors."""
        return frozenset(
            place
            for place in range(len(self.nodes))
            if self.kind(place) is NodeKind.SWITCH and place not in self.gpu_switches
        )

    @property
    def described(self) -> bool:
        """Whether the topology has PCIe switches, or its GPUs slots."""
        return all(self.slot(rank) for rank in self.ranks) or bool(self.bridges)

    @cached_property
    def gpu_links(self) -> dict[tuple[int, int], Fraction]:
        """NVLinks: links between two GPUs, or between a GPU and an NVSwitch."""
        ends = self.gpu_switches | set(self.gpus)
        return {pair: rate for pair, rate in self.links.items() if ends.issuperset(pair)}


def boxes_of(topology: Topology) -> list[Box]:
    """All boxes by their first rank; equal ones are one object."""
    seen: dict[bytes, Box] = {}
    return [seen.setdefault(key, box) for key, box in each_box(topology)]


def each_box(topology: Topology) -> Iterator[tuple[bytes, Box]]:
    """Every box by its first rank, with a key that equal ones share."""
    host = topology.host
    if (host[topology.rank_nodes] < 0).any():
        host = np.zeros(topology.num_nodes, dtype=np.int32)
    place = np.zeros(topology.num_nodes, dtype=np.int64)
    inner = host[topology.src] == host[topology.dst]
    numbers, first = np.unique(host[topology.rank_nodes], return_index=True)
    by_node = np.argsort(host, kind="stable")
    by_link = np.argsort(host[topology.src], kind="stable")
    nodes_of, links_of = host[by_node], host[topology.src][by_link]
    order = np.argsort(host[topology.rank_nodes], kind="stable")
    ranks_of = host[topology.rank_nodes][order]
    columns = (topology.kind, topology.rank >= 0, topology.multicast, topology.aggregate)
    for number in numbers[np.argsort(first)].tolist():
        nodes = by_node[np.searchsorted(nodes_of, number) : np.searchsorted(nodes_of, number, "right")]
        links = by_link[np.searchsorted(links_of, number) : np.searchsorted(links_of, number, "right")]
        members = order[np.searchsorted(ranks_of, number) : np.searchsorted(ranks_of, number, "right")]
        place[nodes] = np.arange(len(nodes))
        inside, cables = links[inner[links]], links[~inner[links]]
        box = _box(topology, nodes, inside, cables, place)
        places = place[topology.rank_nodes[members]]
        key = b"|".join(
            [
                *(column[nodes].tobytes() for column in columns),
                places.tobytes(),
                place[topology.src[inside]].tobytes(),
                place[topology.dst[inside]].tobytes(),
                topology.capacity[inside].tobytes(),
                repr(
                    (
                        box.cables,
                        [(box.slot(p), box.is_cpu(p), box.maker(p)) for p in range(len(nodes))],
                        [topology.arch[node] for node in nodes.tolist()] if topology.arch else [],
                    )
                ).encode(),
            ]
        )
        yield key, box


def _box(
    topology: Topology,
    nodes: NDArray[np.int64],
    inside: NDArray[np.int64],
    cables: NDArray[np.int64],
    place: NDArray[np.int64],
) -> Box:
    back = topology.link_index
    outward = []
    for e in cables.tolist():
        a, b = int(topology.src[e]), int(topology.dst[e])
        rate = topology.gb_per_s(e)
        inward = back.get((b, a))
        outward.append((int(place[a]), rate if inward is None else min(rate, topology.gb_per_s(inward))))
    return Box(
        topology=topology,
        nodes=tuple(nodes.tolist()),
        links={
            (int(place[topology.src[e]]), int(place[topology.dst[e]])): topology.gb_per_s(e)
            for e in inside.tolist()
        },
        cables=tuple(outward),
    )
