"""Assign every node of a topology to its box and layer, and fold large topologies.

Folded are, the first of these that makes the drawing small enough: the nodes of a box that are alike; boxes (or leaf
switches with their GPUs) that are alike and hang from the same switches; both; boxes that are alike wherever they hang,
and the switches of the network that are alike; these and the nodes of a box; at last whatever is of one kind. Nodes on
two sides of a cut, or lost ones, are never alike.

Assign every node of a topology to its box, or the network, and to the layer of its kind. A topology says of a node only
that it is a GPU, a NIC or a switch. What kind of switch one is, is read from its name where a usual one, otherwise from
its links: an NVSwitch joins GPUs and nothing else, a PCIe switch has GPUs or NICs below it, a CPU joins switches.
"""

from __future__ import annotations

import enum
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from coppice.text import plural
from coppice.topology.model import NodeKind, Topology


class Layer(enum.IntEnum):
    """Layers of a box, from the network inwards."""

    SWITCH = 0
    NIC = 1
    NIC_PCIE = 2  # PCIe switches that only NICs are behind
    CPU = 3
    PCIE = 4
    GPU = 5
    NVSWITCH = 6


CAPTIONS = {
    Layer.SWITCH: "switches",
    Layer.NIC: "NICs",
    Layer.NIC_PCIE: "PCIe switches",
    Layer.CPU: "CPUs",
    Layer.PCIE: "PCIe switches",
    Layer.GPU: "GPUs",
    Layer.NVSWITCH: "NVSwitches",
}

NO_BOX = -1
NETWORK = -2
"""Groups of nodes that are in no box: GPUs on their own, and the switches and NICs between boxes."""

_WORDS = (
    (re.compile("nvs|nvlink", re.IGNORECASE), Layer.NVSWITCH),
    (re.compile("pci|plx|pex", re.IGNORECASE), Layer.PCIE),
    (re.compile("cpu|numa|socket|root", re.IGNORECASE), Layer.CPU),
)


@dataclass(frozen=True, slots=True)
class NodeRow:
    """Layer of a node, and its level in it: larger ones are further from what the layer hangs from."""

    layer: Layer
    level: int = 0


@dataclass(frozen=True, slots=True)
class Structure:
    """Groups and layers of all nodes."""

    near: list[list[int]]  # Nodes linked with each node, in either direction, ascending
    group: list[int]  # Number of the box of each node, NO_BOX, or NETWORK
    names: dict[int, str]  # Name of each box
    row: dict[int, NodeRow]  # Layer of each node that is not of the network
    level: dict[int, int]  # Level of each node of the network: 1 is next to the boxes


def structure_of(topology: Topology) -> Structure:
    """Find boxes, kinds of switches and levels of the network.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> boxes = preset("dgx-a100-pcie", boxes=2)
        >>> found = structure_of(boxes)
        >>> [found.row[boxes.node_index[f"box0/{name}"]].layer.name for name in ("nvswitch", "pcie0", "cpu0", "nic0")]
        ['NVSWITCH', 'PCIE', 'CPU', 'NIC']
    """
    near = _neighbours(topology)
    hosts = topology.host.tolist()
    members: dict[int, list[int]] = defaultdict(list)
    for node, host in enumerate(hosts):
        members[host].append(node)
    boxes = {host for host, nodes in members.items() if host >= 0 and len(nodes) > 1}
    gpu = (topology.kind == NodeKind.GPU).tolist()
    group = [host if host in boxes else NO_BOX if gpu[node] else NETWORK for node, host in enumerate(hosts)]
    row: dict[int, NodeRow] = {}
    for host in boxes:
        row |= _rows_of_box(topology, near, members[host])
    row |= {v: NodeRow(Layer.GPU) for v, each in enumerate(group) if each == NO_BOX}
    names = {host: topology.hosts[host] for host in sorted(boxes)}
    return Structure(near, group, names, row, _network_levels(near, group))


def _neighbours(topology: Topology) -> list[list[int]]:
    near: list[set[int]] = [set() for _ in range(topology.num_nodes)]
    for a, b in zip(topology.src.tolist(), topology.dst.tolist(), strict=True):
        near[a].add(b)
        near[b].add(a)
    return [sorted(each) for each in near]


def _rows_of_box(
    topology: Topology, near: Sequence[Sequence[int]], nodes: Sequence[int]
) -> dict[int, NodeRow]:
    """The layer of every node of a box."""
    inside = set(nodes)
    kind = {v: NodeKind(int(topology.kind[v])) for v in nodes}
    gpus = [v for v in nodes if kind[v] is NodeKind.GPU]
    nics = [v for v in nodes if kind[v] is NodeKind.NIC]
    layer = dict.fromkeys(gpus, Layer.GPU) | dict.fromkeys(nics, Layer.NIC)
    for v in nodes:
        if kind[v] is NodeKind.SWITCH:
            layer[v] = _kind_of_switch(topology.node_ids[v].rpartition("/")[2], near[v], kind, inside)
    row = {v: NodeRow(each) for v, each in layer.items()}
    pcie = {v for v in nodes if layer[v] is Layer.PCIE}
    from_gpus = _distances(near, gpus, pcie)
    row |= {v: NodeRow(Layer.PCIE, level) for v, level in from_gpus.items()}
    from_nics = _distances(near, nics, pcie - from_gpus.keys())
    row |= {v: NodeRow(Layer.NIC_PCIE, from_nics.get(v, 1)) for v in pcie - from_gpus.keys()}
    for name in (Layer.NVSWITCH, Layer.SWITCH):
        of_kind = {v for v in nodes if layer[v] is name}
        found = _distances(near, inside - of_kind, of_kind)
        row |= {v: NodeRow(name, found.get(v, 1)) for v in of_kind}
    return row


def _kind_of_switch(
    name: str, near: Collection[int], kind: Mapping[int, NodeKind], inside: Collection[int]
) -> Layer:
    """What a switch is by its name, else by what it joins."""
    for words, layer in _WORDS:
        if words.search(name):
            return layer
    if any(w not in inside for w in near):
        return Layer.SWITCH
    joined = {kind[w] for w in near}
    if joined == {NodeKind.GPU}:
        return Layer.NVSWITCH
    return Layer.PCIE if joined & {NodeKind.GPU, NodeKind.NIC} else Layer.CPU


def _distances(
    near: Sequence[Sequence[int]], start: Iterable[int], through: Collection[int]
) -> dict[int, int]:
    """Hops from any of ``start`` to each of ``through``, over nothing else."""
    hops = dict.fromkeys(start, 0)
    queue = list(hops)
    for v in queue:
        for w in near[v]:
            if w in through and w not in hops:
                hops[w] = hops[v] + 1
                queue.append(w)
    return {v: count for v, count in hops.items() if v in through}


def _network_levels(near: Sequence[Sequence[int]], group: Sequence[int]) -> dict[int, int]:
    """Nodes of the network by their distance from what is not of it."""
    network = {v for v, each in enumerate(group) if each == NETWORK}
    found = _distances(near, [v for v in range(len(group)) if v not in network], network)
    top = max(found.values(), default=0) + 1
    return {v: found.get(v, top) for v in sorted(network)}


MOST_NODES = 100
"""Topologies of fewer nodes are drawn whole."""

MOST_FRAMES = 12
"""Boxes of a folded drawing."""


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """A node of the drawing, which stands for one or several that are alike."""

    members: tuple[int, ...]  # Nodes of the topology, ascending; the first one is the example
    group: int  # Its box, NO_BOX or NETWORK
    row: NodeRow | None  # Its layer; None in the network
    level: int  # Its level in the network; 0 elsewhere
    label: str  # What is written in it


@dataclass(frozen=True, slots=True)
class DrawnGraph:
    """What is drawn."""

    nodes: tuple[DrawnNode, ...]
    frames: Mapping[int, str]  # Name of each box
    stacked: frozenset[int]  # Boxes that stand for several
    links: Mapping[tuple[int, int], tuple[tuple[int, int], ...]]  # Links of the topology of each drawn line
    drawn: tuple[int, ...]  # The drawn node of each node of the topology
    folded: tuple[str, ...]  # What stands as one, in words


def fold(topology: Topology, structure: Structure, marks: Sequence[Hashable]) -> DrawnGraph:
    """Choose what is drawn.

    Args:
        marks: For each node what sets it apart from others of its kind, such as its side of a cut.
    """
    if topology.num_nodes < MOST_NODES:
        return _graph(topology, structure, {v: v for v in range(topology.num_nodes)}, {}, "box")
    with_leaves, word = _leaf_groups(topology, structure)
    alike = _Alike(topology, with_leaves, marks)
    for stage in (alike.in_boxes, alike.boxes, alike.both, alike.anywhere, alike.all_anywhere):
        key, box_of = stage()
        frames = len(set(box_of.values()))
        if len(set(key.values())) < MOST_NODES and frames <= MOST_FRAMES:
            return _graph(topology, with_leaves, key, box_of, word)
    key, box_of = alike.kinds()
    return _graph(topology, with_leaves, key, box_of, word)


def part_of(topology: Topology, structure: Structure, nodes: Sequence[int]) -> DrawnGraph:
    """Some nodes of a topology, each by itself."""
    return _graph(topology, structure, {v: v for v in nodes}, {}, "box")


_Key = dict[int, Hashable]
_Fold = tuple[_Key, dict[int, Hashable]]
"""What each node, and each box, stands together with."""


class _Alike:
    """Nodes and boxes that are alike, more and more broadly."""

    def __init__(self, topology: Topology, structure: Structure, marks: Sequence[Hashable]) -> None:
        self.structure = structure
        self.marks = marks
        self.kind = topology.kind.tolist()
        self.rate = {pair: int(topology.capacity[e]) for pair, e in topology.link_index.items()}
        self.looks = [self._looks(v) for v in range(topology.num_nodes)]
        self.members: dict[int, list[int]] = defaultdict(list)
        for v, group in enumerate(structure.group):
            if group >= 0:
                self.members[group].append(v)

    def _role(self, v: int) -> tuple[Hashable, ...]:
        where = self.structure.row.get(v, self.structure.level.get(v))
        return self.kind[v], str(where), self.marks[v]

    def _looks(self, v: int) -> Hashable:
        """Kind of a node and of its neighbours."""
        group = self.structure.group
        around = Counter(
            (self._role(w), self.rate.get((v, w)), self.rate.get((w, v)), group[v] == group[w])
            for w in self.structure.near[v]
        )
        return self._role(v), frozenset(around.items())

    def in_boxes(self) -> _Fold:
        """Nodes of a box that are alike, and GPUs alike at the same switch."""
        return self._fold({box: box for box in self.members}, each=False, network=False)

    def boxes(self) -> _Fold:
        """Boxes that are alike and hang from the same switches."""
        return self._fold(self._boxes_by(hanging=True), each=True, network=False)

    def both(self) -> _Fold:
        """Such boxes, and the nodes in them."""
        return self._fold(self._boxes_by(hanging=True), each=False, network=False)

    def anywhere(self) -> _Fold:
        """Boxes that are alike, and switches of the network that are alike."""
        return self._fold(self._boxes_by(hanging=False), each=True, network=True)

    def all_anywhere(self) -> _Fold:
        """Such boxes and switches, and the nodes in boxes."""
        return self._fold(self._boxes_by(hanging=False), each=False, network=True)

    def kinds(self) -> _Fold:
        """Whatever is of one kind."""
        group = self.structure.group
        key: _Key = {v: (min(g, 0), self._role(v)) for v, g in enumerate(group)}
        return key, dict.fromkeys(self.members, 0)

    def _boxes_by(self, *, hanging: bool) -> dict[int, Hashable]:
        """For each box what it has in common with others."""
        group, near = self.structure.group, self.structure.near
        found: dict[int, Hashable] = {}
        for box, nodes in self.members.items():
            signature = frozenset(Counter(self.looks[v] for v in nodes).items())
            outside = frozenset(w for v in nodes for w in near[v] if group[w] != box) if hanging else None
            found[box] = (signature, outside)
        return found

    def _fold(self, boxes: dict[int, Hashable], *, each: bool, network: bool) -> _Fold:
        """A key for each node, given those of boxes.

        Args:
            each: Nodes of boxes stand with the same node of the other boxes, not with others of their box.
            network: Nodes of the network that are alike stand together.
        """
        key: _Key = {}
        for v, group in enumerate(self.structure.group):
            if group == NETWORK:
                key[v] = (NETWORK, self.looks[v]) if network else v
            elif group == NO_BOX:
                key[v] = (NO_BOX, self.looks[v], None if network else tuple(self.structure.near[v]))
        for box, nodes in self.members.items():
            count: Counter[Hashable] = Counter()
            for v in nodes:
                look = self.looks[v]
                key[v] = (boxes[box], look, count[look] if each else 0)
                count[look] += 1
        return key, boxes


def _leaf_groups(topology: Topology, structure: Structure) -> tuple[Structure, str]:
    """Switches with the GPUs that have no other neighbour, as boxes, where there are several and no boxes."""
    if structure.names:
        return structure, "box"
    below: dict[int, list[int]] = defaultdict(list)
    for v, each in enumerate(structure.group):
        if each == NO_BOX and len(structure.near[v]) == 1:
            (leaf,) = structure.near[v]
            if structure.group[leaf] == NETWORK:
                below[leaf].append(v)
    leaves = {leaf: gpus for leaf, gpus in below.items() if len(gpus) > 1}
    if len(leaves) < 2:
        return structure, "box"
    group, row, level = list(structure.group), dict(structure.row), dict(structure.level)
    names = {}
    for number, (leaf, gpus) in enumerate(sorted(leaves.items())):
        names[number] = topology.node_ids[leaf]
        for v in (leaf, *gpus):
            group[v] = number
        row[leaf] = NodeRow(Layer.SWITCH)
        del level[leaf]
    least = min(level.values(), default=1) - 1
    level = {v: height - least for v, height in level.items()}
    return replace(structure, group=group, names=names, row=row, level=level), "group"


def _graph(
    topology: Topology,
    structure: Structure,
    key: Mapping[int, Hashable],
    box_of: Mapping[int, Hashable],
    word: str,
) -> DrawnGraph:
    """The drawing in which nodes of one key stand as one."""
    number_of: dict[Hashable, int] = {}
    members: list[list[int]] = []
    drawn = [-1] * topology.num_nodes
    for v in sorted(key):
        number = number_of.setdefault(key[v], len(members))
        if number == len(members):
            members.append([])
        members[number].append(v)
        drawn[v] = number
    boxes: dict[Hashable, list[int]] = defaultdict(list)
    for box in structure.names:
        boxes[box_of.get(box, box)].append(box)
    first = {box: alike[0] for alike in boxes.values() for box in alike}
    frames = {
        alike[0]: structure.names[alike[0]]
        if len(alike) == 1
        else f"{plural(len(alike), word)} like {structure.names[alike[0]]}"
        for alike in boxes.values()
    }
    count = {alike[0]: len(alike) for alike in boxes.values()}
    nodes = []
    for each in members:
        box = first.get(structure.group[each[0]], structure.group[each[0]])
        number = len(each) // count.get(box, 1)
        label = _label(topology, structure, each[0], number if len(each) > 1 else 1)
        nodes.append(
            DrawnNode(
                members=tuple(each),
                group=box,
                row=structure.row.get(each[0]),
                level=structure.level.get(each[0], 0),
                label=label,
            )
        )
    links: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for a, b in topology.link_index:
        i, j = sorted((drawn[a], drawn[b]))
        if i != j and i >= 0:
            links[i, j].append((a, b))
    folded = []
    if len(nodes) < len(key):
        folded = [f"what is alike stands as one, {len(nodes)} for {len(key):,} nodes"]
    return DrawnGraph(
        nodes=tuple(nodes),
        frames=frames,
        stacked=frozenset(box for box, alike in count.items() if alike > 1),
        links={pair: tuple(each) for pair, each in links.items()},
        drawn=tuple(drawn),
        folded=tuple(folded),
    )


def _label(topology: Topology, structure: Structure, v: int, count: int) -> str:
    """What is written in a node: how many it stands for, or its name in its box."""
    if count > 1:
        row = structure.row.get(v)
        if row is not None:
            return f"{count:,} {CAPTIONS[row.layer]}"
        return f"{count:,} {'NICs' if topology.kind[v] == NodeKind.NIC else 'switches'}"
    name = topology.node_ids[v]
    if topology.host[v] < 0:
        return name
    # The only node of a host stands for it.
    host = topology.hosts[topology.host[v]]
    return name.rpartition("/")[2] if structure.names.get(structure.group[v]) == host else host
