"""Aggregation trees of switches on a topology (reduce up, multicast down), and their load on each link.

Members send towards a root along the fewest hops (then the widest links); the union of their paths is a tree. A switch
that adds sends one stream up, any other one passes on all that it gets. The root holds the sum. On the way down a
switch that copies gets one stream for all that is below it; what is below others comes in a stream of its own for each
member, or each copying switch, from the nearest switch above that can copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np

from coppice.errors import UnreachableError
from coppice.topology.model import Topology


@dataclass(frozen=True, kw_only=True)
class SwitchTree:
    """An aggregation tree for one group of members."""

    root: int  # Node of the switch that holds the sum
    members: tuple[int, ...]  # Nodes that contribute and get the sum
    streams: Mapping[int, int]  # Streams of the tensor on each link that has any, up and down together
    latency_us: float  # Latency of the links from the farthest member to the root and back
    tiers: int  # Adding switches on the longest way up
    # For each node that streams pass on the way up, but the root, the next adding switch on its way
    above: Mapping[int, int]
    first_up: tuple[int, ...]  # Links from the first member to the root
    first_down: tuple[int, ...]  # Links from the root to the first member


class SwitchTrees:
    """The aggregation trees that a topology allows.

    Args:
        topology: The network.
        adding: Nodes of switches that add and copy.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> star = preset("star", gpus=4)
        >>> tree = SwitchTrees(star, [4]).tree(4, [0, 1, 2, 3])
        >>> sorted(set(tree.streams.values())), tree.tiers, tree.above
        ([1], 1, {0: 4, 1: 4, 2: 4, 3: 4})
    """

    def __init__(self, topology: Topology, adding: Collection[int]) -> None:
        self.topology = topology
        self.adding = frozenset(adding)
        self._forwards = (topology.rank < 0).tolist()
        ends = list(
            zip(topology.src.tolist(), topology.dst.tolist(), topology.capacity.tolist(), strict=True)
        )
        self._into: list[list[tuple[int, int, int]]] = [[] for _ in range(topology.num_nodes)]
        self._out: list[list[tuple[int, int, int]]] = [[] for _ in range(topology.num_nodes)]
        for link, (a, b, capacity) in enumerate(ends):
            self._into[b].append((a, capacity, link))
            self._out[a].append((b, capacity, link))
        self._found: dict[int, tuple[list[int], list[int]]] = {}

    def tree(self, root: int, members: Sequence[int]) -> SwitchTree:
        """Build the tree of some members around a root.

        Args:
            members: Nodes that contribute, the first one a server's where there is one.
        """
        if root not in self._found:
            self._found[root] = self._links_from(root, self._into), self._links_from(root, self._out)
        to_root, from_root = self._found[root]
        streams: dict[int, int] = {}
        up, tiers = self._streams(members, root, to_root, self.topology.dst)
        down, _ = self._streams(members, root, from_root, self.topology.src)
        for part in (up, down):
            for link, count in part.items():
                streams[link] = streams.get(link, 0) + count
        latency: list[float] = self.topology.latency_us.tolist()

        def longest(links: list[int], ends: Sequence[int]) -> float:
            return max(sum(latency[link] for link in self._way(v, root, links, ends)) for v in members)

        sources, targets = self.topology.src.tolist(), self.topology.dst.tolist()
        return SwitchTree(
            root=root,
            members=tuple(members),
            streams=streams,
            latency_us=longest(to_root, targets) + longest(from_root, sources),
            tiers=tiers,
            above=self._above(members, root, to_root, targets),
            first_up=tuple(self._way(members[0], root, to_root, targets)),
            first_down=tuple(self._way(members[0], root, from_root, sources)),
        )

    def best(self, members: Sequence[int], *, load: Sequence[Fraction], share: Fraction) -> SwitchTree | None:
        """Choose the tree with the least busy busiest link on top of a given load; None where no tree exists.

        Of equal ones the tree with fewer streams, less latency, the first root.

        Args:
            load: Bytes on each link for each byte of the tensor.
            share: Part of the tensor that the tree carries.
        """
        best: tuple[tuple[Fraction, int, float, int], SwitchTree] | None = None
        for root in sorted(self.adding):
            try:
                tree = self.tree(root, members)
            except UnreachableError:
                continue
            busiest = max(
                ((load[e] + share * count) / self.topology.gb_per_s(e) for e, count in tree.streams.items()),
                default=Fraction(0),
            )
            key = (busiest, sum(tree.streams.values()), tree.latency_us, root)
            if best is None or key < best[0]:
                best = key, tree
        return None if best is None else best[1]

    def _links_from(self, root: int, beside: list[list[tuple[int, int, int]]]) -> list[int]:
        """For each node its link on the way to (or from) the root: fewest hops, then widest, then first; -1 without."""
        nodes = self.topology.num_nodes
        hops, width, link = [-1] * nodes, [0] * nodes, [-1] * nodes
        hops[root], width[root] = 0, 2**63
        waiting = deque([root])
        while waiting:
            here = waiting.popleft()
            if here != root and not self._forwards[here]:
                continue
            for there, capacity, number in beside[here]:
                through = min(width[here], capacity)
                if hops[there] < 0:
                    hops[there] = hops[here] + 1
                    waiting.append(there)
                if hops[there] == hops[here] + 1 and through > width[there]:
                    width[there], link[there] = through, number
        return link

    def _way(self, member: int, root: int, link: list[int], ends: Sequence[int]) -> list[int]:
        """Path between a member and the root."""
        way, here = [], member
        while here != root:
            number = link[here]
            if number < 0:
                names = self.topology.node_ids
                raise UnreachableError(
                    f"no path of switches and NICs joins {names[member]} and {names[root]}."
                )
            way.append(number)
            here = int(ends[number])
        return way

    def _above(
        self, members: Sequence[int], root: int, link: list[int], ends: Sequence[int]
    ) -> dict[int, int]:
        """The next adding switch of every node on the paths of the members."""
        found: dict[int, int] = {}
        for member in members:
            way = [member, *(int(ends[number]) for number in self._way(member, root, link, ends))]
            following = root
            for node, after in reversed(list(pairwise(way))):
                following = after if after in self.adding else following
                found[node] = following
        return found

    def _streams(
        self, members: Sequence[int], root: int, link: list[int], ends: np.ndarray
    ) -> tuple[dict[int, int], int]:
        """Streams on each link of the tree, and the largest number of adding switches on a path."""
        others = ends.tolist()
        ways = [self._way(v, root, link, others) for v in members]
        below: dict[int, int] = {}
        depth: dict[int, int] = {}
        for member, way in zip(members, ways, strict=True):
            below[member] = 1
            for position, number in enumerate(way):
                node = int(others[number])
                depth[node] = len(way) - position - 1
        depth.update({member: len(way) for member, way in zip(members, ways, strict=True)})
        for node in sorted(depth, key=lambda each: (-depth[each], each)):
            if node == root:
                continue
            count = 1 if node in self.adding else below.get(node, 0)
            other = int(others[link[node]])
            below[other] = below.get(other, 0) + count
        streams = {link[node]: 1 if node in self.adding else below[node] for node in depth if node != root}
        tiers = max(sum(int(others[number]) in self.adding for number in way) for way in ways)
        return streams, tiers
