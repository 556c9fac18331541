"""The bounds by complete enumeration: every vertex subset, every simple path.

Cut bound (ForestColl, arXiv 2402.06787, section on optimality; forwards from Edmonds 1973): data of weight
w(S) must leave every vertex set S that misses a terminal, through links of capacity out(S), so the time per
unit of weight is at least max over such S of w(S) / out(S). With 12 vertices there are 4,096 sets: look at
all of them.

All-to-all is a maximum concurrent flow (Shahrokhi and Matula, J. ACM 37, 1990): the largest rate f that every
ordered pair gets at once. Here as an LP over all simple paths, which is only sensible on a handful of nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from reference.network import Link, Network, Supply, scaled_to_integers


def inv_rate(network: Network, supply: Supply) -> Fraction | None:
    """The least time per unit of weight that any cut allows; None where some cut has no link at all.

    For each weight w that a set can have, only the set with the least capacity out matters.
    """
    capacity, denominator = scaled_to_integers(network.capacity)
    weight, out = _all_subsets(network, capacity, supply)
    worst = Fraction(0)
    for w in np.unique(weight[weight > 0]).tolist():
        narrowest = int(out[weight == w].min())
        if narrowest == 0:
            return None
        worst = max(worst, Fraction(w * denominator, narrowest))
    return worst


def worst_cuts(network: Network, supply: Supply) -> set[frozenset[int]]:
    """All vertex sets S that attain the bound."""
    capacity, denominator = scaled_to_integers(network.capacity)
    weight, out = _all_subsets(network, capacity, supply)
    worst = inv_rate(network, supply)
    if not worst:
        return set()
    scaled = worst / denominator
    attained = np.flatnonzero((weight > 0) & (weight * scaled.denominator == out * scaled.numerator))
    return {
        frozenset(v for v in range(network.num_nodes) if mask >> v & 1)
        for mask in _allowed(network)[attained].tolist()
    }


def violated(network: Network, capacity: dict[Link, int], supply: Supply) -> bool:
    """Some cut of the integer capacities is too narrow for one unit of time: out(S) < w(S)."""
    weight, out = _all_subsets(network, capacity, supply)
    return bool((out < weight).any())


def _allowed(network: Network) -> np.ndarray:
    """Bit masks of all vertex sets that miss at least one terminal."""
    masks = np.arange(2**network.num_nodes, dtype=np.int64)
    everyone = sum(1 << v for v in network.terminals)
    return masks[(masks & everyone) != everyone]


def _all_subsets(
    network: Network, capacity: dict[Link, int], supply: Supply
) -> tuple[np.ndarray, np.ndarray]:
    """Weight and capacity out of every vertex set that misses a terminal."""
    masks = _allowed(network)
    weight = np.zeros(len(masks), dtype=np.int64)
    for v, w in supply.items():
        weight += w * (masks >> v & 1)
    out = np.zeros(len(masks), dtype=np.int64)
    for (u, v), c in capacity.items():
        out += c * ((masks >> u & 1) & ~(masks >> v & 1))
    return weight, out


def all_to_all_rate(network: Network) -> float:
    """The largest rate that every ordered pair of terminals can have at once, to LP precision."""
    import highspy

    lp = highspy.Highs()
    lp.setOptionValue("output_flag", False)
    rate = lp.addVariable(lb=0)
    load: dict[Link, list[object]] = {link: [] for link in network.capacity}
    for a in network.terminals:
        for b in network.terminals:
            if a == b:
                continue
            shares = []
            for path in _simple_paths(network, (a,), b):
                share = lp.addVariable(lb=0)
                shares.append(share)
                for link in itertools.pairwise(path):
                    load[link].append(share)
            lp.addConstr(lp.qsum(shares) >= rate) if shares else lp.addConstr(rate <= 0)
    for link, shares in load.items():
        if shares:
            lp.addConstr(lp.qsum(shares) <= float(network.capacity[link]))
    lp.maximize(rate)
    return lp.getInfo().objective_function_value


def _simple_paths(network: Network, path: tuple[int, ...], end: int) -> Iterator[tuple[int, ...]]:
    for u, v in network.capacity:
        if u == path[-1] and v not in path:
            if v == end:
                yield (*path, v)
            else:
                yield from _simple_paths(network, (*path, v), end)
