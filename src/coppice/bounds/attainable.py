"""Bounds that depend on switch capabilities: unequal in- and out-capacity, multicast, reduction.

The cut bound assumes that all capacity can be used. A switch that cannot copy sends at most what it gets, so
with one-way degradation, measured rates or removed links some outgoing capacity is useless, and a cut may
promise too much. The attainable optimum lowers the link rates first: maximise x over c <= b with out_c(w) <=
in_c(w) at every switch that cannot copy and all cut conditions on c. Such a c can be packed (edge splitting
keeps the conditions).

Copying and adding switches relax what a schedule may do, so the bounds below hold for every schedule made of
trees that uses them. They need not be reached: packing trees with several copying switches is a Steiner
problem (a butterfly has bound 2 and best packing 3/2).

All-gather, reduce-scatter, broadcast and reduce are limited by what has to cross a cut, which no switch
changes: copying only undoes what a switch short of input loses. All-reduce gains, since a switch that adds
sends one stream where it got many.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from coppice.bounds.all_reduce import combined_all_reduce
from coppice.bounds.lp.cuts import CutProgram, TreePhase
from coppice.bounds.network import Network, cut_bound
from coppice.bounds.problem import Problem
from coppice.bounds.result import Bound, CutFamily
from coppice.collectives import Collective
from coppice.errors import CheckError, InputError


class Attainable(NamedTuple):
    """Rate that forests attain."""

    inv_rate: Fraction  # Least time per shard in 1 / (GB/s)
    # GB/s of each link (in the order of the problem's topology) that can all be packed
    capacity: list[Fraction]
    proof: CutFamily | None  # The witness that nothing takes less time; None where the bottleneck cut is one


def attainable_rate(
    problem: Problem, *, copying: Collection[int] = (), time_limit: float = math.inf
) -> Attainable:
    """Least time per shard of all_gather, reduce_scatter, broadcast or reduce that forests attain.

    Args:
        copying: Nodes that may send more than they get (copy, or add for collectives that reduce); the result is
            then only a bound for them.

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
        raise InputError(
            f"expected a collective of one phase of trees, found {problem.collective}: see its own bound."
        )
    topology, network = problem.topology, Network.of(problem)
    best = cut_bound(network).inv_rate
    everything = [topology.gb_per_s(e) for e in range(topology.num_links)]
    reverse = problem.collective.reduces
    balanced = ~network.terminal
    balanced[list(copying)] = False
    if best == 0 or not (balanced & network.short_of_input).any():
        return Attainable(best, everything, None)
    program = CutProgram(
        topology=topology,
        phases=[TreePhase(reverse=reverse, spanned=network.terminal, balanced=balanced)],
        group=np.where(network.weight > 0, 0, -1).astype(np.int32),
        weight=network.weight,
    )
    total, unit = network.total_weight, topology.denominator
    outcome = program.solve(time_limit=time_limit)
    if outcome.rates is None:
        raise CheckError(
            f"the attainable optimum of {topology.name!r} was not proved in time (cut bound {best}): "
            "round the rates (`round_digits=3`) or give it more time."
        )
    inv_rate = total / (outcome.rates.rate / unit)
    dual = outcome.multipliers
    return Attainable(
        inv_rate,
        [rate / unit for rate in outcome.rates.link_rate[0]],
        None if inv_rate == best or dual is None else program.witness(dual, inv_rate),
    )


@dataclass(frozen=True, kw_only=True)
class InNetworkBound:
    """Bound on schedules that use switch multicast and reduction."""

    inv_rate: Fraction  # No schedule takes less time per shard, in 1 / (GB/s)
    copying: tuple[int, ...]  # Node ids of the switches that may copy
    adding: tuple[int, ...]  # Node ids of the switches that may add
    proof: CutFamily | None = None  # The witness; None where the bottleneck cut is one


def in_network_bound(problem: Problem, *, time_limit: float = math.inf) -> InNetworkBound:
    """Least time per shard with the multicast and reduction that the topology declares.

    Examples:
        >>> from coppice.topology.model import Link, Node, NodeKind, Topology
        >>> switch = Node(id="nvs", kind=NodeKind.SWITCH, multicast=True, aggregate=True)
        >>> box = Topology.of("box", [*(Node(id=f"g{i}") for i in range(8)), switch],
        ...     [Link(src=f"g{i}", dst="nvs", gb_per_s=Fraction(300)) for i in range(8)])
        >>> in_network_bound(Problem(topology=box, collective=Collective.ALL_REDUCE)).inv_rate
        Fraction(1, 300)
    """
    topology, collective = problem.topology, problem.collective
    if not collective.made_of_trees:
        raise InputError(f"{collective} sends nothing twice and adds nothing up: leave out `in_network`.")
    forwards = topology.rank < 0
    copying = tuple(np.flatnonzero(forwards & topology.multicast).tolist())
    adding = tuple(np.flatnonzero(forwards & topology.aggregate).tolist())
    if collective is not Collective.ALL_REDUCE:
        free = adding if collective.reduces else copying
        rate = attainable_rate(problem, copying=free, time_limit=time_limit)
        return InNetworkBound(inv_rate=rate.inv_rate, copying=copying, adding=adding, proof=rate.proof)
    result = combined_all_reduce(problem, in_network=True, shortcut=False, time_limit=time_limit)
    if topology.num_ranks == 1:
        return InNetworkBound(inv_rate=Fraction(0), copying=copying, adding=adding)
    if not result.upper:
        raise CheckError(
            f"no in-network bound on {topology.name!r} was proved within the limits: give it more time."
        )
    return InNetworkBound(inv_rate=1 / result.upper, copying=copying, adding=adding, proof=result.proof)


def in_network_optimum(plain: Bound) -> Bound:
    """The bound with switch multicast and reduction; the rate without them becomes an alternative.

    Args:
        plain: The bound of the same problem without them.
    """
    helped = in_network_bound(plain.problem)
    inv_rate = helped.inv_rate
    return replace(
        plain,
        inv_rate=inv_rate,
        # a cut proves nothing beyond the bound by cuts: it does not know what a switch cannot copy
        cut=plain.cut if inv_rate <= plain.inv_rate else (),
        attainable=None,
        alternatives={**plain.alternatives, "without in-network": plain.attainable or plain.inv_rate},
        method="upper bound with switches that copy or add",
        capacity=None,
        combined=None,
        proof=helped.proof,
    )
