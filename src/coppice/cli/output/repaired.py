"""Implementation of `coppice plan --repair`."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from coppice.cli.output.render import Stages, print_fields, print_json
from coppice.errors import InputError
from coppice.text import bandwidth_text, percent_text, plural, seconds_text

if TYPE_CHECKING:
    from coppice.bounds.result import Bandwidths
    from coppice.cli.options.problem import ProblemOptions
    from coppice.planners.forest.repairing import RepairedResult
    from coppice.schedule.plan import Plan

MAKING = {
    "algorithm": "--algorithm",
    "parameters": "--parameter",
    "order": "--order",
    "relay_gpus": "--relay-gpus",
    "trees": "--trees",
    "sizes": "--sizes",
    "prefer": "--prefer",
    "in_network": "--in-network",
    "ring": "--ring",
    "weights": "--weights",
    "model": "--model",
}
"""Options of `plan` that say how trees are made, or for what; a repair has them from the plan."""


def print_repaired(
    source: Path, asked: ProblemOptions, given: set[str], *, output: Path | None, printed: bool, as_json: bool
) -> None:
    """Repair the plan of a file on the given topology, write it, and print the outcome.

    Args:
        source: The plan file.
        asked: Options of the command.
        given: Names of those that the command line has.
        output: Where the repaired plan goes, None: nowhere.
        printed: The plan goes to standard output.
        as_json: Print JSON.

    Raises:
        InputError: If an option contradicts the plan, or the plan cannot be repaired.
    """
    from coppice.planners.forest.repairing import repair
    from coppice.schedule.explanation import title_of
    from coppice.schedule.files.plan_file import read_plan, write_plan

    with Stages() as stages:
        stages.begin("reading the plan")
        plan = read_plan(source)
        _require_agreement(plan, asked, given)
        stages.begin("reading the topology")
        topology = asked.load()
        stages.begin("repairing the plan")
        result = repair(plan, topology)
        if output is not None:
            stages.begin("writing the plan")
            write_plan(result.plan, output)
    if as_json:
        print_json("plan-repair", result.record())
        return
    fields = _fields(plan, result)
    if output is not None and not printed:
        fields.append(("written to", str(output)))
    print_fields(title_of(result.problem), fields, file=sys.stderr if printed else sys.stdout)


def _require_agreement(plan: Plan, asked: ProblemOptions, given: set[str]) -> None:
    """Refuse options that say something else than the plan."""
    for name, option in MAKING.items():
        if name in given:
            raise InputError(
                f"a repair keeps the trees of its plan, found {option} as well: leave out {option} or --repair."
            )
    problem = plan.problem
    for name, old, new in (
        ("collective", problem.collective, asked.collective),
        ("root", problem.root, asked.root),
    ):
        if name in given and old != new:
            raise InputError(
                f"the plan to repair has {name} {old}, found --{name} {new}: leave out --{name}."
            )


def _rate(of: Bandwidths) -> str:
    return bandwidth_text(of.algbw_gb_per_s, of.busbw_gb_per_s)


def _fields(plan: Plan, result: RepairedResult) -> list[tuple[str, str]]:
    """The lines about a repair."""
    gone = f", {result.dropped} of ranks that left dropped" if result.dropped else ""
    trees = f"{result.kept} kept, {result.rerouted} rerouted, {result.rehung} made anew{gone}"
    unmoved = "impossible: some cross what is lost"
    if result.unmoved is not None:
        slower = 1 - plan.inv_rate / result.unmoved if result.unmoved else Fraction(0)
        unmoved = f"{percent_text(slower)} slower than before" if slower > 0 else "as fast as before"
    return [
        ("before", _rate(plan)),
        ("all trees kept", unmoved),
        ("repaired", f"{_rate(result)}: {_optimum_text(result)}"),
        ("trees", trees),
        ("verified", f"yes; {result.report.proof_in_words}"),
        ("took", f"{seconds_text(result.cpu_seconds)} of processor time to repair"),
    ]


def _optimum_text(result: RepairedResult) -> str:
    """How far the plan is from the optimum, or that this is not known."""
    loss = result.loss
    if loss is None:
        ranks = plural(result.problem.topology.num_ranks, "rank")
        return f"the optimum was not computed for {ranks} (`coppice bound` does)"
    return f"{percent_text(loss)} below the optimum" if loss else "optimal"
