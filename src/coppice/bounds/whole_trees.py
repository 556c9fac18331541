"""The bound on forests with a given number of trees, with a cut that proves it.

In less time than the bound some cut does not let all trees in, as every link carries a whole number of them. A link of
rate b carries at most ceil(U b) - 1 trees in any time below U per tree: one check of the cuts against these numbers
finds the cut that is violated just below the bound.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from coppice.bounds.network import Network
from coppice.bounds.problem import Problem
from coppice.bounds.proof import CutFamily, WeightedCut, WholeTrees
from coppice.bounds.tree_units import TreeUnits, fixed_trees, violations
from coppice.collectives import Collective

__all__ = ["whole_trees_bound"]


def whole_trees_bound(problem: Problem, trees: int) -> WholeTrees | None:
    """The least time per shard that cuts allow with ``trees`` trees per unit of weight; None where nothing moves.

    Args:
        problem: All_gather, reduce_scatter, broadcast or reduce.
        trees: Trees per root, at least 1.

    Raises:
        InputError: If ``trees`` is not a positive number, or the problem has no meaning.
        UnreachableError: If some rank cannot be reached.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> found = whole_trees_bound(Problem(preset("dgx-a100"), Collective.ALL_GATHER), 1)
        >>> found.inv_rate, found.cases[0].cuts[0].broadcast
        (Fraction(7, 300), Fraction(1, 1))
    """
    network = Network.of(problem)
    inv_rate = fixed_trees(network, trees).inv_rate
    if not inv_rate:
        return None
    scale = trees * inv_rate / network.topology.denominator
    below = [-(-c * scale.numerator // scale.denominator) - 1 for c in network.topology.capacity.tolist()]
    units = TreeUnits(
        trees=trees,
        inv_rate=inv_rate,
        capacity=np.array(below, dtype=np.int64).clip(min=0),
        roots=network.weight * trees,
    )
    violated = violations(network, units, limit=1)
    if not violated:
        return None
    reduces = problem.collective in (Collective.REDUCE, Collective.REDUCE_SCATTER)
    one, none = Fraction(1), Fraction(0)
    cut = WeightedCut(
        nodes=tuple(sorted(int(v) for v in violated[0])),
        broadcast=none if reduces else one,
        reduce=one if reduces else none,
    )
    return WholeTrees(trees=trees, inv_rate=inv_rate, cases=(CutFamily(inv_rate=inv_rate, cuts=(cut,)),))
