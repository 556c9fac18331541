"""Capacities in units of trees.

With time R per shard, k trees per unit of weight and U = k * R, a link of rate b carries U * b trees while each tree
carries 1/k of a shard. The exact optimum needs U * b integral on every link (ForestColl, arXiv 2402.06787, section on
the number of trees); for a fixed k the capacities are rounded down.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import gcd

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.network import Network
from coppice.errors import InputError

__all__ = ["TreeUnits", "exact_trees", "exact_units", "floor_units"]


@dataclass(frozen=True, eq=False, kw_only=True)
class TreeUnits:
    """What a packing starts from.

    Attributes:
        trees: k, trees per unit of weight.
        inv_rate: Time per shard that the packing will take: U / k, in 1 / (GB/s).
        capacity: Trees that each link carries (int64).
        roots: Trees to root at each node (int64): k times its weight.
    """

    trees: int
    inv_rate: Fraction
    capacity: NDArray[np.int64]
    roots: NDArray[np.int64]


def exact_units(network: Network, inv_rate: Fraction) -> TreeUnits:
    """The least k that reaches ``inv_rate`` with an integral number of trees on every link.

    Raises:
        InputError: If the integers do not fit 62 bits.
    """
    trees = exact_trees(network, inv_rate)
    return floor_units(network, trees=trees, scale=trees * inv_rate)


def exact_trees(network: Network, inv_rate: Fraction) -> int:
    """The least k that reaches ``inv_rate`` with an integral number of trees on every link, however large."""
    topology = network.topology
    needed = (inv_rate / topology.denominator).denominator
    return needed // gcd(needed, *topology.capacity.tolist())


def floor_units(network: Network, *, trees: int, scale: Fraction) -> TreeUnits:
    """Capacities ``floor(scale * rate)`` for ``trees`` trees per unit of weight; ``scale`` is U.

    Raises:
        InputError: If the integers do not fit 62 bits.
    """
    topology = network.topology
    factor = scale / topology.denominator
    largest = int(topology.capacity.max(initial=0))
    if factor.numerator * largest < 2**63:
        capacity = topology.capacity * factor.numerator // factor.denominator
    else:
        scaled = [c * factor.numerator // factor.denominator for c in topology.capacity.tolist()]
        check_size(sum(scaled), 0)
        capacity = np.array(scaled, dtype=np.int64)
    check_size(int(largest * factor) * topology.num_links, trees * network.total_weight)
    return TreeUnits(trees=trees, inv_rate=scale / trees, capacity=capacity, roots=network.weight * trees)


def check_size(capacity: int, roots: int) -> None:
    """Refuse what the native core cannot count.

    Raises:
        InputError: If a sum reaches 2**62.
    """
    if max(capacity, roots) >= 2**62:
        msg = (
            f"the plan needs trees in units below 2^62, found {max(capacity, roots):.3g}: the rates have too many "
            "digits; round them (`--round 3`) or ask for fewer trees (`--trees auto:1%`)."
        )
        raise InputError(msg)
