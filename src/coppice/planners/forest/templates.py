"""Templates: where ranks are alike, one tree for each orbit of them stands for all its images.

The group of automorphisms is found from the graph (``coppice.topology.symmetry``); the native packer then works with
orbits of links in place of links (cpp/symmetry/group_action.h).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np

from coppice.bounds.network import Network
from coppice.bounds.problem import Problem
from coppice.bounds.tree_units import TreeUnits
from coppice.planners.forest.packed import PackedTrees, joined, pack_templates
from coppice.schedule.shape import shape
from coppice.topology.model import Topology
from coppice.topology.symmetry import Symmetry, find_symmetry, symmetry_of

__all__ = ["pack_with_symmetry"]

MANY_RANKS = 256
"""From this many ranks on, templates are worth several attempts."""

TEMPLATE_MULTIPLES = (1, 2, 3, 4)


def pack_with_symmetry(problem: Problem, network: Network, units: TreeUnits) -> PackedTrees | None:
    """Templates where ranks are alike; None where packing tree by tree is the way.

    Templates are quicker to find, and shallower: every tree gets the same room. They need not exist for the whole
    group: with few trees the links of one orbit may not come out even. Then large problems, where templates matter
    most, try some multiples of the number of trees, and small ones the subgroups that leave out one generator.
    """
    topology = problem.topology
    if problem.root is not None or problem.weights is not None:
        return None
    symmetry = find_symmetry(topology)
    if symmetry.order == 1 or not np.array_equal(network.topology.capacity, topology.capacity[network.link]):
        return None
    many = topology.num_ranks >= MANY_RANKS
    for multiple in TEMPLATE_MULTIPLES if many else (1,):
        several = replace(units, capacity=units.capacity * multiple, roots=units.roots * multiple)
        templates = pack_templates(network, several, symmetry)
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


def subgroups(topology: Topology, symmetry: Symmetry) -> Iterator[Symmetry]:
    """The subgroups that leave out one generator."""
    for left_out in range(len(symmetry.orders)):
        kept = [i for i in range(len(symmetry.orders)) if i != left_out]
        yield symmetry_of(
            topology, [symmetry.orders[i] for i in kept], [symmetry.generators[i].tolist() for i in kept]
        )


def preference(problem: Problem, trees: PackedTrees) -> tuple[int, Fraction, int]:
    """What makes one forest better than another of the same rate: least height, mean height, number of trees."""
    found = shape(joined(problem, [trees]))
    return found.max_height, found.mean_height, found.distinct_trees
