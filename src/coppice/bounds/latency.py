"""Latency bound: the least time of a collective as M goes to 0.

Model: a message from GPU to GPU takes ``overhead`` plus the latencies of the links of its path, and what a GPU has
received it may send on. This is the simulator's default model with M -> 0; bytes only add to it.

*Routes.* Where rank v needs something of rank u, a chain of messages leads from u to v. Along the chain every GPU that
sends costs an overhead and every link its latency, so no schedule is faster than the cheapest such route, found as a
shortest path on which leaving a rank costs an overhead. Where a message may pass through other GPUs
(``relay_gpus``), only its sender costs one.

*Engines.* Let every rank send at most k messages at a time, and let c be the least time of any message between two
ranks. With N(t) ranks that can know something at time t, ``N(t) <= (1 + k) N(t - c)``: a message that completes in
(t - c, t] has started by t - c at a rank that knew it, and is still under way then, so at most k N(t - c) of them are.
As N(t) = 1 before c, n further ranks know it no earlier than ``c ceil(log_(1+k)(n + 1))``. This is the growth of the
LogP broadcast (Karp, Sahay, Santos and Schauser, "Optimal broadcast and summation in the LogP model", SPAA 1993) with a
gap of a whole message. Turned round in time it holds for receive engines and for what one rank needs of n others. A
switch that copies lets one message reach many, one that adds lets many arrive as one: where there are such switches,
engines prove nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.all_to_all.distances import distances
from coppice.bounds.network import check_problem
from coppice.bounds.optimum import symmetry_for_programs
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError, UnreachableError
from coppice.text import plural
from coppice.topology.model import Topology


@dataclass(frozen=True, kw_only=True)
class LatencyBound:
    """The least time of a collective of M -> 0 bytes, with its witness."""

    time_us: float  # No schedule is faster, in microseconds (up to rounding in floating point)
    why: str  # What takes that long, in words
    # Sending and receiving rank whose distance it is, or None where engines or nothing at all decide
    pair: tuple[int, int] | None = None
    # Node ids of a fastest route between them, both ends included; empty without a pair
    route: tuple[int, ...] = ()


def latency_bound(
    problem: Problem,
    *,
    overhead_us: float,  # Cost of a message beyond the latencies of its links
    # A message may pass through GPUs that take part, at the price of the links alone
    relay_gpus: bool = False,
    # Messages that a rank can send at a time; 0: any number. Without effect where switches copy.
    send_engines: int = 0,
    # Messages that a rank can receive at a time; 0: any number. Without effect where switches add.
    receive_engines: int = 0,
) -> LatencyBound:
    """Least time of any schedule of ``problem`` as M goes to 0.

    Examples:
        >>> from fractions import Fraction
        >>> from coppice.topology.model import Link, Node
        >>> gpus = [Node(id=name) for name in "abc"]
        >>> wires = [Link(src=a, dst=b, gb_per_s=Fraction(25), latency_us=0.5) for a, b in ("ab", "bc")]
        >>> problem = Problem(topology=Topology.of("chain", gpus, wires), collective=Collective.BARRIER)
        >>> found = latency_bound(problem, overhead_us=1.0)
        >>> found.time_us, found.why
        (3.0, 'rank 2 needs what rank 0 has: 2 messages of 1 us and 1 us of links')
    """
    check_problem(problem)
    if not 0 <= overhead_us < float("inf") or send_engines < 0 or receive_engines < 0:
        raise InputError(
            f"expected an overhead and numbers of engines of 0 or more, found {overhead_us} us, {send_engines} and "
            f"{receive_engines}: correct them."
        )
    best = _farthest(problem, overhead_us, relay_gpus=relay_gpus)
    if best.pair is None:
        return best
    spread, gathered = partners(problem)
    topology = problem.topology
    spread *= not (topology.multicast & (topology.rank < 0)).any()
    gathered *= not (topology.aggregate & (topology.rank < 0)).any()
    for engines, others, verb in ((send_engines, spread, "inform"), (receive_engines, gathered, "hear")):
        if engines and others:
            shortest = _shortest_message(topology, overhead_us)
            rounds = _rounds(others + 1, engines)
            if rounds * shortest > best.time_us:
                who = "one rank must inform" if verb == "inform" else "one rank must hear of"
                why = (
                    f"{who} {others} others, and with {engines} at a time their number grows by a factor of "
                    f"{engines + 1} per message of {shortest:g} us: {rounds} in a row"
                )
                best = LatencyBound(time_us=rounds * shortest, why=why)
    return best


def _needed(problem: Problem) -> NDArray[np.bool_]:
    """``needed[u, v]``: rank v needs something of rank u."""
    ranks = problem.topology.num_ranks
    if problem.demands is not None:
        needed = np.array([[size > 0 for size in row] for row in problem.demands], dtype=np.bool_)
    else:
        needed = np.ones((ranks, ranks), dtype=np.bool_)
    weights = np.array(problem.weights or (1,) * ranks) > 0
    match problem.collective:
        case Collective.BROADCAST | Collective.SCATTER:
            needed &= (np.arange(ranks) == problem.root)[:, None]
        case Collective.REDUCE | Collective.GATHER:
            needed &= np.arange(ranks) == problem.root
        case Collective.ALL_GATHER:
            needed &= weights[:, None]
        case Collective.REDUCE_SCATTER:
            needed &= weights
        case _:
            pass
    np.fill_diagonal(needed, val=False)
    return needed


def partners(problem: Problem) -> tuple[int, int]:
    """Most ranks that need something of one rank, and most ranks of which one rank needs something.

    >>> from coppice.topology.presets import preset
    >>> partners(Problem(preset("star", gpus=4), "reduce", root=0))
    (1, 3)
    """
    needed = _needed(problem)
    return int(needed.sum(axis=1).max(initial=0)), int(needed.sum(axis=0).max(initial=0))


def _rounds(ranks: int, engines: int) -> int:
    """Least n with (1 + engines)^n >= ranks."""
    rounds, informed = 0, 1
    while informed < ranks:
        rounds, informed = rounds + 1, informed * (1 + engines)
    return rounds


def _farthest(problem: Problem, overhead_us: float, *, relay_gpus: bool) -> LatencyBound:
    """The pair that takes longest, with a fastest route."""
    topology = problem.topology
    needed = _needed(problem)
    sources = np.flatnonzero(needed.any(axis=1))
    if not len(sources):
        return LatencyBound(time_us=0.0, why="nothing has to move")
    backwards = problem.collective in (Collective.REDUCE, Collective.GATHER)
    if backwards:  # one search from the root against the links
        sources, needed = np.array([problem.root]), needed.T
    elif problem.weights is None and problem.demands is None and len(sources) > 1:
        sources = _representatives(topology, sources)
    cost, start = _costs(topology, overhead_us, relay_gpus=relay_gpus)
    nodes = topology.rank_nodes
    reach = start + distances(topology, nodes[sources], cost, backwards=backwards)[:, nodes]
    reach[~needed[sources]] = -1.0
    where = int(reach.argmax())
    u, v = int(sources[where // len(nodes)]), where % len(nodes)
    time = float(reach.flat[where])
    if backwards:
        u, v = v, u
    if time == float("inf"):
        a, b = (topology.node_ids[nodes[rank]] for rank in (u, v))
        raise UnreachableError(
            f"rank {v} needs what rank {u} has, found no route from {a} to {b}: add links or leave a rank out."
        )
    route = _route(topology, int(nodes[u]), int(nodes[v]), cost)
    senders = 1 if relay_gpus else sum(topology.rank[node] >= 0 for node in route[:-1])
    wires = sum(topology.latency_us[topology.link_index[hop]] for hop in pairwise(route))
    why = (
        f"rank {v} needs what rank {u} has: {plural(senders, 'message')} of {overhead_us:g} us "
        f"and {wires:g} us of links"
    )
    return LatencyBound(time_us=time, why=why, pair=(u, v), route=route)


def _representatives(topology: Topology, sources: NDArray[np.intp]) -> NDArray[np.intp]:
    """A rank of each orbit, where a symmetry of the topology is known: all ranks of an orbit see the same."""
    found = symmetry_for_programs(topology)
    if found is None:
        return sources
    _, first = np.unique(found.node_orbit[topology.rank_nodes[sources]], return_index=True)
    return sources[np.sort(first)]


def _costs(topology: Topology, overhead_us: float, *, relay_gpus: bool) -> tuple[NDArray[np.float64], float]:
    """Cost of each link, with the overhead of a sending rank, and the cost at the start of a route."""
    if relay_gpus:
        return topology.latency_us, overhead_us
    return topology.latency_us + overhead_us * (topology.rank[topology.src] >= 0), 0.0


def _shortest_message(topology: Topology, overhead_us: float) -> float:
    """Least time of a message between two different ranks."""
    nodes = topology.rank_nodes
    sources = _representatives(topology, np.arange(len(nodes)))
    reach = distances(topology, nodes[sources], topology.latency_us)[:, nodes]
    reach[np.arange(len(sources)), sources] = float("inf")
    return overhead_us + float(reach.min())


def _route(topology: Topology, start: int, end: int, cost: NDArray[np.float64]) -> tuple[int, ...]:
    """Nodes of a cheapest route (Dijkstra)."""
    arcs: list[list[tuple[int, float]]] = [[] for _ in range(topology.num_nodes)]
    for tail, head, added in zip(topology.src.tolist(), topology.dst.tolist(), cost.tolist(), strict=True):
        arcs[tail].append((head, added))
    least = {start: 0.0}
    before: dict[int, int] = {}
    heap = [(0.0, start)]
    while heap:
        so_far, node = heappop(heap)
        if node == end:
            break
        if so_far > least[node]:
            continue
        for head, added in arcs[node]:
            if so_far + added < least.get(head, float("inf")):
                least[head] = so_far + added
                before[head] = node
                heappush(heap, (least[head], head))
    route = [end]
    while route[-1] != start:
        route.append(before[route[-1]])
    return tuple(reversed(route))
