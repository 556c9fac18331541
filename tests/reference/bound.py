"""The exact throughput bound by discrete Newton steps with plain max-flows.

Theory. The optimum is 1/x* = max over vertex sets S that miss a terminal of w(S) / out(S) (ForestColl, arXiv
2402.06787; its predecessor arXiv 2305.18461, "optimality"). Add a source s with an arc of capacity w(c) * x
to every terminal c: rate x is feasible iff maxflow(s -> t) >= w(all) * x for every terminal t. The papers
search x by bisection in floats. Here: W. Dinkelbach's method for ratios ("On nonlinear fractional
programming", Management Science 13, 1967), also called discrete Newton: test the largest ratio known; a
terminal that gets too little shows a cut with a larger ratio; take exactly that ratio and test again. Only
ratios of real cuts are ever tested, each larger than the one before, so it ends at the maximum, with a cut
that attains it.

The test runs in integers: with ratio p/q, link capacities p * b and source arcs q * w, terminals need q *
w(all).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from reference.maxflow import max_flow
from reference.network import Link, Network, Supply, scaled_to_integers

SOURCE = -1


@dataclass(frozen=True)
class Optimum:
    """Time per unit of weight, and a sending side S that proves it (empty where nothing has to move)."""

    inv_rate: Fraction
    cut: frozenset[int]


def optimum(network: Network, supply: Supply) -> Optimum | None:
    """The cut bound for spreading data from terminals to all terminals; None where it is impossible."""
    total = sum(supply.values())
    everything = frozenset(range(network.num_nodes))
    best = Optimum(Fraction(0), frozenset())
    for v in network.terminals:
        if supply[v] == total:
            continue
        if network.entering([v]) == 0:
            return None
        ratio = Fraction(total - supply[v]) / network.entering([v])
        if ratio > best.inv_rate:
            best = Optimum(ratio, everything - {v})
    if not best.cut:
        return best
    integers, denominator = scaled_to_integers(network.capacity)
    while True:
        ratio = best.inv_rate / denominator
        capacity = {link: c * ratio.numerator for link, c in integers.items()}
        demands = {v: w * ratio.denominator for v, w in supply.items()}
        cut = find_violated_cut(network, capacity, demands)
        if cut is None:
            return best
        if network.leaving(cut) == 0:
            return None
        best = Optimum(sum(supply[v] for v in cut if v in supply) / network.leaving(cut), cut)


def find_violated_cut(
    network: Network, capacity: Mapping[Link, int], supply: Supply
) -> frozenset[int] | None:
    """A vertex set S that misses a terminal and has capacity out < supply inside, if there is one."""
    arcs = dict(capacity)
    arcs.update({(SOURCE, v): amount for v, amount in supply.items()})
    for terminal in network.terminals:
        flow = max_flow(arcs, SOURCE, terminal)
        if flow.value < sum(supply.values()):
            return frozenset(v for v in flow.source_side if isinstance(v, int)) - {SOURCE}
    return None
