"""All-to-alls of which each block, or each of few equal parts of it, goes one way whole, at about the rate of the flow.

The routes of a concurrent flow split blocks into shares as they come, which takes many small messages, and may be as
long as they like. Here every block takes one path, of as few messages as possible, so that links are loaded alike:

1. Blocks are routed one by one, and again in rounds, a link costing the more the fuller it is, to an ever higher power,
   as in the routing of circuits (McMurchie and Ebeling, "PathFinder", FPGA 1995). The round of least load is taken.
2. Then they are routed anew, with links that were full a long way from the begin: only those blocks take them that have
   to, on as few of them as they can (in a flow of the best rate every path is a shortest one by lengths of full links).

**Order.** A rank sends next what the most loaded links wait for that have least to do at the time: each block is booked
on all links of its way, in the order in which ranks become free, and of those that a rank has the one goes first whose
busiest link has most left to carry, less what waits before its links already, with the latency of its messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.problem import Problem
from coppice.bounds.result import Bound
from coppice.planners.flow import schedule_of_paths
from coppice.planners.ordering import reordered
from coppice.rows import positions
from coppice.schedule.schedule import Schedule

_ROUNDS = ((4, 4.0), (8, 2.0), (16, 1.0), (16, 0.5), (24, 0.25), (24, 0.12))
"""Power of the load of links that they cost, and what a message costs beside, in each round."""
_WITHIN = 0.25
"""What a link costs that begins at no rank, to that of one that does: it makes no message of its own."""
_LONGER, _FULL = 4.0, 8
"""Messages that a full link costs from the begin, and the power of its load that a link costs so."""
_FULLEST = 4.0
"""Loads above this share of the least possible one are alike."""
_EVEN = 1.001

_Part: TypeAlias = tuple[int, int, int]
"""Sender, receiver, and number of a part."""


@dataclass(frozen=True, eq=False, kw_only=True)
class WholeRoutes:
    """A path for each part of each block."""

    problem: Problem
    parts: int
    links: tuple[tuple[int, ...], ...]  # Of each part of each block, by sender, receiver and part
    load: float  # Of the fullest link, to the least possible one

    @property
    def transfers(self) -> int:
        """Messages between ranks."""
        topology = self.problem.topology
        sends = topology.rank[topology.src] >= 0
        return sum(int(sends[list(links)].sum()) for links in self.links)


def whole_routes(problem: Problem, plain: Bound, *, parts: int = 1) -> WholeRoutes:
    """Route blocks of equal size, each in so many parts.

    Args:
        problem: A uniform all-to-all.
        plain: Its bound on the rate.

    Examples:
        >>> from coppice.bounds.optimum import bound_of
        >>> from coppice.topology.presets import preset
        >>> ring = Problem(preset("ring", gpus=4), "all_to_all")
        >>> found = whole_routes(ring, bound_of(ring))
        >>> len(found.links), found.load, max(map(len, found.links))
        (12, 1.0, 2)
    """
    first = _LoadedLinks(problem, float(plain.inv_rate), [0.0] * problem.topology.num_links)
    load, _ = first.routed(1)
    full = [_LONGER * (each / load) ** _FULL for each in first.loads]
    again = _LoadedLinks(problem, float(plain.inv_rate), full)
    load, routes = again.routed(parts)
    links = tuple(tuple(routes[key]) for key in sorted(routes))
    return WholeRoutes(problem=problem, parts=parts, links=links, load=load)


class _LoadedLinks:
    """Loads of links, and the cheapest paths under them."""

    def __init__(self, problem: Problem, least: float, longer: Sequence[float]) -> None:
        topology = problem.topology
        self.nodes = topology.rank_nodes.tolist()
        self.rate = [least * each / topology.denominator for each in topology.capacity.tolist()]
        self.load = [0.0] * topology.num_links
        self.narrowest = min(self.rate)
        self.tail = topology.src.tolist()
        self.fixed = [
            (1.0 if topology.rank[tail] >= 0 else _WITHIN) + more
            for tail, more in zip(self.tail, longer, strict=True)
        ]
        self.out: list[list[tuple[int, int]]] = [[] for _ in range(topology.num_nodes)]
        for link, (tail, head) in enumerate(zip(self.tail, topology.dst.tolist(), strict=True)):
            self.out[tail].append((head, link))

    def routed(self, parts: int) -> tuple[float, dict[_Part, list[int]]]:
        """Least load of a round, and its routes; all loads are as the last one left them."""
        ranks, share = len(self.nodes), 1 / parts
        chosen: dict[_Part, list[int]] = {}
        best: tuple[float, dict[_Part, list[int]]] = inf, {}
        for power, message in _ROUNDS:
            for sender in range(ranks):
                for part in range(parts):
                    for away in range(1, ranks):
                        key = sender, (sender + away) % ranks, part
                        self.add(chosen.get(key, ()), -share)
                        target = self.nodes[key[1]]
                        chosen[key] = self.path(self.nodes[sender], target, share, power, message)
                        self.add(chosen[key], share)
            fullest = max(self.loads)
            if fullest < best[0] - _EVEN + 1:
                best = fullest, dict(chosen)
            if fullest <= _EVEN:
                break
        return best

    @property
    def loads(self) -> list[float]:
        """Load of each link, to the least possible one of the fullest."""
        return [load / rate for load, rate in zip(self.load, self.rate, strict=True)]

    def add(self, links: Sequence[int], share: float) -> None:
        """Load a path, or unload it."""
        for link in links:
            self.load[link] += share

    def path(self, source: int, target: int, share: float, power: int, message: float) -> list[int]:
        """Links of the cheapest path (Dijkstra)."""
        far = [inf] * len(self.out)
        via = [-1] * len(self.out)
        far[source] = 0.0
        heap = [(0.0, source)]
        rate, load, fixed, unit = self.rate, self.load, self.fixed, message / self.narrowest
        while heap:
            so_far, node = heappop(heap)
            if node == target:
                break
            if so_far > far[node]:
                continue
            for head, link in self.out[node]:
                full = min((load[link] + share) / rate[link], _FULLEST)
                cost = so_far + fixed[link] * unit + full**power / rate[link]
                if cost < far[head]:
                    far[head], via[head] = cost, link
                    heappush(heap, (cost, head))
        found: list[int] = []
        node = target
        while node != source:
            found.append(via[node])
            node = self.tail[via[node]]
        return found[::-1]


def least_waiting(routes: WholeRoutes, part_us: NDArray[np.float64], message_us: float) -> Schedule:
    """The blocks on their routes, in an order in which the busiest links wait least.

    Args:
        part_us: What a part of a block takes on each link.
        message_us: What each message takes beside.

    Examples:
        >>> from coppice.bounds.optimum import bound_of
        >>> from coppice.topology.presets import preset
        >>> star = Problem(preset("star", gpus=3), "all_to_all")
        >>> found = least_waiting(whole_routes(star, bound_of(star)), np.ones(6), 1.0)
        >>> list(zip(found.src.tolist(), found.dst.tolist()))
        [(0, 1), (1, 2), (2, 0), (2, 1), (0, 2), (1, 0)]
    """
    problem, parts = routes.problem, routes.parts
    topology, ranks = problem.topology, problem.topology.num_ranks
    sender = np.repeat(np.arange(ranks), (ranks - 1) * parts)
    other = np.tile(np.repeat(np.arange(ranks - 1), parts), ranks)
    receiver = other + (other >= sender)
    begin_us = _begins(routes, sender, (receiver - sender) % ranks, part_us, message_us)
    nodes, heads = topology.rank_nodes, topology.dst.tolist()
    made = schedule_of_paths(
        problem,
        [
            (int(i * ranks + j), 1, (int(nodes[i]), *(heads[link] for link in links)))
            for i, j, links in zip(sender, receiver, routes.links, strict=True)
        ],
    )
    by_chunk = np.argsort(made.chunk, kind="stable")
    hop = np.empty(made.num_transfers, dtype=np.int64)
    hop[by_chunk] = positions(np.bincount(made.chunk, minlength=made.num_chunks))
    turn = np.argsort(np.argsort(begin_us[1], kind="stable"))[made.chunk]
    due_us = begin_us[0][made.chunk] + hop * message_us
    return reordered(made, np.lexsort((turn, hop, due_us)))


def _begins(
    routes: WholeRoutes,
    sender: NDArray[np.int64],
    away: NDArray[np.int64],
    part_us: NDArray[np.float64],
    message_us: float,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """When each part leaves its rank, and its number in the order in which they were booked."""
    topology = routes.problem.topology
    sends = topology.rank[topology.src] >= 0
    none, count, width = topology.num_links, len(routes.links), max(map(len, routes.links))
    link = np.full((count, width), none, dtype=np.int64)
    for row, links in enumerate(routes.links):
        link[row, : len(links)] = links
    messages = np.cumsum(np.append(sends, False)[link], axis=1)
    after_us = np.maximum(messages - 1, 0) * message_us
    lasts_us = messages[:, -1] * message_us
    held_us = np.append(part_us, 0.0)
    left_us = np.bincount(link.ravel(), minlength=none + 1) * held_us
    free_us = np.zeros(none + 1)
    left_us[none] = free_us[none] = -inf
    waiting = [np.flatnonzero(sender == rank) for rank in range(topology.num_ranks)]
    waiting = [rows[np.argsort(away[rows], kind="stable")] for rows in waiting]
    begin_us, booked = np.zeros(count), np.zeros(count, dtype=np.int64)
    heap = [(0.0, rank) for rank, rows in enumerate(waiting) if len(rows)]
    heapify(heap)
    number = 0
    while heap:
        now_us, rank = heappop(heap)
        rows = waiting[rank]
        ready_us = np.maximum(free_us[link[rows, 0]], now_us)
        first_us = float(ready_us.min())
        if heap and first_us > heap[0][0]:
            heappush(heap, (first_us, rank))
            continue
        rows = rows[ready_us <= first_us]
        ways = link[rows]
        before_us = np.maximum(free_us[ways] - first_us - after_us[rows], 0.0).max(axis=1)
        urgent = left_us[ways].max(axis=1) - before_us + lasts_us[rows]
        row = int(rows[int(np.argmax(urgent))])
        at_us = first_us
        for place, each in enumerate(routes.links[row]):
            at_us = max(float(free_us[each]), first_us + float(after_us[row, place]), at_us)
            free_us[each] = at_us + held_us[each]
            left_us[each] -= held_us[each]
        begin_us[row], booked[row] = first_us, number
        number += 1
        waiting[rank] = waiting[rank][waiting[rank] != row]
        if len(waiting[rank]):
            heappush(heap, (first_us, rank))
    return begin_us, booked
