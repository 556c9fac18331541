"""The figures of a bound as people and scripts ask for them: rates, trees per root, loss of fewer trees."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from coppice.bounds import bound
from coppice.bounds.attainable import in_network_optimum
from coppice.bounds.describe import describe_cut
from coppice.bounds.network import Network, cut_bound
from coppice.bounds.problem import Problem
from coppice.bounds.result import Bandwidths, Bound
from coppice.bounds.tree_units import FixedTrees, exact_units, fixed_trees, smallest_trees
from coppice.collectives import Collective

__all__ = ["BoundFigures", "bound_figures", "bound_record"]


@dataclass(frozen=True, kw_only=True)
class BoundFigures(Bandwidths):
    """A bound with the number of trees that it needs, or that was asked for.

    Attributes:
        bound: The optimum and its cut.
        inv_rate: Time per shard that is possible as asked: the optimum's, or with that number of trees.
        trees_per_root: Trees at each root: as asked, or the least number that reaches the optimum exactly;
            None where roots need different numbers, or the collective is not made of trees.
        exact_with_trees: Whether ``inv_rate`` is known to be reached with that many trees; otherwise it is
            a lower bound on the time, because rounding unbalances a switch.
    """

    bound: Bound
    inv_rate: Fraction
    trees_per_root: int | None
    exact_with_trees: bool = True

    @property
    def problem(self) -> Problem:
        """What was asked."""
        return self.bound.problem

    @property
    def loss(self) -> Fraction:
        """Share of the optimal rate that is lost."""
        return self.loss_against(self.bound)


def bound_figures(
    problem: Problem, *, trees: int | None = None, tolerance: Fraction | None = None, in_network: bool = False
) -> BoundFigures:
    """Bound ``problem``, with any number of trees or with a given one.

    Args:
        problem: What to bound.
        trees: Trees per root, or None for as many as the optimum takes.
        tolerance: Instead of ``trees``: the fewest whose time is within this share of the optimum.
        in_network: Switches that can copy or add may do so.

    Raises:
        InputError: If the problem has no meaning on its topology.
        UnreachableError: If some rank cannot be reached.

    Examples:
        >>> from coppice.topology.model import Link, Node, Topology
        >>> ring = [Link(src=a, dst=b, gb_per_s=Fraction(25)) for a, b in ("ab", "bc", "ca")]
        >>> topology = Topology.of("ring", [Node(id=name) for name in "abc"], ring)
        >>> figures = bound_figures(Problem(topology=topology, collective=Collective.ALL_GATHER))
        >>> figures.inv_rate, figures.trees_per_root, figures.algbw_gb_per_s
        (Fraction(1, 25), 1, Fraction(75, 1))
    """
    found = bound(problem)
    if in_network:
        found = in_network_optimum(found)
    if not problem.collective.made_of_trees or not found.inv_rate:
        return BoundFigures(bound=found, inv_rate=found.inv_rate, trees_per_root=None)
    phases = [_phase(network, trees, tolerance) for network in _phases(problem)]
    total = sum((phase.inv_rate for phase in phases), Fraction(0))
    if problem.collective is Collective.ALL_REDUCE:
        total /= problem.topology.num_ranks
    counts = {phase.trees for phase in phases}
    same_roots = len(counts) == 1 and len(set(problem.weights or (1,))) == 1
    if trees is None and tolerance is None:
        same_roots = same_roots and total == found.inv_rate
        total = found.inv_rate
    return BoundFigures(
        bound=found,
        inv_rate=total,
        trees_per_root=min(counts) * (problem.weights or (1,))[0] if same_roots else None,
        exact_with_trees=all(phase.balanced for phase in phases),
    )


def bound_record(figures: BoundFigures) -> dict[str, Any]:
    """The figures as JSON values: fractions are strings, rates floats as well, nodes by name."""
    found = figures.bound
    problem, topology = found.problem, found.problem.topology
    optimum = found.algbw_gb_per_s
    return {
        **problem.record(),
        **figures.rates_record(),
        "trees_per_root": figures.trees_per_root,
        "cut": [topology.node_ids[node] for node in found.cut],
        "cut_in_words": describe_cut(found),
        "optimum_inv_rate": str(found.inv_rate),
        "optimum_algbw_exact": str(optimum),
        "attainable_inv_rate": None if found.attainable is None else str(found.attainable),
        "alternatives": {name: str(rate) for name, rate in found.alternatives.items()},
        "method": found.method,
    }


def _phases(problem: Problem) -> list[Network]:
    """The network of each phase."""
    if problem.collective is Collective.ALL_REDUCE:
        return [Network.of(problem, reduce=True), Network.of(problem, reduce=False)]
    return [Network.of(problem)]


def _phase(network: Network, trees: int | None, tolerance: Fraction | None) -> FixedTrees:
    """Number of trees and time per shard of one phase."""
    optimum = cut_bound(network).inv_rate
    if trees is not None:
        return fixed_trees(network, trees, optimum=optimum)
    if tolerance is not None:
        return smallest_trees(network, tolerance, optimum=optimum)
    return FixedTrees(trees=exact_units(network, optimum).trees, inv_rate=optimum, balanced=True)
