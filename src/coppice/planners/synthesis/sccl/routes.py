"""What ranks can send each other in a step, and what limits it: routes through switches, and groups that share a link.

SCCL knows ranks and groups (senders, receivers, chunks per round). A topology has switches and NICs, which own nothing
and pass a chunk on within the step, so a *route* is a path from rank to rank through nodes without a rank, and every
link is a group: the routes that cross it share its rate. So each GPU behind a switch is limited in what it sends and in
what it receives, and GPUs that share a NIC or an uplink are limited together, as the links are. A switch copies and
adds nothing here. Where several routes lead from one rank to another, a chunk takes one of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coppice.display import Brief
from coppice.errors import InputError
from coppice.topology.model import Topology

MOST_ROUTES = 64
"""Most routes between two ranks: all are tried, so that what is proved to be impossible is."""


@dataclass(frozen=True)
class RouteGroup:
    """Routes that share a link."""

    routes: tuple[int, ...]  # Their numbers, ascending
    rate: int  # Rate of the link, in units of the topology


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class StepRoutes(Brief):
    """All routes of a topology and the groups that limit them."""

    topology: Topology  # Where they lead
    path: tuple[tuple[int, ...], ...]  # Nodes of each route, both ranks included
    src: tuple[int, ...]  # Sending rank of each route
    dst: tuple[int, ...]  # Receiving rank of each route
    # The groups, of those with the same routes the slowest, none that another implies
    groups: tuple[RouteGroup, ...]
    # Rate of the link that carries one chunk in a round, in units of the topology (`rate / denominator` is in
    # GB/s): the slowest of the groups, unless another was asked for
    unit: Fraction

    @property
    def round_gb_per_s(self) -> Fraction:
        """The rate that carries one chunk in a round, in GB/s."""
        return self.unit / self.topology.denominator

    def chunks_in(self, group: RouteGroup, rounds: int) -> int:
        """Chunks that a group carries in a step of so many rounds: what its rate has time for, whole chunks only."""
        return int(group.rate * rounds / self.unit)

    def distances(self) -> NDArray[np.int64]:
        """``distances[u, v]``: steps that a chunk takes from rank u to rank v; -1 where it never arrives."""
        ranks = self.topology.num_ranks
        onward: list[list[int]] = [[] for _ in range(ranks)]
        for u, v in sorted(set(zip(self.src, self.dst, strict=True))):
            onward[u].append(v)
        found = np.full((ranks, ranks), -1, dtype=np.int64)
        for start in range(ranks):
            found[start, start] = 0
            queue = deque([start])
            while queue:
                u = queue.popleft()
                for v in onward[u]:
                    if found[start, v] < 0:
                        found[start, v] = found[start, u] + 1
                        queue.append(v)
        return found


def find_routes(topology: Topology, *, detour: int = 0, round_gb_per_s: Fraction | None = None) -> StepRoutes:
    """The routes of a topology.

    Args:
        detour: Between two ranks all routes count that have at most so many hops more than the shortest.
        round_gb_per_s: The rate that carries a chunk in a round; None: that of the slowest group.

    Examples:
        GPUs behind one switch share what they send and what they receive:

        >>> from coppice.topology.presets import preset
        >>> star = find_routes(preset("star", gpus=3))
        >>> star.src, star.dst, [group.routes for group in star.groups]
        ((0, 0, 1, 1, 2, 2), (1, 2, 0, 2, 0, 1), [(0, 1), (2, 3), (4, 5), (2, 4), (0, 5), (1, 3)])
    """
    if detour < 0 or (round_gb_per_s is not None and round_gb_per_s <= 0):
        raise InputError(
            f"expected a `detour` of 0 or more hops and a `round_gb_per_s` above 0, found {detour} and "
            f"{round_gb_per_s}: correct them."
        )
    onward: list[list[int]] = [[] for _ in range(topology.num_nodes)]
    for a, b in zip(topology.src.tolist(), topology.dst.tolist(), strict=True):
        onward[a].append(b)
    nodes = topology.rank_nodes.tolist()
    paths = [path for u in range(len(nodes)) for path in _paths_from(topology, onward, nodes[u], detour)]
    rank = topology.rank.tolist()
    groups = _groups(topology, paths)
    unit = Fraction(min((group.rate for group in groups), default=topology.denominator))
    if round_gb_per_s is not None:
        unit = round_gb_per_s * topology.denominator
    return StepRoutes(
        topology=topology,
        path=tuple(paths),
        src=tuple(rank[path[0]] for path in paths),
        dst=tuple(rank[path[-1]] for path in paths),
        groups=groups,
        unit=unit,
    )


def _paths_from(
    topology: Topology, onward: list[list[int]], start: int, detour: int
) -> Iterator[tuple[int, ...]]:
    """The routes of one rank, by receiving rank."""
    rank = topology.rank.tolist()
    hops = {start: 0}
    queue = deque([start])
    while queue:
        a = queue.popleft()
        if rank[a] < 0 or a == start:
            for b in onward[a]:
                if b not in hops:
                    hops[b] = hops[a] + 1
                    queue.append(b)
    found: dict[int, list[tuple[int, ...]]] = {}
    longest = max((count for node, count in hops.items() if rank[node] >= 0), default=0) + detour
    stack: list[tuple[int, ...]] = [(start,)]
    visits = 0
    while stack:
        path = stack.pop()
        visits += 1
        _refuse(topology, start, visits > MOST_ROUTES * 1024)
        for b in reversed(onward[path[-1]]):
            if b in path:
                continue
            if rank[b] < 0:
                if len(path) < longest:
                    stack.append((*path, b))
            elif len(path) <= hops[b] + detour:
                ways = found.setdefault(rank[b], [])
                ways.append((*path, b))
                _refuse(topology, start, len(ways) > MOST_ROUTES)
    for v in sorted(found):
        yield from sorted(found[v], key=lambda path: (len(path), path))


def _refuse(topology: Topology, start: int, refused: bool) -> None:  # noqa: FBT001 (private, one call's condition)
    if refused:
        raise InputError(
            f"expected at most {MOST_ROUTES} routes between two ranks, found more from {topology.node_ids[start]} on "
            f"{topology.name}: use a lower `detour`, or a smaller topology."
        )


def _groups(topology: Topology, paths: list[tuple[int, ...]]) -> tuple[RouteGroup, ...]:
    """The groups in the order of their links, without those that another one implies."""
    by_link: dict[int, list[int]] = {}
    for i, path in enumerate(paths):
        for hop in pairwise(path):
            by_link.setdefault(topology.link_index[hop], []).append(i)
    slowest: dict[tuple[int, ...], int] = {}
    for link in sorted(by_link):
        key = tuple(by_link[link])
        slowest[key] = min(slowest.get(key, int(topology.capacity[link])), int(topology.capacity[link]))
    sets = [(frozenset(routes), rate) for routes, rate in slowest.items()]
    return tuple(
        RouteGroup(tuple(sorted(routes)), rate)
        for routes, rate in sets
        if not any(routes < other and other_rate <= rate for other, other_rate in sets)
    )
