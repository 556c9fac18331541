"""Flow planners: all-to-all by concurrent flow, gather and scatter by maximum flow, as chunks on paths.

Flow planners: all-to-all by concurrent flow, gather and scatter by maximum flow, as chunks on paths.

**All-to-all.** What rank i sends to rank j is cut into one chunk per route of the flow. A route that passes through
other ranks is a chain of transfers from rank to rank; between two ranks it leads through switches, NICs and relays
only. With a symmetry the routes of one source per orbit are mapped to all others.

**Gather and scatter.** What the ranks send to the root of a gather shares the links as one flow, whose sources offer a
shard each. In the time of the narrowest cut a maximum flow brings all of them (Ford and Fulkerson, 1956), so the cut
bound is reached exactly. Scaled by the denominator of that time everything is an integer, and so is the flow. It falls
apart into paths, each of which carries a share of one rank's block: a chunk. Where a path leads through another rank,
that rank receives the chunk and sends it on. A scatter is a gather with every link turned round.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.all_to_all.concurrent_flow import AllToAllBound, concurrent_flow
from coppice.bounds.all_to_all.routes import FlowRoute, routes_of_flow
from coppice.bounds.network import Network, cut_bound, max_flow
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.two_stage import split_schedule
from coppice.rows import offsets, sorted_rows
from coppice.schedule.schedule import Op, Schedule

MAX_TRANSFERS = 2**22


def plan_all_to_all(
    problem: Problem, *, bound: AllToAllBound | None = None, time_limit: float = 60.0
) -> Schedule:
    """Plan an all-to-all.

    Args:
        problem: An all_to_all, uniform or with a matrix of demands.
        bound: Its concurrent flow, if it is known already.
        time_limit: Seconds for the search of the flow, roughly.

    Examples:
        >>> from fractions import Fraction
        >>> from coppice.topology.model import Link, Node, Topology
        >>> path = Topology.of("path", [Node(id=f"g{i}") for i in range(3)],
        ...     [Link(src=f"g{i}", dst=f"g{i + 1}", gb_per_s=Fraction(8)) for i in range(2)])
        >>> schedule = plan_all_to_all(Problem(topology=path, collective=Collective.ALL_TO_ALL))
        >>> schedule.num_chunks, schedule.num_transfers
        (6, 8)
    """
    ranks = problem.topology.num_ranks
    if problem.demands is None and problem.collective is Collective.ALL_TO_ALL:
        _refuse_too_many(ranks * (ranks - 1), ranks)
    return routed_schedule(concurrent_flow(problem, time_limit=time_limit) if bound is None else bound)


def routed_schedule(bound: AllToAllBound) -> Schedule:
    """Schedule of the routes of ``bound``."""
    problem, symmetry = bound.problem, bound.symmetry
    topology, ranks = problem.topology, problem.topology.num_ranks
    if bound.split is not None:
        return split_schedule(topology, bound.split, _slot_weights(problem))
    if not bound.routes and bound.inv_rate:
        _refuse_too_many(None, ranks)
    template = _template(bound.routes, topology.rank)
    transfers = len(template.hop) * symmetry.order
    _refuse_too_many(transfers, ranks)

    elements = np.arange(symmetry.order, dtype=np.int64)
    ends = symmetry.image(template.ends[:, :, None], elements)  # chunk, (source, target), element
    slot = (topology.rank[ends[:, 0]].astype(np.int64) * ranks + topology.rank[ends[:, 1]]).ravel()
    order = np.argsort(slot, kind="stable")
    chunk_of = np.empty(len(order), dtype=np.int64)
    chunk_of[order] = np.arange(len(order))

    nodes = symmetry.image(np.maximum(template.nodes, 0)[:, :, None], elements)  # transfer, place, element
    nodes = np.where(template.nodes[:, :, None] >= 0, nodes, -1).transpose(0, 2, 1)
    nodes = nodes.reshape(transfers, template.nodes.shape[1])
    chunk = chunk_of.reshape(-1, symmetry.order)[template.chunk].ravel()
    hop = np.repeat(template.hop, symmetry.order)
    rows = sorted_rows(hop, chunk)
    nodes, chunk = nodes[rows], chunk[rows]
    path, path_start, path_nodes = _path_table(nodes, topology.num_nodes)
    last = (nodes >= 0).sum(axis=1) - 1
    share = np.repeat(template.share, symmetry.order)[order]
    return Schedule(
        topology=topology,
        collective=problem.collective,
        root=-1,
        slot_weight=_slot_weights(problem),
        chunk_slot=slot[order].astype(np.int32),
        chunk_share=share,
        src=topology.rank[nodes[:, 0]].astype(np.int32),
        dst=topology.rank[nodes[np.arange(transfers), last]].astype(np.int32),
        chunk=chunk.astype(np.int32),
        op=np.full(transfers, Op.COPY, dtype=np.int8),
        path=path,
        step=np.full(transfers, -1, dtype=np.int32),
        after_start=np.zeros(transfers + 1, dtype=np.int64),
        after=np.zeros(0, dtype=np.int32),
        path_start=path_start,
        path_nodes=path_nodes,
    )


def _slot_weights(problem: Problem) -> NDArray[np.int64]:
    """Relative size of the block from each rank to each rank."""
    ranks = problem.topology.num_ranks
    if problem.demands is None:
        return np.ones(ranks * ranks, dtype=np.int64)
    return np.array([size for row in problem.demands for size in row], dtype=np.int64)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Template:
    """Chunks and transfers of the listed sources."""

    ends: NDArray[np.int64]  # (source node, target node) of each chunk
    share: NDArray[np.int64]  # Share of each chunk
    chunk: NDArray[np.int64]  # Chunk of each transfer
    hop: NDArray[np.int64]  # How many transfers of the chunk come before it
    nodes: NDArray[np.int64]  # Path of each transfer, padded with -1


def _template(routes: dict[int, list[FlowRoute]], rank: NDArray[np.int32]) -> _Template:
    ends: list[tuple[int, int]] = []
    share: list[int] = []
    chunk: list[int] = []
    hop: list[int] = []
    legs: list[tuple[int, ...]] = []
    for own in routes.values():
        for route in own:
            for number, leg in enumerate(_legs(route.nodes, rank)):
                chunk.append(len(ends))
                hop.append(number)
                legs.append(leg)
            ends.append((route.nodes[0], route.target))
            share.append(route.share)
    width = max(map(len, legs), default=1)
    nodes = np.full((len(legs), width), -1, dtype=np.int64)
    for row, leg in enumerate(legs):
        nodes[row, : len(leg)] = leg
    return _Template(
        ends=np.array(ends, dtype=np.int64).reshape(-1, 2),
        share=np.array(share, dtype=np.int64),
        chunk=np.array(chunk, dtype=np.int64),
        hop=np.array(hop, dtype=np.int64),
        nodes=nodes,
    )


def _legs(nodes: Sequence[int], rank: NDArray[np.int32]) -> list[tuple[int, ...]]:
    """The parts of a path from one rank to the next."""
    stops = [place for place, v in enumerate(nodes) if rank[v] >= 0]
    return [tuple(nodes[a : b + 1]) for a, b in itertools.pairwise(stops)]


def _path_table(
    nodes: NDArray[np.integer], num_nodes: int
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
    """Distinct rows of ``nodes`` as a path table, and the path of each row."""
    prefix = np.zeros(len(nodes), dtype=np.int64)
    for column in nodes.T:
        prefix = np.unique(prefix * (num_nodes + 1) + column + 1, return_inverse=True)[1].astype(np.int64)
    _, first, path = np.unique(prefix, return_index=True, return_inverse=True)
    distinct = nodes[first]
    return (
        path.astype(np.int32),
        offsets((distinct >= 0).sum(axis=1)),
        distinct[distinct >= 0].astype(np.int32),
    )


def _refuse_too_many(transfers: int | None, ranks: int) -> None:
    """Refuse a schedule that nobody could load."""
    if transfers is not None and transfers <= MAX_TRANSFERS:
        return
    found = f"{transfers:,}" if transfers is not None else "far more"
    raise InputError(
        f"a routed all_to_all may have {MAX_TRANSFERS:,} transfers at most, found {found} for {ranks} ranks: "
        "ask for the bound only, or plan fewer ranks (`ranks`)."
    )


def plan_flow(problem: Problem) -> Schedule:
    """Plan a gather or scatter at the rate of its minimum cut.

    Shares of chunks are exact while their common denominator stays below 2**40, else rounded to a millionth.

    Examples:
        >>> from coppice.topology.model import Link, Node, Topology
        >>> chain = Topology.of("chain", [Node(id=name) for name in "abc"],
        ...     [Link(src=a, dst=b, gb_per_s=Fraction(25)) for a, b in ("ab", "bc")])
        >>> schedule = plan_flow(Problem(topology=chain, collective=Collective.GATHER, root=0))
        >>> list(zip(schedule.src.tolist(), schedule.dst.tolist(), schedule.chunk.tolist()))
        [(1, 0, 0), (2, 1, 1), (1, 0, 1)]
    """
    if problem.collective not in (Collective.GATHER, Collective.SCATTER):
        raise InputError(
            f"one flow plans gather and scatter, found {problem.collective}: plan it with `algorithm=forest`."
        )
    rank = problem.topology.rank
    turned = problem.collective is Collective.GATHER
    chunks = sorted((int(rank[route.target]), route.share, route.nodes) for route in _routes(problem))
    return schedule_of_paths(
        problem, [(slot, share, nodes[::-1] if turned else nodes) for slot, share, nodes in chunks]
    )


def schedule_of_paths(problem: Problem, chunks: Sequence[tuple[int, int, tuple[int, ...]]]) -> Schedule:
    """Schedule of blocks that travel along paths, from rank to rank.

    Args:
        problem: A gather, a scatter or an all-to-all.
        chunks: Slot, share of the slot's block, and nodes of the path in the order of travel.
    """
    topology = problem.topology
    rank = topology.rank
    rows = [  # hop, chunk, path
        (hop, chunk, leg)
        for chunk, (_, _, nodes) in enumerate(chunks)
        for hop, leg in enumerate(_legs(nodes, rank))
    ]
    rows.sort()
    paths = {leg: number for number, leg in enumerate(dict.fromkeys(leg for _, _, leg in rows))}
    blocks = problem.collective is Collective.ALL_TO_ALL
    return Schedule(
        topology=topology,
        collective=problem.collective,
        root=-1 if problem.root is None else problem.root,
        slot_weight=_slot_weights(problem) if blocks else np.ones(topology.num_ranks, dtype=np.int64),
        chunk_slot=np.array([slot for slot, _, _ in chunks], dtype=np.int32),
        chunk_share=np.array([share for _, share, _ in chunks], dtype=np.int64),
        src=np.array([rank[leg[0]] for _, _, leg in rows], dtype=np.int32),
        dst=np.array([rank[leg[-1]] for _, _, leg in rows], dtype=np.int32),
        chunk=np.array([chunk for _, chunk, _ in rows], dtype=np.int32),
        op=np.full(len(rows), Op.COPY, dtype=np.int8),
        path=np.array([paths[leg] for _, _, leg in rows], dtype=np.int32),
        step=np.full(len(rows), -1, dtype=np.int32),
        after_start=np.zeros(len(rows) + 1, dtype=np.int64),
        after=np.zeros(0, dtype=np.int32),
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
