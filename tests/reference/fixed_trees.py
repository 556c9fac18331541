"""The least time with a given number of trees per root, under the published rule of rounding down.

Theory (ForestColl, arXiv 2402.06787, "fixed k"; arXiv 2305.18461): with k trees per unit of weight and 1/U
the rate of one tree, link e has room for floor(U * b(e)) trees. U*(k) is the least U whose rounded capacities
let k * w(all) trees reach every terminal. Room grows with U and changes only where some U * b(e) is an
integer, so U*(k) is one of the breakpoints m / b(e); and with the optimum 1/x* per unit of weight

    k / x*  <=  U*(k)  <=  k / x* + 1 / min b(e),

since at the right end floor(U * b(e)) >= (k / x*) * b(e). Collect the breakpoints in between, sort, bisect.

The rule ignores that a switch may then have more room out than in; where that happens U*(k) / k is only a
lower bound on the time per unit of weight.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor

from reference.bound import find_violated_cut, optimum
from reference.network import Network, Supply


def room(network: Network, inv_tree_rate: Fraction) -> dict[tuple[int, int], int]:
    """Trees that fit through each link."""
    return {link: floor(inv_tree_rate * c) for link, c in network.capacity.items()}


def smallest_inv_tree_rate(network: Network, supply: Supply, *, trees: int) -> Fraction | None:
    """U*(k) for k = ``trees`` per unit of weight; None where the problem is impossible."""
    best = optimum(network, supply)
    if best is None or not best.inv_rate:
        return None if best is None else Fraction(0)
    low = trees * best.inv_rate
    high = low + 1 / min(network.capacity.values())
    breakpoints = sorted(
        {
            Fraction(m) / b
            for b in set(network.capacity.values())
            for m in range(ceil(low * b), floor(high * b) + 1)
        }
    )
    wanted = {v: trees * w for v, w in supply.items()}
    first, last = 0, len(breakpoints) - 1
    while first < last:
        middle = (first + last) // 2
        if find_violated_cut(network, room(network, breakpoints[middle]), wanted) is None:
            last = middle
        else:
            first = middle + 1
    return breakpoints[first]


def floors_stay_balanced(network: Network, inv_tree_rate: Fraction) -> bool:
    """Rounding down leaves no switch with more room out than in, so that U*(k) is attained."""
    rounded = {link: Fraction(c) for link, c in room(network, inv_tree_rate).items()}
    return Network(network.num_nodes, network.terminals, rounded).can_forward_all()
