"""The search of channels in native code, and the columns that it takes of a system."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from coppice import _core
from coppice.selection.nccl.graph import ChannelGraph, ChannelPattern
from coppice.selection.nccl.paths import local, local_nets
from coppice.selection.nccl.searching import SearchRequest, speeds_of
from coppice.selection.nccl.system import LINK_PCI, Path, PathType, System, SystemKind, SystemLink, SystemNode

_MAKERS = {"intel": 1, "amd": 2, "ibm": 3}

Int = NDArray[np.int32]
Real = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SystemColumns:
    """A system as the native code takes it (see ``cpp/nccl_search/search.h``)."""

    kind: Int
    capability: Int
    maker: Int
    to: Int
    link: Int
    back: Int
    rate: Real
    gpu: Int
    rank: Int
    pcie: Int
    net: Int
    net_rate: Real
    net_latency: Real
    rail: Int
    adds: Int
    local_gpu: Int
    preferred_first: Int
    preferred: Int
    near_first: Int
    near: Int
    path_kind: Int
    path_first: Int
    path_link: Int
    path_rate: Real
    nvswitch: int
    chips: int
    capability_least: int
    processor: int
    several: bool
    most: float
    total: float


def search(request: SearchRequest) -> ChannelGraph:
    """The channels that NCCL finds for a pattern."""
    speeds = np.array(
        speeds_of(request.system.least_capability, several=request.system.several, release=request.release)
    )
    pattern, count, within, across, latency, within_type, across_type, same, cross, hops, orders, ports = (
        _core.nccl_search(_columns(request.system), request, speeds)
    )
    found = ChannelPattern(pattern)
    ranks = _ranks(request.system)
    size = 1 if found is ChannelPattern.NVLS else len(request.system.gpus)
    rows = orders.reshape(count, len(request.system.gpus))[:, :size].tolist()
    return ChannelGraph(
        pattern=found,
        count=count,
        within=_decimal(within),
        across=_decimal(across),
        latency_us=_decimal(latency),
        within_type=PathType(within_type),
        across_type=PathType(across_type),
        same=bool(same),
        cross_nic=cross,
        hops=hops,
        orders=tuple(tuple(ranks[place] for place in row) for row in rows),
        ports=tuple((a, b) for a, b in ports.reshape(count, 2).tolist()),
    )


def _ranks(system: System) -> list[int]:
    """Ranks of a part of a machine, which its channels number from 0."""
    return sorted(gpu.rank for gpu in system.gpus)


def _decimal(value: float) -> float:
    """The short decimal number that a single-precision one stands for."""
    return float(f"{value:.7g}")


@lru_cache(maxsize=4)
def _columns(system: System) -> SystemColumns:
    nodes = [node for each in system.nodes.values() for node in each]
    number = {node: i for i, node in enumerate(nodes)}
    links = system.number_links()
    owner = [node for node in nodes for _ in node.links]
    back = {(a, link.to, link.kind): link for a, link in zip(owner, links, strict=True)}
    gpus, nets = system.gpus, system.nets
    switches = system.nodes[SystemKind.NVS]
    rails: dict[tuple[str, int], int] = {}
    paths = _paths(gpus, nets, switches)
    preferred = [local_nets(system, gpu) for gpu in gpus]
    near = []
    for net in nets:
        found, kind = local(net, SystemKind.GPU, len(gpus))
        near.append([] if kind is PathType.DIS else found)
    return SystemColumns(
        kind=_ints(node.kind for node in nodes),
        capability=_ints(node.described.capability if node.kind is SystemKind.DEV else 0 for node in nodes),
        maker=_ints(_MAKERS.get(node.maker or "", 0) for node in nodes),
        to=_ints(number[link.to] for link in links),
        link=_ints(link.kind for link in links),
        back=_ints(
            -1 if other is None else other.id
            for other in (back.get((link.to, a, link.kind)) for a, link in zip(owner, links, strict=True))
        ),
        rate=np.array([link.gb_per_s for link in links]),
        gpu=_ints(number[gpu] for gpu in gpus),
        rank=_ints(_ranks(system).index(gpu.rank) for gpu in gpus),
        pcie=_ints(_uplink(gpu) for gpu in gpus),
        net=_ints(number[net] for net in nets),
        net_rate=np.array([net.net.gb_per_s for net in nets]),
        net_latency=np.array([net.net.latency_us for net in nets]),
        rail=_ints(rails.setdefault((net.asic, net.net.port), len(rails)) for net in nets),
        adds=_ints(int(net.net.adds) for net in nets),
        local_gpu=_ints(net.local_gpu for net in nets),
        preferred_first=_firsts(preferred),
        preferred=_ints(n for each in preferred for n in each),
        near_first=_firsts(near),
        near=_ints(g for each in near for g in each),
        path_kind=_ints(path.kind for path in paths),
        path_first=_firsts([path.links for path in paths]),
        path_link=_ints(link.id for path in paths for link in path.links),
        path_rate=np.array([path.gb_per_s for path in paths]),
        nvswitch=number[switches[0]] if switches else -1,
        chips=len(system.nodes[SystemKind.DEV]),
        capability_least=system.least_capability,
        processor=_MAKERS.get(system.maker or "", 0),
        several=system.several,
        most=system.most_gb_per_s,
        total=system.total_gb_per_s,
    )


def _paths(gpus: list[SystemNode], nets: list[SystemNode], switches: list[SystemNode]) -> list[Path]:
    found = [path for gpu in gpus for path in gpu.paths[SystemKind.GPU]]
    none = [Path() for _ in nets]
    found += [path for gpu in gpus for path in gpu.paths.get(SystemKind.NET, none)]
    found += [path for net in nets for path in net.paths.get(SystemKind.GPU) or [Path() for _ in gpus]]
    if switches:
        found += [gpu.paths.get(SystemKind.NVS, [Path()])[0] for gpu in gpus]
        found += switches[0].paths.get(SystemKind.GPU) or [Path() for _ in gpus]
    return found


def _uplink(gpu: SystemNode) -> int:
    assert gpu.parent is not None
    return next((link.id for link in gpu.parent.links if link.kind is LINK_PCI), -1)


def _ints(values: object) -> Int:
    return np.array(list(values), dtype=np.int32)  # type: ignore[call-overload]


def _firsts(lists: list[list[int]] | list[list[SystemLink]]) -> Int:
    return np.cumsum([0, *(len(each) for each in lists)], dtype=np.int32)
