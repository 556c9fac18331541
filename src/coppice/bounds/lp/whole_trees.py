"""Integral numbers of trees on links: branch and bound over the cuts, exact throughout.

Given room for u(e) trees on each link, k trees per unit of weight exist iff there are whole numbers 0 <= c(e) <= u(e)
that satisfy every cut, in_c(X) >= k w(outside X), and no switch that cannot copy sends more than it gets (edge
splitting, then Edmonds). Where u itself unbalances a switch this is an integer program and hard in general: whether a
tree fits through switches with one way in each is the question for a Hamiltonian path. So it is asked of small
networks only.

The relaxation asks for the largest rate x <= k within real numbers c; a link that must carry at least l has
l x <= k c, so that 0 is always a solution and the dual alone refutes: a bound below k proves that no such c exists,
whole or not. Cuts are added as vertices violate them. Where the vertex is not whole, a link is split into at most and
at least.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import numpy as np
from numpy.typing import NDArray

from coppice import _core
from coppice.bounds.lp.program import Constraint, ExactVertex, LinearProgram
from coppice.bounds.lp.simplex import solve_in_integers
from coppice.bounds.network import Network, narrow_cuts
from coppice.bounds.result import CutFamily, LinkRange, NodePotential, WeightedCut
from coppice.display import Brief

_FLOAT_SIZE = 2**30
"""Rooms up to this size are left to floats first."""

_NATIVE_SIZE = 2**61
"""Sums up to this size are left to the native check."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Refuted(Brief):
    """Cuts that no integral numbers of trees within the capacities can satisfy together."""

    cuts: tuple[tuple[int, ...], ...]  # Nodes of each set, ascending
    # What shows it by counting, as :class:`coppice.bounds.result.WholeTrees` has it, in the broadcasting
    # direction and with the links of the network
    cases: tuple[CutFamily | LinkRange, ...]

    @classmethod
    def by_cut(cls, cut: tuple[int, ...]) -> Refuted:
        """A single cut that not all trees can cross."""
        alone = CutFamily(inv_rate=Fraction(0), cuts=(WeightedCut(nodes=cut, broadcast=Fraction(1)),))
        return cls(cuts=(cut,), cases=(alone,))


@dataclass
class Steps:
    """Budget of linear programs."""

    left: int


class WholeTreesProgram:
    """Integer program of a network, for any link capacities; cuts are kept between calls."""

    def __init__(self, network: Network, trees: int) -> None:
        """Begin with the cuts around single nodes.

        Args:
            network: Where the trees live, in the broadcasting direction.
            trees: k, trees per unit of weight.
        """
        topology = network.topology
        self._network = network
        self._trees = trees
        self._tail, self._head = topology.src.tolist(), topology.dst.tolist()
        self._terminals = np.flatnonzero(network.terminal).tolist()
        self._weight = network.weight.tolist()
        self._cuts: list[tuple[int, ...]] = []
        self._rows: list[Constraint] = []
        self._known: set[tuple[int, ...]] = set()
        everything = range(topology.num_nodes)
        for v in self._terminals:
            self._add((v,))
        for v, weight in enumerate(self._weight):
            if weight:
                self._add(tuple(u for u in everything if u != v))
        self._forwarders: list[int] = []
        self._balance = self._balance_rows()

    def within(
        self, room: NDArray[np.int64], *, steps: Steps | None = None
    ) -> NDArray[np.int64] | Refuted | None:
        """Integral numbers of trees within ``room`` that a forest can have, or cuts that allow none.

        Args:
            room: Trees that each link carries at most.
            steps: Linear programs that may be solved, which are counted down; None stands for as many as it takes.

        Returns:
            Trees on each link; or what refutes them; or None where the steps ran out, or floats proved nothing.
        """
        count = len(room)
        open_ = [(0, [0] * count, room.tolist())]
        used: set[tuple[int, ...]] = set()
        cases: dict[int, CutFamily | LinkRange] = {}
        while open_:
            number, least, most = open_.pop()
            vertex = self._relaxed(least, most, steps)
            if vertex is None:
                return None
            if vertex.objective < self._trees:
                cases[number] = family = self._family(vertex)
                used.update(cut.nodes for cut in family.cuts)
                continue
            values = vertex.values[1:]
            parts = [
                (abs(value - int(value) - Fraction(1, 2)), e)
                for e, value in enumerate(values)
                if value.denominator > 1
            ]
            if not parts:
                return np.array([int(value) for value in values], dtype=np.int64)
            _, link = min(parts)
            below = int(values[link])
            following = 1 + len(cases) + len(open_)
            cases[number] = LinkRange(link=link, most=below, below=following, above=following + 1)
            lower = following, least, [*most[:link], below, *most[link + 1 :]]
            higher = following + 1, [*least[:link], below + 1, *least[link + 1 :]], most
            open_ += [lower, higher] if 2 * (values[link] - below) >= 1 else [higher, lower]
        return Refuted(cuts=tuple(sorted(used)), cases=tuple(cases[number] for number in range(len(cases))))

    def _family(self, vertex: ExactVertex) -> CutFamily:
        """The dual that bounds the trees below k, without the multipliers of links, which counting finds again.

        A link that must carry at least l has a multiplier m too, which would raise its price by k m and what is needed
        by l m; leaving both out proves no less, as the price then counts at l where it is negative.
        """
        rows = len(self._rows)
        cuts = zip(self._cuts, vertex.multipliers[:rows], strict=True)
        balances = vertex.multipliers[rows : rows + len(self._balance)]
        return CutFamily(
            inv_rate=Fraction(0),
            cuts=tuple(WeightedCut(nodes=cut, broadcast=weight) for cut, weight in cuts if weight),
            potentials=tuple(
                NodePotential(node=node, broadcast=weight)
                for node, weight in zip(self._forwarders, balances, strict=True)
                if weight
            ),
        )

    def _relaxed(self, least: list[int], most: list[int], steps: Steps | None) -> ExactVertex | None:
        """The optimum over real numbers between ``least`` and ``most``, with every cut that matters."""
        while True:
            if steps is not None and steps.left == 0:
                return None
            # The rows of cuts come first, so that multipliers and cuts have the same numbers.
            known = len(self._rows)
            program = LinearProgram([1] + [0] * len(most), [self._trees, *most])
            program.add_rows(self._rows)
            program.add_rows(self._balance)
            program.add_rows(
                [
                    Constraint(
                        column=np.array([0, 1 + e], dtype=np.int32),
                        value=np.array([amount, -self._trees], dtype=np.int64),
                    )
                    for e, amount in enumerate(least)
                    if amount
                ]
            )
            vertex = self._vertex(program, max(most, default=0), in_integers=steps is None)
            if steps is not None:
                steps.left -= 1
            if vertex is None:
                return None
            if vertex.objective < self._trees:
                return vertex
            self._separate(vertex.values)
            if len(self._rows) == known:
                return vertex

    def _vertex(self, program: LinearProgram, largest: int, *, in_integers: bool) -> ExactVertex | None:
        """The optimum with its proof; None where floats found none and integers are not asked."""
        exact = program.exact_vertex() if largest < _FLOAT_SIZE and program.solve() is not None else None
        if exact is None and in_integers:
            exact = solve_in_integers(program)
        return exact

    def _separate(self, values: list[Fraction]) -> None:
        """Add the cuts that the vertex violates."""
        topology = self._network.topology
        denominator = lcm(*(value.denominator for value in values))
        rate, *amounts = (int(value * denominator) for value in values)
        total = self._network.total_weight * rate
        cuts: list[list[int]]
        if max(sum(amounts), total) < _NATIVE_SIZE:
            found = _core.violated_cuts(
                topology.num_nodes,
                topology.src,
                topology.dst,
                np.array(amounts, dtype=np.int64),
                self._network.weight * rate,
                self._network.terminal,
                total,
                topology.num_nodes,
            )
            cuts = [sorted(cut.tolist()) for cut in found]
        else:
            supply = [weight * rate for weight in self._weight]
            cuts = narrow_cuts(
                topology.num_nodes, self._tail, self._head, amounts, supply, self._terminals, total
            )
        for cut in cuts:
            self._add(tuple(cut))

    def _add(self, cut: tuple[int, ...]) -> None:
        """The row of a set: rate times the weight outside minus what its links carry <= 0."""
        outside = self._network.total_weight - sum(self._weight[v] for v in cut)
        if cut in self._known or not outside:
            return
        self._known.add(cut)
        inside = set(cut)
        entering = [
            e
            for e, (a, b) in enumerate(zip(self._tail, self._head, strict=True))
            if b in inside and a not in inside
        ]
        self._cuts.append(cut)
        self._rows.append(
            Constraint(
                column=np.array([0, *(1 + e for e in entering)], dtype=np.int32),
                value=np.array([outside, *[-1] * len(entering)], dtype=np.int64),
            )
        )

    def _balance_rows(self) -> list[Constraint]:
        """Out <= in at every node that only forwards."""
        rows = []
        for v in np.flatnonzero(~self._network.terminal).tolist():
            change = {1 + e: 1 for e, a in enumerate(self._tail) if a == v}
            change |= {1 + e: -1 for e, b in enumerate(self._head) if b == v}
            if change:
                columns = sorted(change)
                self._forwarders.append(v)
                rows.append(
                    Constraint(
                        column=np.array(columns, dtype=np.int32),
                        value=np.array([change[column] for column in columns], dtype=np.int64),
                    )
                )
        return rows
