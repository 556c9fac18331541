"""The forest planner: spanning trees that reach the bound, for every collective but all-to-all.

The bound (``coppice.bounds``) says how many trees each link can carry; the native packer lays that many trees on
physical paths (ForestColl, arXiv 2402.06787; the construction that needs no switch removal is described in
cpp/packing.h). Collectives that reduce are planned on the transposed graph and turned round.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from coppice.bounds.network import Network
from coppice.bounds.optimum import bound
from coppice.bounds.problem import Problem
from coppice.bounds.result import Bound
from coppice.bounds.tree_units import TreeUnits, exact_trees, exact_units, fixed_trees
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.forest.packed import Trees, forest_of, joined, pack, same_weight
from coppice.planners.forest.rounding import balanced_units
from coppice.planners.forest.templates import pack_with_symmetry
from coppice.schedule.forest import Forest
from coppice.schedule.loads import forest_loads
from coppice.topology.model import common_denominator, scaled

if TYPE_CHECKING:
    from coppice.bounds.all_reduce import CombinedAllReduce

__all__ = ["combined_trees", "plan_forest"]


def plan_forest(
    problem: Problem,
    *,
    trees: int | None = None,
    tolerance: Fraction | None = None,
    optimum: Bound | None = None,
) -> Forest:
    """Plan ``problem`` with spanning trees.

    An all-reduce is planned in two phases (reduce-scatter, all-gather) or with its own root rates, whichever is
    faster; with a given number of trees always in two phases, and within a tolerance in two phases if they are.

    Args:
        problem: Any collective but all_to_all.
        trees: Trees per root (per unit of weight); None takes the number that reaches the optimum exactly.
        tolerance: Instead of ``trees``: the least number whose time is within this fraction of the optimum.
        optimum: The bound of the same problem, where the caller has it already.

    Raises:
        InputError: If the problem has no meaning, or is an all_to_all.
        UnreachableError: If some rank cannot be reached.
        KeyboardInterrupt: Within a fraction of a second after Ctrl-C.

    Examples:
        >>> from coppice.topology.model import Link, Node, Topology
        >>> nodes = [Node(id=name) for name in "abc"]
        >>> ring = [Link(src=a, dst=b, gb_per_s=Fraction(25)) for a, b in ("ab", "bc", "ca")]
        >>> problem = Problem(topology=Topology.of("ring", nodes, ring), collective=Collective.ALL_GATHER)
        >>> forest = plan_forest(problem)
        >>> forest.num_trees, forest.num_edges
        (3, 6)
    """
    collective = problem.collective
    if collective is Collective.ALL_TO_ALL:
        msg = "all_to_all is not made of spanning trees: plan it with the all_to_all planner."
        raise InputError(msg)
    if collective is Collective.ALL_REDUCE:
        return plan_all_reduce(problem, trees, tolerance, optimum)
    return forest_of(problem, [phase_trees(problem, trees, tolerance, optimum)])


def plan_all_reduce(
    problem: Problem, trees: int | None, tolerance: Fraction | None, optimum: Bound | None
) -> Forest:
    """Trees of an all-reduce, in two phases or with its own root rates."""
    combined = None
    if trees is None:
        optimum = bound(problem) if optimum is None else optimum
        combined = optimum.combined
        if combined is not None and tolerance is None:
            return forest_of(problem, combined_trees(problem, combined))
    phases = [
        phase_trees(replace(problem, collective=phase), trees, tolerance, None)
        for phase in (Collective.REDUCE_SCATTER, Collective.ALL_GATHER)
    ]
    forest = forest_of(problem, same_weight(*phases))
    if (
        combined is None
        or combined.rate is None
        or tolerance is None
        or forest_loads(forest).inv_rate * combined.rate <= 1 + tolerance
    ):
        return forest
    return forest_of(problem, combined_trees(problem, combined))


def phase_trees(
    problem: Problem, trees: int | None, tolerance: Fraction | None, optimum: Bound | None
) -> Trees:
    """Optimal trees of a collective of one phase, in the direction of the data."""
    network = Network.of(problem)
    if optimum is None:
        optimum = bound(problem)
    if optimum.capacity is not None:
        network = network.limited(optimum.capacity)
    best = optimum.inv_rate if optimum.attainable is None else optimum.attainable
    if trees is not None:
        least = fixed_trees(network, trees, optimum=best).inv_rate
        return laid(problem, network, balanced_units(network, trees=trees, scale=least * trees))
    if tolerance is not None:
        return fewest_trees(problem, network, best, tolerance)
    return laid(problem, network, exact_units(network, best))


def fewest_trees(problem: Problem, network: Network, best: Fraction, tolerance: Fraction) -> Trees:
    """The least number of trees whose counted time is within ``tolerance`` of ``best``.

    Raises:
        InputError: If the tolerance is negative.
    """
    if tolerance < 0:
        msg = f"expected a tolerance >= 0, found {tolerance}: write for instance `--trees auto:1%`."
        raise InputError(msg)
    most = best * (1 + tolerance)
    whole = Network.of(problem)  # without the limits that a switch short of input sets: a quick test
    for trees in range(1, exact_trees(network, best)):
        if fixed_trees(whole, trees, optimum=best).inv_rate > most:
            continue
        least = fixed_trees(network, trees, optimum=best).inv_rate
        found = laid(problem, network, balanced_units(network, trees=trees, scale=least * trees))
        if forest_loads(joined(problem, [found]), problem.weights).inv_rate <= most:
            return found
    return laid(problem, network, exact_units(network, best))


def laid(problem: Problem, network: Network, units: TreeUnits) -> Trees:
    """The trees of ``units`` on physical paths, in the direction of the data."""
    packed = pack_with_symmetry(problem, network, units)
    if packed is None:
        packed = pack(network, units)
    return packed.reversed() if problem.collective.reduces else packed


def combined_trees(
    problem: Problem, combined: CombinedAllReduce, *, spanning: Collection[int] = ()
) -> list[Trees]:
    """Reduce trees and broadcast trees at the roots and within the split of links that ``combined`` chose.

    Args:
        problem: The all-reduce.
        combined: Root rates and the split.
        spanning: Switches that trees span where they can copy (or add, in reduce trees).

    Raises:
        InputError: If the rates need integers beyond 62 bits.
    """
    topology = problem.topology
    rates = combined.reduce_capacity + combined.broadcast_capacity + list(combined.root_rates.values())
    scale = common_denominator(rates)
    roots = np.zeros(topology.num_nodes, dtype=np.int64)
    for rank, rate in combined.root_rates.items():
        roots[topology.rank_nodes[rank]] = int(rate * scale)
    phases = []
    for reduce, capacity in ((True, combined.reduce_capacity), (False, combined.broadcast_capacity)):
        network = Network.of(problem, reduce=reduce)
        terminal = network.terminal.copy()
        terminal[list(spanning)] |= network.topology.multicast[list(spanning)]
        network = replace(network, terminal=terminal)
        ordered = [capacity[e] for e in network.link.tolist()]
        units = TreeUnits(
            trees=scale, inv_rate=1 / Fraction(scale), capacity=scaled(ordered, scale), roots=roots
        )
        packed = pack(network, units)
        phases.append(packed.reversed() if reduce else packed)
    return phases
