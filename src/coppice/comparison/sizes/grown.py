"""Trees of few hops, in several heights and numbers: where messages are short, hops count more than rates."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property

import numpy as np

from coppice.bounds.problem import Problem
from coppice.comparison.sizes.effort import MOST_RANKS
from coppice.planners.alternatives import Alternative
from coppice.planners.choice import PlannerOutput
from coppice.planners.forest.bounded_height import bounded_trees, least_height
from coppice.planners.forest.weighted_height import weighted_trees
from coppice.schedule.forest import Forest
from coppice.schedule.plan import Parameter
from coppice.text import plural
from coppice.topology.symmetry import find_symmetry

_WORTH = 0.98
"""Trees of more hops, or more trees, are looked at where their busiest link carries less than this share."""
_MOST_ROWS, _MOST_TREES = 2**14, 32
"""Transfers and trees of a forest that is looked at."""
_MOST_EDGES, _GROWN = 2**15, 2**10
"""Edges of a forest of weighted trees, and what effort is multiplied by for the trees that are grown for it."""
_MORE_HOPS, _MORE_HOPS_WEIGHTED = 3, 7
"""Trees of one weight, and those of several, are grown with up to so many hops more than the fewest."""
_MOST_IN_VAIN = 2
"""Heights in a row that spare no link after which no higher trees are packed in weights."""


class GrownTrees:
    """Forests of few hops of a problem.

    Args:
        made: What there is already, among it the forest of the optimal rate.
        inv_rate: The problem's bound on the inverse of the rate.
        growing: Ranks that trees are grown to, with those of all roots and numbers of trees.
    """

    def __init__(
        self, problem: Problem, made: Sequence[Alternative], inv_rate: Fraction, growing: int
    ) -> None:
        self.problem, self.made, self.inv_rate, self.growing = problem, made, inv_rate, growing

    def at(self, *, loaded: bool) -> list[Alternative]:
        """All that there are, those in weights only where links are ``loaded``."""
        return [*self._low, *self._weighted] if loaded else self._low

    @cached_property
    def _orbits(self) -> int:
        """Roots whose trees are grown; the others have images of them."""
        problem = self.problem
        ranks = problem.topology.num_ranks
        return 1 if problem.root is not None else ranks // find_symmetry(problem.topology).order

    @property
    def _phases(self) -> int:
        """Phases of the collective that have trees of their own."""
        problem = self.problem
        return 2 if problem.collective.reduces and problem.root is None and len(problem.phases) > 1 else 1

    @cached_property
    def _fewest(self) -> int | None:
        """Least hops of trees; None where there are none, or where growing them takes more than the effort allows."""
        problem = self.problem
        ranks = problem.topology.num_ranks
        if problem.weights is not None or not problem.collective.made_of_trees or ranks < 3:
            return None
        if self._orbits * ranks > self.growing or ranks > MOST_RANKS:
            return None
        return least_height(problem)

    @cached_property
    def _low(self) -> list[Alternative]:
        """Forests of few hops in several numbers of trees."""
        problem, fewest = self.problem, self._fewest
        if fewest is None:
            return []
        ranks, rooted, orbits = problem.topology.num_ranks, problem.root is not None, self._orbits
        inv_rate = self.inv_rate / self._phases
        found: list[tuple[int, float, Alternative]] = []
        for height in range(fewest, fewest + _MORE_HOPS + 1):
            name = f"trees of {plural(height, 'hop')}"
            for trees in self._numbers:
                rows = trees * ranks * (1 if rooted else ranks)
                if trees * ranks * orbits > self.growing or rows > _MOST_ROWS:
                    continue
                grown = bounded_trees(problem, height=height, trees=trees, inv_rate=inv_rate)
                if grown is None:
                    continue
                busy = grown.inv_rate
                if any(fewer <= trees and busy > _WORTH * other for fewer, other, _ in found):
                    continue  # more hops or more trees for nothing
                parameters: dict[str, Parameter] = {"height": height, "grown_trees": trees}
                made = PlannerOutput(body=grown.forest(), parameters=parameters)
                found.append((trees, busy, Alternative(name=name, made=made)))
        return [one for _, _, one in found]

    @cached_property
    def _weighted(self) -> list[Alternative]:
        """Forests of few hops in weights, with ever more hops until links carry next to what they can."""
        fewest, inv_rate = self._fewest, self.inv_rate / self._phases
        found: list[tuple[float, Alternative]] = []
        if fewest is None:
            return []
        in_vain = 0
        for height in range(fewest, fewest + _MORE_HOPS_WEIGHTED + 1):
            packed = weighted_trees(
                self.problem,
                height=height,
                inv_rate=inv_rate,
                most_grown=_GROWN * self.growing // self.problem.topology.num_ranks**2,
                most_edges=_MOST_EDGES,
            )
            if packed is None:
                continue
            in_vain += 1
            if not found or packed.inv_rate <= _WORTH * found[-1][0]:
                in_vain = 0
                made = PlannerOutput(body=packed.forest(), parameters={"height": height, "weighted": True})
                name = f"weighted trees of {plural(height, 'hop')}"
                found.append((packed.inv_rate, Alternative(name=name, made=made)))
            if in_vain == _MOST_IN_VAIN or _WORTH * packed.inv_rate <= len(packed.phases) * inv_rate:
                break
        return [one for _, one in found]

    @property
    def _numbers(self) -> list[int]:
        """Numbers of trees at a root that are worth a trial, among them those of the optimal forest.

        From one root as many as there are other ranks let each of them pass on a share.
        """
        rooted, ranks = self.problem.root is not None, self.problem.topology.num_ranks
        exact = next((one.made.body for one in self.made if isinstance(one.made.body, Forest)), None)
        numbers = {8, 24, ranks - 1} if rooted else {1, 2, 8}
        if exact is not None:
            shares = exact.total_weight // int(np.gcd.reduce(exact.tree_weight))
            numbers.add(min(shares // (1 if rooted else ranks) or 1, _MOST_TREES))
        return sorted(numbers)
