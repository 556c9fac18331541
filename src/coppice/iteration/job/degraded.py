"""Machines one of whose nodes lost part of its rate, at the pace that it sets to all others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coppice.errors import InputError
from coppice.iteration.job.job import KindOfBox, Machines
from coppice.topology.model import Topology
from coppice.topology.operations import find_node, scale_nodes


def degraded(machines: Machines, change: str) -> tuple[int, Machines | None]:
    """The box of a node, and all machines at the pace of what remains of it.

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
        box, paced = first + int(np.searchsorted(hosts, place)), _paced(each, changed)
        if paced is None:
            return box, None
        return box, replace(machines, kinds=(*machines.kinds[:index], paced, *machines.kinds[index + 1 :]))
    raise refused or InputError(change)


def _paced(kind: KindOfBox, changed: Topology) -> KindOfBox | None:
    """The boxes with the least share of NICs and links that remains in one of them; None: none remains."""
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
    """What each node sends over the same links after the change; links that are gone carry nothing."""
    found = np.zeros(before.num_nodes)
    for link in np.flatnonzero(links).tolist():
        ends = int(before.src[link]), int(before.dst[link])
        at = changed.link_index.get(ends)
        if at is not None:
            found[ends[0]] += float(changed.capacity[at]) / float(changed.denominator)
    return found
