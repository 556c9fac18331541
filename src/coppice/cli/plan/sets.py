"""Sets of plans on the command line: planned, verified, and printed as ranges of sizes."""

from __future__ import annotations

import os
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, cast

from msgspec.structs import asdict, replace

from coppice.cli.output import Stages, print_fields, print_json, print_lines
from coppice.cli.terminal import terminal_width
from coppice.text import columns, plural, seconds_text, short_size, time_text

if TYPE_CHECKING:
    from coppice.cli.options.inputs import ProblemOptions
    from coppice.outputs.shapes.planning import PlanSetJson, SetTimeJson
    from coppice.schedule.files.set_file import PlanRange, PlanSet
    from coppice.verbs.planning import SizedPlanOptions


def names_folder(output: str) -> bool:
    """Whether an output is a folder, by how it is written or by what is there."""
    return output.endswith(("/", os.sep)) or Path(output).is_dir()


def print_planned_set(
    asked: ProblemOptions, options: SizedPlanOptions, folder: Path, *, least_gain: float, as_json: bool
) -> None:
    """Plan a set for the sizes of the options, write it into a folder, and print its ranges."""
    from coppice.schedule.explanation import title_of
    from coppice.verbs.planning import planned_set

    with Stages() as stages:
        stages.begin("reading the topology")
        problem = asked.load_problem()
        found = planned_set(replace(options, on_stage=stages.begin), problem, least_gain=least_gain)
        stages.begin("writing the plans")
        plans = found.plans.save(folder)
    single = found.single.preferred
    if as_json:
        record = {
            **set_record(plans),
            "verified": True,
            "single_plan": single.taken.name,
            "single_loss": single.worst_loss,
            "processor_seconds": process_time(),
        }
        print_json("plan-set", record)
        return
    alone = "loses nothing" if not single.worst_loss else f"loses up to {_percent(single.worst_loss)}"
    fields = [
        *set_fields(plans),
        ("verified", "yes: every plan"),
        ("one plan", f"{single.taken.name} {alone} at these sizes"),
        ("took", f"{seconds_text(process_time())} of processor time in all"),
        ("written to", f"{folder}"),
    ]
    print_fields(title_of(plans.problem), fields)
    print_lines(["", *range_lines(plans)])


def verify_set(path: str, *, as_json: bool) -> None:
    """Verify the plans of a set, and what it claims of times; print what was found."""
    from coppice.schedule.explanation import title_of
    from coppice.schedule.files.set_file import read_plan_set
    from coppice.schedule.verification.verify import verify_plan_set
    from coppice.simulation.set_times import timer_of

    with Stages() as stages:
        stages.begin("reading the plans")
        plans = read_plan_set(path)
        stages.begin("verifying the plans, and simulating them again")
        report = verify_plan_set(plans, time_us=timer_of(plans))
    if as_json:
        record = {
            **set_record(plans),
            "verified": report.ok,
            "failures": list(report.failures),
            "checked": report.checked,
            "sums": None if report.sums is None else report.sums.record(),
        }
        print_json("verify-set", record)
    else:
        fields = [("failure", sentence) for sentence in report.failures]
        fields += set_fields(plans)
        fields += [(name, each.proof_in_words if each.ok else "FAILED") for name, each in report.reports]
        if report.sums is not None:
            fields.append(("sums", report.sums.words))
        if report.ok:
            fields.append(("times", "as claimed, simulated again; `coppice bound --size` proves least times"))
        verdict = "verified" if report.ok else "FAILED"
        print_fields(f"{title_of(plans.problem)}: {verdict}", fields)
        print_lines(["", *range_lines(plans)])
    report.require_ok()


def set_record(plans: PlanSet) -> PlanSetJson:
    """A set as JSON values."""
    return {
        **plans.problem.record(),
        "model_name": plans.model_name,
        "least_gain": plans.least_gain,
        "plan_ranges": [
            {
                "first_bytes": each.first_bytes,
                "last_bytes": each.last_bytes,
                "plan_file": each.file or None,
                "planner": each.plan.planner,
                "sizes": [cast("SetTimeJson", asdict(row)) for row in each.sizes],
            }
            for each in plans.ranges
        ],
    }


def set_fields(plans: PlanSet) -> list[tuple[str, str]]:
    """Output lines about a set."""
    sizes = plans.sizes
    words = plural(len(plans.plans), "plan")
    if sizes:
        ends = " to ".join(dict.fromkeys(short_size(row.size_bytes) for row in (sizes[0], sizes[-1])))
        within = f"within {_percent(plans.least_gain)} of the fastest found at each"
        words = f"{words} for {plural(len(sizes), 'size')} from {ends}, {within}"
    return [("plans", words), ("model", plans.model_name)]


def range_lines(plans: PlanSet) -> list[str]:
    """Table with a row for each range: its plan, and how it does at its first and last size."""
    heads = ["sizes", "plan", "by", "simulated", "over least time"]
    rows = [
        [each.text, each.file or "not written", _planner(each), _times(each), _gaps(each)]
        for each in plans.ranges
    ]
    return columns([heads, *rows], "rllll", max_width=terminal_width(), spare=[4, 2, 3])


def _planner(each: PlanRange) -> str:
    return each.plan.planner or "unknown planner"


def _times(each: PlanRange) -> str:
    """Times at the ends of a range."""
    ends = list(dict.fromkeys(each.sizes[:1] + each.sizes[-1:]))
    return ", ".join(f"{short_size(row.size_bytes)} {time_text(row.simulated_seconds * 1e6)}" for row in ends)


def _gaps(each: PlanRange) -> str:
    """How much longer the plan takes than the least time, over a range."""
    if not each.sizes:
        return ""
    low, high = (_percent(pick(row.gap for row in each.sizes)) for pick in (min, max))
    return low if low == high else f"{low} to {high}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
