"""Flow network of a problem (supplies, demands, arcs), its maximum flow and its bottleneck cut.

Collectives that reduce are the broadcasting ones on the transposed graph (ForestColl, arXiv 2402.06787, section on
reduce-scatter): a reduce tree is a broadcast tree with every edge turned round. The network below is always in the
broadcasting direction. A gather is a flow from all ranks to the root as the only terminal, a scatter the same on the
transposed graph.

Time per unit of shard is at least ``w(outside X) / in(X)`` for every set X of nodes that contains a rank: what
starts outside has to enter. The largest such ratio is found exactly by discrete Newton steps over a flow check
(ForestColl, arXiv 2402.06787; arXiv 2305.18461) in the native core.

Maximum flow in integers of any size, by shortest augmenting paths. Theory: E. A. Dinic, "Algorithm for solution of a
problem of maximum flow in networks with power estimation", Soviet Math. Dokl. 11, 1970. Each phase blocks all shortest
paths of the residual network, so that there are fewer phases than nodes, and flow takes detours only where short paths
are full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import lcm

import numpy as np
from numpy.typing import NDArray

from coppice import _core
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.display import Brief
from coppice.errors import InputError, UnreachableError
from coppice.topology.model import Topology, scaled

TRANSPOSED = (Collective.REDUCE, Collective.REDUCE_SCATTER, Collective.SCATTER)
"""Collectives whose network is the topology with every link turned round."""

SMALL_NODES = 16
SMALL_LINKS = 64


def is_small(topology: Topology) -> bool:
    """Whether the problem is small enough to solve questions without a fast general algorithm.

    Up to 16 nodes and 64 links: linear programs are then solved in whole numbers where floats do not prove their
    vertex, without a limit of time, and the best rate with a given number of trees is found by branch and bound.
    """
    return topology.num_nodes <= SMALL_NODES and topology.num_links <= SMALL_LINKS


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Network(Brief):
    """A capacitated digraph with shares at its terminals, in the broadcasting direction."""

    # The topology as a broadcast sees it (transposed for collectives that reduce, and for scatter)
    topology: Topology
    # `weight[v]` is the share of the data that starts at node v (int64, 0 for nodes without a rank)
    weight: NDArray[np.int64]
    terminal: NDArray[np.bool_]  # `terminal[v]`: every tree must reach node v
    # `link[e]` is the link of the problem's topology that link e is, perhaps turned round (int64)
    link: NDArray[np.int64]

    @classmethod
    def of(cls, problem: Problem, *, reduce: bool | None = None) -> Network:
        """Network of ``problem``; ``reduce`` selects the phase of an all-reduce (default: broadcast)."""
        check_problem(problem)
        collective = problem.collective
        if reduce is None:
            reduce = collective in TRANSPOSED
        topology = problem.topology.transposed() if reduce else problem.topology
        link = np.arange(topology.num_links)
        if reduce:
            link = np.lexsort((problem.topology.src, problem.topology.dst))
        weight = np.zeros(topology.num_nodes, dtype=np.int64)
        terminal = topology.rank >= 0
        if problem.root is not None and collective in (Collective.GATHER, Collective.SCATTER):
            root = topology.rank_nodes[problem.root]
            weight[topology.rank_nodes] = 1
            weight[root] = 0
            terminal = np.arange(topology.num_nodes) == root
        elif problem.root is not None:
            weight[topology.rank_nodes[problem.root]] = 1
        elif problem.weights is not None:
            weight[topology.rank_nodes] = problem.weights
        else:
            weight[topology.rank_nodes] = 1
        return cls(topology=topology, weight=weight, terminal=terminal, link=link)

    def limited(self, rates: list[Fraction]) -> Network:
        """The same network with link rates capped at ``rates`` (GB/s, 0 allowed)."""
        ordered = [rates[e] for e in self.link.tolist()]
        denominator = lcm(*(rate.denominator for rate in ordered))
        return replace(
            self,
            topology=replace(self.topology, capacity=scaled(ordered, denominator), denominator=denominator),
        )

    @property
    def short_of_input(self) -> NDArray[np.bool_]:
        """Nodes with more out-capacity than in-capacity."""
        return self.topology.capacity_out > self.topology.capacity_in

    @cached_property
    def total_weight(self) -> int:
        """Sum of the shares: W."""
        return int(self.weight.sum())


def check_problem(problem: Problem) -> None:
    """Refuse an invalid problem."""
    ranks, collective = problem.topology.num_ranks, problem.collective
    if ranks == 0:
        raise InputError(
            "a collective needs at least one rank, found a topology without GPUs that take part: add one."
        )
    if collective.rooted:
        if problem.root is None or not 0 <= problem.root < ranks:
            raise InputError(
                f"{collective} needs a root rank in 0 .. {ranks - 1}, found {problem.root}: give it (`root=0`)."
            )
    elif problem.root is not None:
        raise InputError(
            f"{collective} has no root, found root {problem.root}: leave it out, or plan broadcast or reduce."
        )
    if problem.weights is not None:
        if collective not in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
            raise InputError(
                f"weights belong to all_gather and reduce_scatter, found them for {collective}: leave them out."
            )
        if len(problem.weights) != ranks:
            raise InputError(
                f"expected one weight for each of the {ranks} ranks, found {len(problem.weights)}."
            )
        if min(problem.weights) < 0 or not 0 < sum(problem.weights) < 2**31:
            raise InputError("expected weights >= 0 that sum to 1 .. 2^31 - 1: scale them down.")
    if problem.demands is not None:
        check_demands(problem)


def check_demands(problem: Problem) -> None:
    """Refuse an invalid demand matrix."""
    ranks, demands = problem.topology.num_ranks, problem.demands
    if demands is None:
        return
    if problem.collective is not Collective.ALL_TO_ALL:
        raise InputError(
            f"a matrix of demands belongs to all_to_all, found one for {problem.collective}: leave it out."
        )
    if len(demands) != ranks or any(len(row) != ranks for row in demands):
        raise InputError(
            f"expected a matrix of {ranks} x {ranks} demands, found {len(demands)} rows: one row for each sender."
        )
    if min(map(min, demands)) < 0 or not any(map(any, demands)):
        raise InputError("expected demands >= 0 that are not all zero.")


@dataclass(frozen=True, kw_only=True)
class CutBound:
    """Least time per shard that the cuts allow."""

    inv_rate: Fraction  # Time per shard in 1 / (GB/s); 0 where nothing has to move
    # Nodes of the set X that attains it, in the broadcasting direction (empty where nothing moves)
    sink_side: tuple[int, ...]
    rounds: int  # Newton rounds, the proving one included


def cut_bound(network: Network) -> CutBound:
    """Find the bottleneck cut of ``network``."""
    topology = network.topology
    numerator, denominator, sink_side, rounds = _core.cut_bound(
        topology.num_nodes, topology.src, topology.dst, topology.capacity, network.weight, network.terminal
    )
    if denominator == 0:
        raise UnreachableError(unreachable_message(network, sink_side))
    inv_rate = Fraction(numerator, denominator) * topology.denominator
    return CutBound(inv_rate=inv_rate, sink_side=tuple(sink_side.tolist()), rounds=rounds)


def unreachable_message(network: Network, sink_side: np.ndarray) -> str:
    """Error message that names a rank on each side of a cut without capacity."""
    topology = network.topology
    inside = np.zeros(topology.num_nodes, dtype=np.bool_)
    inside[sink_side] = True
    target = topology.node_ids[int(np.flatnonzero(inside & network.terminal)[0])]
    source = topology.node_ids[int(np.flatnonzero(~inside & (network.weight > 0))[0])]
    return (
        f"every rank must be reachable from every rank that owns data, found no route between {source} and {target} "
        f"({len(sink_side)} of {topology.num_nodes} nodes are cut off): add links, choose ranks that are connected, "
        "or let other GPUs forward (`relays`)."
    )


def max_flow(
    num_nodes: int, tail: Sequence[int], head: Sequence[int], capacity: Sequence[int], source: int, sink: int
) -> list[int]:
    """Flow on each arc of a maximum flow.

    Args:
        capacity: Integers >= 0.

    Examples:
        >>> max_flow(3, [0, 0, 1], [1, 2, 2], [3, 1, 2], source=0, sink=2)
        [2, 1, 2]
    """
    # Arc e is 2 e, and 2 e + 1 takes its flow back.
    ends = [end for arc in zip(head, tail, strict=True) for end in arc]
    left = [room for limit in capacity for room in (limit, 0)]
    arcs: list[list[int]] = [[] for _ in range(num_nodes)]
    for e, (u, v) in enumerate(zip(tail, head, strict=True)):
        arcs[u].append(2 * e)
        arcs[v].append(2 * e + 1)
    while True:
        level = _levels(arcs, ends, left, source, sink)
        if level[sink] < 0:
            return left[1::2]
        _block(arcs, ends, left, level, source, sink)


def narrow_cuts(
    num_nodes: int,
    tail: Sequence[int],
    head: Sequence[int],
    capacity: Sequence[int],  # Integers >= 0
    supply: Sequence[int],  # Of each node, integers >= 0
    sinks: Sequence[int],  # Nodes that need `demand`
    demand: int,
) -> list[list[int]]:
    """For each sink a set around it whose supply plus incoming capacity is below ``demand``, if any.

    Examples:
        >>> narrow_cuts(3, [0, 1], [1, 2], [5, 2], [3, 0, 0], sinks=[1, 2], demand=3)
        [[2]]
    """
    source = num_nodes
    fed = [v for v, amount in enumerate(supply) if amount]
    tails, heads = [*tail, *[source] * len(fed)], [*head, *fed]
    rooms = [*capacity, *(supply[v] for v in fed)]
    found = []
    for sink in sinks:
        flow = max_flow(num_nodes + 1, tails, heads, rooms, source, sink)
        arriving = sum(
            f if v == sink else -f for f, u, v in zip(flow, tails, heads, strict=True) if sink in (u, v)
        )
        if arriving < demand:
            found.append(_still_reaching(num_nodes + 1, tails, heads, rooms, flow, sink))
    return found


def _still_reaching(
    num_nodes: int, tail: list[int], head: list[int], capacity: list[int], flow: list[int], sink: int
) -> list[int]:
    """Nodes from which more could flow to ``sink``."""
    back: list[list[int]] = [[] for _ in range(num_nodes)]
    for u, v, room, used in zip(tail, head, capacity, flow, strict=True):
        if used < room:
            back[v].append(u)
        if used:
            back[u].append(v)
    seen, todo = {sink}, [sink]
    while todo:
        for node in back[todo.pop()]:
            if node not in seen:
                seen.add(node)
                todo.append(node)
    return sorted(seen)


def _levels(arcs: list[list[int]], ends: list[int], left: list[int], source: int, sink: int) -> list[int]:
    """Arcs from the source to each node that has been seen when the sink is."""
    level = [-1] * len(arcs)
    level[source] = 0
    front = [source]
    while front and level[sink] < 0:
        after: list[int] = []
        for node in front:
            for arc in arcs[node]:
                if left[arc] and level[ends[arc]] < 0:
                    level[ends[arc]] = level[node] + 1
                    after.append(ends[arc])
        front = after
    return level


def _block(
    arcs: list[list[int]], ends: list[int], left: list[int], level: list[int], source: int, sink: int
) -> None:
    """Send flow until no path along increasing levels is left."""
    place = [0] * len(arcs)  # arcs of a node before this one lead nowhere
    path: list[int] = []
    node = source
    while True:
        if node == sink:
            amount = min(left[arc] for arc in path)
            for arc in path:
                left[arc] -= amount
                left[arc ^ 1] += amount
            full = next(i for i, arc in enumerate(path) if not left[arc])
            node = ends[path[full] ^ 1]
            del path[full:]
        while place[node] < len(arcs[node]):
            arc = arcs[node][place[node]]
            if left[arc] and level[ends[arc]] == level[node] + 1:
                break
            place[node] += 1
        else:
            if node == source:
                return
            node = ends[path.pop() ^ 1]
            place[node] += 1
            continue
        path.append(arc)
        node = ends[arc]
