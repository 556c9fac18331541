"""Simulate a plan over sizes: times against the optimum and ECMP, and the size at which it reaches its rate.

*Hashed routes* are those of switches that choose among equally good ones by a hash. Equal-cost multipath sends every
flow, here all that one rank sends another in one channel, over one of the shortest routes. Flows that meet on a link
share it while other links idle. Which ones meet is chance: a *seed* is one outcome, many seeds are a distribution,
whose median and 99th percentile are told by nearest rank. They are measured by ideal multipath, which spreads every
flow evenly over all its routes: what packet spraying and adaptive routing strive for, and what hashing falls short of.
No packet overtakes another one here, nothing is sent twice, and every route gets exactly its share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from math import ceil, lcm
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.problem import Problem
from coppice.display import Brief
from coppice.errors import CheckError, InputError
from coppice.rows import first_rows
from coppice.schedule.forest import Forest, expanded_edges
from coppice.schedule.loads import schedule_loads
from coppice.schedule.plan import Plan
from coppice.schedule.schedule import Schedule, in_parts, routed
from coppice.schedule.steady import SteadyRates
from coppice.simulation.models import Model, model_of
from coppice.simulation.simulator import fastest
from coppice.simulation.steady_rate import steady_inv_rate
from coppice.simulation.timeline import Timeline, time_by_reason
from coppice.simulation.utilisation import busiest_links
from coppice.topology.model import Topology
from coppice.topology.routing import Router

if TYPE_CHECKING:
    from coppice.outputs.shapes.nouns import ModelJson
    from coppice.outputs.shapes.timing import SimulatedSizeJson
    from coppice.selection import Selection


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Hashed(Brief):
    """Distribution of times over hash seeds."""

    times_us: NDArray[np.float64]  # Time under each seed, 0 being the default routing (float64)
    multipath_us: float  # Time with ideal multipath

    @property
    def median_us(self) -> float:
        """Median over the seeds."""
        return self.quantile_us(0.5)

    @property
    def p99_us(self) -> float:
        """99th percentile over the seeds."""
        return self.quantile_us(0.99)

    def quantile_us(self, share: float) -> float:
        """Quantile over the seeds.

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
    """Simulate a schedule under ``seeds`` ECMP hashes, and with ideal multipath."""
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
    """Spread every transfer without a route evenly over all its equal-cost routes.

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


OWN_ERROR = "this is an error in Coppice, please report it"
"""What to say where two figures of our own contradict each other."""

_SLACK = 1e-6
"""What floats may add to a share."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Simulated(Brief):
    """Simulation of a plan at one size."""

    plan: Plan  # The plan
    timeline: Timeline  # What was simulated
    inv_rate: Fraction  # The plan's own, on the routes that were simulated (ns per byte of a shard)
    hashed: Hashed | None = None  # Times under many hashes, where asked for
    picked: Selection | None = None  # The pick of a library whose schedule the plan is

    @property
    def size_bytes(self) -> int:
        """Message size M."""
        return self.timeline.size_bytes

    @property
    def time_us(self) -> float:
        """When the last rank is done."""
        return self.timeline.time_us

    @property
    def algbw_gb_per_s(self) -> float:
        """M over the time."""
        return self.timeline.algbw_gb_per_s

    @property
    def busbw_gb_per_s(self) -> float:
        """Rate that nccl-tests prints as busbw."""
        return self.timeline.busbw_gb_per_s

    @property
    def least_us(self) -> float:
        """Bandwidth time of the optimum (or, without one, of the plan's own loads)."""
        bound, problem = self.plan.bound, self.plan.problem
        inv_rate = self.inv_rate if bound is None else bound.inv_rate
        timeline = self.timeline
        least_us = float(inv_rate * timeline.size_bytes / problem.shards / 1000)
        return without_bursts(least_us, timeline.model, problem.topology)

    @property
    def share_of_least(self) -> float:
        """Bandwidth time over simulated time."""
        timeline = self.timeline
        where = "the plan's bound is wrong" if self.plan.bound is not None else "the plan's rate is wrong"
        return share_of_least_time(
            self.least_us,
            timeline.time_us,
            timeline.size_bytes,
            self.plan.problem,
            why=f"{where}: verify the plan",
        )

    def record(self, links: int) -> SimulatedSizeJson:
        """The result as JSON values, with the given number of busiest links."""
        timeline, hashed = self.timeline, self.hashed
        topology = timeline.topology
        return {
            "size_bytes": timeline.size_bytes,
            "pieces": timeline.pieces,
            "protocol": timeline.protocol,
            "messages": timeline.messages.count,
            "time_us": timeline.time_us,
            "reached_algbw_gb_per_s": timeline.algbw_gb_per_s,
            "reached_busbw_gb_per_s": timeline.busbw_gb_per_s,
            "algbw_gb_per_s": timeline.algbw_gb_per_s,
            "busbw_gb_per_s": timeline.busbw_gb_per_s,
            "optimum_us": self.least_us,
            "share_of_optimum": self.share_of_least,
            "hashed": None
            if hashed is None
            else {
                "times_us": hashed.times_us.tolist(),
                "median_us": hashed.median_us,
                "p99_us": hashed.p99_us,
                "multipath_us": hashed.multipath_us,
            },
            "critical_us": time_by_reason(timeline),
            "library_pick": None if self.picked is None else self.picked.pick_record(),
            "links": [
                {
                    "link": [topology.node_ids[topology.src[link]], topology.node_ids[topology.dst[link]]],
                    "busy_us": float(timeline.link_busy_us[link]),
                    "link_bytes": float(timeline.link_bytes[link]),
                    "bytes": float(timeline.link_bytes[link]),
                    "utilisation": timeline.utilisation(link),
                }
                for link in busiest_links(timeline, links)
            ],
        }


def without_bursts(least_us: float, model: Model, topology: Topology) -> float:
    """Bandwidth time less the burst that every link may let through at once.

    In a time t links with capacities c let no more through a cut than the sum of t c + burst, so that the least time of
    a cut is shorter by at most burst / c of its slowest link.
    """
    if not model.burst_bytes or not topology.num_links:
        return least_us
    slowest_gb_per_s = float(Fraction(int(topology.capacity.min()), topology.denominator))
    return max(0.0, least_us - model.burst_bytes / slowest_gb_per_s / 1000)


def share_of_least_time(
    least_us: float, time_us: float, size_bytes: int, problem: Problem, *, why: str = OWN_ERROR
) -> float:
    """Least time over time, at most 1.

    Args:
        least_us: The least time of so many bytes.
        size_bytes: M. Blocks end at whole bytes, which explains a byte for each block.
        why: What is wrong where it takes less, and what to do.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> share_of_least_time(1.0, 2.0, 2**20, Problem(preset("star", gpus=4), "all_gather"))
        0.5
    """
    if not time_us:
        return 0.0
    share = least_us / time_us
    rounding = problem.topology.num_ranks**2 / max(size_bytes, 1)
    if share > 1 + _SLACK and share > 1 + rounding:
        raise CheckError(
            f"expected {least_us:.6g} us at least for {problem.collective} of {size_bytes} bytes on "
            f"{problem.topology.name}, found {time_us:.6g} us in the simulation: {why}."
        )
    return share


def simulate_sizes(
    plan: Plan,  # The plan; it is not verified
    sizes: Sequence[int],  # Sizes M in bytes
    *,
    model: Model | None = None,  # What is assumed of machines; None is the default
    pieces: int | None = None,  # Pieces that every chunk is cut into; None takes the number that is fastest
    seeds: int = 0,  # Number of hashes of default routes to try beside it, all with the same number of pieces
    multipath: bool = False,  # Spread default routes evenly over all equally good ones
    on_stage: Callable[[str], None] | None = None,  # Called with words before each size
) -> list[Simulated]:
    """Simulate a plan at every size."""
    chosen = model_of(model)
    body, inv_rate = plan.body, plan.inv_rate
    if multipath and isinstance(body, Schedule):
        body = over_all_routes(body)
        inv_rate = schedule_loads(body).inv_rate
    rows = []
    for size_bytes in sizes:
        if on_stage is not None:
            on_stage(f"simulating {size_bytes} bytes")
        timeline = fastest(body, size_bytes, model=chosen, pieces=pieces)
        hashed = None
        if seeds:
            hashed = hashed_times(body, seeds, _time_us(timeline))
        rows.append(Simulated(plan=plan, timeline=timeline, inv_rate=inv_rate, hashed=hashed))
    return rows


def _time_us(like: Timeline) -> Callable[[Schedule], float]:
    """The time of other bodies with the protocol and the number of pieces of a timeline."""
    model = like.model if like.protocol is None else replace(like.model, protocols=(like.protocol,))
    return lambda body: (
        fastest(body, like.size_bytes, model=model, pieces=like.pieces, keep_hops=False).time_us
    )


def simulated_record(plan: Plan, model: Model, rows: Sequence[Simulated], *, links: int) -> dict[str, Any]:
    """Results of several sizes as JSON values; those of a single size also at the top level.

    Args:
        links: How many of the busiest links to list for each.
    """
    sizes = [row.record(links) for row in rows]
    return {
        "collective": plan.problem.collective.value,
        "topology": plan.topology.name,
        "topology_sha256": plan.topology.sha256,
        "ranks": plan.topology.num_ranks,
        "planner": " or ".join(dict.fromkeys(row.plan.planner for row in rows)) or plan.planner,
        "model": model_record(model),
        **(sizes[0] if len(sizes) == 1 else {}),
        "sizes": sizes,
    }


def model_record(model: Model) -> ModelJson:
    """A model as JSON values: name, parameters and description."""
    return cast("ModelJson", {**asdict(model), "text": model.text})


def rate_figures(timeline: Timeline) -> dict[str, float]:
    """Time and bandwidths as JSON values."""
    return {
        "time_us": timeline.time_us,
        "algbw_gb_per_s": timeline.algbw_gb_per_s,
        "busbw_gb_per_s": timeline.busbw_gb_per_s,
    }


MOST_REACH_ROWS = 10_000
"""Plans of more transfers are not searched for the size at which they have their rate: `coppice simulate` shows it."""

_EXPONENTS = range(10, 37)


def steady_rates(plan: Plan, *, model: Model | None = None) -> SteadyRates:
    """Rate of a plan in messages of unbounded size; not known of more transfers than can be simulated at once.

    Args:
        model: As :func:`coppice.simulation.steady_rate.steady_inv_rate`.

    Examples:
        >>> from coppice.planners.planning import plan
        >>> steady_rates(plan("star", "all_reduce", algorithm="double-binary-tree").plan).text
        'algbw 0.2 GB/s, busbw 0.35 GB/s, 35% of the optimum: steps wait for each other, in messages of any size'
    """
    body = plan.body
    many = isinstance(body, Schedule) and body.num_transfers > MOST_REACH_ROWS
    return SteadyRates(plan=plan, inv_rate=None if many else steady_inv_rate(plan, model=model))


LARGEST_REACH_BYTES = 2 ** _EXPONENTS[-1]
"""Largest size that is tried."""


def sizes_reaching(
    plan: Plan, shares: Sequence[float], *, model: Model | None = None
) -> dict[float, int | None] | None:
    """Least power of two in bytes, from 1 KiB, at which a plan reaches a share of its rate.

    Args:
        shares: Parts of the rate, more than 0 and less than 1.
        model: What messages cost; None is the default.

    Returns:
        A size for each share, None where 64 GiB are not enough; None where the plan has more than 10,000 transfers.

    Examples:
        >>> from coppice.planners.planning import plan
        >>> from coppice.simulation.models import model_of
        >>> from coppice.topology.presets import preset
        >>> made = plan(preset("dgx-a100"), "all_gather").plan
        >>> sizes_reaching(made, (0.5, 0.9), model=model_of("alpha-beta"))
        {0.5: 524288, 0.9: 4194304}
    """
    body, chosen = plan.body, model_of(model)
    rows = expanded_edges(body) if isinstance(body, Forest) else body.num_transfers
    if rows > MOST_REACH_ROWS:
        return None
    us_per_byte = float(plan.inv_rate / plan.problem.shards) / 1000
    taken: dict[int, float] = {}  # the time of a size, or one that was enough
    searched: set[int] = set()  # sizes whose time is the least that was found
    # Beside its bytes a size takes some time however small it is, and more as it grows, about as the root of its root.
    fixed_us = fastest(body, 2 ** _EXPONENTS[0], model=chosen, keep_hops=False).time_us
    growth_us = 0.0

    def reaches(exponent: int, share: float) -> bool:
        nonlocal growth_us
        bytes_us = us_per_byte * 2**exponent
        enough_us = bytes_us / share
        if exponent not in taken or (taken[exponent] > enough_us and exponent not in searched):
            timeline = fastest(body, 2**exponent, model=chosen, keep_hops=False, enough_us=enough_us)
            taken[exponent] = timeline.time_us
            if timeline.time_us > enough_us:
                searched.add(exponent)
                growth_us = max(0.0, timeline.time_us - bytes_us - fixed_us) / 2 ** (exponent / 4)
        return bool(taken[exponent] <= enough_us)

    found: dict[float, int | None] = {}

    def guess(share: float) -> int:
        for exponent in _EXPONENTS[:-1]:
            if us_per_byte * 2**exponent * (1 / share - 1) >= fixed_us + growth_us * 2 ** (exponent / 4):
                return exponent
        return _EXPONENTS[-1]

    for share in shares:
        exponent = guess(share)
        while exponent < _EXPONENTS[-1] and not reaches(exponent, share):
            exponent = max(exponent + 1, guess(share))
        while exponent > _EXPONENTS[0] and reaches(exponent - 1, share):
            exponent -= 1
        found[share] = 2**exponent if reaches(exponent, share) else None
    return found
