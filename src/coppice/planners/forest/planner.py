"""Forest planner: spanning trees that attain the bound, for every collective but all-to-all.

The bound (``coppice.bounds``) says how many trees each link can carry; the native packer lays that many trees on
physical paths (ForestColl, arXiv 2402.06787; the construction that needs no switch removal is described in
cpp/packing/packing.h). Collectives that reduce are planned on the transposed graph and turned round.

**Templates:** where ranks are alike, one tree for each orbit of them stands for all its images. The group of
automorphisms is found from the graph (``coppice.topology.symmetry``); the native packer then works with
orbits of links in place of links (cpp/symmetry/group_action.h).

How many trees each link carries, for the optimum or for a given number of trees, is ``coppice.bounds.tree_optimum``'s.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.network import Network, cut_bound
from coppice.bounds.optimum import bound_of
from coppice.bounds.partition import is_even_both_ways
from coppice.bounds.problem import Problem
from coppice.bounds.result import Bound
from coppice.bounds.tree_optimum import TreeOptimum, all_trees, fewest_trees, tree_optimum
from coppice.bounds.tree_units import TreeUnits, exact_units
from coppice.collectives import Collective
from coppice.display import Brief
from coppice.errors import InputError, UnreachableError
from coppice.planners.forest.packed import PackedTrees, forest_of, joined, pack, pack_templates, same_weight
from coppice.planners.forest.priced_templates import priced_templates
from coppice.planners.forest.root_trees import grown_together
from coppice.schedule.forest import Forest
from coppice.schedule.loads import forest_loads
from coppice.schedule.shape import shape
from coppice.topology.model import NodeKind, Topology, scaled
from coppice.topology.symmetry import Symmetry, find_symmetry, symmetry_of

if TYPE_CHECKING:
    from coppice.bounds.result import CombinedAllReduce


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PlannedForest(Brief):
    """A forest, and its gap to the best with as many trees."""

    forest: Forest  # The trees
    # For each phase what is known about its number of trees; empty where an all-reduce has its own root
    # rates, or the number was free
    phases: tuple[TreeOptimum, ...] = ()


def plan_forest(
    problem: Problem,
    *,
    # Trees per root (per unit of weight); None takes the number that reaches the optimum exactly. On small
    # networks nothing is faster with as many; on others see :func:`planned_forest`.
    trees: int | None = None,
    # Instead of `trees`: the least number whose time is within this fraction of the optimum
    tolerance: Fraction | None = None,
    optimum: Bound | None = None,  # The bound of the same problem, where the caller has it already
) -> Forest:
    """Plan ``problem`` with spanning trees.

    An all-reduce is planned in two phases (reduce-scatter, all-gather) or with its own root rates, whichever is
    faster; with a given number of trees always in two phases, and within a tolerance in two phases if they are.

    Examples:
        >>> from coppice.topology.model import Link, Node, Topology
        >>> nodes = [Node(id=name) for name in "abc"]
        >>> ring = [Link(src=a, dst=b, gb_per_s=Fraction(25)) for a, b in ("ab", "bc", "ca")]
        >>> problem = Problem(topology=Topology.of("ring", nodes, ring), collective=Collective.ALL_GATHER)
        >>> forest = plan_forest(problem)
        >>> forest.num_trees, forest.num_edges
        (3, 6)
    """
    return planned_forest(problem, trees=trees, tolerance=tolerance, optimum=optimum).forest


def planned_forest(
    problem: Problem,
    *,
    trees: int | None = None,
    tolerance: Fraction | None = None,  # Instead of `trees`
    optimum: Bound | None = None,  # The bound of the same problem, where the caller has it already
) -> PlannedForest:
    """As :func:`plan_forest`, with the bound for its number of trees.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> problem = Problem(topology=preset("ring", gpus=4), collective=Collective.ALL_GATHER)
        >>> [phase] = planned_forest(problem, trees=1).phases
        >>> phase.inv_rate, phase.exact
        (Fraction(2, 1), True)
    """
    collective = problem.collective
    if collective is Collective.ALL_TO_ALL:
        raise InputError("all_to_all is not made of spanning trees: plan it with the all_to_all planner.")
    if collective is Collective.ALL_REDUCE:
        return plan_all_reduce(problem, trees, tolerance, optimum)
    free = trees is None and tolerance is None
    if free and problem.topology.num_ranks >= MANY_RANKS:
        optimum = bound_of(problem) if optimum is None else optimum
        # Packing tree by tree makes low trees of one phase, unless the links of a switch differ by direction.
        if (forest := after_fault(problem, optimum, low=is_even_both_ways(problem.topology))) is not None:
            return PlannedForest(forest=forest)
    packed, known = phase_trees(problem, trees, tolerance, optimum)
    return PlannedForest(forest=forest_of(problem, [packed]), phases=() if free else (known,))


def plan_all_reduce(
    problem: Problem, trees: int | None, tolerance: Fraction | None, optimum: Bound | None
) -> PlannedForest:
    """Trees of an all-reduce, in two phases or with combined root rates."""
    combined = None
    if trees is None:
        optimum = bound_of(problem) if optimum is None else optimum
        combined = optimum.combined
        if tolerance is None and (forest := after_fault(problem, optimum)) is not None:
            return PlannedForest(forest=forest)
        if combined is not None and tolerance is None:
            return PlannedForest(forest=forest_of(problem, combined_trees(problem, combined)))
    gather = phase_trees(replace(problem, collective=Collective.ALL_GATHER), trees, tolerance, None)
    if is_even_both_ways(problem.topology):  # the same trees turned round
        scatter = gather[0].reversed(), gather[1]
    else:
        scatter = phase_trees(replace(problem, collective=Collective.REDUCE_SCATTER), trees, tolerance, None)
    phases = [scatter, gather]
    forest = forest_of(problem, same_weight(*(packed for packed, _ in phases)))
    if (
        combined is None
        or combined.rate is None
        or tolerance is None
        or forest_loads(forest).inv_rate * combined.rate <= 1 + tolerance
    ):
        free = trees is None and tolerance is None
        return PlannedForest(forest=forest, phases=() if free else tuple(known for _, known in phases))
    return PlannedForest(forest=forest_of(problem, combined_trees(problem, combined)))


def after_fault(problem: Problem, optimum: Bound, *, low: bool = False) -> Forest | None:
    """Optimal trees, or nearly so, of a large network with one fault, from those of the network without it.

    Args:
        low: Only trees about as low as these are.

    Returns:
        They may lose a thousandth of the rate where all links are full: who plans compares them with the bound.
    """
    if problem.topology.num_ranks < MANY_RANKS:
        return None
    from coppice.planners.forest.after_fault import forest_after_fault  # brings what mends forests

    best = optimum.inv_rate if optimum.attainable is None else optimum.attainable
    return forest_after_fault(problem, best, plan_forest, alike_forest, low=low, lossy=True)


def alike_forest(problem: Problem) -> Forest:
    """Optimal trees of a symmetric network, in any number, that differ as little as possible: for who changes them."""
    one = problem
    if problem.collective is Collective.ALL_REDUCE and is_even_both_ways(problem.topology):
        one = replace(problem, collective=Collective.ALL_GATHER)
    templates = None
    if len(one.phases) == 1 and (one is problem or bound_of(problem).combined is None):
        optimum, network = bound_of(one), Network.of(one)
        if optimum.capacity is None and optimum.attainable in (None, optimum.inv_rate):
            network = spared(one, network, optimum.inv_rate)
            templates = priced_templates(network, optimum.inv_rate, find_symmetry(one.topology))
    if templates is None:
        return plan_forest(problem)
    reduces = templates.reversed()
    if one is not problem:
        return forest_of(problem, [reduces, templates])
    return forest_of(problem, [reduces if problem.collective.reduces else templates])


def phase_trees(
    problem: Problem, trees: int | None, tolerance: Fraction | None, optimum: Bound | None
) -> tuple[PackedTrees, TreeOptimum]:
    """Optimal trees of a one-phase collective, in dataflow direction."""
    network = Network.of(problem)
    if optimum is None:
        optimum = bound_of(problem)
    best = optimum.inv_rate if optimum.attainable is None else optimum.attainable
    capacity = optimum.capacity
    free = trees is None and tolerance is None
    if trees is not None:
        known = tree_optimum(network, trees, best=best, capacity=capacity)
    elif tolerance is not None:
        known = fewest_trees(network, tolerance, best=best, capacity=capacity)
    else:
        if capacity is None:
            network = spared(problem, network, best)
        known = all_trees(network, best=best, capacity=capacity)
    return laid(problem, network, known.units, best=best if free else None), known


def spared(problem: Problem, network: Network, best: Fraction) -> Network:
    """Network without its upper switches (linked only with switches), where they are not needed.

    Spines are often oversubscribed and shared with other jobs: a plan that reaches the optimum below them stays there.
    """
    topology = problem.topology
    lower = topology.kind != NodeKind.SWITCH
    beside = np.zeros(topology.num_nodes, dtype=np.bool_)
    for ends, others in ((topology.src, topology.dst), (topology.dst, topology.src)):
        beside[ends[lower[others]]] = True
    upper = ~lower & ~beside
    used = ~(upper[topology.src] | upper[topology.dst])
    if used.all():
        return network
    rates = [topology.gb_per_s(e) if use else Fraction(0) for e, use in enumerate(used.tolist())]
    try:
        without = network.limited(rates)
        enough = cut_bound(without).inv_rate == best
        fits = enough and exact_units(without, best).trees <= exact_units(network, best).trees
    except UnreachableError:
        return network
    return without if fits else network


def laid(
    problem: Problem, network: Network, units: TreeUnits, *, best: Fraction | None = None
) -> PackedTrees:
    """Trees of ``units`` with physical paths, in dataflow direction.

    Args:
        best: Where their number is free, the time per shard to reach.
    """
    packed = pack_with_symmetry(problem, network, units, best)
    if packed is None and problem.topology.num_ranks >= MANY_RANKS:
        packed = grown_together(network, units.capacity, units.roots)
    if packed is None:
        packed = pack(network, units)
    return packed.reversed() if problem.collective.reduces else packed


def combined_trees(
    problem: Problem, combined: CombinedAllReduce, *, spanning: Collection[int] = ()
) -> list[PackedTrees]:
    """Reduce and broadcast trees for the roots and link shares of ``combined``.

    Args:
        spanning: Switches that trees span where they can copy (or add, in reduce trees).
    """
    topology = problem.topology
    at_roots = list(combined.root_rates.values())
    rates = combined.reduce_capacity + combined.broadcast_capacity + at_roots
    scale = lcm(*(rate.denominator for rate in rates))
    roots = np.zeros(topology.num_nodes, dtype=np.int64)
    roots[topology.rank_nodes[list(combined.root_rates)]] = scaled(at_roots, scale)
    phases: list[PackedTrees] = []
    mirrored = combined.reduce_capacity == combined.broadcast_capacity and is_even_both_ways(topology)
    for reduce, capacity in ((False, combined.broadcast_capacity), (True, combined.reduce_capacity)):
        if reduce and mirrored and not spanning:
            phases.append(phases[0].reversed())
            break
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
    return phases[::-1]


MANY_RANKS = 256
"""From this many ranks on, templates are worth several attempts."""

TEMPLATE_MULTIPLES = (1, 2, 3, 4)


def pack_with_symmetry(
    problem: Problem, network: Network, units: TreeUnits, best: Fraction | None
) -> PackedTrees | None:
    """Templates where ranks are symmetric; None where packing tree by tree is better.

    Templates are quicker to find, and shallower: every tree gets the same room. They need not exist for the whole
    group: with few trees the links of one orbit may not come out even. Then large problems, where templates matter
    most, try any number of trees if it is free and some multiples of it if not, and small ones the subgroups that leave
    out one generator.
    """
    topology = problem.topology
    if problem.root is not None or problem.weights is not None:
        return None
    symmetry = find_symmetry(topology)
    if symmetry.order == 1 or not equal_along(symmetry.link_orbit[network.link], units.capacity):
        return None
    many = topology.num_ranks >= MANY_RANKS
    for multiple in TEMPLATE_MULTIPLES if many else (1,):
        several = replace(units, capacity=units.capacity * multiple, roots=units.roots * multiple)
        templates = pack_templates(network, several, symmetry)
        if templates is None and many and best is not None and multiple == 1:
            templates = priced_templates(network, best, symmetry)
        if templates is not None:
            return templates
    if many or len(symmetry.orders) == 1:
        return None
    found = [pack_templates(network, units, subgroup) for subgroup in subgroups(topology, symmetry)]
    return min(
        (trees for trees in found if trees is not None),
        key=lambda trees: preference(problem, trees),
        default=None,
    )


def equal_along(orbit: NDArray[np.int32], values: NDArray[np.int64]) -> bool:
    """Whether values are constant on each orbit."""
    _, first, orbits = np.unique(orbit, return_index=True, return_inverse=True)
    return np.array_equal(values, values[first][orbits])


def subgroups(topology: Topology, symmetry: Symmetry) -> Iterator[Symmetry]:
    """Subgroups that omit one generator."""
    for left_out in range(len(symmetry.orders)):
        kept = [i for i in range(len(symmetry.orders)) if i != left_out]
        yield symmetry_of(
            topology, [symmetry.orders[i] for i in kept], [symmetry.generators[i].tolist() for i in kept]
        )


def preference(problem: Problem, trees: PackedTrees) -> tuple[int, Fraction, int]:
    """Sort key of forests with equal rate: least height, mean height, number of trees."""
    found = shape(joined(problem, [trees]))
    return found.max_height, found.mean_height, found.distinct_trees
