"""What an in-network system needs of a cluster: which ranks share a box, and which switches can add."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from fractions import Fraction
from itertools import pairwise

import numpy as np

from coppice.errors import InputError
from coppice.topology.model import NodeKind, Topology
from coppice.topology.routing import Router


@dataclass(frozen=True, kw_only=True)
class ClusterPlaces:
    """Boxes and switches of a cluster."""

    topology: Topology  # The cluster
    # Nodes of the ranks of each box, in order of ranks; ranks without a host are boxes of their own
    boxes: tuple[tuple[int, ...], ...]
    # Ranks of a box that exchange its part of the tensor with other boxes: as many as the smallest box has
    heads: int
    network: tuple[int, ...]  # Switches outside boxes that add and copy
    # Switches that add and copy and that all ranks of one box, or of all, hang on directly
    inside: tuple[int, ...]

    def joining(self, group: Sequence[int]) -> tuple[int, ...]:
        """Switches among :attr:`inside` that all of some ranks hang on."""
        return tuple(v for v in self.inside if _joins(self.topology, v, group))

    def phase_load(self) -> list[Fraction]:
        """Bytes on each link per byte of the tensor when every box reduces to its heads; broadcasts take as many."""
        load = [Fraction(0)] * self.topology.num_links
        router, index = Router(self.topology), self.topology.link_index
        for box in self.boxes:
            for head in box[: self.heads]:
                for other in box:
                    if other != head:
                        path = router.node_path(other, head)
                        for a, b in pairwise(path):
                            load[index[a, b]] += Fraction(1, self.heads)
        return load


def with_adding(topology: Topology, pattern: str) -> Topology:
    """Mark the switches outside boxes that a pattern names as able to reduce and multicast, and no others.

    Args:
        pattern: Names of switches, such as ``spine*``; several with ``+`` between them.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> found = with_adding(preset("fat-tree"), "spine*")
        >>> [found.node_ids[v] for v in np.flatnonzero(found.aggregate & found.multicast)]
        ['spine0', 'spine1']
    """
    patterns = [each.strip() for each in pattern.split("+")]
    outside = (topology.kind == NodeKind.SWITCH) & (topology.host < 0)
    named = outside & np.array(
        [any(fnmatchcase(name, each) for each in patterns) for name in topology.node_ids], dtype=np.bool_
    )
    if not named.any():
        names = [topology.node_ids[v] for v in np.flatnonzero(outside).tolist()]
        known = f"has {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}" if names else "has none"
        raise InputError(
            f"expected names of switches outside boxes, found {pattern!r}: {topology.name} {known}."
        )
    return replace(
        topology,
        aggregate=np.where(outside, named, topology.aggregate),
        multicast=np.where(outside, named, topology.multicast),
    )


def places_of(topology: Topology) -> ClusterPlaces:
    """Boxes and switches of a cluster.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> places = places_of(preset("dgx-h100", boxes=2))
        >>> len(places.boxes), places.heads, places.network, len(places.inside)
        (2, 8, (), 2)
    """
    ranks = topology.rank_nodes.tolist()
    by_host: dict[int, list[int]] = {}
    for position, node in enumerate(ranks):
        host = int(topology.host[node])
        by_host.setdefault(host if host >= 0 else -1 - position, []).append(node)
    boxes = tuple(tuple(each) for each in by_host.values())
    able = (topology.kind == NodeKind.SWITCH) & topology.aggregate & topology.multicast
    groups = (*boxes, tuple(ranks))
    return ClusterPlaces(
        topology=topology,
        boxes=boxes,
        heads=min(map(len, boxes)),
        network=tuple(np.flatnonzero(able & (topology.host < 0)).tolist()),
        inside=tuple(
            v
            for v in np.flatnonzero(able).tolist()
            if any(len(group) > 1 and _joins(topology, v, group) for group in groups)
        ),
    )


def _joins(topology: Topology, switch: int, group: Sequence[int]) -> bool:
    """Whether GPUs are attached to a switch directly, one of their box where they have boxes."""
    index = topology.link_index
    if topology.host[switch] < 0 and any(topology.host[g] >= 0 for g in group):
        return False
    return all((g, switch) in index and (switch, g) in index for g in group)
