"""Schedules of an all-to-all in two stages: inside boxes, and along rails between them."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.all_to_all.concurrent_flow import demand_matrix
from coppice.bounds.all_to_all.two_stage import Deal, TwoStageSplit, two_stages
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import UnreachableError
from coppice.rows import sorted_rows
from coppice.schedule.schedule import Op, Schedule
from coppice.topology.model import Topology
from coppice.topology.routing import Router


def split_schedule(topology: Topology, split: TwoStageSplit, slot_weight: NDArray[np.int64]) -> Schedule:
    """Schedule of blocks that are dealt to ways: a chunk for each part, a transfer for each of its hops.

    Args:
        slot_weight: Relative size of the block from each rank to each.

    Examples:
        >>> from coppice.bounds.all_to_all.two_stage import two_stages
        >>> from coppice.topology.presets import preset
        >>> pair, demand = preset("dgx-h100", boxes=2), np.zeros((16, 16), dtype=np.int64)
        >>> demand[0, 8] = 1
        >>> found = split_schedule(pair, two_stages(pair, demand), demand.ravel())
        >>> found.num_chunks, found.num_transfers
        (8, 22)
    """
    ranks = topology.num_ranks
    slot = split.source.astype(np.int64) * ranks + split.target
    order = np.argsort(slot, kind="stable")
    stops = np.stack([split.source, split.out, split.into, split.target])[:, order]
    chunk = np.arange(len(order))
    moved = stops[:-1] != stops[1:]
    hop = np.cumsum(moved, axis=0) - 1
    columns = [
        np.concatenate([each[stage][moved[stage]] for stage in range(3)])
        for each in (stops[:-1], stops[1:], hop)
    ]
    chunk = np.concatenate([chunk[moved[stage]] for stage in range(3)])
    rows = sorted_rows(columns[2], chunk)
    transfers = len(rows)
    # As the split was counted: all that goes from one rank to another takes one route.
    pairs, path = np.unique(columns[1][rows].astype(np.int64) * ranks + columns[0][rows], return_inverse=True)
    path_start, path_nodes = Router(topology).paths(
        pairs % ranks, pairs // ranks, np.zeros(len(pairs), dtype=np.int64)
    )
    return Schedule(
        topology=topology,
        collective=Collective.ALL_TO_ALL,
        root=-1,
        slot_weight=slot_weight,
        chunk_slot=slot[order].astype(np.int32),
        chunk_share=split.amount[order],
        src=columns[0][rows].astype(np.int32),
        dst=columns[1][rows].astype(np.int32),
        chunk=chunk[rows].astype(np.int32),
        op=np.full(transfers, Op.COPY, dtype=np.int8),
        path=path.astype(np.int32),
        step=np.full(transfers, -1, dtype=np.int32),
        after_start=np.zeros(transfers + 1, dtype=np.int64),
        after=np.zeros(0, dtype=np.int32),
        path_start=path_start,
        path_nodes=path_nodes,
    )


def direct_inv_rate(problem: Problem) -> Fraction | None:
    """Time per unit of demand of a direct exchange: what balancing and relays are measured by.

    Every block takes its direct route, or the rail of its receiver where rails are apart; None where neither is there.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> demands = np.zeros((16, 16), dtype=np.int64)
        >>> demands[0, 8] = 400
        >>> direct_inv_rate(Problem(preset("dgx-h100", boxes=2), "all_to_all", demands=demands))
        Fraction(8, 1)
    """
    topology = problem.topology
    demand, unit = demand_matrix(problem)
    split = two_stages(topology, demand, deal=Deal.DIRECT)
    if split is not None:
        return split.reached * unit
    source, target = np.nonzero(demand)
    by_receiver = np.argsort(target, kind="stable")
    source, target = source[by_receiver], target[by_receiver]
    try:
        start, nodes = Router(topology).paths(source, target, np.zeros(len(source), dtype=np.int64))
    except UnreachableError:
        return None
    load: dict[tuple[int, int], int] = {}
    for i, amount in enumerate(demand[source, target].tolist()):
        way = nodes[start[i] : start[i + 1]].tolist()
        for hop in itertools.pairwise(way):
            load[hop] = load.get(hop, 0) + amount
    times = (
        Fraction(amount, int(topology.capacity[topology.link_index[hop]])) for hop, amount in load.items()
    )
    return max(times, default=Fraction(0)) * topology.denominator * unit
