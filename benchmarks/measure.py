"""Measure one case in this process and print the figures as JSON: `python benchmarks/measure.py NAME`.

The forest benchmark starts one such process per case, so that the peak memory is the case's own. The last line is
what counts; the bound alone is printed before a plan is made, in case the plan takes too long.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any, TypeVar

from coppice.bounds import bound
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.forest.planner import plan_forest
from coppice.planners.planning import peak_rss_bytes
from coppice.schedule.plan import Plan
from coppice.schedule.shape import shape
from coppice.schedule.verification.verify import verify
from planner_cases import CASES, Case, Work, topology_of

__all__ = ["measure"]

RANDOM_NETWORKS = 500
_REPEAT_BELOW_S = 0.5
_REPEATS = 5

_T = TypeVar("_T")


def timed(work: Callable[[], _T]) -> tuple[_T, float]:
    """The result of ``work`` and its wall time in seconds, the best of five runs where it is short."""
    best = float("inf")
    for _ in range(_REPEATS):
        start = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - start)
        if best > _REPEAT_BELOW_S:
            break
    return result, best


def peak_gib() -> float:
    """Most memory that this process has held, in GiB."""
    return peak_rss_bytes() / 2**30


def measure(case: Case) -> dict[str, Any]:
    """Figures of one case: sizes, seconds, memory, trees, heights, whether verified and optimal."""
    if case.work is Work.RANDOM:
        return _random(case)
    problem = Problem(topology=topology_of(case), collective=Collective.ALL_GATHER)
    topology = problem.topology
    figures: dict[str, Any] = {
        "ranks": topology.num_ranks,
        "nodes": topology.num_nodes,
        "links": topology.num_links,
    }
    optimum, figures["bound_s"] = timed(lambda: bound(problem))
    figures["inv_rate"] = str(optimum.inv_rate)
    if case.work is Work.PLAN:
        print(json.dumps(figures), flush=True)
        figures |= _plan(problem, case.trees, optimum.inv_rate)
    return figures | {"peak_gib": peak_gib()}


def _plan(problem: Problem, trees: int | None, optimum: Fraction) -> dict[str, Any]:
    forest, plan_s = timed(lambda: plan_forest(problem, trees=trees))
    peak = peak_gib()
    reached = verify(Plan(problem=problem, inv_rate=optimum, forest=forest)).inv_rate
    claim = Plan(problem=problem, inv_rate=optimum if reached is None else reached, forest=forest)
    report, verify_s = timed(lambda: verify(claim))
    found = shape(forest)
    return {
        "plan_s": plan_s,
        "verify_s": verify_s,
        "planning_gib": peak,
        "verified": report.ok,
        "planned_inv_rate": str(reached),
        "optimal": reached == optimum,
        "templates": 0 if forest.symmetry is None else forest.num_trees,
        "trees_per_root": found.trees_per_root,
        "distinct_trees": found.distinct_trees,
        "edges": forest.num_edges,
        "max_height": found.max_height,
        "mean_height": float(found.mean_height),
    }


def _random(case: Case) -> dict[str, Any]:
    """Sums over many random networks; heights are the largest and the mean over all of them."""
    seconds = {"bound_s": 0.0, "plan_s": 0.0, "verify_s": 0.0}
    verified = optimal = trees = 0
    tallest, heights = 0, 0.0
    ranks: list[int] = []
    for seed in range(RANDOM_NETWORKS):
        problem = Problem(topology=topology_of(case, seed=seed), collective=Collective.ALL_GATHER)
        ranks.append(problem.topology.num_ranks)
        start = time.perf_counter()
        optimum = bound(problem)
        seconds["bound_s"] += time.perf_counter() - start
        start = time.perf_counter()
        forest = plan_forest(problem)
        seconds["plan_s"] += time.perf_counter() - start
        start = time.perf_counter()
        report = verify(Plan(problem=problem, inv_rate=optimum.inv_rate, forest=forest))
        seconds["verify_s"] += time.perf_counter() - start
        found = shape(forest)
        verified += report.ok
        optimal += report.inv_rate == optimum.inv_rate
        trees += found.distinct_trees
        tallest, heights = max(tallest, found.max_height), heights + float(found.mean_height)
    return {
        "ranks": max(ranks),
        "networks": RANDOM_NETWORKS,
        **seconds,
        "verified": verified == RANDOM_NETWORKS,
        "optimal": optimal == RANDOM_NETWORKS,
        "distinct_trees": trees,
        "max_height": tallest,
        "mean_height": heights / RANDOM_NETWORKS,
        "peak_gib": peak_gib(),
    }


def main() -> None:
    """Measure the case named on the command line."""
    wanted = {case.name: case for case in CASES}[sys.argv[1]]
    print(json.dumps(measure(wanted)))


if __name__ == "__main__":
    main()
