"""All-to-alls of which each block, or each of few equal parts of it, goes one way whole, at about the rate of the flow.

The routes of a concurrent flow split blocks into shares as they come, which takes many small messages, and may be as
long as they like. Here every block takes one path, of as few messages as possible, so that links are loaded alike:

1. Blocks are routed one by one, and again in rounds, a link costing the more the fuller it is, to an ever higher power,
   as in the routing of circuits (cpp/flow/circuits.h). The round of least load is taken.
2. Then they are routed anew, with links that were full a long way from the begin: only those blocks take them that have
   to, on as few of them as they can (in a flow of the best rate every path is a shortest one by lengths of full links).

**Order.** A rank sends next what the most loaded links wait for that have least to do at the time: each block is booked
on all links of its way, in the order in which ranks become free, and of those that a rank has the one goes first whose
busiest link has most left to carry, less what waits before its links already, with the latency of its messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise
from math import inf

import numpy as np
from numpy.typing import NDArray

from coppice import _core
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
    topology = problem.topology
    rate = float(plain.inv_rate) * topology.capacity / topology.denominator
    fixed = np.where(topology.rank[topology.src] >= 0, 1.0, _WITHIN)
    load, loads, _ = _routed(problem, rate, fixed, 1)
    longer = [_LONGER * (each / load) ** _FULL for each in loads.tolist()]
    load, _, links = _routed(problem, rate, fixed + longer, parts)
    return WholeRoutes(problem=problem, parts=parts, links=links, load=load)


def _routed(
    problem: Problem, rate: NDArray[np.float64], fixed: NDArray[np.float64], parts: int
) -> tuple[float, NDArray[np.float64], tuple[tuple[int, ...], ...]]:
    """Load of the fullest link in the best round, loads of all links after the last one, and the routes.

    Args:
        rate: Load of each link that is full.
        fixed: What a message costs on each link.
    """
    topology = problem.topology
    load, loads, start, links = _core.route_circuits(
        topology.num_nodes,
        topology.src,
        topology.dst,
        rate,
        fixed,
        topology.rank_nodes.astype(np.int32),
        parts,
        np.array([power for power, _ in _ROUNDS], dtype=np.int32),
        np.array([message for _, message in _ROUNDS]),
        _FULLEST,
        _EVEN,
    )
    ends, every = start.tolist(), links.tolist()
    return load, loads, tuple(tuple(every[begin:end]) for begin, end in pairwise(ends))


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
