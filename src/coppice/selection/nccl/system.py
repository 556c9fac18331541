"""NCCL's system graph: nodes and links of a machine, as ``src/graph/topo.cc`` of NCCL 2.30 builds them.

Every GPU is a device (its chip) with a rank on it; links of a node are kept by falling rate, as NCCL's searches try
them in this order.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from coppice.selection.nccl.machine import (
    NVSWITCH,
    PROCESSOR,
    HostMachine,
    MachineGpu,
    Nic,
    Part,
    PluginPort,
)

LOCAL_GB_PER_S = 5000.0
"""Rate between a chip and what is on it."""
MOST_CHANNELS = 64
"""Channels of a kernel at most."""


class SystemKind(enum.IntEnum):
    """Kinds of nodes, with NCCL's numbers for those that a search uses."""

    GPU = 0
    PCI = 1
    NVS = 2
    CPU = 3
    NIC = 4
    NET = 5
    DEV = 6


class PathType(enum.IntEnum):
    """Classes of paths from the best to the worst; links have those of them that a single link can be."""

    LOC = 0
    NVL = 1
    NVB = 2
    C2C = 3
    PIX = 4
    PXB = 5
    P2C = 6
    PXN = 7
    PHB = 8
    SYS = 9
    NET = 10
    DIS = 11


LINK_PCI = PathType.PIX
"""Class of a PCIe link."""


@dataclass(eq=False, slots=True)
class SystemLink:
    """A link out of a node."""

    kind: PathType
    to: SystemNode
    gb_per_s: float
    id: int = -1  # Number among all links, once the graph is complete


@dataclass(eq=False, slots=True)
class Path:
    """Best path from a node to another one."""

    kind: PathType = PathType.DIS
    gb_per_s: float = 0.0
    links: list[SystemLink] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class SystemNode:
    """A node of the graph."""

    kind: SystemKind
    index: int  # Number among the nodes of its kind
    key: str
    links: list[SystemLink] = field(default_factory=list)
    paths: dict[SystemKind, list[Path]] = field(
        default_factory=dict
    )  # To all nodes of a kind, by their numbers
    gpu: MachineGpu | None = None  # For GPUs and their chips
    rank: int = -1  # For GPUs: number among the ranks of the machine
    parent: SystemNode | None = None  # For GPUs: their chip
    port: PluginPort | None = None  # For network ports
    asic: str = ""  # For network ports: identity of the NIC
    local_gpu: int = -1  # For network ports: the GPU that they serve first
    local_nets: list[int] | None = None  # For GPUs: the ports that they use, once these are known
    maker: str | None = None  # For processors

    @property
    def described(self) -> MachineGpu:
        """The GPU of a GPU or chip."""
        assert self.gpu is not None
        return self.gpu

    @property
    def net(self) -> PluginPort:
        """The port of a network port."""
        assert self.port is not None
        return self.port


@dataclass(eq=False)
class System:
    """The graph of the ranks that reach each other inside a machine."""

    nodes: dict[SystemKind, list[SystemNode]]
    several: bool = False  # More ranks than these take part
    most_gb_per_s: float = 0.0  # Best path of a chip to another one, or to the network
    total_gb_per_s: float = 0.0  # All NVLinks of a chip, or its PCIe

    @property
    def gpus(self) -> list[SystemNode]:
        """GPUs."""
        return self.nodes[SystemKind.GPU]

    @property
    def nets(self) -> list[SystemNode]:
        """Network ports."""
        return self.nodes[SystemKind.NET]

    @property
    def least_capability(self) -> int:
        """Lowest compute capability of the chips, times ten."""
        return min(dev.described.capability for dev in self.nodes[SystemKind.DEV])

    @property
    def most_capability(self) -> int:
        """Highest compute capability of the chips, times ten."""
        return max(dev.described.capability for dev in self.nodes[SystemKind.DEV])

    @property
    def maker(self) -> str | None:
        """Maker of the processors: NCCL asks the first one."""
        return self.nodes[SystemKind.CPU][0].maker

    def number_links(self) -> list[SystemLink]:
        """Number all links, node by node; return them."""
        found = [link for nodes in self.nodes.values() for node in nodes for link in node.links]
        for number, link in enumerate(found):
            link.id = number
        return found


def system_of(machine: HostMachine, gpus: list[str]) -> System:
    """Build the graph for the ranks with these GPUs.

    Args:
        gpus: Names of the GPUs, in the order of the ranks.
    """
    return _Builder(machine.used(gpus), gpus).built()


def connect(a: SystemNode, b: SystemNode, kind: PathType, gb_per_s: float) -> None:
    """Add to the link from ``a`` to ``b``, keeping the links of ``a`` by falling rate."""
    place = next((i for i, link in enumerate(a.links) if link.to is b and link.kind is kind), len(a.links))
    if place == len(a.links):
        a.links.append(SystemLink(kind, b, 0.0))
    link = a.links[place]
    link.gb_per_s += gb_per_s
    while place and a.links[place - 1].gb_per_s < link.gb_per_s:
        a.links[place] = a.links[place - 1]
        place -= 1
    a.links[place] = link


class _Builder:
    def __init__(self, machine: HostMachine, gpus: list[str]) -> None:
        self.machine = machine
        self.ranks = {key: rank for rank, key in enumerate(gpus)}
        self.nodes: dict[SystemKind, list[SystemNode]] = {kind: [] for kind in SystemKind}
        self.named: dict[str, SystemNode] = {}

    def built(self) -> System:
        for processor in self.machine.processors:
            node = self.add(SystemKind.CPU, processor.key)
            node.maker = processor.maker
            for part in processor.parts:
                self.place(part, node)
        for processor in self.machine.processors:
            for part in processor.parts:
                self.nvlinks(part, self.named[processor.key])
        for processor in self.machine.processors:
            for part in processor.parts:
                self.peers(part)
        self.processors()
        for node in self.nodes[SystemKind.CPU]:
            _sort(node, None)
        return System(self.nodes)

    def add(self, kind: SystemKind, key: str) -> SystemNode:
        node = SystemNode(kind, len(self.nodes[kind]), key)
        self.nodes[kind].append(node)
        if kind is not SystemKind.GPU:
            self.named[key] = node
        return node

    def place(self, part: Part, parent: SystemNode) -> None:
        if isinstance(part, MachineGpu):
            dev = self.add(SystemKind.DEV, part.key)
            dev.gpu = part
            self.both(dev, parent, LINK_PCI, part.gb_per_s)
            gpu = self.add(SystemKind.GPU, part.key)
            gpu.gpu, gpu.rank, gpu.parent = part, self.ranks[part.key], dev
            self.both(dev, gpu, PathType.LOC, LOCAL_GB_PER_S)
        elif isinstance(part, Nic):
            nic = self.add(SystemKind.NIC, part.key)
            for port in part.ports:
                net = self.add(SystemKind.NET, f"{part.key}:{port.dev}")
                net.port, net.asic = port, port.guid or f"device {port.dev}"
                self.both(nic, net, PathType.NET, port.gb_per_s)
            self.both(nic, parent, LINK_PCI, LOCAL_GB_PER_S if part.gb_per_s is None else part.gb_per_s)
        else:
            switch = self.add(SystemKind.PCI, part.key)
            for each in part.parts:
                self.place(each, switch)
            self.both(switch, parent, LINK_PCI, part.gb_per_s)

    def both(self, a: SystemNode, b: SystemNode, kind: PathType, gb_per_s: float) -> None:
        connect(a, b, kind, gb_per_s)
        connect(b, a, kind, gb_per_s)

    def nvlinks(self, part: Part, processor: SystemNode) -> None:
        if isinstance(part, Nic):
            return
        if not isinstance(part, MachineGpu):
            for each in part.parts:
                self.nvlinks(each, processor)
            return
        dev = self.named[part.key]
        for target, gb_per_s in part.nvlinks:
            if target == NVSWITCH:
                switches = self.nodes[SystemKind.NVS]
                switch = switches[0] if switches else self.add(SystemKind.NVS, NVSWITCH)
                self.both(dev, switch, PathType.NVL, gb_per_s)
            elif target == PROCESSOR:
                self.both(dev, processor, PathType.NVL, gb_per_s)
            elif target in self.named:
                connect(dev, self.named[target], PathType.NVL, gb_per_s)
        if part.c2c_gb_per_s:
            self.both(dev, processor, PathType.C2C, part.c2c_gb_per_s)

    def peers(self, part: Part) -> None:
        if not isinstance(part, MachineGpu | Nic):
            for each in part.peers:
                if each in self.named:
                    connect(self.named[part.key], self.named[each], PathType.LOC, LOCAL_GB_PER_S)
            for inner in part.parts:
                self.peers(inner)

    def processors(self) -> None:
        rates = {each.key: each.gb_per_s for each in self.machine.processors}
        for a in self.nodes[SystemKind.CPU]:
            for b in self.nodes[SystemKind.CPU]:
                if a is not b:
                    connect(a, b, PathType.SYS, rates[a.key])


def _sort(node: SystemNode, above: SystemNode | None) -> None:
    """Put the link towards the processor last, from the processors down."""
    if above is not None:
        up = next(link for link in node.links if link.to is above)
        node.links.remove(up)
        node.links.append(up)
    for link in node.links:
        if link.kind is LINK_PCI and link.to is not above:
            _sort(link.to, node)
