"""Schedules for several concurrent process groups on shared links, matched jointly by TACOS.

Every group performs the same collective among its own ranks at the same time, as the tensor- or data-parallel groups of
a training job do. A chunk goes only to ranks of its group, over links and paths of switches; all groups are matched in
one search, so that each takes what the others leave.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from coppice.arguments import checked
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.display import Shown
from coppice.errors import CheckError, InputError, UnreachableError
from coppice.planners.synthesis.p2.group_bounds import groups_bound
from coppice.planners.synthesis.synthesizing import Request
from coppice.planners.synthesis.tacos import Attempts, BestAttempt, Demand, TacosOptions, chunk_routes_of
from coppice.planners.synthesis.timed import TimedTransfers, joined, reversed_in_time, timed_schedule
from coppice.schedule.loads import body_loads
from coppice.schedule.plan import Plan
from coppice.schedule.verification.verify import verify_plan
from coppice.topology.model import Topology
from coppice.topology.operations import subset

if TYPE_CHECKING:
    from coppice.outputs.shapes.synthesis import GroupsSynthesisJson

SERVED = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE)
_USUAL_CHUNKS = 12
_USUAL_TRANSFERS = 2**14


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class GroupPlans(Shown):
    """Plans of several concurrent groups."""

    topology: Topology  # The whole cluster
    collective: Collective  # What every group performs
    groups: Sequence[Sequence[int]]  # Ranks of each group
    plans: Sequence[Plan]  # A verified plan for each group, on the cluster in which only its ranks take part
    # Time of all groups together per byte of a group's buffer, chunk by chunk, in nanoseconds
    ns_per_byte: Fraction
    # No schedule takes less: what groups must carry into or out of a GPU or a host
    least_ns_per_byte: Fraction
    attempts: int  # Attempts made
    interrupted: bool = False  # Ctrl-C ended the search; the plans are the best found until then

    @property
    def gap(self) -> float:
        """Upper bound on the relative gap of all groups together to the optimum."""
        return float(1 - self.least_ns_per_byte / self.ns_per_byte) if self.ns_per_byte else 0.0

    def __repr__(self) -> str:
        rate = f"{float(1 / self.ns_per_byte):.6g} GB/s" if self.ns_per_byte else "nothing to move"
        return (
            f"<{self.collective} of {len(self.groups)} groups on {self.topology.name}: {rate} each, verified>"
        )

    def record(self) -> GroupsSynthesisJson:
        """The figures as JSON values."""
        reached = float(1 / self.ns_per_byte) if self.ns_per_byte else None
        most = float(1 / self.least_ns_per_byte) if self.least_ns_per_byte else None
        groups = [list(group) for group in self.groups]
        return {
            "topology": self.topology.name,
            "collective": self.collective.value,
            "method": "tacos",
            "rank_groups": groups,
            "groups": groups,
            "load_algbw_gb_per_s": reached,
            "algbw_gb_per_s": reached,
            "optimum_algbw_gb_per_s": most,
            "most_algbw_gb_per_s": most,
            "gap": self.gap,
            "attempts_done": self.attempts,
            "interrupted": self.interrupted,
            "verified": True,
        }


def read_groups(text: str, ranks: int) -> list[list[int]]:
    """Parse groups: ``8`` (8 consecutive ranks), ``8:4`` (8 ranks, stride 4), ``0,1/2,3`` or ``0-3/4-7``.

    Examples:
        >>> read_groups("2", 4), read_groups("2:2", 4), read_groups("0,3/1-2", 4)
        ([[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0, 3], [1, 2]])
    """
    apart = re.fullmatch(r"(\d{1,6})(?::(\d{1,6}))?", text)
    if apart:
        size, stride = int(apart[1]), int(apart[2] or 1)
        if size < 1 or stride < 1 or ranks % (size * stride):
            raise InputError(
                f"expected groups whose size times stride divides {ranks} ranks, found {size} x {stride}: name ranks "
                "such as 0,1/2,3."
            )
        blocks = range(0, ranks, size * stride)
        return [
            [block + first + k * stride for k in range(size)] for block in blocks for first in range(stride)
        ]
    found: list[list[int]] = []
    for part in text.split("/"):
        group: list[int] = []
        for word in part.split(","):
            span = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", word)
            if span is None:
                raise InputError(
                    f"expected groups such as 8, 8:4 or 0-3/4-7, found {word!r} in `groups={text}`."
                )
            group += range(int(span[1]), int(span[2] or span[1]) + 1)
        found.append(group)
    named = sorted(rank for group in found for rank in group)
    if named != list(range(ranks)):
        raise InputError(
            f"expected groups with each of {ranks} ranks once, found {len(named)} ranks in {len(found)} groups."
        )
    return found


@checked
def synthesize_groups(
    topology: Topology,
    collective: Collective | str,
    # Ranks of each group; together all ranks, each once. Groups may differ in size.
    groups: Sequence[Sequence[int]],
    *,
    # Chunks of each rank's block; None: 12, and fewer down to 1 where that makes more than 2^14 transfers
    chunks: int | None = None,
    seeds: int = 20,  # Attempts with different random numbers, of which the best is kept
    seed: int = 0,
    time_limit_s: float | None = None,  # Seconds after which the best found so far counts
    on_stage: Callable[[str], None] | None = None,  # Called with a few words as the search goes on
) -> GroupPlans:
    """Match the collectives of all groups jointly, and verify each group's plan.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> found = synthesize_groups(preset("star", gpus=4), "all_gather", [[0, 2], [1, 3]])
        >>> [plan.topology.num_ranks for plan in found.plans], found.gap
        ([2, 2], 0.0)
    """
    what = Collective.named(str(collective))
    if what not in SERVED:
        raise InputError(f"groups perform {', '.join(SERVED)} together, found {what}.")
    ranks = topology.num_ranks
    if sorted(rank for group in groups for rank in group) != list(range(ranks)):
        raise InputError(
            f"expected groups with each of {ranks} ranks once, found {[list(group) for group in groups]}."
        )
    # A chunk of a group of R ranks is 1 / (R chunks) of its buffer, so chunks of groups of other sizes differ.
    sizes = {len(group) for group in groups}
    if len(sizes) > 1:
        raise InputError(
            f"expected groups of one size, whose chunks are alike, found sizes {', '.join(map(str, sorted(sizes)))}."
        )
    pairs = sum(len(group) * (len(group) - 1) for group in groups)
    usual = max(1, min(_USUAL_CHUNKS, _USUAL_TRANSFERS // max(1, pairs)))
    each = usual if chunks is None else chunks
    options = TacosOptions(chunks=each, seeds=seeds)
    problem = Problem(topology=topology, collective=Collective.ALL_GATHER)
    of_rank = np.zeros(ranks, dtype=np.int32)
    for number, group in enumerate(groups):
        of_rank[list(group)] = number
    source = np.repeat(np.arange(ranks, dtype=np.int32), each)
    demand = Demand(
        slot=source.astype(np.int64),
        source=source,
        target=np.full(len(source), -1, dtype=np.int32),
        group=of_rank,
    )
    deadline = None if time_limit_s is None else time.monotonic() + time_limit_s
    request = Request(problem=problem, options=options, seed=seed, deadline=deadline, on_progress=on_stage)
    search = Attempts(request, demand, each * pairs)
    routes = chunk_routes_of(topology, None, (len(source) + 1) * (ranks + 1))
    parts: list[BestAttempt] = []
    for turned in _ways(what):
        found = search.best(routes.turned() if turned else routes)
        if found is None:
            if search.interrupted:
                raise KeyboardInterrupt
            raise UnreachableError(
                "expected ranks of each group that links or paths of switches join without other ranks, found some "
                "that nothing reaches: choose groups along the links."
            )
        parts.append(
            BestAttempt(transfers=reversed_in_time(found.transfers), time=found.time, attempt=found.attempt)
            if turned
            else found
        )
    whole = parts[0].transfers if len(parts) == 1 else joined(parts[0].transfers, parts[1].transfers)
    plans = [
        _plan(topology, what, group, whole, of_rank, number, each, routes)
        for number, group in enumerate(groups)
    ]
    members = len(groups[0])
    span = sum(part.time for part in parts) * routes.unit
    return GroupPlans(
        topology=topology,
        collective=what,
        groups=[list(group) for group in groups],
        plans=plans,
        ns_per_byte=Fraction(span) / (members * each),
        least_ns_per_byte=_least(topology, groups, what),
        attempts=search.done,
        interrupted=search.interrupted,
    )


def _ways(collective: Collective) -> list[bool]:
    """Directions of the search: whether links are turned round, for the part that adds up."""
    if collective is Collective.ALL_GATHER:
        return [False]
    return [True] if collective is Collective.REDUCE_SCATTER else [True, False]


def _plan(
    topology: Topology,
    collective: Collective,
    group: Sequence[int],
    whole: TimedTransfers,
    of_rank: Any,
    number: int,
    chunks: int,
    routes: Any,
) -> Plan:
    """The verified plan of a group, from the transfers of all."""
    own = of_rank[whole.src] == number
    place = np.full(topology.num_ranks, -1, dtype=np.int64)
    place[list(group)] = np.arange(len(group))
    source, part = np.divmod(whole.chunk[own], chunks)
    transfers = TimedTransfers(
        start=whole.start[own],
        end=whole.end[own],
        chunk=place[source] * chunks + part,
        src=place[whole.src[own]],
        dst=place[whole.dst[own]],
        path=whole.path[own],
        op=whole.op[own],
    )
    problem = Problem(topology=subset(topology, group, relays=True), collective=collective)
    schedule = timed_schedule(
        problem,
        transfers,
        chunk_slot=np.repeat(np.arange(len(group), dtype=np.int64), chunks),
        path_start=routes.path_start,
        path_nodes=routes.path_nodes,
    )
    plan = Plan(
        problem=problem,
        inv_rate=body_loads(schedule, problem).inv_rate,
        schedule=schedule,
        planner="tacos",
        parameters={"chunks": chunks, "group": number},
    )
    report = verify_plan(plan)
    if not report.ok:
        raise CheckError(f"expected a plan of group {number} that verifies, found: {report.failures[0]}.")
    return plan


def _least(topology: Topology, groups: Sequence[Sequence[int]], collective: Collective) -> Fraction:
    """The least time per byte of a group's buffer that the ends and hosts of the cluster allow.

    Of an all-gather every set of ranks takes in the blocks of members of its groups outside, and gives the block of
    each member inside once at least where there is one outside; a reduce-scatter the other way round. All-reduces have
    the bound of :mod:`coppice.planners.synthesis.p2.group_bounds`.
    """
    sets = [[rank] for rank in range(topology.num_ranks)]
    hosts = topology.host[topology.rank_nodes]
    boxes = [np.flatnonzero(hosts == host).tolist() for host in np.unique(hosts[hosts >= 0])]
    if collective is Collective.ALL_REDUCE:
        divisions: list[tuple[str, list[list[int]]]] = [("GPU", sets)]
        if sum(map(len, boxes)) == topology.num_ranks and len(boxes) > 1:
            divisions.append(("host", boxes))
        return groups_bound(topology, np.array(groups, dtype=np.int64), divisions).ns_per_byte
    size = len(groups[0])
    least = Fraction(0)
    for part in [*sets, *boxes]:
        inside = np.zeros(topology.num_nodes, dtype=np.bool_)
        inside[topology.rank_nodes[part]] = True
        if len(part) > 1:
            inside |= topology.host == hosts[part[0]]
        within = [len(set(part).intersection(group)) for group in groups]
        takes = sum(size - count for count in within if 0 < count < size)
        gives = sum(count for count in within if 0 < count < size)
        if collective is Collective.REDUCE_SCATTER:
            takes, gives = gives, takes
        into, out = inside[topology.dst] & ~inside[topology.src], inside[topology.src] & ~inside[topology.dst]
        for data, way in ((takes, into), (gives, out)):
            room = Fraction(int(topology.capacity[way].sum()), topology.denominator)
            if data and room:
                least = max(least, Fraction(data, size) / room)
    return least
