"""Candidate routes between ranks for tree edges, and the links that they load.

Trees are packed over ranks. An edge from parent u to child v takes the link between the two where there is one, or the
default route through switches. A broadcast loads the way down, a reduce the way up, an all-reduce both: it adds up to
the root of a tree and broadcasts from there, so that every direction of every link of a tree is used once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.display import Brief
from coppice.errors import UnreachableError
from coppice.topology.model import Topology
from coppice.topology.routing import Router


class Fabric(StrEnum):
    """Links that trees may use: NVLink, PCIe or network."""

    DIRECT = "direct"
    """Links between two GPUs: NVLink or xGMI without switches."""
    SWITCHED = "switched"
    """Paths through switches: NVSwitch, PCIe, the network."""
    TOGETHER = "together"
    """Both: a link where there is one between two GPUs, else a path through switches."""


@dataclass(frozen=True, slots=True)
class EdgeRoute:
    """EdgeRoute of a tree edge."""

    parent: int  # Rank nearer to the root
    child: int  # The other rank
    down: tuple[int, ...]  # Nodes from parent to child
    up: tuple[int, ...]  # Nodes from child to parent
    links: tuple[int, ...]  # Links that the edge loads, each as often as it loads it


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class EdgeRoutes(Brief):
    """Routes between some ranks of a topology."""

    topology: Topology  # The whole topology
    members: tuple[int, ...]  # The ranks, ascending
    routes: tuple[EdgeRoute, ...]  # At most one for each ordered pair, sorted by parent and child

    def unreached(self, root: int) -> int | None:
        """A member that no tree from ``root`` can reach, or None."""
        reached = {root}
        growing = True
        while growing:
            new = {route.child for route in self.routes if route.parent in reached} - reached
            reached |= new
            growing = bool(new)
        return next((rank for rank in self.members if rank not in reached), None)


def routes_between(
    topology: Topology,
    members: Sequence[int],
    collective: Collective,
    fabric: Fabric = Fabric.TOGETHER,
    *,
    # Only switches of this host (a row of its hosts), not the network between hosts
    inside: int | None = None,
) -> EdgeRoutes:
    """Routes between members for a collective on a fabric.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> ring = preset("ring", gpus=4)
        >>> [(route.parent, route.child) for route in routes_between(ring, range(4), Collective.BROADCAST).routes][:3]
        [(0, 1), (0, 3), (1, 0)]
    """
    nodes = topology.rank_nodes
    linked = topology.rank[topology.src], topology.rank[topology.dst]
    direct = set(zip(linked[0].tolist(), linked[1].tolist(), strict=True))
    keep = np.ones(topology.num_links, dtype=np.bool_)
    if fabric is Fabric.SWITCHED:
        keep &= (topology.rank[topology.src] < 0) | (topology.rank[topology.dst] < 0)
    if inside is not None:
        keep &= (topology.host[topology.src] == inside) & (topology.host[topology.dst] == inside)
    router = Router(topology if keep.all() else _of_links(topology, keep))
    paths: dict[tuple[int, int], tuple[int, ...]] = {}
    for u in members:
        for v in members:
            if u == v:
                continue
            if fabric is not Fabric.SWITCHED and (u, v) in direct:
                paths[u, v] = (int(nodes[u]), int(nodes[v]))
            elif fabric is not Fabric.DIRECT:
                path = _route(router, u, v)
                if path is not None:
                    paths[u, v] = path
    routes = []
    for u, v in sorted(paths):
        down, up = paths[u, v], paths.get((v, u))
        if up is None and collective is Collective.BROADCAST:
            up = ()
        if up is None:
            continue
        routes.append(EdgeRoute(u, v, down, up, _loaded(topology, collective, down, up)))
    if collective is Collective.REDUCE:  # an edge needs the way up alone
        routes += [
            EdgeRoute(u, v, (), up, _loaded(topology, collective, (), up))
            for (v, u), up in sorted(paths.items())
            if (u, v) not in paths
        ]
        routes.sort(key=lambda route: (route.parent, route.child))
    return EdgeRoutes(topology=topology, members=tuple(sorted(members)), routes=tuple(routes))


def one_hop(topology: Topology, members: Sequence[int]) -> bool:
    """Whether all members are attached to the same switches only, as GPUs to NVSwitches."""
    if len(members) < 3:
        return False
    node_of = {int(topology.rank_nodes[rank]) for rank in members}
    beside: dict[int, set[int]] = {node: set() for node in node_of}
    for a, b in zip(topology.src.tolist(), topology.dst.tolist(), strict=True):
        if a in node_of and b in node_of:
            return False
        if a in node_of:
            beside[a].add(b)
        elif b in node_of:
            beside[b].add(a)
    return bool(set.intersection(*beside.values()))


def _of_links(topology: Topology, keep: NDArray[np.bool_]) -> Topology:
    """The topology with some of its links."""
    return replace(
        topology,
        src=topology.src[keep],
        dst=topology.dst[keep],
        capacity=topology.capacity[keep],
        latency_us=topology.latency_us[keep],
    )


def _route(router: Router, src: int, dst: int) -> tuple[int, ...] | None:
    try:
        return router.path(src, dst)
    except UnreachableError:
        return None


def _loaded(
    topology: Topology, collective: Collective, down: tuple[int, ...], up: tuple[int, ...]
) -> tuple[int, ...]:
    used: list[tuple[int, ...]] = []
    if collective is not Collective.REDUCE:
        used.append(down)
    if collective is not Collective.BROADCAST:
        used.append(up)
    index = topology.link_index
    return tuple(int(index[hop]) for path in used for hop in pairwise(path))
