"""Collisions of hashed routes: what the busiest link carries under many hashes, and what makes that less.

Equal-cost multipath sends every flow over one of the equally good routes, by a hash. Here all that two ranks send each
other in one channel is a flow, and a draw is one outcome of the hash for all of them, the same as a seed of
:func:`coppice.schedule.schedule.routed`. Of each draw the time of the busiest link is counted, all transfers of the
plan together, over that of ideal multipath, which spreads every flow evenly: 2 means that hashing takes twice as long.
That is a count of bytes, without latency and without what steps do to each other; `seeds` simulates draws one by one.

Three things are tried against collisions. *Queue pairs* cut a flow into equal parts with hashes of their own. *Paths*
deal the parts over neighbouring ways from the hashed one on, so that parts of a flow do not meet. Another *order* of
ranks makes other flows. Where each flow has one choice among links that are alike, how busy the busiest of these is on
average is known exactly (:func:`expected_busiest`), as for balls in bins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import ceil, comb
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coppice import _core
from coppice.display import Brief
from coppice.errors import InputError
from coppice.schedule.forest import Forest
from coppice.schedule.loads import chunk_sizes, grouped_sums
from coppice.schedule.schedule import Schedule, open_flows
from coppice.topology.model import Topology
from coppice.topology.routing import Router

if TYPE_CHECKING:
    from coppice.outputs.shapes.timing import CollisionsJson, CollisionWayJson

PARTS = (2, 4, 8)
"""Queue pairs and paths that are tried."""

MOST_EXACT_FLOWS = 20_000
"""Flows up to which it is looked for whether the expectation is known exactly."""

MOST_EXACT_STEPS = 3_000_000
"""Sums that an exact expectation may take."""

_LARGEST = 2**53


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Flows(Brief):
    """What is sent over default routes: one row for every pair of ranks and channel."""

    topology: Topology
    src: NDArray[np.int64]  # Sending ranks
    dst: NDArray[np.int64]  # Receiving ranks, ascending
    channel: NDArray[np.int64]
    units: NDArray[np.int64]  # What each sends, in a unit of their own

    def among(self, order: Sequence[int]) -> Flows:
        """The flows where rank ``order[i]`` does what rank i does."""
        place = np.array(order, dtype=np.int64)
        dst = place[self.dst]
        rows = np.argsort(dst, kind="stable")
        return Flows(
            topology=self.topology,
            src=place[self.src][rows],
            dst=dst[rows],
            channel=self.channel[rows],
            units=self.units[rows],
        )


def flows_of(schedule: Schedule | Forest) -> Flows:
    """The flows of a schedule.

    Raises:
        InputError: If a transfer names its path, or amounts need more than 53 bits.
    """
    if isinstance(schedule, Forest) or not len(schedule.path) or (schedule.path >= 0).any():
        raise InputError(
            "expected transfers that follow default routes, found a path for some: nothing is left to a hash."
        )
    sender, receiver, channel, row_of = open_flows(schedule)
    sizes, _ = chunk_sizes(schedule)
    units = grouped_sums(row_of, [sizes[chunk] for chunk in schedule.chunk.tolist()], len(sender))
    if sum(units) >= _LARGEST:
        raise InputError("expected less than 2^53 units in all flows, found more: use fewer or equal chunks.")
    return Flows(
        topology=schedule.topology,
        src=sender,
        dst=receiver,
        channel=channel,
        units=np.array(units, dtype=np.int64),
    )


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Draws(Brief):
    """Outcomes of a number of hashes."""

    name: str  # What was done against collisions, such as 4 queue pairs
    even: float  # Units over capacity of the busiest link where every flow is spread evenly
    busiest: NDArray[np.float64]  # Of each draw, units over capacity of the busiest link
    chosen: NDArray[np.float64]  # The same among links that are one of several choices
    hits: NDArray[np.int64]  # Of each flow, draws in which it crosses the busiest link

    def quantile(self, share: float) -> float:
        """Quantile of the time over that of even spreading, by nearest rank."""
        times = np.sort(self.busiest)
        return float(times[max(ceil(share * len(times)), 1) - 1]) / self.even if self.even else 1.0

    def record(self) -> CollisionWayJson:
        """As JSON values."""
        return {
            "name": self.name,
            "p50": self.quantile(0.5),
            "p90": self.quantile(0.9),
            "p99": self.quantile(0.99),
            "worst": self.quantile(1.0),
        }


def drawn(
    flows: Flows,
    draws: int,
    *,
    parts: int = 1,
    dealt: bool = False,
    name: str = "hashed",
    relay_gpus: bool = False,
) -> Draws:
    """Draw hashes 0 to ``draws`` - 1, and count the busiest link of each.

    Args:
        parts: Equal parts that every flow is cut into.
        dealt: Parts of a flow take neighbouring ways instead of hashed ones.
        relay_gpus: Where no path of switches and NICs exists, other ranks may pass data on.

    Examples:
        >>> from coppice.planners.planning import plan
        >>> ring = plan("fat-tree", "all_gather", algorithm="ring").plan
        >>> found = drawn(flows_of(ring.schedule), 100)
        >>> len(found.busiest), found.quantile(0.5) >= 1
        (100, True)
    """
    topology = flows.topology
    nodes = topology.rank_nodes
    busiest, chosen, hits, expected = _core.hashed_loads(
        topology.num_nodes,
        topology.src,
        topology.dst,
        topology.capacity,
        topology.rank < 0,
        relay_gpus,
        nodes[flows.src],
        nodes[flows.dst],
        flows.channel,
        flows.units,
        parts,
        dealt,
        0,
        draws,
    )
    even = float((expected / topology.capacity).max(initial=0.0))
    return Draws(name=name, even=even, busiest=busiest, chosen=chosen, hits=hits)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Collisions(Brief):
    """How hashed routes collide, and what helps."""

    flows: Flows
    ways: tuple[Draws, ...]  # As it is, then what was tried against collisions
    exact: (
        Fraction | None
    )  # Expected units over capacity of the busiest chosen link; None where that is not known

    @property
    def plain(self) -> Draws:
        """The draws as the plan is."""
        return self.ways[0]

    @property
    def worst_pair(self) -> tuple[int, int, Fraction]:
        """The ranks whose flow crosses the busiest link most often, and in which share of draws."""
        worst = int(np.argmax(self.plain.hits))
        share = Fraction(int(self.plain.hits[worst]), len(self.plain.busiest))
        return int(self.flows.src[worst]), int(self.flows.dst[worst]), share

    @property
    def best(self) -> Draws:
        """What has the least 99th percentile, of equals what was tried first."""
        return min(self.ways, key=lambda each: each.quantile(0.99))

    def record(self) -> CollisionsJson:
        """As JSON values."""
        src, dst, share = self.worst_pair
        even = self.plain.even
        return {
            "hashes": len(self.plain.busiest),
            "hashed_flows": len(self.flows.src),
            "against_collisions": [each.record() for each in self.ways],
            "helps_most": self.best.name,
            "worst_pair": [src, dst],
            "worst_pair_share": float(share),
            "chosen_mean": float(self.plain.chosen.mean()) / even if even else 1.0,
            "chosen_mean_expected": float(self.exact) / even if self.exact is not None and even else None,
        }


def collisions(schedule: Schedule | Forest, draws: int, *, relay_gpus: bool = False) -> Collisions:
    """Count collisions of a schedule's default routes, and what queue pairs, paths and orders of ranks make of them.

    Raises:
        InputError: If transfers name their paths, or less than one draw is asked for.
        UnreachableError: If two ranks have no path.
    """
    if draws < 1:
        raise InputError(f"expected 1 or more hashes of routes, found {draws}.")
    flows = flows_of(schedule)
    # Says which ranks have no path, where some have none.
    Router(flows.topology, relay_gpus=relay_gpus).paths(flows.src, flows.dst, flows.channel)
    ways = [drawn(flows, draws, relay_gpus=relay_gpus)]
    for dealt, what in ((False, "queue pairs"), (True, "paths")):
        ways += [
            drawn(flows, draws, parts=parts, dealt=dealt, name=f"{parts} {what}", relay_gpus=relay_gpus)
            for parts in PARTS
        ]
    orders = {"ranks by switch": by_switch(flows.topology), "ranks shuffled": shuffled(flows.topology)}
    for name, order in orders.items():
        if order != list(range(len(order))):
            ways.append(drawn(flows.among(order), draws, name=name, relay_gpus=relay_gpus))
    return Collisions(flows=flows, ways=tuple(ways), exact=expected_busiest(flows))


def by_switch(topology: Topology) -> list[int]:
    """Ranks in the order of the switches that their boxes are linked with; those of a box stay together.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> by_switch(preset("fat-tree", leaves=2, gpus_per_leaf=2, spines=2))
        [0, 1, 2, 3]
    """
    host = topology.host
    outside: dict[int, set[int]] = {}
    for a, b in zip(topology.src.tolist(), topology.dst.tolist(), strict=True):
        if host[a] >= 0 and host[a] != host[b]:
            outside.setdefault(int(host[a]), set()).add(b)
    place = {box: tuple(sorted(nodes)) for box, nodes in outside.items()}
    boxes = [int(host[node]) for node in topology.rank_nodes.tolist()]
    return sorted(range(topology.num_ranks), key=lambda rank: (place.get(boxes[rank], ()), boxes[rank], rank))


def shuffled(topology: Topology) -> list[int]:
    """Ranks with their boxes in another order, as a scheduler may give them out; the same each time."""
    boxes = [int(topology.host[node]) for node in topology.rank_nodes.tolist()]
    alone = any(box < 0 for box in boxes)
    groups = list(range(len(boxes))) if alone else boxes
    names = sorted(set(groups))
    place = dict(zip(names, np.random.default_rng(0).permutation(len(names)).tolist(), strict=True))
    return sorted(range(len(boxes)), key=lambda rank: (place[groups[rank]], rank))


def expected_busiest(flows: Flows) -> Fraction | None:
    """Expected units over capacity of the busiest of all links that are chosen, exactly.

    It is known where every flow has one choice at most, and all flows that choose at a switch send alike and choose
    among the same links of one capacity, which no other flow crosses. Of n flows over k links, the most on one is m or
    less in n! [x^n] (sum of x^i / i! for i = 0 .. m)^k of k^n outcomes (balls in bins); switches choose independently.

    Returns:
        Units over capacity, in the units of the flows; None where it is not known, or nothing is chosen.
    """
    groups = _groups(flows) if len(flows.src) <= MOST_EXACT_FLOWS else None
    if not groups:
        return None
    kinds: dict[tuple[int, int, Fraction], int] = {}
    for count, ways, each in groups:
        kinds[count, ways, each] = kinds.get((count, ways, each), 0) + 1
    if sum(count**3 * ways // 2 for count, ways, _ in kinds) > MOST_EXACT_STEPS:
        return None
    levels = sorted({each * most for count, _, each in kinds for most in range(1, count + 1)})
    total, before = Fraction(0), Fraction(0)
    for level in levels:
        within = Fraction(1)
        for (count, ways, each), times in kinds.items():
            most = min(count, int(level / each))
            within *= Fraction(outcomes(count, ways, most), ways**count) ** times
        total += level * (within - before)
        before = within
    return total


def _groups(flows: Flows) -> list[tuple[int, int, Fraction]] | None:
    """Flows, links and busyness of one flow, of each switch that chooses; None where they are not alike."""
    topology, router = flows.topology, Router(flows.topology)
    ends = zip(flows.src.tolist(), flows.dst.tolist(), flows.units.tolist(), strict=True)
    chosen: dict[int, tuple[tuple[int, ...], int]] = {}
    count: dict[int, int] = {}
    fixed: set[tuple[int, int]] = set()
    for src, dst, units in ends:
        try:
            routes = router.equal_paths(src, dst, most=256)
        except InputError:
            return None
        shared = 0
        while all(route[: shared + 1] == routes[0][: shared + 1] for route in routes) and shared < len(
            routes[0]
        ):
            shared += 1
        fixed.update(zip(routes[0][: shared - 1], routes[0][1:shared], strict=False))
        if len(routes) == 1:
            continue
        switch, onwards = routes[0][shared - 1], tuple(sorted({route[shared] for route in routes}))
        if len(onwards) < len(routes) or chosen.setdefault(switch, (onwards, units)) != (onwards, units):
            return None
        fixed.update(
            ends for route in routes for ends in zip(route[shared:], route[shared + 1 :], strict=False)
        )
        count[switch] = count.get(switch, 0) + 1
    found = []
    for switch, (onwards, units) in chosen.items():
        if any((switch, node) in fixed for node in onwards):
            return None
        rates = {int(topology.capacity[topology.link_index[switch, node]]) for node in onwards}
        if len(rates) > 1:
            return None
        found.append((count[switch], len(onwards), Fraction(units, rates.pop())))
    return found


@cache
def outcomes(flows: int, ways: int, most: int) -> int:
    """Outcomes in which each of a number of flows takes one of the ways, and none is taken by more than ``most``.

    Examples:
        >>> outcomes(2, 2, 1), outcomes(2, 2, 2), outcomes(4, 2, 2)
        (2, 4, 6)
    """
    found = [1] + [0] * flows  # of the ways so far, outcomes by the number of flows that take them
    for _ in range(ways):
        before = found
        found = [
            sum(comb(have, take) * before[have - take] for take in range(min(have, most) + 1))
            for have in range(flows + 1)
        ]
    return found[flows]
