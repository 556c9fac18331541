"""Shares of links for groups that exchange at once: a linear program over cuts.

Theory. Let group g move its data over links of which it has the share ``x[g]`` (bytes that each may carry for it), as
much into a switch as out of it. By Edmonds (branching packing) and its form for switches (ForestColl) an all-gather of
blocks m of its members fits into these shares if and only if every set of nodes with some but not all members has ``m``
for each member inside on the links that leave it; of a reduce-scatter the same holds for members outside, and of a
broadcast the whole leaves every set with the root. Time T is
enough for all groups if their shares of each link add up to no more than it carries in T. So the least T is a linear
program with a row for every cut. Rows are added as they are violated: for the shares of the moment a group's narrowest
cut is what bounds its collective on a network of these shares. An all-reduce is a reduce-scatter and an all-gather
with shares of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.lp.solver import new_solver, run_interruptibly
from coppice.bounds.network import Network, cut_bound
from coppice.bounds.optimum import sending_side
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import UnreachableError
from coppice.topology.model import Topology

GRID = 4_000
"""Shares are rounded to this part of the largest one of a group: small numbers pack into few trees."""

_WORTH = 0.005
"""A link of which a group has less than this part of its largest share is left to the others."""

_FINE = 1_000_000
_CLOSE = 1e-3
_ROUNDS = 200

PHASES = {
    Collective.ALL_REDUCE: (Collective.REDUCE_SCATTER, Collective.ALL_GATHER),
    Collective.ALL_GATHER: (Collective.ALL_GATHER,),
    Collective.REDUCE_SCATTER: (Collective.REDUCE_SCATTER,),
    Collective.BROADCAST: (Collective.BROADCAST,),
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Member:
    """A group that takes part."""

    part: Topology  # The network without GPUs outside the group
    links: NDArray[np.int64]  # Of the whole network, for each link of the part
    collective: Collective  # One of :data:`PHASES`
    size_bytes: Fraction  # M


@dataclass(frozen=True, eq=False, kw_only=True)
class Shares:
    """Shares of links: bytes while they are looked for, GB/s in the end."""

    seconds: float  # Time in which they suffice
    of_group: list[NDArray[np.float64]]  # Of each link of the group's part


def shares(topology: Topology, groups: Sequence[Member], busy_bytes: NDArray[np.float64]) -> Shares:
    """Shares of links that let all groups end soonest.

    Args:
        topology: The whole network.
        groups: The groups.
        busy_bytes: What each link carries besides, whatever the shares are.
    """
    program = _Program(topology, groups, busy_bytes)
    found = program.solved()
    for _ in range(_ROUNDS):
        if not program.add_violated():
            break
        found = program.solved()
    kept = [_worth_having(each.part, share) for each, share in zip(groups, found.of_group, strict=True)]
    return replace(found, of_group=_filled(topology, groups, kept, busy_bytes))


def _filled(
    topology: Topology,
    groups: Sequence[Member],
    found: Sequence[NDArray[np.float64]],
    busy_bytes: NDArray[np.float64],
) -> list[NDArray[np.float64]]:
    """Shares in the same proportions, so that nothing of a link is left: who is alone on a link has all of it."""
    used = busy_bytes.copy()
    for each, share in zip(groups, found, strict=True):
        np.add.at(used, each.links, share)
    rate = topology.capacity / topology.denominator
    factor = np.divide(rate, used, out=np.zeros(len(used)), where=used > 0)
    return [share * factor[each.links] for each, share in zip(groups, found, strict=True)]


class _Program:
    """The linear program: a column for the time, and one for each phase of a group and link of its part."""

    def __init__(self, topology: Topology, groups: Sequence[Member], busy_bytes: NDArray[np.float64]) -> None:
        self.groups = groups
        self.phases = [
            (number, phase) for number, each in enumerate(groups) for phase in PHASES[each.collective]
        ]
        counts = [groups[number].part.num_links for number, _ in self.phases]
        self.first = np.concatenate([[1], 1 + np.cumsum(counts)])
        self.solver = new_solver()
        self.unit = float(max((float(each.size_bytes) for each in groups), default=1.0)) or 1.0
        self._enough: dict[int, bytes] = {}  # shares that were found to suffice
        self._columns(topology, busy_bytes)
        for place, (number, _) in enumerate(self.phases):
            part = groups[number].part
            alone = [np.arange(part.num_nodes) == node for node in part.rank_nodes.tolist()]
            boxes = [part.host == host for host in range(len(part.hosts))] if len(part.hosts) > 1 else []
            for inside in (*alone, *boxes):
                self._cut(place, inside)
                self._cut(place, ~inside)
            for node in np.flatnonzero(part.rank < 0).tolist():
                self._balance(place, node)

    def _balance(self, place: int, node: int) -> None:
        """As much leaves a switch as enters it."""
        part = self.groups[self.phases[place][0]].part
        enters, leaves = np.flatnonzero(part.dst == node), np.flatnonzero(part.src == node)
        columns = (int(self.first[place]) + np.concatenate([enters, leaves])).astype(np.int32)
        value = np.concatenate([np.ones(len(enters)), -np.ones(len(leaves))])
        self.solver.addRow(0.0, 0.0, len(columns), columns, value)

    def _columns(self, topology: Topology, busy_bytes: NDArray[np.float64]) -> None:
        import highspy

        solver, infinity = self.solver, highspy.kHighsInf
        total = int(self.first[-1])
        solver.addVars(total, np.zeros(total), np.full(total, infinity))
        solver.changeColCost(0, 1.0)
        solver.changeColsCost(total - 1, np.arange(1, total, dtype=np.int32), np.full(total - 1, 1e-7))
        users: list[list[int]] = [[] for _ in range(topology.num_links)]
        for place, (number, _) in enumerate(self.phases):
            for at, link in enumerate(self.groups[number].links.tolist()):
                users[link].append(int(self.first[place]) + at)
        rate = topology.capacity / topology.denominator * 1e9 / self.unit
        for link, columns in enumerate(users):
            if columns or busy_bytes[link]:
                index = np.array([0, *columns], dtype=np.int32)
                value = np.array([rate[link], *(-1.0 for _ in columns)])
                solver.addRow(float(busy_bytes[link] / self.unit), infinity, len(index), index, value)

    def _cut(self, place: int, inside: NDArray[np.bool_]) -> None:
        """The row of a set of nodes."""
        import highspy

        number, phase = self.phases[place]
        group = self.groups[number]
        part, ranks = group.part, group.part.num_ranks
        members = int(inside[part.rank_nodes].sum())
        if not 0 < members < ranks:
            return
        leaving = np.flatnonzero(inside[part.src] & ~inside[part.dst])
        if phase is Collective.BROADCAST:
            blocks = ranks if inside[part.rank_nodes[0]] else 0
        else:
            blocks = members if phase is Collective.ALL_GATHER else ranks - members
        needed = float(group.size_bytes) * blocks / ranks / self.unit
        columns = (int(self.first[place]) + leaving).astype(np.int32)
        self.solver.addRow(needed, highspy.kHighsInf, len(columns), columns, np.ones(len(columns)))

    def solved(self) -> Shares:
        run_interruptibly(self.solver)
        values = np.array(self.solver.getSolution().col_value)
        self._values = values
        found = [np.zeros(each.part.num_links) for each in self.groups]
        for place, (number, _) in enumerate(self.phases):
            found[number] += self._of(place) * self.unit
        return Shares(seconds=float(values[0]), of_group=found)

    def _of(self, place: int) -> NDArray[np.float64]:
        values: NDArray[np.float64] = self._values[self.first[place] : self.first[place + 1]]
        return np.maximum(values, 0.0)

    def add_violated(self) -> bool:
        """Add the narrowest cut of each phase for which shares do not suffice."""
        added = False
        for place, (number, phase) in enumerate(self.phases):
            group = self.groups[number]
            own = self._of(place)
            if self._enough.get(place) == own.tobytes():
                continue
            network, unit = of_shares(group.part, own, grid=_FINE)
            problem = Problem(topology=network, collective=phase, root=0 if phase.rooted else None)
            narrowest = cut_bound(Network.of(problem))
            needed = float(narrowest.inv_rate) * float(group.size_bytes) / self.unit / problem.shards
            if needed > unit * (1 + _CLOSE):
                inside = np.zeros(group.part.num_nodes, dtype=np.bool_)
                inside[list(sending_side(problem, narrowest.sink_side))] = True
                self._cut(place, inside)
                added = True
            else:
                self._enough[place] = own.tobytes()
        return added


def _worth_having(part: Topology, share: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shares without those next to nothing, where members reach each other without them."""
    worth = share >= _WORTH * share.max(initial=0.0)
    try:
        cut_bound(Network.of(Problem(topology=_only(part, worth), collective=Collective.ALL_GATHER)))
    except UnreachableError:
        return share
    return np.where(worth, share, 0.0)


def _only(part: Topology, links: NDArray[np.bool_]) -> Topology:
    """The network with some of its links."""
    columns = ("src", "dst", "capacity", "latency_us")
    return replace(part, **{name: getattr(part, name)[links] for name in columns})


def network_of(part: Topology, share: NDArray[np.float64]) -> Topology:
    """The network on which a group is planned: links of which it has a share, as fast as that.

    Args:
        part: The group's part of the network.
        share: GB/s of each of its links.
    """
    used = share > 0
    return of_shares(_only(part, used), share[used])[0] if used.any() else part


def of_shares(part: Topology, share: NDArray[np.float64], *, grid: int = GRID) -> tuple[Topology, float]:
    """The network of a group's shares, in whole units of the grid, and the unit.

    Links without a share keep a unit, so that nothing is cut off.
    """
    unit = float(share.max(initial=0.0)) / grid or 1.0
    capacity = np.maximum(np.round(share / unit), 1).astype(np.int64)
    divisor = int(np.gcd.reduce(capacity))
    return replace(part, capacity=capacity // divisor, denominator=1), unit * divisor
