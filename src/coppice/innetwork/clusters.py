"""In-network aggregation on a given topology: where each system's trees lie, and how long an all-reduce takes.

Aggregation trees of switches on a topology (reduce up, multicast down), and their load on each link. Members send
towards a root along the fewest hops (then the widest links); the union of their paths is a tree. A switch that adds
sends one stream up, any other one passes on all that it gets. The root holds the sum. On the way down a switch that
copies gets one stream for all that is below it; what is below others comes in a stream of its own for each member, or
each copying switch, from the nearest switch above that can copy.

The exact load that one system puts on every link of a cluster, and its time by its closed form. In boxes of several
GPUs the GPUs reduce-scatter first, one head for each part; heads of the same place in all boxes aggregate their part in
the network, each such group along a tree of its own; then the boxes all-gather. Trees are chosen one after the other,
each where the busiest link stays least busy. The rate of a tree is what the busiest link leaves it, with all trees at
once; frames, windows and latencies are those of the system's model.

What a system needs of a cluster is which ranks share a box, and which switches can add.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from fractions import Fraction
from itertools import pairwise
from math import cbrt, ceil, log2

import numpy as np

from coppice.arguments import checked
from coppice.errors import InputError, UnreachableError
from coppice.innetwork.systems.estimate import AggregationCase, AggregationEstimate, microseconds
from coppice.innetwork.systems.registry import estimate, named_system
from coppice.simulation.channels import TransportProfile, num_boxes, transport_profiles
from coppice.simulation.models import Model
from coppice.topology.model import NodeKind, Topology
from coppice.topology.routing import Router

__all__ = ["ClusterSystem", "cluster_system"]


@dataclass(frozen=True, kw_only=True)
class SwitchTree:
    """An aggregation tree for one group of members."""

    root: int  # Node of the switch that holds the sum
    members: tuple[int, ...]  # Nodes that contribute and get the sum
    streams: Mapping[int, int]  # Streams of the tensor on each link that has any, up and down together
    latency_us: float  # Latency of the links from the farthest member to the root and back
    tiers: int  # Adding switches on the longest way up
    # For each node that streams pass on the way up, but the root, the next adding switch on its way
    above: Mapping[int, int]
    first_up: tuple[int, ...]  # Links from the first member to the root
    first_down: tuple[int, ...]  # Links from the root to the first member


class SwitchTrees:
    """The aggregation trees that a topology allows.

    Args:
        topology: The network.
        adding: Nodes of switches that add and copy.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> star = preset("star", gpus=4)
        >>> tree = SwitchTrees(star, [4]).tree(4, [0, 1, 2, 3])
        >>> sorted(set(tree.streams.values())), tree.tiers, tree.above
        ([1], 1, {0: 4, 1: 4, 2: 4, 3: 4})
    """

    def __init__(self, topology: Topology, adding: Collection[int]) -> None:
        self.topology = topology
        self.adding = frozenset(adding)
        self._forwards = (topology.rank < 0).tolist()
        ends = list(
            zip(topology.src.tolist(), topology.dst.tolist(), topology.capacity.tolist(), strict=True)
        )
        self._into: list[list[tuple[int, int, int]]] = [[] for _ in range(topology.num_nodes)]
        self._out: list[list[tuple[int, int, int]]] = [[] for _ in range(topology.num_nodes)]
        for link, (a, b, capacity) in enumerate(ends):
            self._into[b].append((a, capacity, link))
            self._out[a].append((b, capacity, link))
        self._found: dict[int, tuple[list[int], list[int]]] = {}

    def tree(self, root: int, members: Sequence[int]) -> SwitchTree:
        """Build the tree of some members around a root.

        Args:
            members: Nodes that contribute, the first one a server's where there is one.
        """
        if root not in self._found:
            self._found[root] = self._links_from(root, self._into), self._links_from(root, self._out)
        to_root, from_root = self._found[root]
        streams: dict[int, int] = {}
        up, tiers = self._streams(members, root, to_root, self.topology.dst)
        down, _ = self._streams(members, root, from_root, self.topology.src)
        for part in (up, down):
            for link, count in part.items():
                streams[link] = streams.get(link, 0) + count
        latency: list[float] = self.topology.latency_us.tolist()

        def longest(links: list[int], ends: Sequence[int]) -> float:
            return max(sum(latency[link] for link in self._way(v, root, links, ends)) for v in members)

        sources, targets = self.topology.src.tolist(), self.topology.dst.tolist()
        return SwitchTree(
            root=root,
            members=tuple(members),
            streams=streams,
            latency_us=longest(to_root, targets) + longest(from_root, sources),
            tiers=tiers,
            above=self._above(members, root, to_root, targets),
            first_up=tuple(self._way(members[0], root, to_root, targets)),
            first_down=tuple(self._way(members[0], root, from_root, sources)),
        )

    def best(self, members: Sequence[int], *, load: Sequence[Fraction], share: Fraction) -> SwitchTree | None:
        """Choose the tree with the least busy busiest link on top of a given load; None where no tree exists.

        Of equal ones the tree with fewer streams, less latency, the first root.

        Args:
            load: Bytes on each link for each byte of the tensor.
            share: Part of the tensor that the tree carries.
        """
        best: tuple[tuple[Fraction, int, float, int], SwitchTree] | None = None
        for root in sorted(self.adding):
            try:
                tree = self.tree(root, members)
            except UnreachableError:
                continue
            busiest = max(
                ((load[e] + share * count) / self.topology.gb_per_s(e) for e, count in tree.streams.items()),
                default=Fraction(0),
            )
            key = (busiest, sum(tree.streams.values()), tree.latency_us, root)
            if best is None or key < best[0]:
                best = key, tree
        return None if best is None else best[1]

    def _links_from(self, root: int, beside: list[list[tuple[int, int, int]]]) -> list[int]:
        """For each node its link on the way to (or from) the root: fewest hops, then widest, then first; -1 without."""
        nodes = self.topology.num_nodes
        hops, width, link = [-1] * nodes, [0] * nodes, [-1] * nodes
        hops[root], width[root] = 0, 2**63
        waiting = deque([root])
        while waiting:
            here = waiting.popleft()
            if here != root and not self._forwards[here]:
                continue
            for there, capacity, number in beside[here]:
                through = min(width[here], capacity)
                if hops[there] < 0:
                    hops[there] = hops[here] + 1
                    waiting.append(there)
                if hops[there] == hops[here] + 1 and through > width[there]:
                    width[there], link[there] = through, number
        return link

    def _way(self, member: int, root: int, link: list[int], ends: Sequence[int]) -> list[int]:
        """Path between a member and the root."""
        way, here = [], member
        while here != root:
            number = link[here]
            if number < 0:
                names = self.topology.node_ids
                raise UnreachableError(
                    f"no path of switches and NICs joins {names[member]} and {names[root]}."
                )
            way.append(number)
            here = int(ends[number])
        return way

    def _above(
        self, members: Sequence[int], root: int, link: list[int], ends: Sequence[int]
    ) -> dict[int, int]:
        """The next adding switch of every node on the paths of the members."""
        found: dict[int, int] = {}
        for member in members:
            way = [member, *(int(ends[number]) for number in self._way(member, root, link, ends))]
            following = root
            for node, after in reversed(list(pairwise(way))):
                following = after if after in self.adding else following
                found[node] = following
        return found

    def _streams(
        self, members: Sequence[int], root: int, link: list[int], ends: np.ndarray
    ) -> tuple[dict[int, int], int]:
        """Streams on each link of the tree, and the largest number of adding switches on a path."""
        others = ends.tolist()
        ways = [self._way(v, root, link, others) for v in members]
        below: dict[int, int] = {}
        depth: dict[int, int] = {}
        for member, way in zip(members, ways, strict=True):
            below[member] = 1
            for position, number in enumerate(way):
                node = int(others[number])
                depth[node] = len(way) - position - 1
        depth.update({member: len(way) for member, way in zip(members, ways, strict=True)})
        for node in sorted(depth, key=lambda each: (-depth[each], each)):
            if node == root:
                continue
            count = 1 if node in self.adding else below.get(node, 0)
            other = int(others[link[node]])
            below[other] = below.get(other, 0) + count
        streams = {link[node]: 1 if node in self.adding else below[node] for node in depth if node != root}
        tiers = max(sum(int(others[number]) in self.adding for number in way) for way in ways)
        return streams, tiers


@dataclass(frozen=True, kw_only=True)
class ClusterPlaces:
    """Boxes and switches of a cluster."""

    topology: Topology  # The cluster
    # Nodes of the ranks of each box, in order of ranks; ranks without a host are boxes of their own
    boxes: tuple[tuple[int, ...], ...]
    # Ranks of a box that exchange its part of the tensor with other boxes: as many as the smallest box has
    heads: int
    network: tuple[int, ...]  # Switches outside boxes that add and copy
    # Switches that add and copy and that all ranks of one box, or of all, hang on directly
    inside: tuple[int, ...]

    def joining(self, group: Sequence[int]) -> tuple[int, ...]:
        """Switches among :attr:`inside` that all of some ranks hang on."""
        return tuple(v for v in self.inside if _joins(self.topology, v, group))

    def phase_load(self) -> list[Fraction]:
        """Bytes on each link per byte of the tensor when every box reduces to its heads; broadcasts take as many."""
        load = [Fraction(0)] * self.topology.num_links
        router, index = Router(self.topology), self.topology.link_index
        for box in self.boxes:
            for head in box[: self.heads]:
                for other in box:
                    if other != head:
                        path = router.node_path(other, head)
                        for a, b in pairwise(path):
                            load[index[a, b]] += Fraction(1, self.heads)
        return load


def with_adding(topology: Topology, pattern: str) -> Topology:
    """Mark the switches outside boxes that a pattern names as able to reduce and multicast, and no others.

    Args:
        pattern: Names of switches, such as ``spine*``; several with ``+`` between them.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> found = with_adding(preset("fat-tree"), "spine*")
        >>> [found.node_ids[v] for v in np.flatnonzero(found.aggregate & found.multicast)]
        ['spine0', 'spine1']
    """
    patterns = [each.strip() for each in pattern.split("+")]
    outside = (topology.kind == NodeKind.SWITCH) & (topology.host < 0)
    named = outside & np.array(
        [any(fnmatchcase(name, each) for each in patterns) for name in topology.node_ids], dtype=np.bool_
    )
    if not named.any():
        names = [topology.node_ids[v] for v in np.flatnonzero(outside).tolist()]
        known = f"has {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}" if names else "has none"
        raise InputError(
            f"expected names of switches outside boxes, found {pattern!r}: {topology.name} {known}."
        )
    return replace(
        topology,
        aggregate=np.where(outside, named, topology.aggregate),
        multicast=np.where(outside, named, topology.multicast),
    )


def places_of(topology: Topology) -> ClusterPlaces:
    """Boxes and switches of a cluster.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> places = places_of(preset("dgx-h100", boxes=2))
        >>> len(places.boxes), places.heads, places.network, len(places.inside)
        (2, 8, (), 2)
    """
    ranks = topology.rank_nodes.tolist()
    by_host: dict[int, list[int]] = {}
    for position, node in enumerate(ranks):
        host = int(topology.host[node])
        by_host.setdefault(host if host >= 0 else -1 - position, []).append(node)
    boxes = tuple(tuple(each) for each in by_host.values())
    able = (topology.kind == NodeKind.SWITCH) & topology.aggregate & topology.multicast
    groups = (*boxes, tuple(ranks))
    return ClusterPlaces(
        topology=topology,
        boxes=boxes,
        heads=min(map(len, boxes)),
        network=tuple(np.flatnonzero(able & (topology.host < 0)).tolist()),
        inside=tuple(
            v
            for v in np.flatnonzero(able).tolist()
            if any(len(group) > 1 and _joins(topology, v, group) for group in groups)
        ),
    )


def _joins(topology: Topology, switch: int, group: Sequence[int]) -> bool:
    """Whether GPUs are attached to a switch directly, one of their box where they have boxes."""
    index = topology.link_index
    if topology.host[switch] < 0 and any(topology.host[g] >= 0 for g in group):
        return False
    return all((g, switch) in index and (switch, g) in index for g in group)


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
