"""`coppice degrade`: what faults cost, the plan for what is left, and whether to keep or drain."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from coppice.cli.options.declaring import with_options
from coppice.cli.options.faults import Faults
from coppice.cli.options.inputs import TopologyOptions
from coppice.cli.output import Stages, print_fields, print_json, print_lines, to_stdout
from coppice.cli.train.estimate import answers_record, answers_table
from coppice.collectives import Collective
from coppice.options import option
from coppice.options.shared import CollectiveOption, JsonOption, OutputOption
from coppice.text import bandwidth_text, columns, percent_text, seconds_text, short_size, time_text
from coppice.verbs.replanning import FaultCosts, FaultOptions, replanned

if TYPE_CHECKING:
    from coppice.planners.replanning import Replanned


@with_options(
    "topology removed nodes links one_way collective root sizes model plan job parallel global_batch output boxes "
    "rates settings as_json"
)
def degrade(
    asked: TopologyOptions,
    faults: Faults,
    options: FaultOptions,
    *,
    collective: CollectiveOption = Collective.ALL_REDUCE,
    plan: Annotated[
        Path | None,
        option("The plan of the whole network [default: the optimal one].", "--repair", metavar="PLAN.json"),
    ] = None,
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compute what faults cost a collective, and plan it for what is left.

    The rate before, the rate with nothing done, and the exact optimum of what is left with its bottleneck; then a
    verified plan that is made from the old one and changes as little of it as the optimum takes. With --size, the times
    before and now, beside what is fastest now. With --job, whether to keep the boxes with faults, or to drain them.

    \b
    Examples:
      coppice degrade dgx-a100 --boxes 2 --remove box1/nic0 --slow box0/nic3=30%
      coppice degrade cluster.json --link leaf0,spine1=50% --one-way -c all_gather --size 1M,64M
      coppice degrade cluster.json --remove box1/nic0 --repair plan.json -o now.json
      coppice degrade dgx-a100 --boxes 4 --remove box0/nic1 --job gpt-7.5b --parallel tp=4,dp=8 --global-batch 128
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.schedule.explanation import title_of
    from coppice.schedule.files.plan_file import write_plan

    with Stages() as stages:
        stages.begin("reading the topology")
        whole = asked.load()
        now = faults.of(whole)
        found = replanned(options, whole, now, collective, plan, stages.begin)
        if output is not None:
            stages.begin("writing the plan")
            write_plan(found.replanned.plan, output)
    printed = to_stdout(output, as_json=as_json)
    if as_json:
        print_json("degrade", record(found))
        return
    fields = replanned_fields(found.replanned)
    if output is not None and not printed:
        fields.append(("written to", str(output)))
    file = sys.stderr if printed else sys.stdout
    print_fields(title_of(found.replanned.problem), fields, file=file)
    if found.model is not None:
        rows = [("size", "before", "now", "fastest now", f"model {found.model.name}")]
        for row in found.times:
            size, before, after = short_size(row.size_bytes), time_text(row.before_us), time_text(row.now_us)
            rows.append((size, before, after, time_text(row.fastest_us), row.fastest))
        print_lines(columns(rows, "lrrrl"))
    print_lines(answers_table(found.ways))


def record(found: FaultCosts) -> dict[str, Any]:
    """What faults cost, as JSON values."""
    from coppice.simulation.simulated import model_record

    times = {}
    if found.model is not None:
        times = {"sizes": [each.record() for each in found.times], "model": model_record(found.model)}
    return {**found.replanned.record(), **times, **answers_record(found.ways)}


def replanned_fields(found: Replanned) -> list[tuple[str, str]]:
    """The lines about the rates before and after, and the new plan."""
    before, optimum = found.before, found.optimum
    busbw = optimum.problem.busbw_factor
    best = optimum.problem.shards / found.least if found.least else found.algbw_gb_per_s
    unmoved = "impossible: trees cross what is gone"
    if found.unmoved is not None:
        loss = 1 - before.inv_rate / found.unmoved if found.unmoved else Fraction(0)
        unmoved = f"{percent_text(loss)} slower than before" if loss > 0 else "as fast as before"
    elif found.before.forest is None:
        unmoved = "not known: the plan is not made of trees"
    cost = 1 - best / before.algbw_gb_per_s if before.algbw_gb_per_s else Fraction(0)
    change = f"{percent_text(cost)} less than before" if cost > 0 else "as much as before"
    reached = f"{percent_text(found.loss)} below the optimum" if found.loss else "the optimum"
    fields = [
        ("before", bandwidth_text(before.algbw_gb_per_s, before.busbw_gb_per_s)),
        ("nothing done", unmoved),
        ("optimum now", f"{bandwidth_text(best, best * busbw)}: {change}"),
        ("bottleneck now", optimum.cut_in_words),
        ("new plan", f"{bandwidth_text(found.algbw_gb_per_s, found.busbw_gb_per_s)}: {reached}"),
        ("made by", found.how),
    ]
    if found.max_height is not None:
        was = "" if found.before_height is None else f", {found.before_height} before"
        fields.append(("height", f"{found.max_height} at most{was}"))
    fields.append(("verified", f"yes; {found.report.proof_in_words}"))
    took = f"{seconds_text(found.seconds)} of processor time to plan, {seconds_text(found.verify_seconds)} to verify"
    fields.append(("took", took))
    return fields
