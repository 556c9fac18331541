"""Optimal gather and scatter: one maximum flow, taken apart into paths.

What the ranks send to the root of a gather shares the links as one flow, whose sources offer a shard each. In the time
of the narrowest cut a maximum flow brings all of them (Ford and Fulkerson, 1956), so the cut bound is reached exactly.
Scaled by the denominator of that time everything is an integer, and so is the flow. It falls apart into paths, each of
which carries a share of one rank's block: a chunk. Where a path leads through another rank, that rank receives the
chunk and sends it on. A scatter is a gather with every link turned round.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np

from coppice.bounds.all_to_all.routes import FlowRoute, routes_of_flow
from coppice.bounds.max_flow import max_flow
from coppice.bounds.network import Network, cut_bound
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.rows import offsets
from coppice.schedule.schedule import Op, Schedule
from coppice.topology.model import Topology

__all__ = ["plan_flow"]


def plan_flow(problem: Problem) -> Schedule:
    """Route a gather or a scatter at the rate of its narrowest cut.

    Shares of chunks are exact while their common denominator stays below 2**40, else rounded to a millionth.

    Args:
        problem: A gather or scatter.

    Raises:
        InputError: For another collective, or a problem without meaning.
        UnreachableError: If some rank cannot reach the root, or the root some rank.

    Examples:
        >>> from coppice.topology.model import Link, Node
        >>> chain = Topology.of("chain", [Node(id=name) for name in "abc"],
        ...     [Link(src=a, dst=b, gb_per_s=Fraction(25)) for a, b in ("ab", "bc")])
        >>> schedule = plan_flow(Problem(topology=chain, collective=Collective.GATHER, root=0))
        >>> list(zip(schedule.src.tolist(), schedule.dst.tolist(), schedule.chunk.tolist()))
        [(1, 0, 0), (2, 1, 1), (1, 0, 1)]
    """
    if problem.collective not in (Collective.GATHER, Collective.SCATTER):
        msg = (
            f"one flow plans gather and scatter, found {problem.collective}: plan it with `algorithm=forest`."
        )
        raise InputError(msg)
    routes = _routes(problem)
    topology = problem.topology
    rank = topology.rank
    chunks = sorted((int(rank[route.target]), route.share, route.nodes) for route in routes)
    turned = problem.collective is Collective.GATHER
    rows: list[tuple[int, int, tuple[int, ...]]] = []  # hop, chunk, path
    for chunk, (_, _, nodes) in enumerate(chunks):
        legs = _legs(nodes[::-1] if turned else nodes, topology)
        rows += [(hop, chunk, leg) for hop, leg in enumerate(legs)]
    rows.sort()
    paths = {leg: number for number, leg in enumerate(dict.fromkeys(leg for _, _, leg in rows))}
    nothing = np.zeros(0, dtype=np.int32)
    return Schedule(
        topology=topology,
        collective=problem.collective,
        root=-1 if problem.root is None else problem.root,
        slot_weight=np.ones(topology.num_ranks, dtype=np.int64),
        chunk_slot=np.array([slot for slot, _, _ in chunks], dtype=np.int32),
        chunk_share=np.array([share for _, share, _ in chunks], dtype=np.int64),
        src=np.array([rank[leg[0]] for _, _, leg in rows], dtype=np.int32),
        dst=np.array([rank[leg[-1]] for _, _, leg in rows], dtype=np.int32),
        chunk=np.array([chunk for _, chunk, _ in rows], dtype=np.int32),
        op=np.full(len(rows), Op.COPY, dtype=np.int8),
        path=np.array([paths[leg] for _, _, leg in rows], dtype=np.int32),
        step=np.full(len(rows), -1, dtype=np.int32),
        after_start=np.zeros(len(rows) + 1, dtype=np.int64),
        after=nothing,
        path_start=offsets(np.array([*map(len, paths)], dtype=np.int64)),
        path_nodes=np.array([node for leg in paths for node in leg], dtype=np.int32),
    )


def _routes(problem: Problem) -> list[FlowRoute]:
    """Which share of every block takes which path, from the root to its rank (for a gather against the links)."""
    network = Network.of(problem)
    best = cut_bound(network)
    if not best.inv_rate:
        return []
    # The network gathers; routes are taken from it the other way, where the root is the only source.
    topology = network.topology.transposed()
    time = best.inv_rate / topology.denominator
    ranks = np.flatnonzero(network.weight)
    root, sink = int(np.flatnonzero(network.terminal)[0]), topology.num_nodes
    flow = max_flow(
        topology.num_nodes + 1,
        [*topology.src.tolist(), *ranks.tolist()],
        [*topology.dst.tolist(), *[sink] * len(ranks)],
        [*(c * time.numerator for c in topology.capacity.tolist()), *[time.denominator] * len(ranks)],
        root,
        sink,
    )
    shares = [Fraction(units, time.denominator) for units in flow[: topology.num_links]]
    return routes_of_flow(topology, root, shares, network.weight)


def _legs(nodes: tuple[int, ...], topology: Topology) -> list[tuple[int, ...]]:
    """The parts of a path from one rank to the next."""
    stops = [place for place, node in enumerate(nodes) if topology.rank[node] >= 0]
    return [nodes[a : b + 1] for a, b in pairwise(stops)]
