"""Read graph files of NCCL and RCCL (``NCCL_GRAPH_DUMP_FILE``): the rings and trees of their topology search.

Numbers of devices are hexadecimal, with or without ``0x``. A channel is a chain of the GPUs of one node: a ring runs
through it from the first to the last GPU, and so on to the next node or back; in a tree every GPU is the child of the
one before it. NICs stand before the first and after the last GPU, and are missing in communicators of one node.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from coppice.errors import InputError
from coppice.topology.readers.xml_tree import Element, parse_xml

KINDS = ("ring", "tree", "collnet_chain", "nvls", "collnet_direct")
"""What a graph is for, by its id."""

PATTERNS = (1, 2, 3, 4, 5, 6)
"""Patterns: balanced tree, split tree, tree, ring, NVLS, CollNet direct."""

TYPES = ("LOC", "NVL", "NVB", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
"""Types of paths that the reader of the library knows, best first."""

_DEV = re.compile(r"(?:0[xX])?[0-9a-fA-F]{1,8}")
_MOST = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """A GPU of a channel."""

    dev: int  # Its index on the host
    rank: int | None  # Its rank, where the file gives one
    line: int  # Line of the file


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphChannel:
    """A channel of a graph."""

    gpus: tuple[Gpu, ...]  # Its GPUs, in order
    entry: int | None  # NIC by which data come in, None where there is none
    exit: int | None  # NIC by which they leave, None likewise
    line: int  # Line of the file


@dataclass(frozen=True, kw_only=True, slots=True)
class NcclGraph:
    """A graph: the channels of one pattern."""

    id: int  # Its number; :data:`KINDS` by number
    pattern: int  # Shape of its channels
    crossnic: int  # 0 if data leave by the rail by which they came in
    nchannels: int  # Number of channels that it claims to have
    channels: tuple[GraphChannel, ...]  # The channels that it has
    speed_intra: Fraction  # Rate of a channel within the node, GB/s
    speed_inter: Fraction  # Rate of a channel between nodes, GB/s
    latency_inter: Fraction  # Latency between nodes, microseconds
    type_intra: str  # Worst path within the node, as written
    type_inter: str  # Worst path to a NIC, as written
    same_channels: bool  # Whether the second half of the channels equals the first
    line: int  # Line of the file

    @property
    def kind(self) -> str:
        """Pattern of the graph."""
        return KINDS[self.id]


def read_nccl_graph(data: bytes, *, file: str) -> tuple[NcclGraph, ...]:
    """Read a graph file.

    Args:
        file: Name of the file, for messages.

    Examples:
        >>> text = b'''<graphs version="1">
        ...   <graph id="0" pattern="4" crossnic="0" nchannels="1" speedintra="20" speedinter="20" latencyinter="0"
        ...    typeintra="NVL" typeinter="PIX" samechannels="1">
        ...     <channel><gpu dev="0x0"/><gpu dev="a"/></channel>
        ...   </graph>
        ... </graphs>'''
        >>> graph, = read_nccl_graph(text, file="graph.xml")
        >>> graph.kind, [gpu.dev for gpu in graph.channels[0].gpus], graph.speed_intra
        ('ring', [0, 10], Fraction(20, 1))
    """
    return graphs_of(parse_xml(data, file=file))


def graphs_of(root: Element) -> tuple[NcclGraph, ...]:
    """Graphs of a parsed graph file."""
    if root.tag != "graphs":
        raise InputError(
            f"expected <graphs> at {root.where}, found <{root.tag[:40]}>: give the file of NCCL_GRAPH_DUMP_FILE."
        )
    found: list[NcclGraph] = []
    for element in root.named("graph"):
        graph = _graph(element)
        if any(graph.id == other.id for other in found):
            raise InputError(f"two graphs have the id {graph.id} (second at {element.where}): keep one.")
        found.append(graph)
    return tuple(found)


def _graph(element: Element) -> NcclGraph:
    zero = Fraction(0)
    return NcclGraph(
        id=element.integer("id", low=0, high=len(KINDS) - 1),
        pattern=element.integer("pattern", low=PATTERNS[0], high=PATTERNS[-1]),
        crossnic=element.integer("crossnic", low=0, high=2, default=0),
        nchannels=element.integer("nchannels", low=0, high=_MOST),
        channels=tuple(_channel(each) for each in element.named("channel")),
        speed_intra=element.number("speedintra", default=zero),
        speed_inter=element.number("speedinter", default=zero),
        latency_inter=element.number("latencyinter", default=zero),
        type_intra=element.text("typeintra"),
        type_inter=element.text("typeinter"),
        same_channels=element.integer("samechannels", low=0, high=1, default=0) == 1,
        line=element.line,
    )


def _channel(element: Element) -> GraphChannel:
    gpus: list[Gpu] = []
    entry: int | None = None
    leave: int | None = None
    for child in element.named("net", "gpu"):
        if child.tag == "gpu":
            rank = child.integer("rank", low=-1, high=1 << 24, default=-1)
            gpus.append(Gpu(dev=_dev(child), rank=rank if rank >= 0 else None, line=child.line))
        elif gpus:
            leave = _dev(child)
        else:
            entry = _dev(child)
    return GraphChannel(gpus=tuple(gpus), entry=entry, exit=leave, line=element.line)


def _dev(element: Element) -> int:
    text = element.text("dev")
    if not _DEV.fullmatch(text):
        raise InputError(
            f"expected dev as a hexadecimal number on <{element.tag}> at {element.where}, found {text[:40]!r}."
        )
    return int(text, 16)
