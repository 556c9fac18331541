"""Plan a collective after faults from the plan of the whole network, at the exact optimum of what is left.

Ways are tried from the one that changes least on: the trees as :func:`coppice.repair` moves them; low trees from the
symmetry that faults leave (:mod:`coppice.planners.forest.orbit_trees`); the trees of the given plan, mended and with
other weights, so that the links are filled exactly (:mod:`coppice.planners.forest.after_fault`); and a plan from
nothing. The optimum of an all-reduce often has other shares of the data at the roots than before, which changes all
trees: then symmetry is tried first. The first that reaches the optimum with trees at most twice as high as before is
taken, and otherwise the fastest, of equals the lowest.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from coppice.arguments import checked
from coppice.bounds.optimum import bound_of
from coppice.bounds.partition import is_even_both_ways
from coppice.bounds.problem import Problem
from coppice.bounds.result import Bandwidths, Bound, load_rates, optimum_rates
from coppice.display import Brief, Shown
from coppice.errors import InputError, UnreachableError
from coppice.planners.choice import PlannerOptions, make_body
from coppice.planners.forest.after_fault import forest_from
from coppice.planners.forest.orbit_trees import orbit_trees
from coppice.planners.forest.repairing import (
    TALLER,
    fault_of,
    repaired_at_rates,
    repaired_plan,
    unmoved_inv_rate,
)
from coppice.schedule.files.plan_file import plan_of
from coppice.schedule.forest import Forest, expanded
from coppice.schedule.loads import body_loads
from coppice.schedule.plan import Plan
from coppice.schedule.shape import highest, shape, tree_heights
from coppice.schedule.verification.report import Report
from coppice.schedule.verification.verify import verify_plan
from coppice.topology.load import load
from coppice.topology.operations import slower_both_ways

if TYPE_CHECKING:
    from coppice.outputs.shapes.planning import ReplannedJson

REPAIRED, REGROWN, REWEIGHTED, ANEW = (
    "trees moved",
    "trees grown by symmetry",
    "trees moved and reweighted",
    "planned anew",
)
"""How plans are found, in the order in which that is tried."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Replanned(Shown, Bandwidths):
    """A verified plan after faults, with the plan before them and the optimum of what is left."""

    before: Plan  # The plan of the whole network
    before_height: int | None  # Hops of its highest tree; None where it has no trees
    plan: Plan  # The plan on the network as it is now, with the bound of that
    report: Report  # Result of the verifier
    max_height: int | None  # Hops of its highest tree; None where it has no trees
    how: str  # How it was found, in words: :data:`REPAIRED`, :data:`REGROWN`, :data:`REWEIGHTED` or :data:`ANEW`
    # Time per shard with all trees as they were; None where a lost link or GPU breaks some, or there are none
    unmoved: Fraction | None
    seconds: float  # Processor time from the old plan to the new one, without verifying it
    verify_seconds: float  # Processor time of the verification

    @property
    def problem(self) -> Problem:
        """The problem on the network as it is now."""
        return self.plan.problem

    @property
    def inv_rate(self) -> Fraction:
        """Time per shard of the new plan, counted by the verifier."""
        return self.plan.inv_rate if self.report.inv_rate is None else self.report.inv_rate

    @property
    def optimum(self) -> Bound:
        """Bound on the network as it is now."""
        if self.plan.bound is None:
            raise InputError("expected a plan with its bound, found none: make it by `coppice.replan`.")
        return self.plan.bound

    @property
    def least(self) -> Fraction:
        """Least time per shard on the network as it is now that schedules can have without copies in switches."""
        return reachable(self.optimum)

    @property
    def loss(self) -> Fraction:
        """Relative loss of the new plan against the optimum of what is left."""
        return 1 - self.least / self.inv_rate if self.inv_rate else Fraction(0)

    @property
    def is_low(self) -> bool:
        """Whether its trees are at most twice as high as those of the whole network."""
        if self.before_height is None or self.max_height is None:
            return True
        return self.max_height <= TALLER * self.before_height

    def __repr__(self) -> str:
        loss = f"{100 * float(self.loss):.3g}% below the optimum" if self.loss else "optimal"
        where = f"{self.problem.collective} on {self.problem.topology.name[:80]}"
        return f"<{where}, {self.how}: algbw {float(self.algbw_gb_per_s):.6g} GB/s, {loss}, verified>"

    def record(self) -> ReplannedJson:
        """The figures as JSON values: fractions as text, nodes by name."""
        before = self.before.algbw_gb_per_s
        optimum = optimum_rates(self.problem, self.least)
        unmoved = self.problem.shards / self.unmoved if self.unmoved else None
        return {
            **self.problem.record(),
            "before_algbw_gb_per_s": float(before),
            "before_algbw_exact_gb_per_s": str(before),
            "before_algbw_exact": str(before),
            "unmoved_algbw_exact_gb_per_s": None if unmoved is None else str(unmoved),
            **optimum,
            "optimum_algbw_exact": optimum["optimum_algbw_exact_gb_per_s"],
            "cut": [self.problem.topology.node_ids[v] for v in self.optimum.cut],
            "cut_in_words": self.optimum.cut_in_words,
            **load_rates(self.problem, self.inv_rate),
            "planned_algbw_exact": str(self.algbw_gb_per_s),
            "loss": str(self.loss),
            "optimal": not self.loss,
            "verified": self.report.ok,
            "found_by": self.how,
            "before_max_height": self.before_height,
            "max_height": self.max_height,
            "replan_seconds": self.seconds,
            "verify_seconds": self.verify_seconds,
        }


def reachable(bound: Bound) -> Fraction:
    """Least time per shard that is reached without copies in switches, as far as it is known."""
    return bound.inv_rate if bound.attainable is None else bound.attainable


@checked
def replan_after_faults(plan: Any, topology: Any) -> Replanned:
    """Plan the collective of a plan anew on its network with faults, changing it as little as that takes.

    Args:
        plan: The plan of the whole network, a result that holds one, or the name of a plan file.
        topology: The network as it is now, or what :func:`coppice.load` takes; nodes keep their names.

    Raises:
        InputError: If ranks are new, fewer than two are left, or the root of the collective left.
        UnreachableError: If some rank cannot be reached any more.
        CheckError: If the plan does not verify, which would be a defect here.

    Examples:
        >>> import coppice
        >>> whole = coppice.load("dgx-a100", boxes=2)
        >>> found = replan_after_faults(coppice.plan(whole, "all_gather"), coppice.degrade(whole, remove=["box1/nic0"]))
        >>> found.loss, found.max_height <= 2 * found.before_height
        (Fraction(0, 1), True)
    """
    given, now = plan_of(plan), load(topology)
    forest = given.forest
    before_height = None if forest is None else highest(forest, tree_heights(forest))
    start = time.process_time()
    verifying = 0.0
    where, problem = fault_of(given, now)
    bound = bound_of(problem)
    best = reachable(bound)
    limit = None if before_height is None else TALLER * before_height
    found: list[_Tried] = []
    unmoved: Fraction | None = None

    def keep(made: Plan, how: str) -> None:
        nonlocal verifying
        began = time.process_time()
        report = verify_plan(made)
        height = report.max_height
        if height is None and made.forest is not None:
            height = shape(made.forest).max_height
        found.append(_Tried(plan=made, how=how, height=height, report=report, limit=limit))
        verifying += time.process_time() - began

    def enough() -> bool:
        return bool(found) and found[-1].is_low and found[-1].plan.inv_rate == best

    if (
        forest is not None
        and not forest.branches_at_switches
        and bool((where[forest.tree_root] < now.num_nodes).any())
    ):
        combined = bound.combined
        tallest = TALLER * int(tree_heights(forest).max())
        moves_roots = combined is not None and combined.rate == 1 / best
        if moves_roots and (grown := _regrown(problem, best, tallest)) is not None:
            unmoved = unmoved_inv_rate(given, now)
            keep(_plan(given, problem, bound, grown), REGROWN)
        if combined is not None and moves_roots and not enough():
            at_rates = repaired_at_rates(given, now, best=best, root_rates=combined.root_rates)
            if at_rates is not None:
                unmoved = unmoved_inv_rate(given, now)
                keep(replace(at_rates, bound=bound), REWEIGHTED)
        if not enough():
            moved, figures = repaired_plan(given, now, best=best)
            unmoved = figures["unmoved"]
            keep(replace(moved, bound=bound), REPAIRED)
        if not moves_roots and not enough() and (grown := _regrown(problem, best, tallest)) is not None:
            keep(_plan(given, problem, bound, grown), REGROWN)
        for most in (tallest, None):
            if not enough() and (fitted := _reweighted(forest, problem, best, most)) is not None:
                keep(_plan(given, problem, bound, fitted), REWEIGHTED)
    if not enough():
        choice = PlannerOptions.of(problem)
        body = make_body(problem, choice, bound).body
        keep(_plan(given, problem, bound, body, planner=choice.algorithm), ANEW)
    chosen = min(found, key=lambda each: each.rank)
    chosen.report.require_ok()
    return Replanned(
        before=given,
        before_height=before_height,
        plan=chosen.plan,
        report=chosen.report,
        max_height=chosen.height,
        how=chosen.how,
        unmoved=unmoved,
        seconds=time.process_time() - start - verifying,
        verify_seconds=verifying,
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class _Tried(Brief):
    """A plan on the network as it is now, one of several ways to get one."""

    plan: Plan
    how: str
    height: int | None
    report: Report
    limit: int | None  # Hops that trees should have at most

    @property
    def is_low(self) -> bool:
        return self.limit is None or self.height is None or self.height <= self.limit

    @property
    def rank(self) -> tuple[Fraction, bool, int]:
        """The fastest comes first, of equals the lowest."""
        return self.plan.inv_rate, not self.is_low, self.height or 0


def _plan(given: Plan, problem: Problem, bound: Bound, body: Any, planner: str = "forest") -> Plan:
    """A plan that claims the time that its busiest link takes."""
    trees = isinstance(body, Forest)
    return Plan(
        problem=problem,
        inv_rate=body_loads(body, problem).inv_rate,
        forest=body if trees else None,
        schedule=None if trees else body,
        bound=bound,
        planner=planner,
        parameters={**given.parameters, "repaired": True} if trees else {},
    )


def _regrown(problem: Problem, best: Fraction, tallest: int) -> Forest | None:
    """Low trees from the symmetry that the faults leave; None where that was not found."""
    for posed in _posed(problem, best):
        if (found := orbit_trees(posed, best, tallest=tallest)) is not None:
            return replace(found, topology=problem.topology)
    return None


def _reweighted(forest: Forest, problem: Problem, best: Fraction, tallest: int | None) -> Forest | None:
    """The given trees, mended and at weights that fill the links exactly; None where that was not found."""
    if problem.root is not None or problem.weights is not None or not best:
        return None
    whole = expanded(forest)
    for posed in _posed(problem, best):
        try:
            found = forest_from(whole, posed, best, tallest=tallest)
        except UnreachableError:
            continue
        if found is not None:
            return replace(found, topology=problem.topology)
    return None


def _posed(problem: Problem, best: Fraction) -> Iterator[Problem]:
    """The problem with faults in one direction taken for faults in both, where that costs nothing; then as it is."""
    if not is_even_both_ways(problem.topology):
        try:
            less = replace(problem, topology=slower_both_ways(problem.topology))
            if reachable(bound_of(less)) == best:
                yield less
        except UnreachableError:
            pass
    yield problem
