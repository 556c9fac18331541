"""What a communicator finds in its boxes: channels of all patterns, connections, and inputs of the cost model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from coppice.display import Brief
from coppice.selection.nccl.connect import BoxChannels, Connections, channels_of, connected
from coppice.selection.nccl.costs import Channels, NcclCommunicator
from coppice.selection.nccl.graph import ChannelGraph, ChannelPattern
from coppice.selection.nccl.machine import HostMachine
from coppice.selection.nccl.native import search
from coppice.selection.nccl.paths import local_nets, systems_of
from coppice.selection.nccl.releases import constants
from coppice.selection.nccl.searching import BoxGraphs, graphs_of
from coppice.selection.nccl.system import PathType, System, SystemKind
from coppice.topology.generation import generation_of_capability


@dataclass(frozen=True, kw_only=True)
class BoxOfRanks:
    """A machine and the ranks on it."""

    machine: HostMachine
    gpus: tuple[str, ...]  # Names of the GPUs, in the order of the ranks


@dataclass(frozen=True, kw_only=True, repr=False)
class FoundBox(Brief):
    """What NCCL finds for ranks that reach each other inside a machine."""

    members: tuple[int, ...]  # Ranks, by their number in the machine
    graphs: BoxGraphs
    capability: int  # Lowest compute capability, times ten
    most_capability: int  # Highest
    maker: str | None  # Maker of the processors
    nvswitch: bool  # It has an NVSwitch
    least_net_gb_per_s: float  # Slowest path of a GPU to a port that it uses; 0 without


@dataclass(frozen=True, kw_only=True, repr=False)
class FoundCommunicator(Brief):
    """What NCCL finds for a communicator."""

    communicator: NcclCommunicator
    boxes: tuple[
        FoundBox, ...
    ]  # Groups of ranks that reach each other inside a machine, by their first ranks
    ranks: tuple[tuple[int, ...], ...]  # Ranks of each
    collnet: bool  # CollNet is used

    @cached_property
    def connections(self) -> Connections:
        """Rings and trees over all boxes."""
        return connected(
            [
                BoxChannels(ranks=ranks, graphs=box.graphs)
                for box, ranks in zip(self.boxes, self.ranks, strict=True)
            ],
            capability=min(each.capability for each in self.boxes),
            adds=self.collnet,
        )


def found_by(boxes: Sequence[BoxOfRanks], *, collnet: bool = False, release: str = "") -> FoundCommunicator:
    """Search the channels of a communicator and derive the inputs of the cost model.

    Args:
        boxes: HostMachines with their ranks: those of the first machine come first.
        collnet: CollNet is enabled (NCCL_COLLNET_ENABLE) where the network adds.
        release: One of :func:`coppice.selection.nccl.releases.known_releases`; empty: the newest.
    """
    several = len(boxes) > 1
    of_box = {
        id(box): _boxes_of(box.machine, box.gpus, several=several, collnet=collnet, release=release)
        for box in {id(b): b for b in boxes}.values()
    }
    found: list[FoundBox] = []
    ranks: list[tuple[int, ...]] = []
    start = 0
    for box in boxes:
        for part in of_box[id(box)]:
            found.append(part)
            ranks.append(tuple(start + each for each in part.members))
        start += len(box.gpus)
    comm = _communicator(found, start, collnet=collnet, release=release)
    return FoundCommunicator(communicator=comm, boxes=tuple(found), ranks=tuple(ranks), collnet=collnet)


@lru_cache(maxsize=32)
def _boxes_of(
    machine: HostMachine, gpus: tuple[str, ...], *, several: bool, collnet: bool, release: str
) -> tuple[FoundBox, ...]:
    systems = systems_of(machine, list(gpus), several=several)
    return tuple(
        FoundBox(
            members=tuple(sorted(gpu.rank for gpu in system.gpus)),
            graphs=_by_place(
                graphs_of(system, multicast=machine.multicast, adds=collnet, search=search, release=release),
                system,
            ),
            capability=system.least_capability,
            most_capability=system.most_capability,
            maker=system.maker,
            nvswitch=bool(system.nodes[SystemKind.NVS]),
            least_net_gb_per_s=_least_net(system),
        )
        for system in systems
    )


def _by_place(graphs: BoxGraphs, system: System) -> BoxGraphs:
    """Number the ranks of a part of a machine by their place among its members."""
    place = {rank: i for i, rank in enumerate(sorted(gpu.rank for gpu in system.gpus))}

    def numbered(graph: ChannelGraph | None) -> ChannelGraph | None:
        if graph is None:
            return None
        return graph.renumbered(place)

    ring, tree = graphs.ring.renumbered(place), graphs.tree.renumbered(place)
    return BoxGraphs(
        ring=ring,
        tree=tree,
        nvls=numbered(graphs.nvls),
        collnet_chain=numbered(graphs.collnet_chain),
        collnet_direct=numbered(graphs.collnet_direct),
    )


def _least_net(system: System) -> float:
    rates = [gpu.paths[SystemKind.NET][n].gb_per_s for gpu in system.gpus for n in local_nets(system, gpu)]
    return min(rates, default=0.0)


def _communicator(boxes: list[FoundBox], ranks: int, *, collnet: bool, release: str) -> NcclCommunicator:
    nodes = len(boxes)
    found = list({id(box): box for box in boxes}.values())
    capability = min(each.capability for each in found)
    makers = {each.maker for each in found}
    ring, tree = (
        _aligned([each.graphs.ring for each in found]),
        _aligned([each.graphs.tree for each in found]),
    )
    assert ring is not None
    assert tree is not None
    nvls = _aligned([each.graphs.nvls for each in found])
    chain = _aligned([each.graphs.collnet_chain for each in found])
    direct = _aligned([each.graphs.collnet_direct for each in found])
    sizes = [len(each.members) for each in found]
    net = min(each.least_net_gb_per_s for each in found)
    count = min(ring.count, tree.count)
    return NcclCommunicator(
        ranks=ranks,
        nodes=nodes,
        generation=generation_of_capability(capability),
        cpu=(makers.pop() or "other") if len(makers) == 1 else "mixed",
        ring=ring.of(count),
        tree=tree.of(count),
        nvls=nvls if nvls is not None and nvls.count else None,
        collnet_direct=direct if direct is not None and direct.count else None,
        collnet_chain=chain if chain is not None and chain.count else None,
        nvswitch=all(each.nvswitch for each in found),
        plain_tree=max(each.graphs.tree.pattern for each in found) is ChannelPattern.TREE,
        mixed=capability != max(each.most_capability for each in found),
        channels=len(
            channels_of([box.graphs for box in boxes], capability=capability, ranks=ranks, adds=collnet)
        ),
        nvls_channels=nvls_channels(capability, nodes, min(sizes), net, release=release)
        if nvls is not None and nvls.count
        else 0,
        release=release,
    )


def _aligned(graphs: Sequence[ChannelGraph | None]) -> Channels | None:
    """What all boxes have in common; None where one has none."""
    if any(graph is None for graph in graphs):
        return None
    each = [graph for graph in graphs if graph is not None]
    return Channels(
        count=min(graph.count for graph in each),
        within=min(graph.within for graph in each),
        across=min(graph.across for graph in each),
        within_type=PathType(max(graph.within_type for graph in each)).name,
        across_type=PathType(max(graph.across_type for graph in each)).name,
        latency_us=each[0].latency_us,
        same=all(graph.same for graph in each),
    )


def nvls_channels(
    capability: int, nodes: int, least_ranks: int, net_gb_per_s: float, *, release: str = ""
) -> int:
    """Channels of a kernel of NVLS.

    Args:
        least_ranks: Ranks of the smallest box.
        net_gb_per_s: Slowest path of a GPU to a port that it uses.
        release: One of :func:`coppice.selection.nccl.releases.known_releases`; empty: the newest.

    Examples:
        >>> nvls_channels(90, 1, 8, 0.0), nvls_channels(100, 1, 8, 0.0), nvls_channels(100, 4, 8, 50.0)
        (16, 24, 24)
    """
    if capability < 100:
        return 16
    known = constants(release).nvls_channels_of_blackwell[0 if nodes == 1 else 1]
    if known:
        return known
    if nodes == 2 and net_gb_per_s >= 48:
        return 32
    if net_gb_per_s >= 96:
        return 24 if least_ranks <= 8 else 32
    return 24 if net_gb_per_s >= 48 else 32
