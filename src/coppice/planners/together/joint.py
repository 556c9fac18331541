"""Plans for all groups of a job that exchange at once: one plan a group, which share the links.

Each group is planned by itself first. Where the links that groups share are busy for longer than the bound of all
groups together, shares of the links come from a linear program (:mod:`coppice.planners.together.shares`), each group is
planned on the network of its shares, and what takes less time is kept. Groups whose networks are alike have the same
plan. With classes of priority each class is to be done as soon as it can beside those before it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.problem import Problem
from coppice.bounds.together.demands import GroupDemand
from coppice.bounds.together.least import TogetherBound
from coppice.bounds.together.priced import PricedProof
from coppice.bounds.together.priorities import classes_of, least_times
from coppice.collectives import Collective
from coppice.display import Brief
from coppice.errors import UnreachableError
from coppice.planners.planning import plan
from coppice.planners.together.shares import PHASES, Member, Shares, network_of, shares
from coppice.schedule.files.jobs_file import JobRow, write_jobs
from coppice.schedule.files.plan_file import write_plan
from coppice.schedule.forest import Forest
from coppice.schedule.loads import body_loads
from coppice.schedule.plan import Plan
from coppice.schedule.schedule import Schedule
from coppice.schedule.verification.verify import verify_plan
from coppice.text import plural
from coppice.topology.model import Topology
from coppice.topology.operations import subset, without_dead_ends

ENOUGH = Fraction(1, 100)
"""Plans within this share of the bound are not planned again."""

MOST_COLUMNS = 200_000
"""Shares of more links than this are not computed."""


@dataclass(frozen=True, eq=False, kw_only=True)
class GroupPlan:
    """The plan of one group."""

    demand: GroupDemand  # The kind of group
    place: int = 0  # Of its class among the classes of priority, the first one 0
    ranks: tuple[int, ...]  # Its ranks in the whole network
    size_bytes: Fraction  # M
    plan: Plan  # On the network without GPUs outside the group, whose nodes keep their names
    alone_seconds: Fraction = Fraction(
        0
    )  # Time for which the busiest link is busy with the plan for all links

    @property
    def seconds(self) -> Fraction:
        """Time for which its busiest link is busy."""
        return self.plan.inv_rate * self.size_bytes / self.plan.problem.shards / 10**9

    def carried_bytes(self) -> dict[int, Fraction]:
        """Bytes by link of the plan's network, of links that carry any."""
        return {link: share * self.size_bytes for link, share in _carried(self.plan).items()}


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class JointPlan(Brief):
    """Plans of all groups, with the time for which links are busy with all of them."""

    topology: Topology  # The whole network
    bounds: tuple[TogetherBound, ...]  # Least time of each class of priority, and all before it, together
    groups: tuple[GroupPlan, ...]  # Groups with their plans; of sends, each pair is one
    busy_of_classes: tuple[tuple[Fraction, ...], ...]  # Seconds of each link for each class and all before it
    shared: bool  # Shares of links were computed; otherwise each group was planned by itself

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write the plan of each group into a folder, and the jobs file for simulating them together.

        Returns:
            The files, of which the first one is ``jobs.json``.

        Raises:
            InputError: If a file cannot be written.
        """
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        rows = []
        numbers: Counter[str] = Counter()
        for each in self.groups:
            kind = each.demand.name.replace(" ", "-")
            name = f"{kind}-{numbers[kind]}"
            numbers[kind] += 1
            write_plan(each.plan, place / f"{name}.json")
            rows.append(JobRow(name=name, plan=f"{name}.json", size=int(each.size_bytes)))
        write_jobs(rows, place / "jobs.json")
        return [place / "jobs.json", *(place / row.plan for row in rows)]

    @property
    def bound(self) -> TogetherBound:
        """Least time of all groups together."""
        return self.bounds[-1]

    @property
    def busy_seconds(self) -> tuple[Fraction, ...]:
        """For which each link carries data of any group."""
        return self.busy_of_classes[-1]

    @property
    def seconds(self) -> Fraction:
        """Time for which the busiest link is busy."""
        return self.seconds_of_classes[-1]

    @property
    def seconds_of_classes(self) -> tuple[Fraction, ...]:
        """Time for which the busiest link is busy with each class of priority and all before it."""
        return tuple(max(each, default=Fraction(0)) for each in self.busy_of_classes)

    @property
    def link(self) -> int:
        """The busiest link."""
        return self.busy_seconds.index(self.seconds)

    def users(self, link: int) -> dict[str, Fraction]:
        """Bytes that a link carries, by kind of group."""
        found: dict[str, Fraction] = {}
        names = [self.topology.node_ids[node] for node in (self.topology.src[link], self.topology.dst[link])]
        for each in self.groups:
            part = each.plan.topology
            ends = [part.node_index.get(name, -1) for name in names]
            own = np.flatnonzero((part.src == ends[0]) & (part.dst == ends[1])).tolist()
            carried = each.carried_bytes() if own else {}
            for amount in (carried[one] for one in own if one in carried):
                found[each.demand.name] = found.get(each.demand.name, Fraction(0)) + amount
        return found

    @property
    def gap(self) -> Fraction:
        """Share by which the busiest link is busy for longer than the bound, of the class of which that is most."""
        return max(
            seconds / bound.seconds - 1 if bound.seconds else Fraction(0)
            for seconds, bound in zip(self.seconds_of_classes, self.bounds, strict=True)
        )


def plan_together(
    topology: Topology,
    demands: Sequence[GroupDemand],
    *,
    priority: str | None = None,
    on_stage: Callable[[str], None] | None = None,
) -> JointPlan:
    """Plan all groups of a job that exchange at once.

    Args:
        topology: The network.
        demands: What groups exchange.
        priority: Which groups go first (:func:`coppice.bounds.together.priorities.classes_of`); None: none does.
        on_stage: Called with a few words as each stage begins, for progress.

    Raises:
        InputError: If a group has ranks that do not exist, or twice, or the priority does not fit.
        UnreachableError: If members of a group do not reach each other without GPUs outside of it.

    Examples:
        Pairs of GPUs sum 1 GB each across two boxes, and the GPUs of each box as much: NICs are left to the pairs.

        >>> from coppice.topology.presets import preset
        >>> across = np.array([[rank, rank + 8] for rank in range(8)])
        >>> inside = np.arange(16).reshape(2, 8)
        >>> found = plan_together(preset("dgx-a100", boxes=2), [
        ...     GroupDemand("dp", "all_reduce", across, [Fraction(10**9)] * 8),
        ...     GroupDemand("tp", "all_reduce", inside, [Fraction(10**9)] * 2)])
        >>> float(found.bound.seconds), found.shared, float(found.gap) < 0.01
        (0.04, True, True)
    """
    say = on_stage or (lambda _: None)
    say("computing the bound of all groups")
    classes = classes_of(demands, priority)
    bounds = least_times(topology, classes)
    whole = _Network(topology, classes)
    say(f"planning {plural(len(whole.members), 'group')}")
    alone = whole.planned(bounds, [each.part for each in whole.members], shared=False)
    if alone.gap <= ENOUGH or whole.columns > MOST_COLUMNS:
        return _beside(alone, alone)
    say("sharing links among groups")
    found = whole.shares_beside(alone)
    together = whole.planned(bounds, whole.parts_of(found), shared=True)
    if together.gap > ENOUGH:
        say("proving the bound")
        alone, together = (whole.bounded(each, found.proofs) for each in (alone, together))
    taken = min((alone, together), key=lambda each: (each.gap, each.seconds))
    return _beside(taken, alone)


def _beside(taken: JointPlan, alone: JointPlan) -> JointPlan:
    """The same plans, each with what it would take alone."""
    groups = [
        replace(each, alone_seconds=other.seconds)
        for each, other in zip(taken.groups, alone.groups, strict=True)
    ]
    return replace(taken, groups=tuple(groups))


def least_times_of(
    topology: Topology,
    demands: Sequence[GroupDemand],
    *,
    priority: str | None = None,
    in_network: bool = False,
) -> list[TogetherBound]:
    """The least time of all groups until each class of priority is done, as sets of nodes or prices of links prove it.

    Args:
        topology: The network.
        demands: What groups exchange.
        priority: Which groups go first (:func:`coppice.bounds.together.priorities.classes_of`); None: none does.
        in_network: Switches may copy and add.
    """
    classes = classes_of(demands, priority)
    found = least_times(topology, classes, in_network=in_network)
    if in_network:
        return found
    try:
        whole = _Network(topology, classes)
    except UnreachableError:  # GPUs have to pass on what is not theirs
        return found
    sharing = [each for each in whole.members if each.collective in PHASES]
    if not sharing or whole.columns > MOST_COLUMNS:
        return found
    proofs = shares(topology, sharing, np.zeros((len(classes), topology.num_links))).proofs
    proved = least_times(topology, classes, proofs=proofs)
    worth = any(one.seconds > other.seconds * (1 + ENOUGH) for one, other in zip(proved, found, strict=True))
    return proved if worth else found


def plan_apart(topology: Topology, demands: Sequence[GroupDemand]) -> JointPlan:
    """Plan each group by itself, as if it had all links: what plans of all groups at once are compared with.

    Raises:
        InputError: If a group has ranks that do not exist, or twice.
        UnreachableError: If members of a group do not reach each other without GPUs outside of it.
    """
    whole = _Network(topology, [demands])
    parts = [each.part for each in whole.members]
    return whole.planned(least_times(topology, [demands]), parts, shared=False)


class _Network:
    """The groups of a job on their parts of a network."""

    def __init__(self, topology: Topology, classes: Sequence[Sequence[GroupDemand]]) -> None:
        self.topology, self.classes = topology, classes
        self.links = {
            ends: link
            for link, ends in enumerate(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
        }
        self.of: list[tuple[GroupDemand, tuple[int, ...]]] = []
        self.members: list[Member] = []
        for place, demand in [(place, demand) for place, own in enumerate(classes) for demand in own]:
            for ranks, size in zip(demand.groups.tolist(), demand.size_bytes, strict=True):
                sending = pairwise(ranks) if demand.collective == "send" else [ranks]
                for members in sending:
                    if len(members) > 1 and size:
                        self._add(demand, tuple(members), Fraction(size), place)

    def _add(self, demand: GroupDemand, ranks: tuple[int, ...], size: Fraction, place: int) -> None:
        part = without_dead_ends(subset(self.topology, ranks))
        node = [self.topology.node_index[name] for name in part.node_ids]
        links = [
            self.links[node[src], node[dst]]
            for src, dst in zip(part.src.tolist(), part.dst.tolist(), strict=True)
        ]
        self.of.append((demand, ranks))
        self.members.append(
            Member(
                part=part,
                links=np.array(links),
                collective=_performed(demand),
                size_bytes=size,
                place=place,
            )
        )

    @property
    def columns(self) -> int:
        """Shares that there are."""
        return sum(
            len(PHASES[each.collective]) * len(each.links)
            for each in self.members
            if each.collective in PHASES
        )

    def planned(
        self, bounds: Sequence[TogetherBound], parts: Sequence[Topology], *, shared: bool
    ) -> JointPlan:
        """Plans on these parts, each counted on the whole network."""
        known: dict[bytes, Plan] = {}
        checked: dict[
            tuple[bytes, bytes], tuple[Plan, dict[int, Fraction]]
        ] = {}  # Groups alike but for names
        busy = [[Fraction(0)] * self.topology.num_links for _ in self.classes]
        groups = []
        for (demand, ranks), member, part in zip(self.of, self.members, parts, strict=True):
            key = _likeness(part, member.collective)
            if key not in known:
                known[key] = plan(_problem(part, member.collective), ring=False).plan
            place = (key, _likeness(member.part, member.collective))
            if place not in checked:
                made = _on(known[key], member)
                verify_plan(made).require_ok()
                checked[place] = made, _carried(made)
            first, carried = checked[place]
            groups.append(
                GroupPlan(
                    demand=demand,
                    place=member.place,
                    ranks=ranks,
                    size_bytes=member.size_bytes,
                    plan=first if first.problem.topology is member.part else _renamed(first, member),
                )
            )
            for link, share in carried.items():
                for own in busy[member.place :]:
                    own[int(member.links[link])] += share * member.size_bytes
        rate = [Fraction(each, self.topology.denominator) * 10**9 for each in self.topology.capacity.tolist()]
        found = JointPlan(
            topology=self.topology,
            bounds=tuple(bounds),
            groups=tuple(groups),
            busy_of_classes=tuple(
                tuple(each / gbps for each, gbps in zip(own, rate, strict=True)) for own in busy
            ),
            shared=shared,
        )
        return found if len(bounds) == 1 else self.bounded(found, ())

    def bounded(self, found: JointPlan, proofs: Sequence[PricedProof]) -> JointPlan:
        """The same plans, with the bounds that hold where classes end as theirs do."""
        ends = found.seconds_of_classes
        return replace(
            found, bounds=tuple(least_times(self.topology, self.classes, ends=ends, proofs=proofs))
        )

    def shares_beside(self, alone: JointPlan) -> Shares:
        """Shares of links beside the load of what has none."""
        busy = np.zeros((len(self.classes), self.topology.num_links))
        for number, each in enumerate(self.members):
            if each.collective not in PHASES:
                for link, amount in alone.groups[number].carried_bytes().items():
                    busy[each.place, each.links[link]] += float(amount)
        sharing = [each for each in self.members if each.collective in PHASES]
        return shares(self.topology, sharing, busy)

    def parts_of(self, found: Shares) -> list[Topology]:
        """The networks of the groups' shares; what has no shares keeps its network."""
        own = iter(found.of_group)
        return [
            network_of(each.part, next(own)) if each.collective in PHASES else each.part
            for each in self.members
        ]


def _performed(demand: GroupDemand) -> Collective:
    """What a plan of the demand performs: a send is a broadcast to one."""
    return Collective.BROADCAST if demand.collective == "send" else Collective(demand.collective)


def _problem(part: Topology, collective: Collective) -> Problem:
    return Problem(topology=part, collective=collective, root=0 if collective.rooted else None)


def _likeness(part: Topology, collective: Collective) -> bytes:
    """What groups have in common that can have the same plan: everything but the names of their nodes."""
    columns: tuple[NDArray[np.generic], ...] = (
        part.kind,
        part.host,
        part.rank,
        part.src,
        part.dst,
        part.capacity,
    )
    return b"|".join((collective.value.encode(), *(column.tobytes() for column in columns)))


def _on(made: Plan, member: Member) -> Plan:
    """A plan on the whole links of the group's part."""
    moved = _renamed(made, member)
    return replace(moved, inv_rate=body_loads(moved.body, moved.problem).inv_rate)


def _renamed(made: Plan, member: Member) -> Plan:
    """A plan with the names of nodes of another group, whose part is alike; the rate is kept."""
    body: Forest | Schedule = replace(made.body, topology=member.part)
    return Plan(
        problem=_problem(member.part, member.collective),
        inv_rate=made.inv_rate,
        forest=body if isinstance(body, Forest) else None,
        schedule=body if isinstance(body, Schedule) else None,
        bound=None,
        planner=made.planner,
        parameters=made.parameters,
    )


def _carried(made: Plan) -> dict[int, Fraction]:
    """Share of M by link of the plan's network, of links that carry any."""
    loads = body_loads(made.body, made.problem)
    unit = 1 / (made.problem.shards * loads.shard) if loads.shard else Fraction(0)
    return {link: load * unit for link, load in enumerate(loads.load) if load}
