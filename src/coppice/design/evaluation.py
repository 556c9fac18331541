"""Evaluate a graph: verify and simulate its schedule, and compare it with the bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from coppice.bounds.all_to_all.concurrent_flow import concurrent_flow
from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.bounds.result import Bound
from coppice.collectives import Collective
from coppice.design.families.family import optimum
from coppice.design.graph import Graph
from coppice.design.recipes.recipe import Recipe
from coppice.design.schedules.breadth_first import moore_steps
from coppice.design.schedules.collectives import Designed, breadth_first_schedule
from coppice.errors import InputError
from coppice.planners.flow import plan_all_to_all
from coppice.planners.forest.planner import plan_forest
from coppice.schedule.forest import Forest
from coppice.schedule.plan import Plan
from coppice.schedule.schedule import Schedule
from coppice.schedule.verification.report import Report
from coppice.schedule.verification.verify import verify_plan
from coppice.simulation.models import ALPHA_BETA
from coppice.simulation.simulated import model_record
from coppice.simulation.simulator import fastest
from coppice.topology.model import Topology

if TYPE_CHECKING:
    from coppice.outputs.shapes.networks import GraphDesignJson

COLLECTIVES = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE, Collective.ALL_TO_ALL)


@dataclass(frozen=True, eq=False, kw_only=True)
class Evaluation:
    """Rates of a graph's schedule and its bound."""

    graph: Graph  # The network
    # The schedule by steps and its loads; None for all-to-all, which is routed by a flow
    designed: Designed | None
    plan: Plan  # The schedule as a plan, with the bound beside it
    report: Report  # What the verifier says
    times_us: dict[int, float]  # Simulated time by size in bytes
    # The same for the trees of the forest planner; empty where they were not asked for
    forest_times_us: dict[int, float]

    @property
    def bound(self) -> Bound:
        """Lower bound for any schedule on this graph."""
        if self.plan.bound is None:
            raise InputError("an evaluation has a bound, found none: make it with `evaluate`.")
        return self.plan.bound

    @property
    def share_of_optimum(self) -> Fraction:
        """Rate of the schedule over that of the bound, with a barrier after each step."""
        return self.bound.inv_rate / self.plan.inv_rate if self.plan.inv_rate else Fraction(1)

    def record(self) -> GraphDesignJson:
        """The figures as JSON values: fractions are strings, nodes are names."""
        graph, designed, found = self.graph, self.designed, self.bound
        cut = [self.plan.topology.node_ids[node] for node in found.cut]
        return {
            "recipe": graph.name,
            "ranks": graph.num_nodes,
            "degree": graph.degree,
            "link_count": graph.num_links,
            "links": graph.num_links,
            "bidirectional": graph.bidirectional,
            "collective": self.plan.problem.collective.value,
            "steps": None if designed is None else designed.steps,
            "moore_steps": moore_steps(graph.num_nodes, graph.degree),
            "step_loads": None if designed is None else [str(load) for load in designed.step_loads],
            "t_b": None if designed is None else str(designed.bandwidth_time),
            "t_b_least": str(optimum(graph.num_nodes)),
            "pieces": None if designed is None else designed.pieces,
            "planner": planner_name(designed),
            "loss_by_pieces": None if designed is None else str(designed.loss),
            "load_ns_per_byte": str(self.plan.inv_rate),
            "inv_rate": str(self.plan.inv_rate),
            "optimum_ns_per_byte": str(found.inv_rate),
            "bound_inv_rate": str(found.inv_rate),
            "cut": cut,
            "bound_cut": cut,
            "share_of_optimum": float(self.share_of_optimum),
            "verified": self.report.ok,
            "failures": list(self.report.failures),
            "checked": self.report.checked,
            "model": model_record(ALPHA_BETA),
            "simulated_us": {str(size): time for size, time in self.times_us.items()},
            "forest_simulated_us": {str(size): time for size, time in self.forest_times_us.items()},
        }


def evaluate(
    graph: Graph,
    topology: Topology,  # What `graph.to_topology(..)` returned
    # All-gather, reduce-scatter, all-reduce (breadth-first broadcast) or all-to-all (concurrent flow)
    collective: Collective | str = Collective.ALL_GATHER,
    *,
    # What the graph was built from: the schedule of its expansions is taken where it is faster
    recipe: Recipe | None = None,
    pieces: int | None = None,  # Pieces of every shard; None takes as many as the least loads need
    sizes: Sequence[int] = (),  # Message sizes M in bytes to simulate
    with_forest: bool = False,  # Plan trees on the same graph as well, and simulate them
    on_stage: Callable[[str], None] | None = None,
) -> Evaluation:
    """Schedule a collective on a graph, verify it, simulate it, and compare it with the bound.

    Examples:
        >>> from coppice.design.recipes.parser import parse
        >>> graph = parse("hypercube(3)").build()
        >>> found = evaluate(graph, graph.to_topology(gb_per_s=25), sizes=[2**20])
        >>> found.report.ok, str(found.share_of_optimum), found.times_us[2**20] > 2**20 * 7 / 8 / 75e3
        (True, '1', True)
    """
    collective = Collective.named(collective)
    if collective not in COLLECTIVES:
        raise InputError(
            f"expected one of {', '.join(COLLECTIVES)} for a direct-connect graph, found {collective}."
        )
    tell = on_stage or (lambda _: None)
    problem = Problem(topology=topology, collective=collective)
    designed: Designed | None = None
    body: Schedule
    if collective is Collective.ALL_TO_ALL:
        tell("routing the flow")
        flow = concurrent_flow(problem)
        body, inv_rate = plan_all_to_all(problem, bound=flow), flow.reached
        found = Bound(problem=problem, inv_rate=flow.inv_rate, cut=(), method=flow.method)
    else:
        tell("scheduling")
        designed = breadth_first_schedule(graph, topology, collective, recipe=recipe, pieces=pieces)
        body = designed.schedule
        inv_rate = designed.inv_rate(_link_rate(graph, topology))
        tell("finding the bound")
        found = bound_of(problem)
    made = Plan(
        problem=problem,
        inv_rate=inv_rate,
        schedule=body,
        bound=found,
        planner=planner_name(designed),
        parameters={"recipe": graph.name, "pieces": 1 if designed is None else designed.pieces},
    )
    tell("verifying")
    report = verify_plan(made)
    tell("simulating")
    forest_times: dict[int, float] = {}
    times = _times(body, sizes)
    if with_forest and collective is not Collective.ALL_TO_ALL:
        tell("planning trees")
        forest_times = _times(plan_forest(problem), sizes)
    return Evaluation(
        graph=graph, designed=designed, plan=made, report=report, times_us=times, forest_times_us=forest_times
    )


def planner_name(designed: Designed | None) -> str:
    """Name of the planner of the schedule."""
    if designed is None:
        return "concurrent-flow"
    return "expansion" if designed.expanded else "breadth-first"


def _link_rate(graph: Graph, topology: Topology) -> Fraction:
    """Rate of a link of capacity 1 in GB/s."""
    if not topology.num_links:
        return Fraction(1)
    sent = int(topology.capacity.sum()) * Fraction(1, topology.denominator)
    return sent / int(graph.count[graph.src != graph.dst].sum())


def _times(body: Schedule | Forest, sizes: Sequence[int]) -> dict[int, float]:
    """Simulated time by size, with the fastest number of pieces of every chunk."""
    pieces = 1 if isinstance(body, Schedule) else None
    return {
        size: fastest(body, size, model=ALPHA_BETA, pieces=pieces, keep_hops=False).time_us for size in sizes
    }
