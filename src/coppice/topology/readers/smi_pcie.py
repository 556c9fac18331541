"""Reconstruct a PCIe tree from the distances between devices that smi tools print (PIX, PXB, PHB, ...).

``nvidia-smi topo -m`` tells of every two devices whether they share one PCIe switch (PIX), several (PXB), a
host bridge or NUMA node (PHB, NODE), or nothing but the interconnect between sockets (SYS). Devices with a
chain of pairs at most that near form a group; groups of PIX become switches, groups of PXB switches above
them, and groups of PHB or NODE the CPU that they hang from.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from fractions import Fraction

from coppice.topology.readers.host_graph import HostGraph, MachinePart
from coppice.topology.readers.link_rates import GpuModel, pcie_gb_per_s
from coppice.topology.readers.reading import Groups, ReadOptions


class Distance(enum.IntEnum):
    """PCIe distance of two devices."""

    ONE_SWITCH = 1
    SWITCHES = 2
    CPU = 3
    SOCKETS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class PcieRates:
    """Rates of the PCIe links that the distances imply, GB/s per direction."""

    link: Fraction
    nic: Fraction
    socket: Fraction

    @classmethod
    def of(cls, model: GpuModel, options: ReadOptions) -> PcieRates:
        """Rates as set by options, or those of machines with this GPU model."""
        given = (options.pcie_gb_per_s, options.nic_gb_per_s, options.socket_gb_per_s)
        usual = (
            pcie_gb_per_s(model.pcie_speed, 16, options.rates),
            model.nic_gb_per_s,
            model.socket_gb_per_s,
        )
        link, nic, socket = (b if a is None else a for a, b in zip(given, usual, strict=True))
        return cls(link=link, nic=nic, socket=socket)


@dataclass(frozen=True, kw_only=True, slots=True)
class Attached:
    """Remarks of the reader about the finished tree."""

    far: tuple[str, ...]  # Devices whose CPU has no GPU: NICs far from all of them
    # A pair of devices that the tree puts nearer together than their own entry says, or None
    nearer: tuple[str, str] | None


def attach(
    graph: HostGraph,  # Where the GPUs and NICs are
    devices: dict[str, str],
    pairs: dict[tuple[str, str], Distance],  # Distances of pairs of devices, as far as known
    *,
    host: str,
    numa: dict[str, int],  # NUMA node of each device, as far as known; equal ones share a CPU
    rates: PcieRates,
) -> Attached:
    """Connect devices of a host by the PCIe switches and CPUs that their distances imply.

    Returns:
        What is worth telling about the result.
    """
    levels = {level: Groups(devices) for level in (Distance.ONE_SWITCH, Distance.SWITCHES, Distance.CPU)}
    for (a, b), distance in pairs.items():
        for level, groups in levels.items():
            if distance <= level:
                groups.join(a, b)
    first_of: dict[int, str] = {}
    for device, numa_node in numa.items():
        levels[Distance.CPU].join(first_of.setdefault(numa_node, device), device)
    cpus = _cpus(graph, levels[Distance.CPU], devices, numa=numa, host=host)
    graph.connect_cpus(dict.fromkeys(cpus.values(), rates.socket))
    uplink: dict[Hashable, str] = {}
    for members in _switches(levels, devices):
        above = uplink.get(members[0], cpus[levels[Distance.CPU].find(members[0])])
        switch = graph.add(f"pcie{graph.counts.get(MachinePart.BRIDGE, 0)}", MachinePart.BRIDGE, host=host)
        graph.connect(switch, above, rates.link)
        uplink.update(dict.fromkeys(members, switch))
    for device, node in devices.items():
        above = uplink.get(device, cpus[levels[Distance.CPU].find(device)])
        is_nic = graph.drafts[node].part is MachinePart.NIC
        graph.connect(node, above, min(rates.link, rates.nic) if is_nic else rates.link)
    gpus = [device for device, node in devices.items() if graph.drafts[node].part is MachinePart.GPU]
    with_gpu = {levels[Distance.CPU].find(gpu) for gpu in gpus}
    return Attached(
        far=tuple(device for device in devices if levels[Distance.CPU].find(device) not in with_gpu),
        nearer=next(
            (
                (a, b)
                for (a, b), distance in pairs.items()
                if any(
                    groups.find(a) == groups.find(b) for level, groups in levels.items() if level < distance
                )
            ),
            None,
        ),
    )


def _cpus(
    graph: HostGraph, groups: Groups, devices: dict[str, str], *, numa: dict[str, int], host: str
) -> dict[Hashable, str]:
    """A CPU for each group, named by NUMA node where that is known."""
    names: dict[Hashable, str] = {}
    for device in devices:
        if device in numa:
            names.setdefault(groups.find(device), f"cpu{numa[device]}")
    taken, number = set(names.values()), 0
    result = {}
    for device in devices:
        group = groups.find(device)
        if group in result:
            continue
        if group not in names:
            while f"cpu{number}" in taken:
                number += 1
            names[group] = f"cpu{number}"
            taken.add(names[group])
        result[group] = graph.add(names[group], MachinePart.CPU, host=host)
    return result


def _switches(levels: dict[Distance, Groups], devices: Iterable[str]) -> list[list[str]]:
    """The devices below each switch, in the order of the first of them, upper switches first."""
    grouped: dict[tuple[Distance, Hashable], list[str]] = {}
    for device in devices:
        for level in (Distance.SWITCHES, Distance.ONE_SWITCH):
            grouped.setdefault((level, levels[level].find(device)), []).append(device)
    fine = levels[Distance.ONE_SWITCH]
    return [
        members
        for (level, _), members in grouped.items()
        if len(members) > 1 and (level is Distance.ONE_SWITCH or len({fine.find(m) for m in members}) > 1)
    ]
