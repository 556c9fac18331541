"""The best rate with a given number of trees per root.

With k trees per unit of weight every link carries a whole number of trees, at most floor(U * b) where U is the time of
one tree over the rate unit. The least U for which the cuts allow k trees is found exactly: start at U = k times the
optimum; a violated cut gives the least U at which its own rounded links suffice; take that and check again. Every step
is necessary, so the first U that violates nothing is least (cut generation; ForestColl, arXiv 2402.06787, has a binary
search in its place).

The rounding can leave a switch with more trees out than in. Then U is a lower bound only and the planner looks for the
least U at which it can balance the switches.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice import _core
from coppice.bounds.cut_bound import cut_bound
from coppice.bounds.network import Network
from coppice.bounds.tree_units import TreeUnits, exact_trees, floor_units
from coppice.errors import InputError

__all__ = ["FixedTrees", "fixed_trees", "next_breakpoint", "smallest_trees", "violations"]


@dataclass(frozen=True, kw_only=True)
class FixedTrees:
    """The least time per shard with k trees per root, as far as the cuts say.

    Attributes:
        trees: k.
        inv_rate: U / k, in 1 / (GB/s).
        balanced: Whether the rounded capacities leave no switch with more out than in; then it is reached exactly.
    """

    trees: int
    inv_rate: Fraction
    balanced: bool


def fixed_trees(network: Network, trees: int, *, optimum: Fraction | None = None) -> FixedTrees:
    """The least time per shard with ``trees`` trees per unit of weight.

    Args:
        network: What to plan on.
        trees: k, at least 1.
        optimum: The cut bound, where the caller has it already.

    Raises:
        InputError: If ``trees`` is not a positive number.
        UnreachableError: If some rank cannot be reached.
    """
    if trees < 1:
        msg = f"expected at least one tree per root, found {trees}: give `trees=1` or more."
        raise InputError(msg)
    scale = trees * (cut_bound(network).inv_rate if optimum is None else optimum)
    while True:
        units = floor_units(network, trees=trees, scale=scale)
        cuts = violations(network, units)
        if not cuts:
            return FixedTrees(
                trees=trees, inv_rate=scale / trees, balanced=not unbalanced(network, units.capacity).size
            )
        scale = max(least_scale(network, cut, trees, scale) for cut in cuts)


def violations(network: Network, units: TreeUnits, *, limit: int = 64) -> list[NDArray[np.int32]]:
    """Sink sides of cuts that do not let all trees of ``units`` in."""
    topology = network.topology
    return _core.violated_cuts(
        topology.num_nodes,
        topology.src,
        topology.dst,
        units.capacity,
        units.roots,
        network.terminal,
        int(units.roots.sum()),
        limit,
    )


def unbalanced(network: Network, capacity: NDArray[np.int64]) -> NDArray[np.int64]:
    """Nodes that only forward and have more ``capacity`` out than in."""
    topology = network.topology
    surplus = np.zeros(topology.num_nodes, dtype=np.int64)
    np.add.at(surplus, topology.src, capacity)
    np.subtract.at(surplus, topology.dst, capacity)
    return np.flatnonzero((surplus > 0) & ~network.terminal)


def least_scale(network: Network, sink_side: NDArray[np.int32], trees: int, scale: Fraction) -> Fraction:
    """Least U >= ``scale`` at which the rounded links into ``sink_side`` carry all trees that must enter."""
    topology = network.topology
    inside = np.zeros(topology.num_nodes, dtype=np.bool_)
    inside[sink_side] = True
    entering = inside[topology.dst] & ~inside[topology.src]
    needed = trees * (network.total_weight - int(network.weight[sink_side].sum()))
    groups = Counter(topology.capacity[entering].tolist())
    carried = sum(count * int(scale * rate / topology.denominator) for rate, count in groups.items())
    for breakpoint_, gained in breakpoints(groups, scale / topology.denominator):
        if carried >= needed:
            break
        scale = breakpoint_ * topology.denominator
        carried += gained
    return scale


def breakpoints(groups: Counter[int], start: Fraction) -> Iterator[tuple[Fraction, int]]:
    """Values m / rate above ``start`` in ascending order, with how many links gain a tree at each (rate > 0)."""
    heap = [(Fraction(int(start * rate) + 1, rate), rate, count) for rate, count in groups.items() if rate]
    heapq.heapify(heap)
    while heap:
        value, rate, count = heapq.heappop(heap)
        heapq.heappush(heap, (value + Fraction(1, rate), rate, count))
        yield value, count


def next_breakpoint(network: Network, scale: Fraction) -> Fraction:
    """The least U above ``scale`` at which some link gains a tree."""
    topology = network.topology
    value, _ = next(breakpoints(Counter(topology.capacity.tolist()), scale / topology.denominator))
    return value * topology.denominator


def smallest_trees(network: Network, tolerance: Fraction, *, optimum: Fraction) -> FixedTrees:
    """The least k whose rate is within ``tolerance`` of the optimum (1/100: at most 1% more time).

    Raises:
        InputError: If the tolerance is negative.
    """
    if tolerance < 0:
        msg = f"expected a tolerance >= 0, found {tolerance}: write for instance `--trees auto:1%`."
        raise InputError(msg)
    exact = exact_trees(network, optimum)
    for trees in range(1, exact):
        found = fixed_trees(network, trees, optimum=optimum)
        if found.balanced and found.inv_rate <= optimum * (1 + tolerance):
            return found
    return FixedTrees(trees=exact, inv_rate=optimum, balanced=True)
