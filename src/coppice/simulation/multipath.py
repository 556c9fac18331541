"""Ideal multipath: every default route is all equally good routes at once, with an equal share of the bytes on each.

This is what packet spraying and adaptive routing strive for, and what hashing flows to paths (see
:mod:`coppice.simulation.hashed`) falls short of. No packet overtakes another one here, nothing is sent twice, and
every route gets exactly its share.
"""

from __future__ import annotations

from dataclasses import replace
from math import lcm

import numpy as np

from coppice.rows import first_rows
from coppice.schedule.schedule import Schedule, in_parts
from coppice.topology.routing import Router

__all__ = ["MAX_ROUTES", "over_all_routes"]

MAX_ROUTES = 256
"""Most equally good routes of one pair of ranks."""


def over_all_routes(schedule: Schedule, *, relay_gpus: bool = False) -> Schedule:
    """The schedule with every transfer that names no path spread evenly over all its equally good routes.

    Every chunk is cut into as many parts as all numbers of routes divide; a transfer with k routes takes each of them
    for 1/k of the parts. What it moves, and when, stays the same.

    Args:
        schedule: A verified schedule.
        relay_gpus: Where no path of switches and NICs exists, other ranks may pass data on.

    Raises:
        UnreachableError: If there is no route from a sender to its receiver.
        InputError: If some pair has more than 256 routes, or there would be too many transfers.

    Examples:
        >>> from coppice.collectives import Collective
        >>> from coppice.planners.algorithms.catalogue import case_of, find, make
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.topology.presets import preset
        >>> tree = preset("fat-tree", leaves=2, gpus_per_leaf=2, spines=4)
        >>> ring = find("ring", Collective.ALL_GATHER)
        >>> made = make(ring, case_of(ring, Problem(topology=tree, collective=Collective.ALL_GATHER)))
        >>> over_all_routes(made).num_transfers / made.num_transfers
        4.0
    """
    open_rows = np.flatnonzero(schedule.path < 0)
    if not len(open_rows):
        return schedule
    # Sorted by receiver, as the router searches once for each.
    ends = np.stack([schedule.dst[open_rows], schedule.src[open_rows]], axis=1)
    pairs, pair_of = np.unique(ends, axis=0, return_inverse=True)
    router = Router(schedule.topology, relay_gpus=relay_gpus)
    routes = [router.equal_paths(src, dst, most=MAX_ROUTES) for dst, src in pairs.tolist()]
    count = np.array([len(each) for each in routes])
    parts = lcm(*set(count.tolist()))
    first = len(schedule.path_start) - 1 + first_rows(count)
    cut = in_parts(schedule, parts)
    pair = pair_of.reshape(-1)
    part = np.arange(parts)[None, :]
    # Senders begin with different routes, so that simultaneous bursts do not all queue for the first one.
    turn = part * count[pair][:, None] // parts + schedule.src[open_rows][:, None]
    taken = first[pair][:, None] + turn % count[pair][:, None]
    path = cut.path.reshape(-1, parts).copy()
    path[open_rows] = taken
    nodes = [np.array(route, dtype=np.int32) for each in routes for route in each]
    end = schedule.path_start[-1] + np.cumsum([len(route) for route in nodes])
    return replace(
        cut,
        path=path.reshape(-1),
        path_start=np.concatenate([schedule.path_start, end]),
        path_nodes=np.concatenate([schedule.path_nodes, *nodes]),
    )
