"""Bound of any problem: dispatch to the cut bound and the linear programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from coppice.arguments import checked
from coppice.bounds.all_to_all.distances import proving_cut
from coppice.bounds.network import TRANSPOSED, Network, check_problem, cut_bound
from coppice.bounds.problem import Problem, problem_of
from coppice.bounds.result import Bound, CutFamily, LinkLengths, WeightedCut
from coppice.collectives import Collective
from coppice.topology.model import Topology

if TYPE_CHECKING:
    from coppice.topology.symmetry import Symmetry

LARGE = 1_000
"""Links from which a linear program is worth looking for symmetry first."""

TIME_LIMIT = 60.0
"""Seconds for the linear programs of one bound."""


@checked
def bound(
    problem: Any,
    collective: Collective | str | None = None,
    *,
    root: int | None = None,
    weights: Sequence[int] | None = None,
    demands: Sequence[Sequence[int]] | None = None,
    time_limit: float = TIME_LIMIT,
) -> Bound:
    """Least time per shard of ``problem``, exactly, with the bottleneck cut.

    For all-reduce it is the optimum over reduce trees and broadcast trees together; the two-phase time
    (reduce-scatter, then all-gather) is among the alternatives. For all-to-all it is the maximum concurrent flow.
    Gather and scatter are flows with one sink or source, which reach their narrowest cut. A barrier takes no bandwidth.

    Args:
        problem: What to bound: a :class:`Problem`, what has one, or a topology (also by name) with a ``collective``.
        collective: The collective, where ``problem`` is a topology.
        root: Root rank of a rooted collective; None is 0.
        weights: Relative shard size of each rank (all_gather, reduce_scatter).
        demands: For all_to_all, relative size from each rank to each.
        time_limit: Seconds for linear programs; past it the result is a bracket (``inv_rate`` below ``attainable``).

    Raises:
        InputError: If the problem has no meaning on this topology.
        UnreachableError: If some rank cannot be reached.

    Examples:
        >>> from coppice.topology.model import Link, Node
        >>> ring = Topology.of("ring", [Node(id=name) for name in "abc"],
        ...     [Link(src=a, dst=b, gb_per_s=Fraction(25)) for a, b in ("ab", "bc", "ca")])
        >>> found = bound(Problem(topology=ring, collective=Collective.ALL_GATHER))
        >>> found.inv_rate, found.algbw_gb_per_s
        (Fraction(1, 25), Fraction(75, 1))
    """
    asked = problem_of(problem, collective, root=root, weights=weights, demands=demands)
    return bound_of(asked, time_limit=time_limit)


def bound_of(problem: Problem, *, time_limit: float = TIME_LIMIT) -> Bound:
    """The bound of a problem, as :func:`bound` finds it."""
    if problem.collective is Collective.ALL_REDUCE:
        return all_reduce_bound(problem, time_limit)
    if problem.collective is Collective.ALL_TO_ALL:
        return all_to_all_bound(problem, time_limit)
    network = Network.of(problem)
    result = cut_bound(network)
    if problem.collective is Collective.BARRIER:  # every rank reaches every other; no data move
        return Bound(problem=problem, inv_rate=Fraction(0), cut=(), attainable=Fraction(0), method="no data")
    cut = sending_side(problem, result.sink_side)
    if not problem.collective.made_of_trees or not (network.short_of_input & ~network.terminal).any():
        return Bound(
            problem=problem, inv_rate=result.inv_rate, cut=cut, attainable=result.inv_rate, method="cuts"
        )
    from coppice.bounds.attainable import attainable_rate  # brings the linear programs

    reached = attainable_rate(problem, time_limit=time_limit)
    return Bound(
        problem=problem,
        inv_rate=result.inv_rate,
        cut=cut,
        attainable=reached.inv_rate,
        method="cuts; a linear program for switches with more capacity out than in",
        capacity=reached.capacity,
        proof=reached.proof,
    )


def sending_side(problem: Problem, sink_side: tuple[int, ...]) -> tuple[int, ...]:
    """Side of a cut from which data leaves, given the sink side in the broadcasting direction."""
    if problem.collective in TRANSPOSED:
        return tuple(sorted(sink_side))
    inside = set(sink_side)
    return tuple(v for v in range(problem.topology.num_nodes) if v not in inside)


def all_reduce_bound(problem: Problem, time_limit: float) -> Bound:
    """Better of two phases and the combined optimum, with a proof of optimality."""
    check_problem(problem)
    topology = problem.topology
    gather = bound_of(replace(problem, collective=Collective.ALL_GATHER), time_limit=time_limit)
    scatter = bound_of(replace(problem, collective=Collective.REDUCE_SCATTER), time_limit=time_limit)
    reached = [
        phase.inv_rate if phase.attainable is None else phase.attainable for phase in (gather, scatter)
    ]
    two_phase = sum(reached, Fraction(0)) / topology.num_ranks
    if topology.num_ranks == 1:
        return Bound(problem=problem, inv_rate=two_phase, cut=gather.cut, attainable=two_phase)
    from coppice.bounds.all_reduce import combined_all_reduce  # brings the linear programs

    symmetry = symmetry_for_programs(topology)
    combined = combined_all_reduce(problem, symmetry=symmetry, reached=1 / two_phase, time_limit=time_limit)
    best = min([two_phase] + ([1 / combined.rate] if combined.rate else []))
    proof = narrowest_rank(topology) if combined.proof is None else combined.proof
    alternatives = {"two-phase": two_phase}
    if combined.rate:
        alternatives["combined"] = 1 / combined.rate
    return Bound(
        problem=problem,
        inv_rate=min(best, proof.inv_rate),
        cut=gather.cut if best == two_phase else (),  # beyond two phases no cut sets the rate alone
        attainable=best,
        method=combined.method,
        alternatives=alternatives,
        combined=combined if best < two_phase else None,
        proof=proof,
    )


def narrowest_rank(topology: Topology) -> CutFamily:
    """Rank with the least in- or out-capacity: all reduced data passes it in both directions.

    What trees rooted elsewhere broadcast enters it, and what its own trees reduce does; with out for in the same.
    """
    ranks = topology.rank_nodes
    into, out = topology.capacity_in[ranks], topology.capacity_out[ranks]
    narrowest = int(np.argmin(np.minimum(into, out)))
    node, entering = int(ranks[narrowest]), bool(into[narrowest] <= out[narrowest])
    others = tuple(v for v in range(topology.num_nodes) if v != node)
    least = Fraction(int(min(into[narrowest], out[narrowest])), topology.denominator)
    one, none = Fraction(1), Fraction(0)
    first, second = (one, none) if entering else (none, one)
    return CutFamily(
        inv_rate=1 / least,
        cuts=(
            WeightedCut(nodes=(node,), broadcast=first, reduce=second),
            WeightedCut(nodes=others, broadcast=second, reduce=first),
        ),
    )


def symmetry_for_programs(topology: Topology) -> Symmetry | None:
    """Automorphism group that shrinks the linear programs, where the search for it pays."""
    if topology.num_links < LARGE:
        return None
    from coppice.topology.symmetry import remaining_symmetry

    symmetry = remaining_symmetry(topology)
    return symmetry if symmetry.order > 1 else None


def all_to_all_bound(problem: Problem, time_limit: float) -> Bound:
    """Maximum concurrent flow; lower and upper bounds where the linear program is too large."""
    from coppice.bounds.all_to_all.concurrent_flow import concurrent_flow  # brings the linear programs

    flow = concurrent_flow(problem, time_limit=time_limit)
    cut = proving_cut(problem, flow.length, flow.inv_rate)
    return Bound(
        problem=problem,
        inv_rate=flow.inv_rate,
        cut=cut,
        proof=LinkLengths(inv_rate=flow.inv_rate, length=flow.length) if flow.inv_rate and not cut else None,
        attainable=flow.reached,
        method=flow.method,
    )
