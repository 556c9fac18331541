"""Linear program over forests with variable link rates: cut generation with an exact proof.

Trees that span the terminals exist within link rates c and root rates r iff every set X that holds a terminal
has in_c(X) + r(X) >= r(all), and no switch that cannot copy sends more than it gets (edge splitting, then
Edmonds). There are exponentially many X, so they are added when a solution violates them: the native
feasibility check finds the violated ones. The program has one or two phases (broadcast; reduce, which is a
broadcast on reversed links) that share the links.

The rate is a column of its own, tied to the root rates by one equation, so that the row of a set X names only the roots
on its smaller side, as rate - r(X) - c(X) <= 0 or as r(outside X) - c(X) <= 0: a cluster of n ranks has rows of a few
entries each instead of n. Substituting the equation gives one row from the other, and the multipliers of cuts are the
same in both.

HiGHS works in floats, and where rates differ by many powers of ten its vertex may not be one. On a small network
(``coppice.bounds.network.is_small``) the program with the cuts found so far is then solved in whole numbers, and
there is no limit of time: the same network has the same answer on a busy machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm

import numpy as np
from numpy.typing import NDArray

from coppice import _core
from coppice.bounds.lp.program import (
    Constraint,
    ExactVertex,
    FloatVertex,
    LinearProgram,
    certified_multipliers,
)
from coppice.bounds.lp.simplex import solve_in_integers
from coppice.bounds.network import is_small, narrow_cuts
from coppice.bounds.result import CutFamily, NodePotential, WeightedCut
from coppice.display import Brief
from coppice.errors import InputError
from coppice.topology.model import Topology
from coppice.topology.symmetry import Symmetry

_GRID = 2**40
_FLOAT_TOLERANCE = 2**12
_LARGEST = 2**61
_AGREEMENT = 1e-9
_MANY_COLUMNS = 2048


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class TreePhase(Brief):
    """Direction of the trees of a phase."""

    reverse: bool  # Trees flow towards the roots: a broadcast on reversed links
    spanned: NDArray[np.bool_]  # `spanned[v]`: every tree touches node v
    # `balanced[v]`: node v cannot copy (or add, in a reverse phase), so it sends at most what it gets
    balanced: NDArray[np.bool_]


@dataclass(frozen=True, eq=False, kw_only=True)
class ForestRates:
    """Optimal root rates and link rates, in capacity units of the topology."""

    rate: Fraction  # Sum of the root rates
    root_rate: list[Fraction]  # Per node
    link_rate: list[list[Fraction]]  # Per phase, per link


@dataclass(frozen=True, eq=False, kw_only=True)
class CutOutcome:
    """Result of cut generation."""

    upper: Fraction | None  # Proved upper bound on the rate, or None
    rates: ForestRates | None  # Rates that reach `upper`, or None where none were found or needed
    rounds: int  # Linear programs solved
    multipliers: Sequence[Fraction] | None  # Of the rows, proving `upper`; None where nothing was proved


@dataclass(eq=False, kw_only=True, repr=False)
class CutProgram(Brief):
    """Maximise the sum of root rates within the link capacities of a topology."""

    topology: Topology  # Where the trees live
    phases: Sequence[TreePhase]  # One or two directions of trees
    # `group[v]` numbers the root rate variable that node v shares with its group, or is -1 for none
    group: NDArray[np.int32]
    weight: NDArray[np.int64]  # `weight[v]`: node v is a root at `weight[v]` times the variable of its group
    # Links with one number share one rate variable (orbits of automorphisms), default all different
    link_orbit: NDArray[np.int32] | None = None
    # Sets of nodes whose cuts, and those of their complements, the program has from the start: good guesses
    # save rounds
    likely: Sequence[NDArray[np.integer]] = ()
    _program: LinearProgram = field(init=False)
    _orbit: NDArray[np.int32] = field(init=False)
    _payer: list[int | None] = field(init=False)
    _seen: set[bytes] = field(init=False, default_factory=set)
    _cut_of_row: dict[int, tuple[int, tuple[int, ...]]] = field(init=False, default_factory=dict)
    _node_of_row: dict[int, tuple[int, int]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        topology = self.topology
        every_link = np.arange(topology.num_links, dtype=np.int32)
        self._orbit = every_link if self.link_orbit is None else self.link_orbit
        self._orbits = int(self._orbit.max(initial=-1)) + 1
        self._groups = int(self.group.max(initial=-1)) + 1
        self._cost = np.bincount(
            self.group[self.group >= 0], weights=self.weight[self.group >= 0], minlength=self._groups
        ).astype(np.int64)
        capacity = np.zeros(self._orbits, dtype=np.int64)
        capacity[self._orbit] = topology.capacity
        if not np.array_equal(capacity[self._orbit], topology.capacity):
            raise InputError(
                "links of one orbit must have the same rate, found different ones: compute the orbits again."
            )
        split = len(self.phases) > 1
        bounds: list[int | None] = [None] * self._groups
        for _ in self.phases:
            bounds += [None] * self._orbits if split else capacity.tolist()
        self._rate = len(bounds)
        self._program = LinearProgram([0] * self._rate + [1], [*bounds, None])
        everyone = np.arange(self._groups)
        rows = [_row(np.append(everyone, self._rate), np.append(self._cost, -1), 0, equal=True)]
        for phase in range(len(self.phases)):
            for node, row in self._balance_rows(phase):
                self._node_of_row[len(rows)] = (phase, node)
                rows.append(row)
        self._payer = [0] * self._groups + [None] * (self._program.num_columns - self._groups)
        if split:
            for orbit in range(self._orbits):
                columns = self._groups + orbit + self._orbits * np.arange(len(self.phases))
                for column in columns.tolist():
                    self._payer[column] = len(rows)
                rows.append(_row(columns, np.ones(len(columns)), int(capacity[orbit])))
        self._program.add_rows(rows)
        everything = np.arange(topology.num_nodes)
        likely = self._unlike(self.likely)
        for phase, kind in enumerate(self.phases):
            for nodes in self._unlike([np.array([v]) for v in np.flatnonzero(kind.spanned)]):
                self._add_cut(phase, nodes)
            for nodes in self._unlike([np.array([v]) for v in np.flatnonzero(self.group >= 0)]):
                self._add_cut(phase, np.delete(everything, nodes))
            for nodes in likely:
                for side in (nodes, np.delete(everything, nodes)):
                    if kind.spanned[side].any():
                        self._add_cut(phase, side)

    def solve(self, *, known: Fraction | None = None, time_limit: float = math.inf) -> CutOutcome:
        """Generate cuts until the optimum is proved or time is up; without a time limit on small networks.

        Args:
            known: A rate that can be had, in capacity units: once it is proved to be the best one, the search for
                rates that reach it is spared.
            time_limit: Seconds after which to stop, where the network is not small.
        """
        small = is_small(self.topology)
        deadline = math.inf if small else time.monotonic() + time_limit
        upper: Fraction | None = None
        dual: Sequence[Fraction] | None = None
        rounds = 0
        while True:
            rounds += 1
            left = deadline - time.monotonic()
            vertex = self._solve(min(left, 1e6), first=rounds == 1) if left > 0 else None
            if vertex is None:
                if small:
                    return self._solve_in_integers(rounds)
                return CutOutcome(upper=upper, rates=None, rounds=rounds - 1, multipliers=dual)
            if known is not None and abs(vertex.objective - float(known)) <= _AGREEMENT * vertex.objective:
                exact = self._program.exact_vertex()
                if exact is not None and exact.objective == known:
                    return CutOutcome(upper=known, rates=None, rounds=rounds, multipliers=exact.multipliers)
            scale = _GRID / max(float(self.topology.capacity.max(initial=1)), vertex.objective, 1.0)
            grid = np.maximum(np.rint(vertex.values * scale), 0).astype(np.int64)
            multipliers = self._program.float_multipliers()
            if self._separate(grid, slack=_FLOAT_TOLERANCE):
                if time.monotonic() > deadline:
                    upper, dual = self._repaired(multipliers)
                continue
            exact = self._program.exact_vertex()
            integers = None if exact is None else _common_integers(exact.values)
            if small and (exact is None or integers is None):
                return self._solve_in_integers(rounds)
            if exact is None or integers is None:
                upper, dual = (
                    self._repaired(multipliers) if exact is None else (exact.objective, exact.multipliers)
                )
                return CutOutcome(upper=upper, rates=None, rounds=rounds, multipliers=dual)
            if not self._separate(integers, slack=0):
                rates = self._rates(exact)
                return CutOutcome(
                    upper=exact.objective, rates=rates, rounds=rounds, multipliers=exact.multipliers
                )

    def _solve_in_integers(self, rounds: int) -> CutOutcome:
        """Go on from the cuts found so far without floats, to the end."""
        while True:
            exact = solve_in_integers(self._program)
            if exact is None:
                return CutOutcome(upper=None, rates=None, rounds=rounds, multipliers=None)
            denominator = lcm(*(value.denominator for value in exact.values))
            if not self._separate_wide([int(value * denominator) for value in exact.values]):
                rates = self._rates(exact)
                return CutOutcome(
                    upper=exact.objective, rates=rates, rounds=rounds, multipliers=exact.multipliers
                )
            rounds += 1

    def witness(
        self, multipliers: Sequence[Fraction], inv_rate: Fraction, symmetry: Symmetry | None = None
    ) -> CutFamily:
        """Cuts and potentials of a dual, in a form that anybody can check.

        Args:
            multipliers: Of the rows (:class:`CutOutcome`).
            inv_rate: Time per shard that they prove.
            symmetry: The group whose orbits share variables, where there is one.
        """
        cuts, potentials = [], []
        for i, multiplier in enumerate(multipliers):
            if not multiplier:
                continue
            if i in self._cut_of_row:
                phase, nodes = self._cut_of_row[i]
                cuts.append(WeightedCut(nodes=nodes, **self._weights(phase, multiplier)))
            elif i in self._node_of_row:
                phase, node = self._node_of_row[i]
                potentials.append(NodePotential(node=node, **self._weights(phase, multiplier)))
        return CutFamily(inv_rate=inv_rate, cuts=tuple(cuts), potentials=tuple(potentials), symmetry=symmetry)

    def _weights(self, phase: int, multiplier: Fraction) -> dict[str, Fraction]:
        return {"reduce" if self.phases[phase].reverse else "broadcast": multiplier}

    def _solve(self, time_limit: float, *, first: bool) -> FloatVertex | None:
        """Large programs start from the interior, where simplex steps are many; later rounds change little."""
        return self._program.solve(
            time_limit=time_limit, interior_point=first and self._program.num_columns > _MANY_COLUMNS
        )

    def _repaired(
        self, multipliers: NDArray[np.float64]
    ) -> tuple[Fraction | None, Sequence[Fraction] | None]:
        """A proved bound from the float dual of the last linear program (rows added since count as 0)."""
        padded = np.zeros(len(self._program.rows))
        padded[: len(multipliers)] = multipliers
        exact = certified_multipliers(self._program, padded, payer=self._payer)
        return (None, None) if exact is None else (self._program.dual_bound(exact), exact)

    def _rates(self, exact: ExactVertex) -> ForestRates:
        """The proved optimum per node and link."""
        root = [
            Fraction(0) if group < 0 else weight * exact.values[group]
            for group, weight in zip(self.group.tolist(), self.weight.tolist(), strict=True)
        ]
        links = [
            [exact.values[self._groups + phase * self._orbits + orbit] for orbit in self._orbit.tolist()]
            for phase in range(len(self.phases))
        ]
        return ForestRates(rate=exact.objective, root_rate=root, link_rate=links)

    def _separate(self, values: NDArray[np.int64], *, slack: int) -> int:
        """Add the cuts that integer column values violate by more than ``slack``; how many are new."""
        topology = self.topology
        supply = np.zeros(topology.num_nodes, dtype=np.int64)
        member = self.group >= 0
        supply[member] = self.weight[member] * values[self.group[member]]
        demand = int(supply.sum()) - slack
        added = 0
        for phase, kind in enumerate(self.phases):
            start = self._groups + phase * self._orbits
            capacity = values[start : start + self._orbits][self._orbit]
            tail, head = (topology.dst, topology.src) if kind.reverse else (topology.src, topology.dst)
            for sinks in _core.violated_cuts(
                topology.num_nodes, tail, head, capacity, supply, kind.spanned, demand, topology.num_nodes
            ):
                added += self._add_cut(phase, sinks)
        return added

    def _separate_wide(self, values: list[int]) -> int:
        """As :meth:`_separate` without slack, for integers of any size."""
        topology = self.topology
        supply = [
            weight * values[group] if group >= 0 else 0
            for group, weight in zip(self.group.tolist(), self.weight.tolist(), strict=True)
        ]
        src, dst = topology.src.tolist(), topology.dst.tolist()
        added = 0
        for phase, kind in enumerate(self.phases):
            start = self._groups + phase * self._orbits
            capacity = [values[start + orbit] for orbit in self._orbit.tolist()]
            tail, head = (dst, src) if kind.reverse else (src, dst)
            sinks = np.flatnonzero(kind.spanned).tolist()
            for cut in narrow_cuts(topology.num_nodes, tail, head, capacity, supply, sinks, sum(supply)):
                added += self._add_cut(phase, np.array(cut))
        return added

    def _add_cut(self, phase: int, sinks: NDArray[np.integer]) -> bool:
        """Add the row of a set X: the root rates outside X are at most the link rates into X."""
        topology = self.topology
        inside = np.zeros(topology.num_nodes, dtype=np.bool_)
        inside[sinks] = True
        roots_inside, roots_outside = (np.flatnonzero(side & (self.group >= 0)) for side in (inside, ~inside))
        tail, head = (
            (topology.dst, topology.src) if self.phases[phase].reverse else (topology.src, topology.dst)
        )
        entering = self._orbit[~inside[tail] & inside[head]]
        columns = [self._groups + phase * self._orbits + entering]
        values = [np.full(len(entering), -1)]
        if len(roots_inside) < len(roots_outside):
            columns += [self.group[roots_inside], np.array([self._rate])]
            values += [-self.weight[roots_inside], np.array([1])]
        else:
            columns.append(self.group[roots_outside])
            values.append(self.weight[roots_outside])
        row = _sum_row(np.concatenate(columns), np.concatenate(values))
        if not self._is_new(row):
            return False
        self._cut_of_row[len(self._program.rows)] = (phase, tuple(np.sort(sinks).tolist()))
        self._program.add_rows([row])
        return True

    def _unlike(self, sets: Sequence[NDArray[np.integer]]) -> Sequence[NDArray[np.integer]]:
        """Sets of nodes, where links share variables one of those that hold as many nodes of each group: as guesses."""
        if self.link_orbit is None:
            return sets
        found: dict[bytes, NDArray[np.integer]] = {}
        for nodes in sets:
            members = self.group[nodes]
            counts = np.bincount(members + 1, minlength=self._groups + 1)
            found.setdefault(counts.tobytes(), nodes)
        return list(found.values())

    def _is_new(self, row: Constraint) -> bool:
        """Whether no equal row was asked about before."""
        key = row.column.tobytes() + row.value.tobytes()
        if key in self._seen:
            return False
        self._seen.add(key)
        return True

    def _balance_rows(self, phase: int) -> list[tuple[int, Constraint]]:
        """Out <= in at every node that cannot copy (the node, its row), once for equal rows."""
        topology, kind = self.topology, self.phases[phase]
        tail, head = (topology.dst, topology.src) if kind.reverse else (topology.src, topology.dst)
        leaving: dict[int, list[int]] = {}
        entering: dict[int, list[int]] = {}
        for orbit, a, b in zip(self._orbit.tolist(), tail.tolist(), head.tolist(), strict=True):
            leaving.setdefault(a, []).append(orbit)
            entering.setdefault(b, []).append(orbit)
        rows = []
        start = self._groups + phase * self._orbits
        for v in np.flatnonzero(kind.balanced).tolist():
            out, into = (np.array(links.get(v, []), dtype=np.int64) for links in (leaving, entering))
            row = _sum_row(
                start + np.concatenate([out, into]), np.concatenate([np.ones(len(out)), -np.ones(len(into))])
            )
            if len(row.column) and self._is_new(row):
                rows.append((v, row))
        return rows


def _row(
    columns: NDArray[np.integer], values: NDArray[np.generic], bound: int, *, equal: bool = False
) -> Constraint:
    return Constraint(
        column=columns.astype(np.int32), value=values.astype(np.int64), bound=bound, equal=equal
    )


def _sum_row(columns: NDArray[np.integer], values: NDArray[np.generic]) -> Constraint:
    """The row with bound 0 of terms whose columns may occur several times."""
    distinct, place = np.unique(columns, return_inverse=True)
    total = np.zeros(len(distinct), dtype=np.int64)
    np.add.at(total, place, values.astype(np.int64))
    return _row(distinct[total != 0], total[total != 0], 0)


def _common_integers(values: Sequence[Fraction]) -> NDArray[np.int64] | None:
    """The values over their common denominator, or None where a sum of them may pass 2**61."""
    denominator = lcm(*(value.denominator for value in values))
    integers = [int(value * denominator) for value in values]
    if sum(map(abs, integers)) * 2 > _LARGEST:
        return None
    return np.array(integers, dtype=np.int64)
