"""In-network aggregation on a given topology: where each system's trees lie, and how long an all-reduce takes.

The exact load that one system puts on every link of a cluster, and its time by its closed form. In boxes of several
GPUs the GPUs reduce-scatter first, one head for each part; heads of the same place in all boxes aggregate their part in
the network, each such group along a tree of its own; then the boxes all-gather. Trees are chosen one after the other,
each where the busiest link stays least busy. The rate of a tree is what the busiest link leaves it, with all trees at
once; frames, windows and latencies are those of the system's model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import cbrt, ceil, log2

from coppice.arguments import checked
from coppice.errors import InputError, UnreachableError
from coppice.innetwork.places import ClusterPlaces, places_of
from coppice.innetwork.switch_trees import SwitchTree, SwitchTrees
from coppice.innetwork.systems.estimate import AggregationCase, AggregationEstimate, microseconds
from coppice.innetwork.systems.registry import estimate, named_system
from coppice.simulation.channels import TransportProfile, num_boxes, transport_profiles
from coppice.simulation.models import Model
from coppice.topology.model import Topology
from coppice.topology.routing import Router

__all__ = ["ClusterSystem", "cluster_system"]


_PIPELINED = ("sharp", "sharp-v1", "sharp-v3", "nvls-tree")
"""Systems whose phases inside boxes run at the same time as what is between them; of others they follow each other."""

_MOST_SLOTS = 8192
"""Slots of a switch: SwitchML's, each in two versions."""


@dataclass(frozen=True, kw_only=True)
class ClusterSystem:
    """An in-network aggregation system mapped onto a cluster."""

    system: str  # Its name
    topology: Topology  # The cluster
    load: tuple[Fraction, ...]  # Bytes of values on each link for each byte of the tensor
    phases: Fraction  # Time of the phases inside boxes for each byte, where they stand alone, in 1 / (GB/s)
    busy: Fraction  # Time of the busiest link for each byte while all trees are at work, in 1 / (GB/s)
    heads: int  # Parts that the tensor is cut into
    members: int  # Heads that a tree joins
    trees: tuple[SwitchTree, ...] = ()  # The trees, of each head one; none inside a box and on a torus
    box_messages: int = 0  # Messages inside boxes, one after the other
    network_messages: int = 0  # Messages (round trips to a switch) between boxes, one after the other

    @property
    def inv_rate(self) -> Fraction:
        """Exact lower bound on the time for each byte, in 1 / (GB/s), from the busiest link."""
        return self.phases + self.busy

    @property
    def where(self) -> str:
        """Describe in words where the trees lie."""
        if not self.trees:
            return "inside the box" if self.network_messages == 0 else "along the links of the cluster"
        names = list(dict.fromkeys(self.topology.node_ids[tree.root] for tree in self.trees))
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        several = f"{len(self.trees)} trees around" if len(self.trees) > 1 else "a tree around"
        return f"{several} {', '.join(names[:3])}{more}"

    def time_us(self, size_bytes: int, model: Model) -> float:
        """Time of an all-reduce, with what messages cost at their ends under a model of time.

        Args:
            size_bytes: Bytes of the tensor, 1 or more.
            model: What messages cost: that of the host-based algorithms beside it.
        """
        return min(
            self._on_wire(size_bytes, model, wire) for wire in transport_profiles(model, self.topology)
        )

    def _on_wire(self, size_bytes: int, model: Model, wire: TransportProfile) -> float:
        found = wire.protocol
        latency = max((tree.latency_us for tree in self.trees), default=self._farthest_us())
        if found is None:
            start = model.launch_us
            message = model.overhead_us + model.send_us + model.receive_us
            box = network = message
            network += latency
        else:
            start = model.launch_us + found.start_us
            box, network = found.box_us, max(found.network_us, latency)
        if self.system == "nvls" and num_boxes(self.topology) > 1:
            box = network  # ranks without hosts count as boxes of their own
        wider = wire.expansion / Fraction(str(model.efficiency))
        busy = self.busy * wider
        if wire.gpu_gb_per_s is not None:
            busy = max(busy, self._most_sent() / wire.gpu_gb_per_s)
        before = start + self.box_messages * box + microseconds(size_bytes, 1.0) * float(self.phases * wider)
        if self.system in ("nvls", "nvls-tree", "camdoop"):
            return before + microseconds(size_bytes, 1.0) * float(busy) + self.network_messages * network
        return before + self._across(ceil(size_bytes / self.heads), busy, network).time_us

    def _across(self, size_bytes: int, busy: Fraction, rtt_us: float) -> AggregationEstimate:
        """Time of one head's share between boxes."""
        rate = Fraction(1, self.heads) / busy
        in_flight = rtt_us * float(rate) * 1000
        slots = min(_MOST_SLOTS, ceil(in_flight / 1024) + 2)
        case = AggregationCase(
            workers=self.members,
            gb_per_s=rate,
            rtt_us=rtt_us,
            slots=slots if self.system in ("switchml", "fpisa") else None,
            window=ceil(in_flight / 65536) + 2,
            radix=self.members,
            trees=1,
        )
        return estimate(self.system, case, size_bytes)

    def _most_sent(self) -> Fraction:
        """Largest number of bytes that a GPU sends for each byte of the tensor."""
        sent: dict[int, Fraction] = {}
        for source, load in zip(self.topology.src.tolist(), self.load, strict=True):
            if self.topology.rank[source] >= 0:
                sent[source] = sent.get(source, Fraction(0)) + load
        return max(sent.values(), default=Fraction(0))

    def _farthest_us(self) -> float:
        """Largest latency of a link that is used."""
        return max(
            (late for late, load in zip(self.topology.latency_us.tolist(), self.load, strict=True) if load),
            default=0.0,
        )


@checked
def cluster_system(system: str, topology: Topology) -> ClusterSystem:
    """Map a system onto a cluster; only switches that the topology marks as able reduce and multicast.

    Args:
        system: Name of a system of :data:`coppice.innetwork.systems.SYSTEMS`.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> found = cluster_system("nvls", preset("dgx-h100"))
        >>> found.inv_rate
        Fraction(1, 400)
        >>> cluster_system("switchml", preset("dgx-a100", boxes=2))
        Traceback (most recent call last):
        ...
        coppice.errors.InputError: switchml needs a switch outside boxes that adds and copies; 2 x dgx-a100 has none.
    """
    name = named_system(system)
    places = places_of(topology)
    if topology.num_ranks < 2:
        raise InputError(f"{name} needs 2 ranks or more; {topology.name} has {topology.num_ranks}.")
    if name == "switchagg":
        raise InputError(
            "switchagg hands its sums to one host and does not spread them: it is no all-reduce by itself."
        )
    if name == "netagg":
        raise InputError(
            "netagg needs boxes beside the switches, and nodes of a topology are GPUs, switches and NICs."
        )
    made = {"nvls": _nvls, "nvls-tree": _nvls_tree, "camdoop": _camdoop}.get(name)
    try:
        return _switched(name, places) if made is None else made(places)
    except UnreachableError as error:
        raise InputError(f"{name} finds no way: {error}") from None


def _switched(system: str, places: ClusterPlaces) -> ClusterSystem:
    """Map a system of aggregation trees of switches between boxes."""
    topology = places.topology
    if not places.network:
        raise InputError(
            f"{system} needs a switch outside boxes that adds and copies; {topology.name} has none."
        )
    if len(places.boxes) < 2:
        raise InputError(f"{system} adds between boxes, and all ranks of {topology.name} share one.")
    share = Fraction(1, places.heads)
    phase = places.phase_load()
    pipelined = system in _PIPELINED
    load = [2 * each if pipelined else Fraction(0) for each in phase]
    switches = SwitchTrees(topology, places.network)
    trees = []
    for head in range(places.heads):
        tree = switches.best([box[head] for box in places.boxes], load=load, share=share)
        if tree is None:
            raise InputError(
                f"{system} needs a switch that adds and that all boxes reach; {topology.name} has none."
            )
        for link, count in tree.streams.items():
            load[link] += share * count
        if system == "atp":  # its server is at the first member
            for link in (*tree.first_up, *tree.first_down):
                load[link] += share
        trees.append(tree)
    return ClusterSystem(
        system=system,
        topology=topology,
        load=tuple(load if pipelined else map(_with_phases, load, phase)),
        phases=Fraction(0) if pipelined else 2 * _busiest(topology, phase),
        busy=_busiest(topology, load),
        heads=places.heads,
        members=len(places.boxes),
        trees=tuple(trees),
        box_messages=2 if any(len(box) > 1 for box in places.boxes) else 0,
        network_messages=1,
    )


def _with_phases(tree: Fraction, phase: Fraction) -> Fraction:
    return tree + 2 * phase


def _nvls(places: ClusterPlaces) -> ClusterSystem:
    """Map NVLS onto switches that all ranks are attached to, each with a share by its rate."""
    topology = places.topology
    ranks = topology.rank_nodes.tolist()
    load = [Fraction(0)] * topology.num_links
    _add_nvls(places, ranks, load, "nvls", Fraction(1))
    return ClusterSystem(
        system="nvls",
        topology=topology,
        load=tuple(load),
        phases=Fraction(0),
        busy=_busiest(topology, load),
        heads=1,
        members=len(ranks),
        box_messages=2,
    )


def _nvls_tree(places: ClusterPlaces) -> ClusterSystem:
    """Map NVLSTree: NVLS in each box, and a double binary tree of boxes for each head."""
    topology, boxes = places.topology, places.boxes
    sizes = sorted({len(box) for box in boxes})
    if len(boxes) < 2 or sizes != [places.heads] or places.heads < 2:
        found = "one box" if len(boxes) < 2 else f"boxes of {' and '.join(map(str, sizes))} GPUs"
        raise InputError(
            f"nvls-tree needs several boxes of as many GPUs each, 2 or more; {topology.name} has {found}."
        )
    load = [Fraction(0)] * topology.num_links
    for box in boxes:
        _add_nvls(places, box, load, "nvls-tree", Fraction(1))
    router, index = Router(topology), topology.link_index
    half = Fraction(1, 2 * places.heads)
    for head in range(places.heads):
        for child, parent in _double_tree(len(boxes)):
            for a, b in ((child, parent), (parent, child)):
                path = router.node_path(boxes[a][head], boxes[b][head])
                for here, there in pairwise(path):
                    load[index[here, there]] += half
    return ClusterSystem(
        system="nvls-tree",
        topology=topology,
        load=tuple(load),
        phases=Fraction(0),
        busy=_busiest(topology, load),
        heads=places.heads,
        members=len(boxes),
        box_messages=2,
        network_messages=2 * ceil(log2(len(boxes))),
    )


def _camdoop(places: ClusterPlaces) -> ClusterSystem:
    """Map Camdoop's six trees onto a 3D torus of GPUs: a third of the tensor on every link."""
    topology = places.topology
    ranks = topology.rank_nodes.tolist()
    side = round(cbrt(len(ranks)))
    wanted = {
        (ranks[a], ranks[b])
        for a in range(side**3)
        for b in _torus_neighbours(a, side)
        if side >= 3 and side**3 == len(ranks)
    }
    if not wanted or wanted != set(topology.link_index):
        raise InputError(
            f"camdoop needs a 3D torus of as many GPUs each way, 3 or more; {topology.name} is none."
        )
    load = (Fraction(1, 3),) * topology.num_links
    return ClusterSystem(
        system="camdoop",
        topology=topology,
        load=load,
        phases=Fraction(0),
        busy=_busiest(topology, load),
        heads=1,
        members=len(ranks),
        network_messages=6 * (side - 1),
    )


def _add_nvls(
    places: ClusterPlaces, group: Sequence[int], load: list[Fraction], system: str, share: Fraction
) -> None:
    """Add the load of NVLS in one group to the links."""
    topology, index = places.topology, places.topology.link_index
    widths = {
        v: min(topology.gb_per_s(index[way]) for g in group for way in ((g, v), (v, g)))
        for v in places.joining(group)
    }
    if not widths:
        within = "of a box " if system == "nvls-tree" else ""
        raise InputError(
            f"{system} needs a switch that adds and copies and that all GPUs {within}hang on directly; "
            f"{topology.name} has none."
        )
    each = share * (1 + Fraction(1, len(group))) / sum(widths.values())
    for v, width in widths.items():
        for g in group:
            load[index[g, v]] += each * width
            load[index[v, g]] += each * width


def _torus_neighbours(rank: int, side: int) -> list[int]:
    place = [rank // side**2, rank // side % side, rank % side]
    found = []
    for axis in range(3):
        for step in (1, -1):
            other = list(place)
            other[axis] = (other[axis] + step) % side
            found.append((other[0] * side + other[1]) * side + other[2])
    return found


def _double_tree(count: int) -> list[tuple[int, int]]:
    """Pairs (child, parent) of two binary trees; an inner box of one is a leaf of the other, but for one box.

    >>> _double_tree(2)
    [(1, 0), (0, 1)]
    """

    def parent(place: int) -> int:
        low = place & -place
        up = (place ^ low) | (low << 1)
        return up if up < count else place ^ low

    first = [(place, parent(place)) for place in range(1, count)]
    if count % 2:
        second = [((a + 1) % count, (b + 1) % count) for a, b in first]
    else:
        second = [(count - 1 - a, count - 1 - b) for a, b in first]
    return first + second


def _busiest(topology: Topology, load: Sequence[Fraction]) -> Fraction:
    """Time of the busiest link for each byte."""
    return max(
        (each / topology.gb_per_s(link) for link, each in enumerate(load) if each), default=Fraction(0)
    )
