"""What the references expect of a whole problem, collectives that reduce included.

A reduce tree is a broadcast tree with every link turned round, so reduce-scatter and reduce on a graph are
all-gather and broadcast on the transposed one. The cut of a collective that reduces is reported as the side S
from which contributions leave: then what lies outside S is what they are added up for.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from reference.bound import optimum
from reference.network import Network, network_of, supply_of

REDUCING = (Collective.REDUCE, Collective.REDUCE_SCATTER)


def broadcast_view(problem: Problem) -> Network:
    """The network as a broadcast sees it: transposed for collectives that reduce."""
    network = network_of(problem.topology)
    return network.transposed() if problem.collective in REDUCING else network


def expected_inv_rate(problem: Problem) -> Fraction | None:
    """Time per shard at the cut bound, by the reference; None where the problem is impossible."""
    best = optimum(broadcast_view(problem), supply_of(problem))
    return None if best is None else best.inv_rate


def cut_ratio(problem: Problem, sending: Iterable[int]) -> Fraction:
    """Time per shard that the links out of ``sending`` need, counted from the links of the topology."""
    inside = set(sending)
    counted = {
        v: w for v, w in supply_of(problem).items() if (v in inside) != (problem.collective in REDUCING)
    }
    return sum(counted.values()) / network_of(problem.topology).leaving(inside)
