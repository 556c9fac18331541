"""Machine as NCCL's topology search sees it: GPUs, NVLinks, PCIe and NICs of each box.

Links have the rates of the topology. NCCL reckons with rates of its own for NVLink, PCIe and NICs (those of the class
``measured``); data sheets' rates (``nominal``), which are recognised by being whole multiples of a nominal link, count
as these, and all others as they stand. Where boxes differ, the least counts, as in NCCL.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import UnreachableError
from coppice.selection.nccl.costs import constants
from coppice.topology.generation import GENERATIONS, capability_of, generation_of_capability, named_generation
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.readers.link_rates import RateClass, nvlink_gb_per_s

_NVSWITCH_GB_PER_S = 100
"""A switch of GPUs alone is taken for an NVSwitch from this rate on: no PCIe switch is so fast."""
_NOMINAL_PCIE = {Fraction(each) for each in (8, 16, 32, 64, 128)}
_MEASURED_PCIE = Fraction(3, 4)
_NOMINAL_NICS = {Fraction(gbit, 8) for gbit in (1, 10, 20, 25, 40, 50, 56, 80, 100, 200, 400, 800, 1600)}
_MEASURED_NICS = Fraction(24, 25)
_CPU = re.compile(r"(.*/)?cpu[-_.]?[0-9]*")


@dataclass(frozen=True, kw_only=True)
class NcclMachine:
    """What NCCL detects in each box, with rates as it counts them in GB/s."""

    generation: str | None  # `volta`, `ampere`, `hopper` or `blackwell`; None where nothing tells
    told_by: str  # What the generation was concluded from, where it is not recorded; empty otherwise
    cpu: str | None  # Maker of the processors, `mixed` where boxes differ, None where nothing tells
    nvswitch: bool  # NVSwitches join the GPUs
    adds: bool  # These copy and add
    within_gb_per_s: float  # What all rings together can carry through a box
    path_gb_per_s: float  # What the best path between two GPUs carries
    within_type: str  # Class of the worst path between neighbours of a ring in a box (NVL, PIX, ...)
    # Class of the path between NICs and the GPUs nearest to them; None where the topology has no PCIe
    across_type: str | None
    nics: int  # Number of NICs that are so near
    nic_gb_per_s: float  # Rate of a NIC


@lru_cache(maxsize=16)
def machine_of(topology: Topology, generation: str | None = None) -> NcclMachine:
    """Derive NCCL's view of a topology.

    Args:
        generation: Generation of the GPUs, where it is given.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> found = machine_of(preset("dgx-a100", boxes=2))
        >>> found.generation, found.within_gb_per_s, found.nics, found.nic_gb_per_s, found.across_type
        ('ampere', 240.0, 8, 24.0, None)
    """
    boxes = list(_boxes(topology))
    capability, told_by = _capability(topology, boxes, generation)
    machines = [_machine(box, capability) for box in boxes]
    first = machines[0]
    makers = {each.cpu for each in machines}
    kinds = [each.across_type for each in machines if each.across_type is not None]
    return replace(
        first,
        told_by=told_by,
        cpu=first.cpu if len(makers) == 1 else "mixed",
        nvswitch=all(each.nvswitch for each in machines),
        adds=all(each.adds for each in machines),
        within_gb_per_s=min(each.within_gb_per_s for each in machines),
        path_gb_per_s=min(each.path_gb_per_s for each in machines),
        within_type=max((each.within_type for each in machines), key=_CLASSES.index),
        across_type=max(kinds, key=_CLASSES.index, default=None),
        nics=min(each.nics for each in machines),
        nic_gb_per_s=min(each.nic_gb_per_s for each in machines),
    )


_CLASSES = ("NVL", "PIX", "PXB", "PHB", "SYS")


@dataclass(frozen=True, kw_only=True)
class _Box:
    """A box: nodes by place, links by places of their ends."""

    topology: Topology  # What it belongs to
    nodes: tuple[int, ...]  # Its nodes
    ranks: tuple[int, ...]  # Places of its ranks
    links: dict[tuple[int, int], Fraction]  # (place, place) with the rate, for links inside
    # Place and rate of every link to the outside, the least of both directions
    ports: tuple[tuple[int, Fraction], ...]

    def kind(self, place: int) -> NodeKind:
        """What a node is."""
        return NodeKind(self.topology.kind[self.nodes[place]])

    def is_cpu(self, place: int) -> bool:
        """Whether a node is a processor: readers and presets call them so."""
        return _CPU.fullmatch(self.topology.node_ids[self.nodes[place]].lower()) is not None

    @cached_property
    def gpu_switches(self) -> set[int]:
        """NVSwitches: switches with no neighbour but GPUs, too fast for PCIe or able to copy and add."""
        ported = {place for place, _ in self.ports}
        near: dict[int, list[tuple[int, Fraction]]] = {}
        for (a, b), rate in self.links.items():
            near.setdefault(b, []).append((a, rate))
        return {
            place
            for place, others in near.items()
            if self.kind(place) is NodeKind.SWITCH
            and place not in ported
            and all(self.kind(other) is NodeKind.GPU for other, _ in others)
            and (max(rate for _, rate in others) >= _NVSWITCH_GB_PER_S or self.adds(place))
        }

    def adds(self, place: int) -> bool:
        """Whether a switch copies and adds."""
        node = self.nodes[place]
        return bool(self.topology.multicast[node] and self.topology.aggregate[node])

    @cached_property
    def gpu_links(self) -> dict[tuple[int, int], Fraction]:
        """NVLinks: links between two ranks, or between a rank and an NVSwitch."""
        ends = self.gpu_switches | set(self.ranks)
        return {pair: rate for pair, rate in self.links.items() if ends.issuperset(pair)}


def _boxes(topology: Topology) -> Iterator[_Box]:
    """One of each kind of box; everything is one where no host is said for some rank."""
    host = topology.host
    if (host[topology.rank_nodes] < 0).any():
        host = np.zeros(topology.num_nodes, dtype=np.int32)
    takes_part = (topology.kind != NodeKind.GPU) | (topology.rank >= 0)
    place = np.zeros(topology.num_nodes, dtype=np.int64)
    inner = (host[topology.src] == host[topology.dst]) & takes_part[topology.src] & takes_part[topology.dst]
    outer = (host[topology.src] != host[topology.dst]) & takes_part[topology.src]
    columns = (topology.kind, topology.rank >= 0, topology.multicast, topology.aggregate)
    seen: set[bytes] = set()
    for number in np.unique(host[topology.rank_nodes]).tolist():
        nodes = np.flatnonzero((host == number) & takes_part)
        place[nodes] = np.arange(len(nodes))
        links = np.flatnonzero(inner & (host[topology.src] == number))
        ports = np.flatnonzero(outer & (host[topology.src] == number))
        ends = (place[topology.src[links]], place[topology.dst[links]], topology.capacity[links])
        out = (place[topology.src[ports]], topology.capacity[ports])
        key = b"|".join(
            [*(column[nodes].tobytes() for column in columns), *(each.tobytes() for each in (*ends, *out))]
        )
        box = _box(topology, nodes, links, ports, place)
        cpus = [topology.cpu[v] for v in nodes.tolist()] if topology.cpu else []
        key += repr((box.ports, cpus, [each for each in range(len(nodes)) if box.is_cpu(each)])).encode()
        if key not in seen:
            seen.add(key)
            yield box


def _box(
    topology: Topology,
    nodes: NDArray[np.int64],
    links: NDArray[np.int64],
    ports: NDArray[np.int64],
    place: NDArray[np.int64],
) -> _Box:
    back = topology.link_index
    outward = []
    for e in ports.tolist():
        a, b = int(topology.src[e]), int(topology.dst[e])
        rate = topology.gb_per_s(e)
        inward = back.get((b, a))
        outward.append((int(place[a]), rate if inward is None else min(rate, topology.gb_per_s(inward))))
    return _Box(
        topology=topology,
        nodes=tuple(nodes.tolist()),
        ranks=tuple(np.flatnonzero(topology.rank[nodes] >= 0).tolist()),
        links={
            (int(place[topology.src[e]]), int(place[topology.dst[e]])): topology.gb_per_s(e)
            for e in links.tolist()
        },
        ports=tuple(outward),
    )


def _capability(topology: Topology, boxes: list[_Box], generation: str | None) -> tuple[int | None, str]:
    """Compute capability of the GPUs, and what told it where it is not recorded."""
    recorded = capability_of(topology)
    if generation is not None:
        known = GENERATIONS[generation]
        same = recorded is not None and generation_of_capability(recorded) == generation
        return recorded if same else known, ""
    if recorded is not None:
        return recorded, ""
    rates = {
        sum((rate for (a, _), rate in box.gpu_links.items() if a == rank), Fraction(0))
        for box in boxes
        for rank in box.ranks
    }
    most = max(rates, default=Fraction(0))
    for name, capability in GENERATIONS.items():
        full = constants().most_nvlinks[name]
        if most in {full * nvlink_gb_per_s(capability, rates_class) for rates_class in RateClass}:
            return capability, f"the {float(most):g} GB/s of NVLink of a GPU"
    named = named_generation(topology)
    return (None, "") if named is None else (GENERATIONS[named], "the topology's name")


def _machine(box: _Box, capability: int | None) -> NcclMachine:
    generation = None if capability is None else generation_of_capability(capability)
    nvlinks = box.gpu_links
    factor = Fraction(1) if generation is None else _nvlink_factor(nvlinks, capability or 0, generation)
    within_type = _within_type(box, nvlinks)
    if within_type == "NVL":
        used = {pair: rate * factor for pair, rate in nvlinks.items()}
    else:
        used = {
            pair: rate * factor if pair in nvlinks else _as_reckoned(box, pair, rate)
            for pair, rate in box.links.items()
        }
    switches = box.gpu_switches
    nvswitch = within_type == "NVL" and any(pair[1] in switches for pair in nvlinks)
    within = _ring_rate(box, used)
    path = within
    if within_type == "NVL" and not nvswitch and capability is not None and nvlinks:
        # NCCL tries channels on single links.
        path = min(within, nvlink_gb_per_s(capability, RateClass.MEASURED), min(used.values()))
    nics, across_type = _nearest_nics(box)
    makers = {box.topology.cpu[box.nodes[rank]] for rank in box.ranks} if box.topology.cpu else {None}
    return NcclMachine(
        generation=generation,
        told_by="",
        cpu=makers.pop() if len(makers) == 1 else "mixed",
        nvswitch=nvswitch,
        adds=nvswitch and all(box.adds(place) for place in switches),
        within_gb_per_s=float(within),
        path_gb_per_s=float(path),
        within_type=within_type,
        across_type=across_type,
        nics=len(nics),
        nic_gb_per_s=float(min((rate for _, rate in nics), default=0)),
    )


def _nvlink_factor(nvlinks: dict[tuple[int, int], Fraction], capability: int, generation: str) -> Fraction:
    """What NCCL reckons for a GB/s of these NVLinks: less where their rates are nominal."""
    nominal, measured = (
        nvlink_gb_per_s(capability, rates) for rates in (RateClass.NOMINAL, RateClass.MEASURED)
    )
    most = constants().most_nvlinks[generation]

    def whole(unit: Fraction) -> int:
        counts = [rate / unit for rate in nvlinks.values()]
        return sum(count.denominator == 1 and count <= most for count in counts)

    return measured / nominal if whole(nominal) and whole(nominal) >= whole(measured) else Fraction(1)


def _as_reckoned(box: _Box, pair: tuple[int, int], rate: Fraction) -> Fraction:
    """What NCCL reckons for a link of PCIe; links between sockets have one rate in both classes."""
    sockets = all(box.is_cpu(place) for place in pair)
    return rate * _MEASURED_PCIE if rate in _NOMINAL_PCIE and not sockets else rate


def _ring_rate(box: _Box, links: dict[tuple[int, int], Fraction]) -> Fraction:
    """The least that any set of ranks can send to the others: every ring enters and leaves it once or more."""
    if len(box.ranks) < 2:
        return max(
            sum((rate for (a, _), rate in links.items() if a == rank), Fraction(0)) for rank in box.ranks
        )
    ranks = set(box.ranks)
    topology = Topology.of(
        "box",
        [
            Node(id=str(place), kind=NodeKind.GPU if place in ranks else NodeKind.SWITCH)
            for place in range(len(box.nodes))
        ],
        [Link(src=str(a), dst=str(b), gb_per_s=rate, duplex=False) for (a, b), rate in links.items()],
    )
    try:
        return min(
            bound_of(Problem(topology=topology, collective=each, root=0)).algbw_gb_per_s
            for each in (Collective.BROADCAST, Collective.REDUCE)
        )
    except UnreachableError:  # they meet outside of the box only
        return Fraction(0)


def _within_type(box: _Box, nvlinks: dict[tuple[int, int], Fraction]) -> str:
    """The best class such that paths of it and of better ones join all ranks of a box."""
    switches = box.gpu_switches
    bridges = [
        place
        for place in range(len(box.nodes))
        if place not in switches and box.kind(place) is not NodeKind.GPU
    ]
    cpus = {place for place in bridges if box.is_cpu(place)}
    groups = {place: place for place in range(len(box.nodes))}

    def find(place: int) -> int:
        while groups[place] != place:
            place = groups[place]
        return place

    def joined() -> bool:
        return len({find(rank) for rank in box.ranks}) == 1

    for a, b in nvlinks:
        groups[find(a)] = find(b)
    if joined() or len(box.ranks) == 1:
        return "NVL"
    ranks = set(box.ranks)
    for place in bridges:  # one switch between two GPUs
        if place not in cpus:
            near = [a for a, b in box.links if b == place and a in ranks]
            for a, b in itertools.pairwise(near):
                groups[find(a)] = find(b)
    if joined():
        return "PIX"
    for name, most in (("PXB", 0), ("PHB", 1)):  # through so many CPUs at each end of a link
        for a, b in box.links:
            if len(cpus & {a, b}) <= most:
                groups[find(a)] = find(b)
        if joined():
            return name
    return "SYS"


def _nics(box: _Box) -> list[tuple[int, Fraction]]:
    """Place and rate of each NIC that a rank reaches: a node with all its cables, or a link out of another node."""
    found: list[tuple[int, Fraction]] = []
    own: dict[int, Fraction] = {}
    for place, rate in box.ports:
        if box.kind(place) is NodeKind.NIC:
            own[place] = own.get(place, Fraction(0)) + rate
        elif box.kind(place) is NodeKind.SWITCH or place in box.ranks:
            found.append((place, _nic_rate(rate)))
    for place, rate in own.items():
        into = sum(
            (_as_reckoned(box, pair, r) for pair, r in box.links.items() if pair[1] == place), Fraction(0)
        )
        if into:
            found.append((place, min(_nic_rate(rate), into)))
    return found


def _nic_rate(rate: Fraction) -> Fraction:
    """What NCCL reckons for a NIC: less where its rate is that of its cable."""
    return rate * _MEASURED_NICS if rate in _NOMINAL_NICS else rate


def _nearest_nics(box: _Box) -> tuple[list[tuple[int, Fraction]], str | None]:
    """The NICs whose nearest GPU is nearest, and the class of that path; None where they hang on GPUs themselves.

    NCCL looks for paths of better classes first, and leaves NICs aside that only worse ones reach.
    """
    near: dict[int, list[tuple[int, Fraction]]] = {}
    for nic in _nics(box):
        near.setdefault(_distance(box, nic[0]), []).append(nic)
    if not near:
        return [], None
    best = min(near)
    return near[best], ("", *_CLASSES)[best] or None


def _distance(box: _Box, nic: int) -> int:
    """Class of the path from a NIC, or from where a cable is plugged in, to the GPU nearest to it: 0 without PCIe."""
    if box.kind(nic) is NodeKind.GPU:
        return 0
    switches = box.gpu_switches
    costs = {nic: (int(box.is_cpu(nic)), int(box.kind(nic) is NodeKind.SWITCH))}
    ring = {nic}
    while ring:
        place = min(ring, key=costs.__getitem__)
        ring.remove(place)
        cpus, bridges = costs[place]
        if box.kind(place) is NodeKind.GPU:
            if not bridges:
                return 0
            name = "SYS" if cpus > 1 else "PHB" if cpus else "PXB" if bridges > 1 else "PIX"
            return _CLASSES.index(name) + 1
        for a, b in box.links:
            if a == place and b not in switches:
                bridge = box.kind(b) is not NodeKind.GPU
                cost = (cpus + (bridge and box.is_cpu(b)), bridges + bridge)
                if cost < costs.get(b, (len(box.nodes), 0)):
                    costs[b] = cost
                    ring.add(b)
    return len(_CLASSES)
