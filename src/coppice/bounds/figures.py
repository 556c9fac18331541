"""Figures of a bound for output: its rates, its alternatives, and the number of trees that reaches it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from coppice.bounds.attainable import in_network_optimum
from coppice.bounds.describe import alternatives_record
from coppice.bounds.network import Network
from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.bounds.result import Bandwidths, Bound, optimum_rates
from coppice.bounds.tree_optimum import TreeOptimum, fewest_trees, tree_optimum
from coppice.bounds.tree_units import exact_trees
from coppice.collectives import Collective
from coppice.topology.operations import without_dead_ends

if TYPE_CHECKING:
    from coppice.outputs.shapes.planning import BoundJson

MOST_HELPED = 256
"""Ranks up to which the bound with the help of switches is computed unasked: it is a linear program."""


@dataclass(frozen=True, kw_only=True)
class BoundFigures(Bandwidths):
    """A bound with the number of trees that reaches it, or the number that was given."""

    bound: Bound  # The optimum and its cut
    # Time per shard that is possible as asked: the optimum's, or with that number of trees
    inv_rate: Fraction
    # Trees at each root: as asked, or the least number that reaches the optimum exactly; None where roots
    # need different numbers, or the collective is not made of trees
    trees_per_root: int | None
    # Time per shard that is known to be reached with that many trees: `inv_rate`, or more on a large network
    # where rounding unbalances a switch; then `inv_rate` is a lower bound
    reached_with_trees: Fraction | None = None
    in_network: bool = False  # Switches that can copy or add may do so
    # The bound with the work of switches that can copy or add, where the topology has some, they may not do
    # so here, and it is small
    helped: Bound | None = None

    @property
    def switches_could_help(self) -> bool:
        """Whether switches that may not multicast or reduce here might improve the bound."""
        if self.in_network or not _switches_can(self.problem):
            return False
        return self.helped is None or self.helped.inv_rate < self.bound.inv_rate

    @property
    def holds_for(self) -> str:
        """The class of schedules that the bound holds for.

        Examples:
            >>> from coppice.topology.presets import preset
            >>> print(bound_figures(Problem(preset("dgx-h100"), Collective.ALL_REDUCE)).holds_for)
            schedules in which only GPUs copy and add: switches of dgx-h100 can as well
        """
        if self.in_network:
            return "schedules in which switches copy and add where they can"
        if self.switches_could_help:
            name = self.problem.topology.name
            return f"schedules in which only GPUs copy and add: switches of {name} can as well"
        if _switches_can(self.problem):
            return "all schedules"
        if not self.problem.collective.made_of_trees:
            return "all schedules: nothing is copied or added"
        return "all schedules: no switch copies or adds"

    @property
    def exact_with_trees(self) -> bool:
        """Whether ``inv_rate`` is known to be reached with that many trees."""
        return self.reached_with_trees in (None, self.inv_rate)

    @property
    def problem(self) -> Problem:
        """The problem that was bounded."""
        return self.bound.problem

    @property
    def loss(self) -> Fraction:
        """Share of the optimal rate that is lost."""
        return self.loss_against(self.bound)

    @property
    def open_share(self) -> Fraction:
        """Share of the rate that is neither reached nor excluded with that many trees."""
        return Fraction(0) if self.reached_with_trees is None else 1 - self.inv_rate / self.reached_with_trees


def bound_figures(
    problem: Problem, *, trees: int | None = None, tolerance: Fraction | None = None, in_network: bool = False
) -> BoundFigures:
    """Bound ``problem``, with any number of trees or a given one.

    Args:
        trees: Trees per root, or None for as many as the optimum takes.
        tolerance: Instead of ``trees``: the fewest whose time is within this share of the optimum.
        in_network: Switches that can copy or add may do so.

    Examples:
        >>> from coppice.topology.model import Link, Node, Topology
        >>> ring = [Link(src=a, dst=b, gb_per_s=Fraction(25)) for a, b in ("ab", "bc", "ca")]
        >>> topology = Topology.of("ring", [Node(id=name) for name in "abc"], ring)
        >>> figures = bound_figures(Problem(topology=topology, collective=Collective.ALL_GATHER))
        >>> figures.inv_rate, figures.trees_per_root, figures.algbw_gb_per_s
        (Fraction(1, 25), 1, Fraction(75, 1))
    """
    found = bound_of(problem)
    helped = None
    if in_network:
        found = in_network_optimum(found)
    elif _switches_can(problem) and problem.topology.num_ranks <= MOST_HELPED:
        small = replace(problem, topology=without_dead_ends(problem.topology))
        helped = in_network_optimum(bound_of(small))
    figures = BoundFigures(
        bound=found, inv_rate=found.inv_rate, trees_per_root=None, in_network=in_network, helped=helped
    )
    if not problem.collective.made_of_trees or not found.inv_rate:
        return figures
    plain = [_plain(phase, found) for phase in problem.phases]
    equal = (problem.weights or (1,))[0] if len(set(problem.weights or (1,))) == 1 else 0
    if trees is None and tolerance is None:
        total = sum((_best(each) for each in plain), Fraction(0)) / _shares(problem)
        counts = {_exact_trees(each) for each in plain} if total == found.inv_rate else set()
        return replace(figures, trees_per_root=_only(counts, equal))
    known = [_with_trees(each, trees, tolerance) for each in plain]
    return replace(
        figures,
        inv_rate=sum((each.least for each in known), Fraction(0)) / _shares(problem),
        trees_per_root=_only({each.trees for each in known}, equal),
        reached_with_trees=sum((each.inv_rate for each in known), Fraction(0)) / _shares(problem),
    )


def bound_record(figures: BoundFigures) -> BoundJson:
    """The figures as JSON values: fractions are strings, rates floats as well, nodes by name."""
    found = figures.bound
    problem, topology = found.problem, found.problem.topology
    optimum = found.algbw_gb_per_s
    return {
        **problem.record(),
        **optimum_rates(problem, found.inv_rate),
        "with_trees": {
            **optimum_rates(problem, figures.inv_rate),
            "trees_per_root": figures.trees_per_root,
            "reached_ns_per_byte": str(figures.reached_with_trees or figures.inv_rate),
        },
        **figures.rates_record(),
        "trees_per_root": figures.trees_per_root,
        "reached_with_trees_inv_rate": str(figures.reached_with_trees or figures.inv_rate),
        "optimum_inv_rate": str(found.inv_rate),
        "optimum_algbw_exact": str(optimum),
        **alternatives_record(found),
        "method": found.method,
        "holds_for": figures.holds_for,
        "rate_source": topology.source,
        "rates": topology.source,
        "with_in_network": None
        if figures.helped is None
        else {**optimum_rates(problem, figures.helped.inv_rate), **figures.helped.rates_record()},
    }


def _switches_can(problem: Problem) -> bool:
    """Whether a switch can copy or add, and the collective lets it."""
    topology = problem.topology
    able = (topology.multicast | topology.aggregate) & (topology.rank < 0)
    return bool(able.any()) and problem.collective.made_of_trees and topology.num_ranks > 1


def _plain(problem: Problem, found: Bound) -> Bound:
    """The bound of one phase without help of switches; ``found`` is the bound of the whole problem."""
    return found if found.problem is problem and found.attainable is not None else bound_of(problem)


def _best(plain: Bound) -> Fraction:
    return plain.inv_rate if plain.attainable is None else plain.attainable


def _shares(problem: Problem) -> int:
    """Phases of an all-reduce take the time of a shard of which there are as many as ranks."""
    return problem.topology.num_ranks if problem.collective is Collective.ALL_REDUCE else 1


def _only(counts: set[int], equal: int) -> int | None:
    """Trees per root where all phases have as many per unit of weight, and all roots the same weight."""
    return min(counts) * equal if len(counts) == 1 and equal else None


def _exact_trees(plain: Bound) -> int:
    """The least number of trees that fills the links of the bound exactly."""
    network = Network.of(plain.problem)
    return exact_trees(network if plain.capacity is None else network.limited(plain.capacity), _best(plain))


def _with_trees(plain: Bound, trees: int | None, tolerance: Fraction | None) -> TreeOptimum:
    """What a number of trees can do in one phase."""
    network = Network.of(plain.problem)
    if tolerance is not None:
        return fewest_trees(network, tolerance, best=_best(plain), capacity=plain.capacity)
    return tree_optimum(network, trees or 0, best=_best(plain), capacity=plain.capacity)


_MAX_GROUPS = 4
