"""Machines after a change: faster, slower or other components, and those at the pace of a slow or lost one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from coppice.errors import InputError
from coppice.iteration.devices import CALIBRATIONS, DEVICES, UNCAPPED
from coppice.iteration.job.job import KindOfBox, Machines, device_of
from coppice.iteration.machine import CONSTANTS, Cluster
from coppice.iteration.measured.table import DeviceTable
from coppice.text import suggestion
from coppice.topology.model import Topology
from coppice.topology.operations import find_node, scale_nodes

FACTOR = re.compile(r"x(\d+(?:\.\d+)?|\.\d+)")
"""How a change says how many times as fast: `x0.5`."""

_NUMBER = re.compile(r"(\d+(?:\.\d+)?)(?:GB)?")


def degraded(machines: Machines, change: str) -> tuple[int, Machines | None]:
    """Degrade a node of a box, and slow all machines down to its pace.

    Messages are dealt evenly to the NICs of a box and to the links of a GPU: a slow one paces the others; what a lost
    one carried goes over those that remain. Where nothing remains of them, there are no such machines (None).

    Args:
        change: Such as ``box0/nic3=50%``: a node of the topology, and the share of its rate that is left.

    Examples:
        >>> from coppice.iteration.job.job import kind_of
        >>> from coppice.topology.presets import preset
        >>> kind = kind_of(preset("dgx-a100", boxes=2), None)
        >>> box, slow = degraded(Machines(name="two", kinds=(kind,)), "box1/nic3=50%")
        >>> box, slow.cluster.nic_bytes_per_second / kind.cluster.nic_bytes_per_second
        (1, 0.5)
        >>> slow.cluster.device.link_bytes_per_second / kind.cluster.device.link_bytes_per_second
        1.0
    """
    node, equals, share = change.rpartition("=")
    if not equals or not node or not share:
        raise InputError(
            f"expected a node and its share, such as box0/nic3=50% (`degrade`), found {change!r}."
        )
    first, refused = 0, None
    for index, each in enumerate(machines.kinds):
        try:
            changed = scale_nodes(each.topology, {node: share})
        except InputError as error:
            refused = refused or error
            first += each.boxes
            continue
        place = each.topology.host[find_node(each.topology, node)]
        if place < 0:
            raise InputError(
                f"expected a node of a box, found {node!r}, which is in none: name a NIC, a GPU or a switch of one."
            )
        hosts = np.unique(each.topology.host[each.topology.rank_nodes])
        box, paced = first + int(np.searchsorted(hosts, place)), paced_by(each, changed)
        if paced is None:
            return box, None
        return box, replace(machines, kinds=(*machines.kinds[:index], paced, *machines.kinds[index + 1 :]))
    raise refused or InputError(change)


def paced_by(kind: KindOfBox, changed: Topology) -> KindOfBox | None:
    """Boxes limited by the one with the smallest remaining share of NICs and links; None where nothing remains."""
    before = kind.topology
    from_host, to_host = before.host[before.src], before.host[before.dst]
    leaves = (from_host >= 0) & (from_host != to_host)
    relayed = np.isin(before.dst, before.src[leaves])
    inside = (before.rank[before.src] >= 0) & (from_host == to_host) & ~relayed
    shares = []
    for links in (leaves, inside):
        was = np.bincount(before.src[links], before.capacity[links], before.num_nodes) / before.denominator
        now = _rates(before, changed, links)
        used = was > 0
        left = now[used] / was[used]
        lost = int((left == 0).sum())
        if not used.any():  # boxes without NICs
            shares.append(1.0)
            continue
        # Of the NICs of a box some may be lost; a GPU without links has none left to go by.
        count = kind.nics if links is leaves else 1
        slow = float(left[left > 0].min()) if (left > 0).any() else 0.0
        shares.append(slow * max(0, count - lost) / count if lost else slow)
    if not all(shares):
        return None
    device = kind.cluster.device
    cluster = replace(
        kind.cluster,
        device=replace(device, link_bytes_per_second=device.link_bytes_per_second * shares[1]),
        nic_bytes_per_second=kind.cluster.nic_bytes_per_second * shares[0],
    )
    return replace(kind, cluster=cluster)


def _rates(before: Topology, changed: Topology, links: np.ndarray) -> np.ndarray:
    """Rate of each node over its original links after the change; lost links carry nothing."""
    found = np.zeros(before.num_nodes)
    where = [changed.node_index.get(name, -1) for name in before.node_ids]
    for link in np.flatnonzero(links).tolist():
        src, dst = int(before.src[link]), int(before.dst[link])
        at = changed.link_index.get((where[src], where[dst]))
        if at is not None:
            found[src] += float(changed.capacity[at]) / float(changed.denominator)
    return found


def refusal(change: str, shape: str) -> str:
    """Error message for a change of another shape than expected."""
    return f"expected {shape}, found {change!r}."


def without_last(machines: Machines, count: int) -> Machines:
    """Machines without so many boxes at the end."""
    kinds = list(machines.kinds)
    for _ in range(count):
        kinds[-1] = replace(kinds[-1], boxes=kinds[-1].boxes - 1)
        if not kinds[-1].boxes:
            kinds.pop()
    return replace(machines, kinds=tuple(kinds))


def at_pace_of(machines: Machines, part: str, box: int, factor: float | None) -> Machines | None:
    """All machines at the pace of one with a slow (or, without a factor, lost) component; None: the job stops."""
    if factor is None and part != "nic":
        return None
    kinds, first = list(machines.kinds), 0
    for index, each in enumerate(kinds):
        if first <= box < first + each.boxes:
            cluster = each.cluster
            if part == "nic":
                # What a lost NIC carried goes over the others; a slow one keeps its share, and paces them.
                share = (each.nics - 1) / each.nics if factor is None else factor
                if not share:
                    return None
                cluster = replace(cluster, nic_bytes_per_second=cluster.nic_bytes_per_second * share)
            else:
                cluster = _scaled(cluster, "flops", factor or 1.0)
                cluster = _scaled(cluster, "memory", factor or 1.0)
            kinds[index] = replace(each, cluster=cluster)
        first += each.boxes
    return replace(machines, kinds=tuple(kinds))


def with_component(machines: Machines, change: str, name: str, value: str) -> Machines:
    """All machines with a component replaced, faster or slower."""
    if name == "gpu":
        other = device_of(value)
        return _each(machines, lambda cluster: _with_device(cluster, other))
    match = FACTOR.fullmatch(value)
    if match is None:
        size = _NUMBER.fullmatch(value) if name == "memory" else None
        if size is None:
            raise InputError(refusal(change, f"a factor such as {name}=x2" + " or GB" * (name == "memory")))
        bytes_ = float(size[1]) * 1e9
        return _each(
            machines,
            lambda cluster: replace(cluster, device=replace(cluster.device, memory_bytes=bytes_)),
        )
    factor = float(match[1])
    if not factor:
        raise InputError(refusal(change, f"a factor above 0 such as {name}=x2"))
    return _each(machines, lambda cluster: _scaled(cluster, name, factor))


def _each(machines: Machines, changed: Callable[[Cluster], Cluster]) -> Machines:
    """Machines with a change applied to each kind."""
    kinds: Sequence[KindOfBox] = [replace(each, cluster=changed(each.cluster)) for each in machines.kinds]
    return replace(machines, kinds=tuple(kinds))


def _scaled(cluster: Cluster, name: str, factor: float) -> Cluster:
    """Cluster with one rate scaled."""
    device = cluster.device
    if name == "nic":
        return replace(cluster, nic_bytes_per_second=cluster.nic_bytes_per_second * factor)
    if name == "nvlink":
        return replace(
            cluster, device=replace(device, link_bytes_per_second=device.link_bytes_per_second * factor)
        )
    if name == "memory":
        rate = device.memory_bytes_per_second * factor
        return replace(cluster, device=replace(device, memory_bytes_per_second=rate))
    return replace(cluster, device=replace(device, flops=device.flops * factor))


def _with_device(cluster: Cluster, other: str | DeviceTable | None) -> Cluster:
    """Cluster of other GPUs with their links, in boxes of the same size with the same NICs."""
    if isinstance(other, DeviceTable):
        return replace(cluster, table=other)
    if other not in DEVICES:
        raise InputError(f"expected a device, found {other!r}: {suggestion(str(other), list(DEVICES))}")
    device = replace(DEVICES[other], box=cluster.device.box)
    return replace(
        cluster,
        device=device,
        calibration=CALIBRATIONS[CONSTANTS.get(other, other)],
        table=None,
        cap=UNCAPPED,
    )
