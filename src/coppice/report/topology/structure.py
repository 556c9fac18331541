"""Assign every node of a topology to its box, or the network, and to the layer of its kind.

A topology says of a node only that it is a GPU, a NIC or a switch. What kind of switch one is, is read from its name
where a usual one, otherwise from its links: an NVSwitch joins GPUs and nothing else, a PCIe switch has GPUs or NICs
below it, a CPU joins switches.
"""

from __future__ import annotations

import enum
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

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
