"""Shares of links for groups that exchange at once: a linear program over cuts.

Theory. Let group g move its data over links of which it has the share ``x[g]`` (bytes that each may carry for it), no
more out of a switch than into it. By Edmonds (branching packing) and its form for switches (ForestColl) an all-gather
of blocks m of its members fits into these shares if and only if every set of nodes with some but not all members has
``m`` for each member inside on the links that leave it; of a reduce-scatter the same holds for members outside, and of
a broadcast the whole leaves every set with the root. Time T is enough for all groups if their shares of each link add
up to no more than it carries in T. So the least T is a linear program with a row for every cut. Rows are added as they
are violated: for the shares of the moment a group's narrowest cut is what bounds its collective on a network of these
shares. An all-reduce is a reduce-scatter and an all-gather with shares of their own, whose roots may be anywhere: what
each member is the root of is a column, too. What the rows cost is a proof that no trees are faster
(:mod:`coppice.bounds.together.priced`).

With classes of priority there is a time for each: the shares of a class and all before it add up to no more than a link
carries in its time, which is what a network needs that serves classes strictly. The first class has the least time that
it can have, then the second one beside it, and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.lp.solver import new_solver, run_interruptibly
from coppice.bounds.network import Network, cut_bound
from coppice.bounds.optimum import sending_side
from coppice.bounds.problem import Problem
from coppice.bounds.together.priced import GroupPrices, PricedProof
from coppice.collectives import Collective
from coppice.errors import UnreachableError
from coppice.topology.model import Topology

GRID = 4_000
"""Shares are rounded to this part of the largest one of a group: small numbers pack into few trees."""

_WORTH = 0.005
"""A link of which a group has less than this part of its largest share is left to the others."""

_FINE = 1_000_000
_CLOSE = 1e-3
_LITTLE = 1e-7
"""What a share costs beside the time, so that there is none without need."""

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
    place: int = 0  # Of its class among the classes of priority, the first one 0


@dataclass(frozen=True, eq=False, kw_only=True)
class Shares:
    """Shares of links, in bytes that they carry."""

    seconds: tuple[float, ...]  # Time in which they suffice for each class and all before it
    of_group: list[NDArray[np.float64]]  # Of each link of the group's part
    program: _Program  # What they are the optimum of
    optima: tuple[_Optimum, ...] = ()  # Of each class

    @property
    def proofs(self) -> tuple[PricedProof, ...]:
        """That no trees are faster, for each class."""
        return tuple(self.program.proof(each) for each in self.optima)


def shares(topology: Topology, groups: Sequence[Member], busy_bytes: NDArray[np.float64]) -> Shares:
    """Shares of links that let all groups of each class end soonest.

    Args:
        topology: The whole network.
        groups: The groups.
        busy_bytes: What each link carries besides, whatever the shares are, in each class (classes x links).
    """
    program = _Program(topology, groups, busy_bytes)
    optima = []
    for place in range(len(busy_bytes)):
        program.look_at(place)
        found = program.solved()
        for _ in range(_ROUNDS):
            if not program.add_violated():
                break
            found = program.solved()
        optima.append(program.optimum())
        program.keep(place)
    kept = [_worth_having(each.part, share) for each, share in zip(groups, found.of_group, strict=True)]
    filled = _filled(topology, groups, replace(found, of_group=kept), busy_bytes)
    return replace(found, of_group=filled, optima=tuple(optima))


def _filled(
    topology: Topology, groups: Sequence[Member], found: Shares, busy_bytes: NDArray[np.float64]
) -> list[NDArray[np.float64]]:
    """Shares in the same proportions, so that nothing of a link is left: who is alone on a link has all of it.

    A class may have more only as far as those behind it keep their times.
    """
    used = busy_bytes.copy()
    for each, share in zip(groups, found.of_group, strict=True):
        np.add.at(used[each.place], each.links, share)
    used = np.cumsum(used, axis=0)
    carried = topology.capacity / topology.denominator * 1e9 * np.array(found.seconds)[:, None]
    factor = np.divide(carried, used, out=np.full(used.shape, np.inf), where=used > 0)
    factor = np.minimum.accumulate(factor[::-1], axis=0)[::-1]
    factor[~np.isfinite(factor)] = 0.0
    return [
        share * factor[each.place][each.links] for each, share in zip(groups, found.of_group, strict=True)
    ]


class _Program:
    """The linear program: a column for the time of each class, one for each phase of a group and link, and roots."""

    def __init__(self, topology: Topology, groups: Sequence[Member], busy_bytes: NDArray[np.float64]) -> None:
        self.topology, self.groups = topology, groups
        self.phases = [
            (number, phase) for number, each in enumerate(groups) for phase in PHASES[each.collective]
        ]
        counts = [groups[number].part.num_links for number, _ in self.phases]
        self.classes = len(busy_bytes)
        self.first = self.classes + np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self.looked_at = 0
        self.solver = new_solver()
        self.unit = float(max((float(each.size_bytes) for each in groups), default=1.0)) or 1.0
        self._enough: dict[int, bytes] = {}  # shares that were found to suffice
        self._rows: list[
            tuple[int, NDArray[np.bool_] | int] | None
        ] = []  # phase, and the set or node of a row
        self._columns(topology, busy_bytes)
        self.first_root = self._roots()
        for place, (number, phase) in enumerate(self.phases):
            part = groups[number].part
            alone = [np.arange(part.num_nodes) == node for node in part.rank_nodes.tolist()]
            boxes = [part.host == host for host in range(len(part.hosts))] if len(part.hosts) > 1 else []
            for inside in (*alone, *boxes):  # what data enters, or what sums leave: disjoint sets prove most
                self._cut(place, inside if phase is Collective.REDUCE_SCATTER else ~inside)
            for node in np.flatnonzero(part.rank < 0).tolist():
                self._balance(place, node)

    def _roots(self) -> dict[int, int]:
        """Columns for what each member of an all-reduce is the root of; the first of each group."""
        found: dict[int, int] = {}
        for number, group in enumerate(self.groups):
            if group.collective is Collective.ALL_REDUCE:
                ranks = group.part.num_ranks
                found[number] = self.solver.getNumCol()
                self.solver.addVars(
                    ranks, np.zeros(ranks), np.full(ranks, float(group.size_bytes) / self.unit)
                )
                whole = float(group.size_bytes) / self.unit
                columns = found[number] + np.arange(ranks, dtype=np.int32)
                self._row(whole, whole, columns, np.ones(ranks), None)
        return found

    def _row(
        self,
        low: float,
        high: float,
        columns: NDArray[np.int32],
        values: NDArray[np.float64],
        of: tuple[int, NDArray[np.bool_] | int] | None,
    ) -> None:
        self.solver.addRow(low, high, len(columns), columns, values)
        self._rows.append(of)

    def _balance(self, place: int, node: int) -> None:
        """A switch passes on no more than it gets; of sums, it gets no more than it passes on."""
        import highspy

        number, phase = self.phases[place]
        part = self.groups[number].part
        enters, leaves = np.flatnonzero(part.dst == node), np.flatnonzero(part.src == node)
        columns = (int(self.first[place]) + np.concatenate([enters, leaves])).astype(np.int32)
        sign = -1.0 if phase is Collective.REDUCE_SCATTER else 1.0
        value = np.concatenate([np.full(len(enters), sign), np.full(len(leaves), -sign)])
        self._row(0.0, highspy.kHighsInf, columns, value, (place, node))

    def _columns(self, topology: Topology, busy_bytes: NDArray[np.float64]) -> None:
        import highspy

        solver, infinity = self.solver, highspy.kHighsInf
        total = int(self.first[-1])
        solver.addVars(total, np.zeros(total), np.full(total, infinity))
        count = total - self.classes
        solver.changeColsCost(count, np.arange(self.classes, total, dtype=np.int32), np.full(count, _LITTLE))
        users: list[list[list[int]]] = [[[] for _ in range(topology.num_links)] for _ in range(self.classes)]
        for place, (number, _) in enumerate(self.phases):
            group = self.groups[number]
            for at, link in enumerate(group.links.tolist()):
                users[group.place][link].append(int(self.first[place]) + at)
        rate = topology.capacity / topology.denominator * 1e9 / self.unit
        busy = np.cumsum(busy_bytes, axis=0) / self.unit
        for link in range(topology.num_links):
            columns: list[int] = []
            for place in range(self.classes):
                columns += users[place][link]
                if columns or busy[place, link]:
                    index = np.array([place, *columns], dtype=np.int32)
                    value = np.array([rate[link], *(-1.0 for _ in columns)])
                    self._row(float(busy[place, link]), infinity, index, value, None)

    def look_at(self, place: int) -> None:
        """Minimise the time of a class."""
        self.looked_at = place
        self.solver.changeColCost(place, 1.0)

    def keep(self, place: int) -> None:
        """Hold a class to the time that was found for it."""
        self.solver.changeColCost(place, 0.0)
        self.solver.changeColBounds(place, 0.0, float(self._values[place]) * (1 + _CLOSE))

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
        columns = (int(self.first[place]) + leaving).astype(np.int32)
        values = np.ones(len(columns))
        size = float(group.size_bytes) / self.unit
        within = inside[part.rank_nodes]
        needed = 0.0
        if phase is Collective.BROADCAST:
            needed = size * within[0]
        elif number in self.first_root:
            roots = np.flatnonzero(within if phase is Collective.ALL_GATHER else ~within)
            columns = np.concatenate([columns, (self.first_root[number] + roots).astype(np.int32)])
            values = np.concatenate([values, -np.ones(len(roots))])
        else:
            needed = size * (members if phase is Collective.ALL_GATHER else ranks - members) / ranks
        self._row(needed, highspy.kHighsInf, columns, values, (place, inside))

    def solved(self) -> Shares:
        run_interruptibly(self.solver)
        values = np.array(self.solver.getSolution().col_value)
        self._values = values
        found = [np.zeros(each.part.num_links) for each in self.groups]
        for place, (number, _) in enumerate(self.phases):
            found[number] += self._of(place) * self.unit
        return Shares(seconds=tuple(values[: self.classes].tolist()), of_group=found, program=self)

    def _of(self, place: int) -> NDArray[np.float64]:
        values: NDArray[np.float64] = self._values[self.first[place] : self.first[place + 1]]
        return np.maximum(values, 0.0)

    def add_violated(self) -> bool:
        """Add the narrowest cut of each phase for which shares do not suffice."""
        added = False
        for place, (number, phase) in enumerate(self.phases):
            group = self.groups[number]
            if group.place > self.looked_at:
                continue
            own = self._of(place)
            if self._enough.get(place) == own.tobytes():
                continue
            network, unit = of_shares(group.part, own, grid=_FINE)
            weights = self._weights(number)
            problem = Problem(
                topology=network, collective=phase, root=0 if phase.rooted else None, weights=weights
            )
            narrowest = cut_bound(Network.of(problem))
            needed = float(narrowest.inv_rate) * float(group.size_bytes) / self.unit / float(problem.shards)
            if needed > unit * (1 + _CLOSE):
                inside = np.zeros(group.part.num_nodes, dtype=np.bool_)
                inside[list(sending_side(problem, narrowest.sink_side))] = True
                self._cut(place, inside)
                added = True
            else:
                self._enough[place] = own.tobytes()
        return added

    def _weights(self, number: int) -> tuple[int, ...] | None:
        """Of what part of all data each member of an all-reduce is the root; None for even parts."""
        if number not in self.first_root:
            return None
        first = self.first_root[number]
        roots = np.maximum(self._values[first : first + self.groups[number].part.num_ranks], 0.0)
        return tuple(np.round(roots / roots.sum() * _FINE).astype(np.int64).tolist())

    def optimum(self) -> _Optimum:
        """What rows cost at the optimum of the class that is looked at."""
        dual = np.maximum(np.array(self.solver.getSolution().row_dual), 0.0)
        ends = tuple(Fraction(float(end)) for end in self._values[: self.looked_at].tolist())
        return _Optimum(dual=dual, ends=ends)

    def proof(self, optimum: _Optimum) -> PricedProof:
        """Prices of links that prove an optimum."""
        dual = optimum.dual
        weights = np.round(dual / (dual.max(initial=0.0) or 1.0) * _FINE).astype(np.int64)
        found: list[_Weights] = [_Weights() for _ in self.groups]
        for of, weight in zip(self._rows, weights.tolist(), strict=False):  # rows of later classes came after
            if of is None or not weight:
                continue
            number, phase = self.phases[of[0]]
            sums = phase is Collective.REDUCE_SCATTER
            part, own = self.groups[number].part, found[number]
            if isinstance(of[1], int):
                node = self.node_of(part, of[1])
                (own.gives if sums else own.gets).append((node, weight))
            else:
                inside = of[1] if sums else ~of[1]
                nodes = tuple(self.node_of(part, node) for node in np.flatnonzero(inside).tolist())
                (own.left if sums else own.entered).append((nodes, weight))
        return PricedProof(
            groups=tuple(
                GroupPrices(
                    ranks=tuple(
                        int(self.topology.rank[self.node_of(each.part, node)])
                        for node in each.part.rank_nodes.tolist()
                    ),
                    collective=each.collective,
                    size_bytes=each.size_bytes,
                    place=each.place,
                    links=each.links,
                    entered=tuple(own.entered),
                    left=tuple(own.left),
                    gets=tuple(own.gets),
                    gives=tuple(own.gives),
                )
                for each, own in zip(self.groups, found, strict=True)
                if each.place <= len(optimum.ends)
            ),
            ends=optimum.ends,
        )

    def node_of(self, part: Topology, node: int) -> int:
        """A node of a part, in the whole network."""
        return self.topology.node_index[part.node_ids[node]]


@dataclass(frozen=True, eq=False, kw_only=True)
class _Optimum:
    """The optimum of one class."""

    dual: NDArray[np.float64]  # What each row costs
    ends: tuple[Fraction, ...]  # Seconds of the classes before


@dataclass(kw_only=True)
class _Weights:
    """Sets and potentials of one group, with their weights."""

    entered: list[tuple[tuple[int, ...], int]] = field(default_factory=list)
    left: list[tuple[tuple[int, ...], int]] = field(default_factory=list)
    gets: list[tuple[int, int]] = field(default_factory=list)
    gives: list[tuple[int, int]] = field(default_factory=list)


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
