"""Other collectives along the trees of Blink: from all ranks at once, and blocks that only one rank wants.

**All-gather and reduce-scatter** need trees from every rank on the same links. A linear program gives all of them
rates: the largest x so that the trees of each rank add up to x (times its weight), and no link carries more than it
can. Its prices of links say which tree would be worth adding (column generation); a vertex has few trees.

**Gather, scatter and all-to-all.** The data are cut as the trees share them, and each block goes down (or up) the tree
to the one rank that wants it. An edge carries the blocks of what hangs below it, so what binds is the root, whose links
the trees use evenly; an all-to-all is a scatter from every rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.lp.program import Constraint, LinearProgram
from coppice.bounds.lp.simplex import solve_in_integers
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import CoppiceError
from coppice.planners.flow import schedule_of_paths
from coppice.planners.synthesis.blink.packings import Packed, TreeLoads
from coppice.schedule.schedule import Schedule

ONE_TO_ALL = {
    Collective.ALL_GATHER: Collective.BROADCAST,
    Collective.REDUCE_SCATTER: Collective.REDUCE,
    Collective.SCATTER: Collective.BROADCAST,
    Collective.GATHER: Collective.REDUCE,
    Collective.ALL_TO_ALL: Collective.BROADCAST,
}
"""The collective of one root whose trees are used."""


_ROUNDS = 100

_ENOUGH = 1e-6
"""Share by which a tree must be shorter than its price to be worth adding."""


def packed_together(
    found: Sequence[TreeLoads],
    weights: Sequence[int] | None,
    *,
    deadline: float | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> list[Packed]:
    """Pack trees from all roots by column generation; the rates are those of a vertex in fractions.

    Args:
        found: Routes of each root on one topology, with trees to begin with; a root may have several.
        weights: Relative size of what each rank has; None: all alike.
        deadline: Of :func:`time.monotonic`, when to end with the trees that are known.
        on_progress: Called with a few words now and then.

    Returns:
        For each of ``found`` its trees; those of a root add up to its weight times the same rate. ``most`` is the rate
        of the root that the last prices allow.
    """
    topology = found[0].routes.topology
    unit = gcd(*topology.capacity.tolist())
    room = [int(c) // unit for c in topology.capacity.tolist()]
    for each in found:
        each.shortest(1.0 / np.maximum(topology.capacity, 1))
    for count in range(_ROUNDS):
        master = _Master(found, room, weights)
        prices, worth = master.prices(topology.num_links)
        if deadline is not None and time.monotonic() > deadline:
            break
        is_shorter = False
        for each in found:
            links, times = each.loads[each.shortest(prices)]
            is_shorter |= float(prices[links] @ times) < worth[each.root] * (1 - _ENOUGH)
        if not is_shorter:
            break
        if on_progress is not None and count % 8 == 7:
            on_progress(f"{sum(master.sizes)} trees from {len(worth)} ranks")
    unit_gb = Fraction(unit, topology.denominator)
    return [
        Packed(
            routes=each.routes,
            root=each.root,
            trees=tuple(each.trees[:size]),
            rates=tuple(rate * unit_gb for rate in rates),
            most=sum(rates, Fraction(0)) * unit_gb,
        )
        for each, size, rates in zip(found, master.sizes, master.rates(weights), strict=True)
    ]


class _Master:
    """Optimum over the trees that are known, with its prices."""

    def __init__(
        self, found: Sequence[TreeLoads], room: Sequence[int], weights: Sequence[int] | None
    ) -> None:
        self.found = found
        self.sizes = [len(each.trees) for each in found]
        columns: dict[int, dict[int, int]] = {}
        of_root: dict[int, dict[int, int]] = {}
        column = 0
        for each in found:
            for links, times in each.loads:
                for e, count in zip(links.tolist(), times.tolist(), strict=True):
                    columns.setdefault(e, {})[column] = count
                of_root.setdefault(each.root, {})[column] = -1
                column += 1
        for root, own in of_root.items():
            own[column] = 1 if weights is None else weights[root]
        self.links, self.roots = sorted(columns), sorted(of_root)
        program = LinearProgram([0] * column + [1], [None] * (column + 1))
        program.add_rows([_row(columns[e], room[e]) for e in self.links])
        program.add_rows([_row(of_root[root], 0) for root in self.roots])
        vertex = program.exact_vertex() if program.solve() is not None else None
        vertex = solve_in_integers(program) if vertex is None else vertex
        if vertex is None:
            raise CoppiceError("the rates of the trees have no limit: this is an error in the planner.")
        self.vertex = vertex

    def prices(self, num_links: int) -> tuple[NDArray[np.float64], dict[int, float]]:
        """Price of each link, and what a tree of each root is worth."""
        prices = np.zeros(num_links)
        prices[self.links] = [float(price) for price in self.vertex.multipliers[: len(self.links)]]
        worth = map(float, self.vertex.multipliers[len(self.links) :])
        return prices, dict(zip(self.roots, worth, strict=True))

    def rates(self, weights: Sequence[int] | None) -> list[list[Fraction]]:
        """Rate of each tree; those of a root add up to its weight times the same, and what is more is left out."""
        values = iter(self.vertex.values)
        given = [[next(values) for _ in range(size)] for size in self.sizes]
        total: dict[int, Fraction] = {}
        for each, own in zip(self.found, given, strict=True):
            total[each.root] = total.get(each.root, Fraction(0)) + sum(own, Fraction(0))
        wanted = self.vertex.values[-1]
        weight = {root: 1 if weights is None else weights[root] for root in total}
        return [
            [rate * wanted * weight[each.root] / (total[each.root] or 1) for rate in own]
            for each, own in zip(self.found, given, strict=True)
        ]


def _row(entries: dict[int, int], bound: int) -> Constraint:
    return Constraint(
        column=np.array(list(entries), dtype=np.int32),
        value=np.array(list(entries.values()), dtype=np.int64),
        bound=bound,
    )


def schedule_along(problem: Problem, packings: Sequence[Packed]) -> Schedule:
    """Blocks of a gather, a scatter or an all-to-all along the trees of their roots, in proportion to the rates."""
    ranks = problem.topology.num_ranks
    up = problem.collective is Collective.GATHER
    total: dict[int, Fraction] = {}
    for packed in packings:
        total[packed.root] = total.get(packed.root, Fraction(0)) + packed.rate
    shares: dict[tuple[int, tuple[int, ...]], Fraction] = {}
    for packed in packings:
        for tree, rate in enumerate(packed.rates):
            paths: dict[int, tuple[int, ...]] = {
                packed.root: (int(problem.topology.rank_nodes[packed.root]),)
            }
            for route in packed.edges(tree):
                known = paths[route.parent]
                paths[route.child] = (*route.up[:-1], *known) if up else (*known, *route.down[1:])
            for rank, path in paths.items():
                if rank == packed.root or not rate:
                    continue
                slot = rank if problem.collective is not Collective.ALL_TO_ALL else packed.root * ranks + rank
                place = (slot, path)
                shares[place] = shares.get(place, Fraction(0)) + rate / total[packed.root]
    scale = lcm(*(share.denominator for share in shares.values()))
    return schedule_of_paths(
        problem, [(slot, int(share * scale), path) for (slot, path), share in sorted(shares.items())]
    )
