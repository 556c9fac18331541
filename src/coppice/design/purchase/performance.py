"""Time of a workload's collectives on a network, intact and after failures of cables or hosts.

Up to 128 ranks every collective is planned and simulated: by the optimal planner and by a few algorithms that are good
for small messages, and the fastest counts. On larger clusters the exact bound of a group counts, or the latency bound
where that is longer; groups then do not disturb each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from random import Random

import numpy as np

from coppice.bounds.all_to_all.concurrent_flow import concurrent_flow
from coppice.bounds.latency import latency_bound
from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.design.purchase.offers import Offer
from coppice.design.purchase.request import TrainingWorkload, Use
from coppice.design.schedules.collectives import breadth_first_schedule
from coppice.errors import InputError, UnreachableError
from coppice.planners.algorithms.catalogue import case_of, find, make
from coppice.planners.flow import plan_all_to_all
from coppice.planners.forest.planner import plan_forest
from coppice.schedule.forest import Forest
from coppice.schedule.lower import lower
from coppice.schedule.schedule import Schedule, routed
from coppice.simulation.jobs import Job, simulate_together
from coppice.simulation.models import ALPHA_BETA
from coppice.simulation.simulator import fastest
from coppice.topology.model import Topology
from coppice.topology.operations import remove_nodes, set_link_rate, subset

MOST_SIMULATED = 128
"""Ranks up to which collectives are simulated."""

_OPTIMAL = "optimal plan"
_INSIDE = "optimal plan inside"
_BREADTH_FIRST = "breadth-first"
_ALGORITHMS = {
    Collective.ALL_REDUCE: ("recursive-multiplying", "rabenseifner", "ring"),
    Collective.ALL_GATHER: ("direct", "ring"),
    Collective.REDUCE_SCATTER: ("linear", "ring"),
    Collective.ALL_TO_ALL: ("linear", "pairwise"),
}


@dataclass(frozen=True, kw_only=True)
class NetworkTiming:
    """Time of a collective in all groups concurrently."""

    time_us: float  # Until the last group is done
    how: str  # The algorithm, or `bound`


def timing(offer: Offer, workload: TrainingWorkload, use: Use) -> NetworkTiming:
    """Least time of a collective on a network over the candidates tried."""
    groups = use.groups(workload.ranks)
    if workload.ranks > MOST_SIMULATED:
        times = [
            bound_us(offer.topology, use, group, relays=offer.relays) for group in _distinct(offer, groups)
        ]
        return NetworkTiming(time_us=max(times), how="bound")
    found: list[tuple[float, str, int]] = []
    first = _problem(offer.topology, use, groups[0], relays=offer.relays)
    for name, body in _bodies(offer, first):
        timeline = fastest(body, use.size_bytes, model=ALPHA_BETA, most=64, keep_hops=False)
        found.append((timeline.time_us, name, timeline.pieces))
    if not found:
        raise InputError(f"no algorithm for {use.collective} applies on {offer.name}: leave it out.")
    if len(groups) == 1:
        best = min(found)
        return NetworkTiming(time_us=best[0], how=best[1])
    # What is good alone may be bad beside others: the three fastest are tried in all groups.
    return min(
        (_together(offer, use, groups, name, pieces) for _, name, pieces in sorted(found)[:3]),
        key=lambda made: made.time_us,
    )


def bound_us(topology: Topology, use: Use, group: list[int], *, relays: bool) -> float:
    """Lower bound for one group alone.

    Ranks pass on what is not theirs where ``relays`` says so, or where nothing else joins the group, such as after a
    failure.
    """
    try:
        return _bound_us(_problem(topology, use, group, relays=relays), use, relays=relays)
    except UnreachableError:
        if relays:
            raise
        return _bound_us(_problem(topology, use, group, relays=True), use, relays=True)


def _bound_us(problem: Problem, use: Use, *, relays: bool) -> float:
    bandwidth = float(bound_of(problem).inv_rate * Fraction(use.size_bytes, problem.shards) / 1000)
    latency = latency_bound(problem, overhead_us=ALPHA_BETA.overhead_us, relay_gpus=relays)
    return max(bandwidth, latency.time_us)


def _distinct(offer: Offer, groups: list[list[int]]) -> list[list[int]]:
    """Groups that stand for all: the first on graphs that look the same from every host, else all."""
    return groups[:1] if offer.graph is not None and offer.graph.block == 1 and offer.graph.orders else groups


def _problem(topology: Topology, use: Use, group: list[int], *, relays: bool) -> Problem:
    part = topology if group == list(range(topology.num_ranks)) else subset(topology, group, relays=relays)
    return Problem(topology=part, collective=use.collective)


def _together(offer: Offer, use: Use, groups: list[list[int]], name: str, pieces: int) -> NetworkTiming:
    jobs = [
        Job(
            name=f"group {number}",
            body=_body(offer, _problem(offer.topology, use, group, relays=offer.relays), name),
            size_bytes=use.size_bytes,
            pieces=pieces,
        )
        for number, group in enumerate(groups)
    ]
    return NetworkTiming(time_us=simulate_together(jobs, topology=offer.topology).time_us, how=name)


def _bodies(offer: Offer, problem: Problem) -> Iterator[tuple[str, Schedule | Forest]]:
    """Everything that applies to a group, by name."""
    names = [_OPTIMAL, *_ALGORITHMS[problem.collective]]
    if _inside(problem) is not None:
        names.append(_INSIDE)
    direct = offer.graph is not None and problem.topology is offer.topology
    if direct and offer.graph is not None and offer.graph.num_nodes == problem.topology.num_ranks:
        names.append(_BREADTH_FIRST)
    for name in names:
        try:
            if name == _BREADTH_FIRST and problem.collective is Collective.ALL_TO_ALL:
                continue
            yield name, _body(offer, problem, name)
        except UnreachableError:
            if name == _OPTIMAL:
                raise
        except InputError:  # a condition of the algorithm, such as a number of ranks that is a power of two
            continue


def _inside(problem: Problem) -> Problem | None:
    """The same without the network, for a group within a host of several ranks; else None."""
    topology = problem.topology
    hosts = {int(topology.host[v]) for v in topology.rank_nodes.tolist()}
    outside = [topology.node_ids[v] for v in range(topology.num_nodes) if int(topology.host[v]) not in hosts]
    if len(hosts) != 1 or hosts == {-1} or not outside:
        return None
    return Problem(topology=remove_nodes(topology, outside), collective=problem.collective)


def _body(offer: Offer, problem: Problem, name: str) -> Schedule | Forest:
    if name == _INSIDE:
        return _body(offer, _inside(problem) or problem, _OPTIMAL)
    if name == _OPTIMAL:
        if problem.collective is Collective.ALL_TO_ALL:
            return plan_all_to_all(problem, bound=concurrent_flow(problem))
        forest = plan_forest(problem)
        return forest if forest.branches_at_switches else routed(lower(forest))
    if name == _BREADTH_FIRST and offer.graph is not None:
        return breadth_first_schedule(offer.graph, offer.topology, problem.collective).schedule
    entry = find(name, problem.collective)
    made = make(entry, case_of(entry, problem), relay_gpus=offer.relays)
    return made if isinstance(made, Forest) else routed(made, relay_gpus=offer.relays)


@dataclass(frozen=True, kw_only=True)
class Slowdown:
    """Effect of a sample of failures."""

    mean: float  # Mean of the bound after over the bound before, of the samples that leave all ranks together
    worst: float  # The largest
    cut_off: float  # Share of the samples in which some rank cannot be reached any more


def slowdown(offer: Offer, workload: TrainingWorkload) -> Slowdown | None:
    """Slowdown of a network under the workload's failures; None where it names none.

    A cable that fails takes one port's rate from its link, in both directions if it is full-duplex. Ranks of failed
    hosts leave their groups.
    """
    failures = workload.failures
    if not failures.links and not failures.hosts:
        return None
    before = _iteration(offer.topology, offer, workload, list(range(workload.ranks)))
    cables = _cables(offer, workload)
    ratios: list[float] = []
    for number in range(failures.samples):
        sample = Random(f"{offer.name} {number}")
        hosts = sorted(sample.sample(range(workload.hosts), failures.hosts))
        gone = {rank for host in hosts for rank in _ranks(host, workload)}
        alive = [rank for rank in range(workload.ranks) if rank not in gone]
        topology = offer.topology
        try:
            for src, dst in sample.sample(cables, min(failures.links, len(cables))):
                topology = _cut(
                    topology, offer.topology.node_ids[src], offer.topology.node_ids[dst], offer, workload
                )
            if gone:
                nodes = [offer.topology.node_ids[offer.topology.rank_nodes[rank]] for rank in sorted(gone)]
                topology = remove_nodes(topology, nodes)
            ratios.append(_iteration(topology, offer, workload, alive) / before)
        except UnreachableError:
            continue
    cut_off = 1 - len(ratios) / failures.samples
    if not ratios:
        return Slowdown(mean=float("inf"), worst=float("inf"), cut_off=cut_off)
    return Slowdown(mean=sum(ratios) / len(ratios), worst=max(ratios), cut_off=cut_off)


def _iteration(topology: Topology, offer: Offer, workload: TrainingWorkload, alive: list[int]) -> float:
    """Sum of the bounds of the slowest groups."""
    new = {rank: place for place, rank in enumerate(alive)}
    total = 0.0
    for use in workload.collectives:
        groups = [[new[rank] for rank in group if rank in new] for group in use.groups(workload.ranks)]
        times = [bound_us(topology, use, group, relays=offer.relays) for group in groups if len(group) > 1]
        total += use.count * max(times, default=0.0)
    return total


def _ranks(host: int, workload: TrainingWorkload) -> range:
    return range(host * workload.ranks_per_host, (host + 1) * workload.ranks_per_host)


def _cables(offer: Offer, workload: TrainingWorkload) -> list[tuple[int, int]]:
    """A pair of ends for every cable of the network; links inside of hosts do not fail."""
    topology = offer.topology
    inside = (topology.host[topology.src] == topology.host[topology.dst]) & (topology.host[topology.src] >= 0)
    one_way = offer.graph is not None and not offer.graph.bidirectional
    found = []
    for link in np.flatnonzero(~inside).tolist():
        src, dst = int(topology.src[link]), int(topology.dst[link])
        if one_way or src < dst:
            rate = Fraction(int(topology.capacity[link]), topology.denominator)
            found += [(src, dst)] * max(1, round(rate / workload.gb_per_s))
    return found


def _cut(topology: Topology, src: str, dst: str, offer: Offer, workload: TrainingWorkload) -> Topology:
    """The topology without one cable between two nodes."""
    one_way = offer.graph is not None and not offer.graph.bidirectional
    for a, b in ((src, dst),) if one_way else ((src, dst), (dst, src)):
        link = topology.link_index.get((topology.node_index[a], topology.node_index[b]))
        if link is not None:
            rate = Fraction(int(topology.capacity[link]), topology.denominator)
            topology = set_link_rate(topology, a, b, max(Fraction(0), rate - workload.gb_per_s), one_way=True)
    return topology
