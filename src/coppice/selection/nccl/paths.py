"""Paths in NCCL's system graph, as ``src/graph/paths.cc`` and ``topo.cc`` of NCCL 2.30 find them.

From every node to every GPU, chip, port, processor and NVSwitch the path of the best class, then of the highest rate,
then of the fewest links. Traffic between GPUs that do not reach each other's memory goes through a processor; traffic
to a port through another GPU (PXN) where that one is nearer.
"""

from __future__ import annotations

import math

from coppice.selection.nccl.machine import HostMachine
from coppice.selection.nccl.system import (
    LINK_PCI,
    LOCAL_GB_PER_S,
    MOST_CHANNELS,
    Path,
    PathType,
    System,
    SystemKind,
    SystemLink,
    SystemNode,
    system_of,
)


def systems_of(machine: HostMachine, gpus: list[str], *, several: bool) -> list[System]:
    """The graphs, with paths, of a machine's ranks: one for each group of ranks that reach each other inside it.

    Args:
        gpus: Names of the GPUs, in the order of the ranks.
        several: Other machines take part as well.
    """
    system = system_of(machine, gpus)
    compute_paths(system)
    groups: list[int] = []
    for g, gpu in enumerate(system.gpus):
        near = [groups[p] for p in range(g) if gpu.paths[SystemKind.GPU][p].kind < PathType.NET]
        groups.append(min([g, *near]))
    if len(set(groups)) == 1:
        system.several = several
        _init_search(system)
        return [system]
    found = []
    for group in sorted(set(groups)):
        part = system_of(machine, gpus)
        _trim(part, [g for g, each in enumerate(groups) if each == group])
        compute_paths(part)
        part.several = True
        _init_search(part)
        found.append(part)
    return found


def compute_paths(system: System) -> None:
    """Compute all paths."""
    nodes = system.nodes
    for kind in (SystemKind.CPU, SystemKind.DEV, SystemKind.GPU, SystemKind.NET, SystemKind.NVS):
        for base in nodes[kind]:
            _paths_to(system, base)
    for g, gpu in enumerate(system.gpus):
        for other in system.gpus:
            if not _reads_memory(system, other, g):
                _through(other, nodes[SystemKind.CPU][local_cpu(system, g)], gpu)
        for p, other in enumerate(system.gpus):
            if p != g and _network_is_faster(other, gpu) and not _hops_over_chip(other, g):
                other.paths[SystemKind.GPU][g].kind = PathType.NET
    for g, gpu in enumerate(system.gpus):
        cpu = local_cpu(system, g)
        for n in local(gpu, SystemKind.NET, len(system.nets))[0]:
            net = system.nets[n]
            if (
                _merged(gpu.paths[SystemKind.CPU][cpu].kind, net.paths[SystemKind.CPU][cpu].kind)
                is PathType.P2C
            ):
                for path in (gpu.paths[SystemKind.NET][n], net.paths[SystemKind.GPU][g]):
                    path.kind = min(PathType.P2C, path.kind)
    for net in system.nets:
        for gpu in system.gpus:
            _to_port(system, gpu, net)
    for net in system.nets:
        net.local_gpu = local_gpu(system, net.index)


def _paths_to(system: System, base: SystemNode) -> None:
    kind, index, count = base.kind, base.index, len(system.nodes[base.kind])
    most = 2 if kind is SystemKind.GPU else 1
    chip = base.parent if kind is SystemKind.GPU else base

    def path_of(node: SystemNode) -> Path:
        if kind not in node.paths:
            node.paths[kind] = [Path() for _ in range(count)]
        return node.paths[kind][index]

    own = path_of(base)
    own.kind, own.gb_per_s, own.links = PathType.LOC, LOCAL_GB_PER_S, []
    ring = [base]
    while ring:
        beyond: list[SystemNode] = []
        for node in ring:
            path = path_of(node)
            for link in node.links:
                to = link.to
                found = path_of(to)
                rate = min(path.gb_per_s, link.gb_per_s)
                length = len(path.links)
                if (
                    node is not chip
                    and node.kind is SystemKind.DEV
                    and (link.kind is not PathType.LOC or to.kind is not SystemKind.GPU)
                    and (link.kind is not PathType.NVL or to.kind is not SystemKind.DEV or length > most)
                ):
                    continue
                step: int = PathType.LOC if link.kind is PathType.NET else link.kind
                if node.kind is SystemKind.PCI and to.kind is SystemKind.PCI:
                    step = PathType.PXB
                if link.kind is LINK_PCI and SystemKind.CPU in (node.kind, to.kind):
                    step = PathType.PHB
                if (
                    node.kind is SystemKind.DEV
                    and path.kind is PathType.NVL
                    and step is PathType.NVL
                    and length == most
                ):
                    step = PathType.NVB
                step = max(path.kind, step)
                if step < found.kind or (
                    step == found.kind
                    and (found.gb_per_s < rate or (found.gb_per_s == rate and len(found.links) > length + 1))
                ):
                    back = _reverse(node, to, link.kind)
                    found.links = [back, *path.links]
                    found.gb_per_s, found.kind = rate, PathType(step)
                    if to not in beyond:
                        beyond.append(to)
        ring = beyond


def _reverse(node: SystemNode, to: SystemNode, kind: PathType) -> SystemLink:
    return next(link for link in to.links if link.to is node and link.kind is kind)


def local(node: SystemNode, kind: SystemKind, count: int) -> tuple[list[int], PathType]:
    """Nodes of a kind with the best rate, then class, of the path to them, and that class."""
    paths = node.paths.get(kind)
    if paths is None:
        return [], PathType.DIS
    best, most = PathType.DIS, 0.0
    found: list[int] = []
    for i in range(count):
        path = paths[i]
        if path.gb_per_s > most or (path.gb_per_s == most and path.kind < best):
            most, best, found = path.gb_per_s, path.kind, []
        if path.gb_per_s == most and path.kind == best:
            found.append(i)
    return found, best


def local_cpu(system: System, g: int) -> int:
    """Processor nearest to a GPU."""
    gpu = system.gpus[g]
    near, _ = local(gpu, SystemKind.CPU, len(system.nodes[SystemKind.CPU]))
    return min(near, key=lambda c: len(gpu.paths[SystemKind.CPU][c].links))


def local_net(system: System, gpu: SystemNode, channel: int) -> int | None:
    """Port that a GPU uses for a channel: GPUs that share ports start at different ones."""
    nets, _ = local(gpu, SystemKind.NET, len(system.nets))
    if not nets:
        return None
    gpus, _ = local(system.nets[nets[0]], SystemKind.GPU, len(system.gpus))
    each = -(-len(nets) // len(gpus))
    place = gpu.described.dev % len(gpus)
    if len(nets) & (len(nets) - 1) == 0:
        place = _mirrored(place, len(nets))
    return nets[(place + channel % each) % len(nets)]


def local_nets(system: System, gpu: SystemNode) -> list[int]:
    """Ports that a GPU uses, channel by channel until the first comes again."""
    if gpu.local_nets is not None:
        return gpu.local_nets
    found: list[int] = []
    for channel in range(MOST_CHANNELS):
        net = local_net(system, gpu, channel)
        if net is None or (found and net == found[0]):
            break
        found.append(net)
    gpu.local_nets = found
    return found


def local_gpu(system: System, n: int) -> int:
    """GPU that a port serves first, or -1."""
    gpus, _ = local(system.nets[n], SystemKind.GPU, len(system.gpus))
    uses = {g: local_nets(system, system.gpus[g]) for g in gpus}
    for channel in range(MOST_CHANNELS):
        for g in gpus:
            if uses[g] and uses[g][channel % len(uses[g])] == n:
                return g
    return -1


def _mirrored(value: int, power: int) -> int:
    found, bit, mirror = 0, 1, power >> 1
    while bit < power:
        if value & bit:
            found |= mirror
        bit, mirror = bit << 1, mirror >> 1
    return found


def _reads_memory(system: System, gpu: SystemNode, g: int) -> bool:
    """Whether two GPUs read each other's memory: not across a processor, but where AMD's joins just two."""
    level = PathType.PXB
    if system.maker == "amd" and len(system.nodes[SystemKind.DEV]) <= 2:
        level = PathType.SYS
    return gpu.paths[SystemKind.GPU][g].kind <= level


def _hops_over_chip(gpu: SystemNode, g: int) -> bool:
    """Whether the path to another GPU takes the NVLinks of a third one, which NCCL does not compare with a network."""
    path = gpu.paths[SystemKind.GPU][g]
    return path.kind <= PathType.PXB and len(path.links) == 4 and path.links[1].to.kind is SystemKind.DEV


def _network_is_faster(a: SystemNode, b: SystemNode) -> bool:
    """Whether both GPUs have a port near them that is faster than the path between them."""
    rate = a.paths[SystemKind.GPU][b.index].gb_per_s
    return all(
        max((p.gb_per_s for p in each.paths.get(SystemKind.NET, ()) if p.kind <= PathType.PXB), default=0.0)
        > rate
        for each in (a, b)
    )


def _merged(a: PathType, b: PathType) -> PathType:
    if max(a, b) is PathType.PHB and min(a, b) is PathType.C2C:
        return PathType.P2C
    return max(a, b)


def _through(node: SystemNode, middle: SystemNode, to: SystemNode) -> None:
    """Lead the path from ``node`` to ``to`` through a processor or GPU."""
    first, second = node.paths[middle.kind][middle.index], middle.paths[to.kind][to.index]
    path = node.paths[to.kind][to.index]
    path.links = [*first.links, *second.links]
    path.kind = PathType.PXN if middle.kind is SystemKind.GPU else _merged(first.kind, second.kind)
    path.gb_per_s = min(first.gb_per_s, second.gb_per_s)


def _to_port(system: System, gpu: SystemNode, net: SystemNode) -> None:
    """Lead traffic to a port through the GPU that it serves first, or through the processor, where NCCL does."""
    n = net.index
    first = local_gpu(system, n)
    if first not in (-1, gpu.index):
        peer = system.gpus[first]
        theirs, mine = peer.paths[SystemKind.NET][n], gpu.paths[SystemKind.NET][n]
        if (
            theirs.kind <= PathType.P2C
            and _direct(system, peer, net, read=True)
            and peer.paths[SystemKind.GPU][gpu.index].kind <= PathType.NVL
            and (theirs.gb_per_s > mine.gb_per_s or mine.kind > PathType.PXN)
        ):
            _through(gpu, peer, net)
            gpu.local_nets = None
    if gpu.paths[SystemKind.NET][n].kind < PathType.PHB and not _direct(system, gpu, net, read=False):
        cpu = system.nodes[SystemKind.CPU][local_cpu(system, gpu.index)]
        _through(net, cpu, gpu)
        _through(gpu, cpu, net)
        for each in system.gpus:
            each.local_nets = None


def _direct(system: System, gpu: SystemNode, net: SystemNode, *, read: bool) -> bool:
    """Whether the port reads (or writes) the memory of the GPU itself."""
    if not net.net.gdr or not gpu.described.gdr:
        return False
    if read and gpu.described.capability < 80 and len(system.gpus) > 1:
        nvlinks = (p for i, p in enumerate(gpu.paths[SystemKind.GPU]) if i != gpu.index)
        if not any(path.kind is PathType.NVL for path in nvlinks):
            return False
    path = gpu.paths[SystemKind.NET][net.index]
    if path.kind is PathType.PXN:
        path = intermediate(system, gpu, net).paths[SystemKind.NET][net.index]
    return path.kind <= PathType.P2C


def intermediate(system: System, gpu: SystemNode, net: SystemNode) -> SystemNode:
    """GPU through which traffic goes to a port: itself, but for PXN."""
    path = gpu.paths[SystemKind.NET][net.index]
    if path.kind is not PathType.PXN:
        return gpu
    chip = next(link.to for link in path.links[1:] if link.to.kind is not SystemKind.NVS)
    return next(each for each in system.gpus if each.parent is chip)


def _trim(system: System, kept: list[int]) -> None:
    """Leave GPUs of other groups out; their chips stay, as in NCCL."""
    gone = [gpu for g, gpu in enumerate(system.gpus) if g not in kept]
    system.nodes[SystemKind.GPU] = [system.gpus[g] for g in kept]
    for g, gpu in enumerate(system.gpus):
        gpu.index = g
    for nodes in system.nodes.values():
        for node in nodes:
            node.links = [link for link in node.links if link.to not in gone]


def _init_search(system: System) -> None:
    if not system.several and len(system.gpus) == 1:
        system.most_gb_per_s = system.total_gb_per_s = LOCAL_GB_PER_S
        return
    kind = SystemKind.NET if system.several else SystemKind.DEV
    for dev in system.nodes[SystemKind.DEV]:
        best = max((path.gb_per_s for path in dev.paths.get(kind, ()) if path.links), default=0.0)
        nvlink = math.fsum(link.gb_per_s for link in dev.links if link.kind is PathType.NVL)
        pcie = next((link.gb_per_s for link in reversed(dev.links) if link.kind is LINK_PCI), 0.0)
        system.most_gb_per_s = max(system.most_gb_per_s, best)
        system.total_gb_per_s = max(system.total_gb_per_s, nvlink, pcie)
