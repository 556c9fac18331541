"""Number of trees per root: capacities in units of trees, and the best rate with a given number of trees.

With time R per shard, k trees per unit of weight and U = k * R, a link of rate b carries U * b trees while each tree
carries 1/k of a shard. The exact optimum needs U * b integral on every link (ForestColl, arXiv 2402.06787, section on
the number of trees).

For a fixed k every link carries a whole number of trees, at most floor(U * b). The least U for which the cuts allow k
trees is found exactly: start at U = k times the optimum; a violated cut gives the least U at which its own rounded
links suffice; take that and check again. Every step is necessary, so the first U that violates nothing is least (cut
generation; ForestColl has a binary search in its place).

The rounding can leave a switch with more trees out than in. Then U is a lower bound only
(``coppice.bounds.tree_optimum`` goes on from there).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import gcd

import numpy as np
from numpy.typing import NDArray

from coppice import _core
from coppice.bounds.network import Network, cut_bound
from coppice.display import Brief
from coppice.errors import InputError


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class TreeUnits(Brief):
    """Input of a tree packing: capacities in trees."""

    trees: int  # k, trees per unit of weight
    inv_rate: Fraction  # Time per shard that the packing will take: U / k, in 1 / (GB/s)
    capacity: NDArray[np.int64]  # Trees that each link carries (int64)
    roots: NDArray[np.int64]  # Trees to root at each node (int64): k times its weight


def exact_units(network: Network, inv_rate: Fraction) -> TreeUnits:
    """The least k that reaches ``inv_rate`` with an integral number of trees on every link."""
    trees = exact_trees(network, inv_rate)
    return floor_units(network, trees=trees, scale=trees * inv_rate)


def exact_trees(network: Network, inv_rate: Fraction) -> int:
    """The least k that reaches ``inv_rate`` with an integral number of trees on every link, however large."""
    topology = network.topology
    needed = (inv_rate / topology.denominator).denominator
    return needed // gcd(needed, *topology.capacity.tolist())


def floor_units(network: Network, *, trees: int, scale: Fraction) -> TreeUnits:
    """Capacities ``floor(scale * rate)`` for ``trees`` trees per unit of weight; ``scale`` is U.

    Where the numbers pass 62 bits no link has more than the edges of all trees, which is as much as any can carry; a
    switch may then have more out than in.
    """
    topology = network.topology
    factor = scale / topology.denominator
    largest = int(topology.capacity.max(initial=0))
    total = trees * network.total_weight
    check_size(0, total)
    if factor.numerator * largest < 2**63 and int(largest * factor) * topology.num_links < 2**62:
        capacity = topology.capacity * factor.numerator // factor.denominator
    else:
        edges = total * max(int(network.terminal.sum()) - 1, 0)
        check_size(min(edges, int(largest * factor)) * topology.num_links, total)
        capacity = np.array(
            [min(c * factor.numerator // factor.denominator, edges) for c in topology.capacity.tolist()],
            dtype=np.int64,
        )
    return TreeUnits(trees=trees, inv_rate=scale / trees, capacity=capacity, roots=network.weight * trees)


def check_size(capacity: int, roots: int) -> None:
    """Refuse numbers too large for the native core."""
    if max(capacity, roots) >= 2**62:
        raise InputError(
            f"the plan needs trees in units below 2^62, found {max(capacity, roots):.3g}: the rates have too many "
            "digits; round them (`round_digits=3`) or ask for fewer trees (`trees=auto:1%`)."
        )


@dataclass(frozen=True, kw_only=True)
class FixedTrees:
    """Least time per shard with k trees per root, by the cuts."""

    trees: int  # k
    inv_rate: Fraction  # U / k, in 1 / (GB/s)
    # Whether the rounded capacities leave no switch with more out than in; then it is reached exactly
    balanced: bool


def fixed_trees(network: Network, trees: int, *, optimum: Fraction | None = None) -> FixedTrees:
    """The least time per shard with ``trees`` trees per unit of weight.

    Args:
        trees: k, at least 1.
        optimum: The cut bound, where the caller has it already.
    """
    if trees < 1:
        raise InputError(f"expected at least one tree per root, found {trees}: give `trees=1` or more.")
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
    """Sink sides of cuts that not all trees of ``units`` can cross."""
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
    """Relay nodes with more out-``capacity`` than in-capacity."""
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
