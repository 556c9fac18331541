"""Plan a problem end to end: bound, plan, verification and figures.

``coppice plan`` and ``coppice.plan`` run this. The parts know nothing of each other: the bound comes from the
topology alone, and the verifier counts what the planner made.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from coppice.bounds.attainable import in_network_optimum
from coppice.bounds.describe import alternatives_record
from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem, problem_of
from coppice.bounds.result import Bandwidths, Bound, load_rates, optimum_rates
from coppice.bounds.tree_optimum import TreeOptimum, with_whole_trees
from coppice.display import Shown
from coppice.errors import InputError
from coppice.options.calls import verb
from coppice.planners.alternatives import alternatives
from coppice.planners.choice import PlannerOptions, PlannerOutput, make_body, trees_and_tolerance
from coppice.planners.plan_options import PlanCall
from coppice.planners.ring.best import RingPlan, best_ring
from coppice.schedule.forest import Forest
from coppice.schedule.loads import body_loads
from coppice.schedule.plan import Plan
from coppice.schedule.schedule import Schedule
from coppice.schedule.shape import ForestShape, shape
from coppice.schedule.verification.report import Report
from coppice.schedule.verification.verify import verify_plan

if TYPE_CHECKING:
    from coppice.outputs.shapes.planning import PlannedResultJson

RING_RANKS = 2_048
"""Up to this many ranks the best ring is searched by default; it takes longer than the plan beyond."""


@dataclass(frozen=True, kw_only=True, repr=False)
class PlannedResult(Shown, Bandwidths):
    """A verified plan with its figures."""

    plan: Plan  # The plan, with the bound that it is measured by
    report: Report  # What the verifier says
    shape: ForestShape | None  # Trees and heights, None for a plan that is no forest
    ring: RingPlan | None  # The best ring on the same topology, or None
    ring_searched: bool  # Whether a ring was looked for: without, `ring` says nothing
    seconds: dict[str, float]  # Seconds of each stage by name: bound, plan, verify, figures, ring
    peak_rss_bytes: int  # Most memory that the process ever held, in bytes
    # Where a number of trees was asked for, what each phase can have with it, with the cuts that prove it
    phases: tuple[TreeOptimum, ...] = ()

    @property
    def bound(self) -> Bound:
        """The optimum."""
        if self.plan.bound is None:
            raise InputError("a planned result has a bound, found none: plan with `coppice.plan`.")
        return self.plan.bound

    @property
    def inv_rate(self) -> Fraction:
        """Time per shard of the plan, counted by the verifier."""
        return self.report.inv_rate if self.report.inv_rate is not None else self.plan.inv_rate

    @property
    def problem(self) -> Problem:
        """The problem that was planned."""
        return self.plan.problem

    @property
    def loss(self) -> Fraction:
        """Relative loss of rate against the optimum (0: optimal)."""
        return self.loss_against(self.bound)

    @property
    def loss_with_trees(self) -> Fraction | None:
        """Relative loss against the best forest with as many trees; None where any number may be used.

        0 is proved to be the best. For an all-reduce it is that of two phases.
        """
        if not self.phases:
            return None
        reached = sum((phase.inv_rate for phase in self.phases), Fraction(0))
        return (
            1 - sum((phase.least for phase in self.phases), Fraction(0)) / reached if reached else Fraction(0)
        )

    @property
    def trees_per_root(self) -> int | None:
        """Trees at each root, None where roots differ or there are no trees."""
        return self.shape.trees_per_root if self.shape is not None else None

    @property
    def ring_gain(self) -> Fraction | None:
        """Rate of the plan over that of the best ring, None without a ring."""
        if self.ring is None or not self.inv_rate:
            return None
        return self.ring.inv_rate / self.inv_rate

    def __repr__(self) -> str:
        problem = self.plan.problem
        how = "optimal" if self.loss == 0 else f"{100 * float(self.loss):.3g}% below the optimum"
        return (
            f"<{problem.collective} on {problem.topology.name} by {self.plan.planner}: algbw "
            f"{float(self.algbw_gb_per_s):.6g} GB/s, {how}, verified>"
        )

    def record(self) -> PlannedResultJson:
        """The figures as JSON values: fractions as text, nodes by name."""
        problem, found, trees, gain = self.plan.problem, self.bound, self.shape, self.ring_gain
        ring = None if self.ring is None else str(self.ring.algbw_gb_per_s)
        loss = self.loss_with_trees
        fewest = [phase.fewest for phase in self.phases if phase.fewest is not None]
        worst = self.report.worst_link
        return {
            **problem.record(),
            **optimum_rates(problem, found.inv_rate),
            **found.rates_record(),
            **alternatives_record(found),
            "planner": self.plan.planner,
            "parameters": dict(self.plan.parameters),
            **load_rates(problem, self.inv_rate),
            "optimum_algbw_exact": str(found.algbw_gb_per_s),
            "planned_inv_rate": str(self.inv_rate),
            "planned_algbw_gb_per_s": float(self.algbw_gb_per_s),
            "planned_algbw_exact": str(self.algbw_gb_per_s),
            "planned_busbw_gb_per_s": float(self.busbw_gb_per_s),
            "optimal": self.loss == 0 or self.report.optimal,
            "loss": str(self.loss),
            "ring_algbw_exact_gb_per_s": ring,
            "ring_algbw_exact": ring,
            "ring_gain": None if gain is None else float(gain),
            "trees_per_root": self.trees_per_root,
            "optimal_with_trees": None if loss is None else loss == 0,
            "loss_with_trees": None if loss is None else str(loss),
            "fewest_trees": max(fewest, default=None),
            "distinct_trees": None if trees is None else trees.distinct_trees,
            "max_height": None if trees is None else trees.max_height,
            "mean_height": None if trees is None else float(trees.mean_height),
            "max_link_load": None if self.report.max_link_load is None else str(self.report.max_link_load),
            "worst_link": None if worst < 0 else self.plan.topology.link_name(worst),
            "verified": self.report.ok,
            "planning_seconds": self.seconds["bound"] + self.seconds["plan"],
            "seconds": self.seconds["bound"] + self.seconds["plan"],
            "verify_seconds": self.seconds["verify"],
            "seconds_by_stage": self.seconds,
            "peak_rss_bytes": self.peak_rss_bytes,
        }


@dataclass
class Stopwatch:
    """Seconds by stage, with a callback at the start of each stage."""

    on_stage: Callable[[str], None] | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str, words: str) -> Iterator[None]:
        """Time the body as stage ``name``."""
        if self.on_stage is not None:
            self.on_stage(words)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


@verb(PlanCall)
def plan(asked: PlanCall) -> PlannedResult:
    """Plan ``problem``, verify the plan, and compute its figures.

    Raises:
        InputError: If the problem has no meaning on its topology, an option does not fit it, or the algorithm does
            not serve it.
        UnreachableError: If some rank cannot be reached.
        CheckError: If the plan does not verify, which would be a defect of the planner.
        KeyboardInterrupt: Within a fraction of a second after Ctrl-C.

    Examples:
        >>> from coppice.collectives import Collective
        >>> from coppice.topology.model import Link, Node, Topology
        >>> wires = [Link(src=a, dst=b, gb_per_s=Fraction(25)) for a, b in ("ab", "bc", "ca")]
        >>> topology = Topology.of("ring", [Node(id=name) for name in "abc"], wires)
        >>> result = plan(Problem(topology=topology, collective=Collective.ALL_GATHER))
        >>> result.algbw_gb_per_s, result.loss, result.report.ok
        (Fraction(75, 1), Fraction(0, 1), True)
        >>> plan(Problem(topology=topology, collective=Collective.ALL_GATHER), algorithm="ring").algbw_gb_per_s
        Fraction(75, 2)
    """
    problem = problem_of(
        asked.problem, asked.collective, root=asked.root, weights=asked.weights, demands=asked.demands
    )
    number, within = trees_and_tolerance(asked.trees)
    choice = PlannerOptions.of(
        problem,
        algorithm=asked.algorithm,
        parameters=asked.parameters or {},
        order=asked.order,
        relay_gpus=asked.relay_gpus,
        trees=number,
        tolerance=within if asked.tolerance is None else asked.tolerance,
        in_network=asked.in_network,
    )
    watch = Stopwatch(asked.on_stage)
    with watch.stage("bound", "computing the bound"):
        plain = bound_of(problem)
    with watch.stage("plan", "planning"):
        planner = choice.algorithm
        if asked.choose is None:
            made = make_body(problem, choice, plain)
        else:
            taken = asked.choose(alternatives(problem, choice, plain))
            made, planner = taken.made, taken.planner or planner
        body = made.body
    with watch.stage("bound", "computing the bound"):
        helped = isinstance(body, Forest) and body.branches_at_switches
        found = in_network_optimum(plain) if helped or choice.in_network else plain
        if made.phases and not helped:
            found = with_whole_trees(found, made.phases, _of_phases(problem, plain))
    searched = (
        asked.ring if asked.ring is not None else choice.optimal and problem.topology.num_ranks <= RING_RANKS
    )
    return verified(problem, made, found, planner, watch, ring=searched)


def verified(
    problem: Problem, made: PlannerOutput, found: Bound, planner: str, watch: Stopwatch, *, ring: bool = False
) -> PlannedResult:
    """Verify a planner's output and compute its figures.

    Args:
        found: The bound that it is measured by.
        watch: Has the seconds of the stages ``bound`` and ``plan``, and gets those of the others.
        ring: Look for the best ring to compare with.
    """
    peak = peak_rss_bytes()
    body = made.body
    with watch.stage("verify", "verifying the plan"):
        planned = _plan(problem, made, found, planner)
        report = verify_plan(planned)
        report.require_ok()
    with watch.stage("figures", "measuring the trees"):
        trees_shape = shape(body) if isinstance(body, Forest) else None
    best: RingPlan | None = None
    if ring and problem.collective.made_of_trees:
        with watch.stage("ring", "looking for the best ring"):
            best = best_ring(problem)
    return PlannedResult(
        plan=planned,
        report=report,
        shape=trees_shape,
        ring=best,
        ring_searched=ring,
        seconds=watch.seconds,
        peak_rss_bytes=peak,
        phases=made.phases,
    )


def peak_rss_bytes() -> int:
    """Peak resident set size of this process in bytes.

    Linux counts the parent's memory at the start into ``ru_maxrss``: the process's own high-water mark is read there.
    """
    try:
        status = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _of_phases(problem: Problem, plain: Bound) -> list[Bound]:
    """The bound of each phase; ``plain`` is that of the whole problem."""
    return [plain if each is problem else bound_of(each) for each in problem.phases]


def _plan(problem: Problem, made: PlannerOutput, found: Bound, planner: str) -> Plan:
    """The plan with its provenance; it claims the time that its busiest link takes."""
    body = made.body
    return Plan(
        problem=problem,
        inv_rate=body_loads(body, problem).inv_rate,
        forest=body if isinstance(body, Forest) else None,
        schedule=body if isinstance(body, Schedule) else None,
        bound=found,
        planner=planner,
        parameters=made.parameters,
    )
