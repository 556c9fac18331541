"""The best rate of forests where some switch has more capacity out than in.

The cut bound assumes that all capacity can be used. A switch that cannot copy sends at most what it gets, so
with one-way degradation, measured rates or removed links some outgoing capacity is useless, and a cut may
promise too much. The attainable optimum lowers the link rates first: maximise x over c <= b with out_c(w) <=
in_c(w) at every switch that cannot copy and all cut conditions on c. Such a c can be packed (edge splitting
keeps the conditions).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.cut_bound import cut_bound
from coppice.bounds.lp.cuts import CutProgram, TreePhase
from coppice.bounds.network import Network
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import CheckError, InputError

__all__ = ["Attainable", "attainable_rate"]


class Attainable(NamedTuple):
    """What forests reach.

    Attributes:
        inv_rate: Least time per shard in 1 / (GB/s).
        capacity: GB/s of each link (in the order of the problem's topology) that can all be packed.
    """

    inv_rate: Fraction
    capacity: list[Fraction]


def attainable_rate(
    problem: Problem, *, copying: Collection[int] = (), time_limit: float = math.inf
) -> Attainable:
    """The least time per shard of all_gather, reduce_scatter, broadcast or reduce with forests.

    Args:
        problem: What to do.
        copying: Nodes that may send more than they get (copy, or add for collectives that reduce); the result
            is then only a bound for them.
        time_limit: Seconds for the linear programs.

    Raises:
        InputError: For another collective, or a problem without meaning.
        UnreachableError: If some rank cannot be reached, or not without copying in switches.
        CheckError: If the optimum could not be proved within the limits.

    Examples:
        >>> from coppice.topology.model import Link, Node, NodeKind, Topology
        >>> nodes = [*(Node(id=f"g{i}") for i in range(3)), Node(id="sw", kind=NodeKind.SWITCH)]
        >>> star = Topology.of("star", nodes,
        ...     [Link(src=f"g{i}", dst="sw", gb_per_s=Fraction(1), duplex=False) for i in range(3)]
        ...     + [Link(src="sw", dst=f"g{i}", gb_per_s=Fraction(4), duplex=False) for i in range(3)])
        >>> problem = Problem(topology=star, collective=Collective.ALL_GATHER)
        >>> cut_bound(Network.of(problem)).inv_rate, attainable_rate(problem).inv_rate
        (Fraction(1, 1), Fraction(2, 1))
    """
    if problem.collective is Collective.ALL_REDUCE or not problem.collective.made_of_trees:
        msg = f"expected a collective of one phase of trees, found {problem.collective}: see its own bound."
        raise InputError(msg)
    topology, network = problem.topology, Network.of(problem)
    best = cut_bound(network).inv_rate
    everything = [topology.gb_per_s(e) for e in range(topology.num_links)]
    reverse = problem.collective.reduces
    balanced = ~network.terminal
    balanced[list(copying)] = False
    if best == 0 or not (balanced & short_of_input(network)).any():
        return Attainable(best, everything)
    program = CutProgram(
        topology=topology,
        phases=[TreePhase(reverse=reverse, spanned=network.terminal, balanced=balanced)],
        group=np.where(network.weight > 0, 0, -1).astype(np.int32),
        weight=network.weight,
    )
    total, unit = network.total_weight, topology.denominator
    outcome = program.solve(time_limit=time_limit)
    if outcome.rates is None:
        msg = (
            f"the attainable optimum of {topology.name!r} was not proved in time (cut bound {best}): "
            "round the rates (`round_digits=3`) or give it more time."
        )
        raise CheckError(msg)
    return Attainable(
        total / (outcome.rates.rate / unit), [rate / unit for rate in outcome.rates.link_rate[0]]
    )


def short_of_input(network: Network) -> NDArray[np.bool_]:
    """Nodes with more capacity out than in, in the broadcasting direction."""
    topology = network.topology
    surplus = np.zeros(topology.num_nodes, dtype=np.int64)
    np.add.at(surplus, topology.dst, topology.capacity)
    np.subtract.at(surplus, topology.src, topology.capacity)
    return surplus < 0
