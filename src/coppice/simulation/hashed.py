"""Hashed flows: what a schedule takes when switches choose among equally good routes by a hash, beside ideal multipath.

Equal-cost multipath sends every flow, here all that one rank sends another in one channel, over one of the shortest
routes. Flows that meet on a link share it while other links idle. Which ones meet is chance: a *seed* is one outcome,
many seeds are a distribution, whose median and 99th percentile are told by nearest rank. Ideal multipath, which
spreads every flow evenly over all its routes, is what they are measured by.

Ideal multipath is what packet spraying and adaptive routing strive for, and what hashing falls short of. No packet
overtakes another one here, nothing is sent twice, and every route gets exactly its share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, lcm

import numpy as np
from numpy.typing import NDArray

from coppice.display import Brief
from coppice.errors import InputError
from coppice.rows import first_rows
from coppice.schedule.forest import Forest
from coppice.schedule.schedule import Schedule, in_parts, routed
from coppice.topology.routing import Router


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Hashed(Brief):
    """Times of a schedule under many hashes."""

    times_us: NDArray[np.float64]  # Time under each seed, 0 being the default routing (float64)
    multipath_us: float  # Time with ideal multipath

    @property
    def median_us(self) -> float:
        """Half of the seeds take this time or less."""
        return self.quantile_us(0.5)

    @property
    def p99_us(self) -> float:
        """99% of the seeds take this time or less."""
        return self.quantile_us(0.99)

    def quantile_us(self, share: float) -> float:
        """The least of the times that ``share`` of the seeds do not pass.

        Examples:
            >>> Hashed(times_us=np.array([4.0, 1.0, 3.0, 2.0]), multipath_us=1.0).quantile_us(0.5)
            2.0
        """
        return float(np.sort(self.times_us)[max(ceil(share * len(self.times_us)), 1) - 1])


def hashed_times(
    body: Schedule | Forest,  # A schedule whose transfers follow default routes, at least some of them
    seeds: int,  # Number of hashes, 1 or more
    time_us: Callable[[Schedule], float],  # Simulates a schedule with routes for all transfers
    *,
    relay_gpus: bool = False,  # Where no path of switches and NICs exists, other ranks may pass data on
    # Called with the number of every seed before it is simulated
    on_seed: Callable[[int], None] | None = None,
) -> Hashed:
    """Times of a schedule under ``seeds`` hashes, and with ideal multipath."""
    if seeds < 1:
        raise InputError(f"expected 1 or more seeds, found {seeds}.")
    if isinstance(body, Forest) or not (body.path < 0).any():
        raise InputError(
            "expected transfers that follow default routes, found a path for each: nothing is left to a hash."
        )
    times = np.empty(seeds)
    for seed in range(seeds):
        if on_seed is not None:
            on_seed(seed)
        times[seed] = time_us(routed(body, relay_gpus=relay_gpus, seed=seed))
    return Hashed(times_us=times, multipath_us=time_us(over_all_routes(body, relay_gpus=relay_gpus)))


MAX_ROUTES = 256
"""Most equally good routes of one pair of ranks."""


def over_all_routes(schedule: Schedule, *, relay_gpus: bool = False) -> Schedule:
    """The schedule with every transfer that names no path spread evenly over all its equally good routes.

    Every chunk is cut into as many parts as all numbers of routes divide; a transfer with k routes takes each of them
    for 1/k of the parts. What it moves, and when, stays the same.

    Args:
        relay_gpus: Where no path of switches and NICs exists, other ranks may pass data on.

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
