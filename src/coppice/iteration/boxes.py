"""Boxes of GPUs by name, and clusters of them from topologies and data sheets."""

from __future__ import annotations

import warnings
from dataclasses import replace
from fractions import Fraction

import numpy as np

from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.iteration.devices import CALIBRATIONS, DEVICES, Calibration, Cap, Device
from coppice.iteration.machine import Cluster
from coppice.iteration.measured.table import DeviceTable
from coppice.text import suggestion
from coppice.topology.model import Link, Node, NodeKind, Topology

_NAMED = {
    "gb300": "GB300",
    "gb200": "GB200",
    "b200": "B200",
    "h100": "H100",
    "h200": "H200",
    "a100": "A100-80G",
    "1v": "V100",
    "v100": "V100",
    "mi300x": "MI300X",
    "mi250x": "MI250X",
}
CONSTANTS = {
    "A100": "A100-80G",
    "H100-96G": "H100",
    "H200": "H100",
    "GB200": "B200",
    "GB300": "B200",
    "MI250X": "A100-80G",
    "MI300X": "H100",
}
"""Whose constants a device takes that has none of its own."""


def constants_borrowed(cluster: Cluster) -> str:
    """GPU whose fitted constants a cluster uses instead of its own; empty if they are its own.

    Examples:
        >>> constants_borrowed(box_of("H200"))
        'constants of H200 are those fitted to H100: none are fitted to it, so times of another chip may be far off'
        >>> constants_borrowed(box_of("H100"))
        ''
    """
    name = cluster.device.name
    measured = cluster.table is not None
    if name in CONSTANTS:
        what = f"constants {'of collectives ' if measured else ''}of {name} are those fitted to {CONSTANTS[name]}"
    elif name not in CALIBRATIONS:
        what = f"constants of collectives of {name} are general ones"
    else:
        return ""
    return f"{what}: none are fitted to it, so times of another chip may be far off"


def gpu_text(cluster: Cluster) -> str:
    """GPU of a cluster in words, with the share of its clock that a capped one keeps.

    Examples:
        >>> gpu_text(box_of("A100-80G")), gpu_text(capped(box_of("H100"), Cap(power_watts=500)))
        ('A100-80G', 'H100, capped at 500 W: 85% of its clock (71% to 89%)')
    """
    device, cap = cluster.device, cluster.cap
    limits = [f"{watts:g} W" for watts in [cap.power_watts or device.limit_watts] if watts]
    limits += [f"{cap.clock_mhz:g} MHz"] if cap.clock_mhz else []
    if not limits or cluster.table is not None:
        return device.name
    least, taken, most = cluster.clock_shares
    words = f"{device.name}, capped at {' and '.join(limits)}: {taken:.0%} of its clock"
    return words if least == most else f"{words} ({least:.0%} to {most:.0%})"


def device_in(name: str) -> str | None:
    """Device named in the topology's name.

    Examples:
        >>> device_in("4 x dgx-a100"), device_in("ring")
        ('A100-80G', None)
    """
    return next((device for word, device in _NAMED.items() if word in name.lower()), None)


def box_of(device: str) -> Cluster:
    """Box of GPUs from their data sheet, without a network.

    Examples:
        >>> box_of("H100").device.box
        8
    """
    if device not in DEVICES:
        raise InputError(
            f"expected a device ({', '.join(DEVICES)}), found {device!r}: {suggestion(device, list(DEVICES))}."
        )
    sheet = DEVICES[device]
    rate = sheet.link_bytes_per_second * sheet.box
    return Cluster(
        device=sheet, nic_bytes_per_second=rate, calibration=CALIBRATIONS[CONSTANTS.get(device, device)]
    )


def cluster_of(topology: Topology, device: str | DeviceTable | None = None) -> Cluster:
    """Cluster of a topology.

    Links of a GPU and of the NICs of a box have the rates of the topology; peaks and constants are the device's.

    Args:
        device: Name of the GPUs, or what one of them reached when it was measured; None takes it from the name of
            the topology.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> found = cluster_of(preset("dgx-a100", boxes=4))
        >>> found.device.name, found.device.box, found.device.link_bytes_per_second, found.nic_bytes_per_second
        ('A100-80G', 8, 300000000000.0, 200000000000.0)
    """
    table = device if isinstance(device, DeviceTable) else None
    name = device if isinstance(device, str) else device_in(topology.name)
    if table is not None:
        name = table.device or device_in(table.name) or name
    if table is not None and name not in DEVICES:
        sheet = Device(
            name=table.name,
            flops=table.most_flops,
            memory_bytes_per_second=table.memory_rate,
            memory_bytes=table.memory_bytes,
            link_bytes_per_second=0.0,
        )
        return _cluster(topology, sheet, Calibration(), table)
    if name not in DEVICES:
        found = (
            f"topology {topology.name!r}"
            if not isinstance(device, str)
            else f"{device!r}: {suggestion(device, list(DEVICES))}"
        )
        raise InputError(
            f"expected a device ({', '.join(DEVICES)}) to name, found {found}: name one (`device=A100-80G`)."
        )
    return _cluster(topology, DEVICES[name], CALIBRATIONS[CONSTANTS.get(name, name)], table)


def capped(cluster: Cluster, cap: Cap) -> Cluster:
    """A cluster whose GPUs have a limit of their power or clock.

    Computation follows the clock; memory, links and the host do not.

    Raises:
        InputError: If nothing says what the limit leaves of such a GPU.

    Examples:
        >>> capped(box_of("H100"), Cap(clock_mhz=915)).clock_share
        0.5
    """
    for name, given, known in (
        ("power_watts", cap.power_watts, cluster.device.power_watts),
        ("clock_mhz", cap.clock_mhz, cluster.device.clock_mhz),
    ):
        if given and cluster.table is not None:
            raise InputError(
                f"`cluster.{name}`: expected GPUs from a data sheet, found measured ones ({cluster.table.name}): "
                "measure them under that limit."
            )
        if given and not known:
            raise InputError(
                f"`cluster.{name}`: expected a GPU whose data sheet has it, found {cluster.device.name}: leave it out."
            )
    return replace(cluster, cap=cap)


def _let_through(topology: Topology) -> float:
    """Bytes a second that the network carries from any set of boxes to the others and back."""
    boxes = sorted(set(topology.host[topology.rank_nodes].tolist()))
    place = {host: str(number) for number, host in enumerate(boxes)}
    ends = [place.get(int(topology.host[v]), name) for v, name in enumerate(topology.node_ids)]
    nodes = [Node(id=name) for name in place.values()]
    nodes += [
        Node(id=name, kind=NodeKind.SWITCH) for name in dict.fromkeys(ends) if name not in place.values()
    ]
    links = [
        Link(src=ends[a], dst=ends[b], gb_per_s=Fraction(units, topology.denominator), duplex=False)
        for a, b, units in zip(
            topology.src.tolist(), topology.dst.tolist(), topology.capacity.tolist(), strict=True
        )
        if ends[a] != ends[b]
    ]
    network = Topology.of(topology.name, nodes, links)
    ways = (Collective.BROADCAST, Collective.REDUCE)
    return min(float(bound_of(Problem(network, way, root=0)).algbw_gb_per_s) * 1e9 for way in ways)


def _no_more_than(rate: float, most: float, whose: str, where: str) -> float:
    """Rate of calibrated rings, capped at what the topology carries, with a note where it is."""
    if rate <= most * (1 + 1e-9):
        return rate
    warnings.warn(
        f"{whose} send {rate / 1e9:.6g} GB/s and the network lets {most / 1e9:.6g} GB/s through {where}: calibrated "
        "rings are reckoned with the latter (`collectives=nccl` simulates them).",
        stacklevel=4,
    )
    return most


def _cluster(
    topology: Topology, sheet: Device, calibration: Calibration, table: DeviceTable | None
) -> Cluster:
    """Cluster of a topology with the GPUs of a data sheet."""
    ranks = np.flatnonzero(topology.rank >= 0)
    boxes = np.unique(topology.host[ranks], return_counts=True)
    if len(set(boxes[1].tolist())) > 1:
        raise InputError(
            f"expected boxes with as many GPUs each, found {', '.join(map(str, sorted(set(boxes[1].tolist()))))}."
        )
    rates = topology.capacity / topology.denominator * 1e9
    from_host, to_host = topology.host[topology.src], topology.host[topology.dst]
    from_gpu, leaves = topology.rank[topology.src] >= 0, (from_host >= 0) & (from_host != to_host)
    nics = float(rates[leaves].sum()) / len(boxes[0])
    # What GPUs send to NICs of their box leaves it, as much as these carry.
    relayed = float(rates[leaves & ~from_gpu].sum())
    links = (float(rates[from_gpu & (from_host == to_host)].sum()) - relayed) / len(ranks)
    if len(boxes[0]) > 1:
        nics = _no_more_than(
            nics, _let_through(topology), f"the NICs of a box of {topology.name}", "between boxes"
        )
    own = replace(
        sheet,
        memory_bytes=(table and table.memory_bytes) or sheet.memory_bytes,
        link_bytes_per_second=links,
        box=int(boxes[1][0]),
    )
    return Cluster(
        device=own,
        nic_bytes_per_second=nics or links * own.box,
        calibration=calibration,
        table=table,
        shares_nics=0 < int(leaves.sum()) < len(ranks),
        apart=_apart(topology, own.box),
    )


def _apart(topology: Topology, box: int) -> tuple[tuple[tuple[int, int], float], ...]:
    """Peak rate from a GPU directly to GPUs of its box outside its group, by ranks and stride of groups.

    A group whose members have no path to each other but through other GPUs counts as one with all links.
    """
    src, dst = topology.rank[topology.src], topology.rank[topology.dst]
    direct = (src >= 0) & (dst >= 0) & (src // box == dst // box)
    if not direct.any():
        return ()
    rates = topology.capacity / topology.denominator * 1e9
    degrees = [each for each in range(1, box + 1) if box % each == 0]
    found: dict[tuple[int, int], float] = {}
    for stride in degrees:
        for ranks in (each for each in degrees if each > 1 and each * stride <= box):
            group = (
                np.arange(topology.num_ranks) // (stride * ranks) * stride
                + np.arange(topology.num_ranks) % stride
            )
            out = np.zeros((2, topology.num_ranks))
            for row, chosen in enumerate((direct, direct & (group[src] != group[dst]))):
                np.add.at(out[row], src[chosen], rates[chosen])
            if (out[1] < out[0]).all() and out[1].any():
                found[ranks, stride] = float(out[1].max())
    return tuple(found.items())
