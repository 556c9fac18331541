"""Bounds: what no schedule can beat, with the cut or dual that proves it."""

from __future__ import annotations

from coppice.bounds.cut_bound import cut_bound
from coppice.bounds.network import Network
from coppice.bounds.result import Bound, Problem
from coppice.collectives import Collective

__all__ = ["Bound", "Problem", "bound"]


def bound(problem: Problem) -> Bound:
    """The least time per shard that the cuts of the topology allow, with the bottleneck cut.

    Raises:
        InputError: If the problem has no meaning on this topology.
        UnreachableError: If some rank cannot be reached.
    """
    network = Network.of(problem)
    result = cut_bound(network)
    inside = set(result.sink_side)
    reduces = network.topology is not problem.topology
    sending = tuple(v for v in range(problem.topology.num_nodes) if (v in inside) == reduces)
    if problem.collective is Collective.ALL_REDUCE:
        reverse = cut_bound(Network.of(problem, reduce=True))
        two_phase = (result.inv_rate + reverse.inv_rate) / problem.topology.num_ranks
        return Bound(problem=problem, inv_rate=two_phase, cut=sending, alternatives={"two-phase": two_phase})
    return Bound(problem=problem, inv_rate=result.inv_rate, cut=sending, attainable=result.inv_rate)
