"""`coppice plan`: make, verify and summarise an optimal plan, or repair one after a fault."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import replace

from coppice.cli.bound import bound_fields
from coppice.cli.options.declaring import with_options
from coppice.cli.options.inputs import ProblemOptions
from coppice.cli.options.measuring import chosen_model
from coppice.cli.output import Stages, print_fields, print_json, to_stdout
from coppice.cli.plan.groups import print_group_plans
from coppice.cli.plan.sets import names_folder, print_planned_set
from coppice.errors import InputError
from coppice.options import option
from coppice.options.shared import JsonOption
from coppice.simulation.models import Model
from coppice.text import (
    bandwidth_text,
    number,
    percent_text,
    plural,
    seconds_text,
    short_size,
    shortened,
    size_text,
    time_text,
)
from coppice.verbs.bounding import GroupOptions
from coppice.verbs.planning import LeastGainOption, SizedPlanOptions, planned

if TYPE_CHECKING:
    from coppice.bounds.result import Bandwidths
    from coppice.cli.options.inputs import ProblemOptions
    from coppice.comparison.planned import SizedPlan
    from coppice.planners.forest.repairing import RepairedResult
    from coppice.planners.planning import PlannedResult
    from coppice.schedule.plan import Plan
    from coppice.schedule.steady import SteadyRates
    from coppice.schedule.verification.sums import SumOrder
    from coppice.simulation.simulated import Simulated


@with_options(
    "context topology collective algorithm parameters order relay_gpus trees sizes effort least_gain prefer "
    "deterministic groups job global_batch priority repair output boxes "
    "root weights demands ranks relays in_network ring model rates settings round_digits "
    "as_json"
)
def plan(
    context: typer.Context,
    asked: ProblemOptions,
    options: SizedPlanOptions,
    together: GroupOptions,
    *,
    repair: Annotated[
        Path | None,
        option(
            "Fit this plan of the whole network to the topology, from which links or GPUs are lost or slow: trees "
            "that cross none of them stay; the collective is the plan's.",
            metavar="PLAN.json",
        ),
    ] = None,
    output: Annotated[
        str | None,
        option(
            "File to write; a folder (plans/) gets a set: few plans for --sizes, each for a range of them.",
            "-o",
            "--output",
            metavar="FILE",
        ),
    ] = None,
    least_gain: LeastGainOption = 0.03,
    as_json: JsonOption = False,
) -> None:
    """Plan a collective on a topology, verify the plan, and print its rate and its distance from the optimum.

    The plan is optimal unless --algorithm names another algorithm (`coppice algorithms` lists them), --trees asks for
    fewer trees than the optimum takes, or --sizes for what is fastest there; the loss is then stated. Where the output
    is a folder, few plans are made for the sizes, with the bytes at which they change. Every plan is verified before it
    is written, by counting and without any knowledge of how it was made. With --job or --groups all groups of a
    training job are planned at once, so that they share the links. After a fault, --repair fits a plan to what is
    left, sooner than anew, and says how far that is from the optimum where the optimum is known.

    \b
    Examples:
      coppice plan dgx-a100 --boxes 2 --collective all_reduce -o plan.json
      coppice plan cluster.json --collective all_gather --trees auto:1%
      coppice plan mi250 --boxes 2 --collective all_gather --trees 4 --json
      coppice plan mi250 --boxes 2 --collective all_reduce --sizes 1M
      coppice plan dgx-a100 --boxes 2 --collective all_reduce --sizes 1K:4G -o plans/
      coppice plan dgx-a100 --boxes 2 --collective all_reduce --sizes 1K:4G --deterministic -o plans/
      coppice plan dgx-h100 --boxes 4 --collective all_reduce --algorithm rabenseifner --order topology
      coppice plan dgx-h100 --boxes 4 --collective broadcast --algorithm binary --parameter segments=16
      coppice plan dgx-h100 --boxes 4 --collective all_to_all --demands tokens.csv -o plan.json
      coppice plan degraded.json --repair plan.json -o repaired.json
      coppice plan dgx-a100 --boxes 2 --groups tp=8,dp=2 --job gpt-175b --global-batch 16 -o plans/
      coppice plan nccl.xml --ranks 0,1,2 --relay-unranked --collective broadcast --root 1 -o -
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.bounds.result import rates
    from coppice.planners.two_stage import direct_inv_rate
    from coppice.schedule.explanation import title_of
    from coppice.schedule.files.plan_file import write_plan
    from coppice.simulation.simulated import (
        LARGEST_REACH_BYTES,
        model_record,
        simulate_sizes,
        sizes_reaching,
        steady_rates,
    )

    given = given_options(context)
    if together.at_once:
        print_group_plans(asked, together, given, order=options.order, output=output, as_json=as_json)
        return
    if output is not None and names_folder(output):
        if repair is not None:
            raise InputError(f"a repaired plan is one file, found the folder {output}: give `-o plan.json`.")
        print_planned_set(asked, options, Path(output), least_gain=least_gain, as_json=as_json)
        return
    if "least_gain" in given:
        raise InputError(
            "--least-gain is of a set of plans: name a folder for it (`-o plans/`), or leave it out."
        )
    target = None if output is None else Path(output)
    printed = to_stdout(target, as_json=as_json)
    if repair is not None:
        print_repaired(repair, asked, given, output=target, printed=printed, as_json=as_json)
        return
    assumed = chosen_model(options.model)
    with Stages() as stages:
        stages.begin("reading the topology")
        problem = asked.load_problem()
        result, sized = planned(replace(options, on_stage=stages.begin), problem)
        if target is not None:
            stages.begin("writing the plan")
            write_plan(result.plan, target)
        stages.begin("looking for the size that has the rate")
        reached = sizes_reaching(result.plan, _SHARES, model=assumed)
        steady = steady_rates(result.plan, model=assumed)
        sums = _worth_telling(result.plan, asked_for=options.deterministic)
        pipelined: Simulated | None = None
        if reached is not None and None in reached.values():
            (pipelined,) = simulate_sizes(result.plan, [LARGEST_REACH_BYTES], model=assumed)
    direct = direct_inv_rate(problem) if problem.demands is not None else None
    if as_json:
        reached = reached or {}
        at: dict[str, float | None] = {
            f"size_bytes_at_{100 * share:.0f}_percent": reached.get(share) for share in _SHARES
        }
        if pipelined is not None:
            at["reached_at_64_gib_algbw_gb_per_s"] = pipelined.timeline.algbw_gb_per_s
            at["algbw_gb_per_s_at_64_gib"] = pipelined.timeline.algbw_gb_per_s
        figures = {**result.record(), **steady.record(), "processor_seconds": process_time()}
        added: dict[str, Any] = {} if sums is None else {"sums": sums.record()}
        if direct is not None and result.inv_rate:
            added["gain_over_direct"] = float(direct / result.inv_rate)
        print_json("plan", {**figures, **at, **_sized_record(sized), **added, "model": model_record(assumed)})
        return
    timed = [*_pipelined_fields(pipelined, steady), *_sized_fields(sized)]
    if direct is not None and result.inv_rate:
        rate = bandwidth_text(*rates(problem, direct))
        timed.insert(
            0, ("gain over direct", f"{float(direct / result.inv_rate):.3g}x (direct exchange {rate})")
        )
    timed.append(("message size", _reach_text(reached, assumed)))
    if sums is not None:
        timed.append(("sums", sums.words))
    fields = plan_fields(result, timed, processor_seconds=process_time())
    if output is not None and not printed:
        fields.append(("written to", str(output)))
    print_fields(title_of(problem), fields, file=sys.stderr if printed else sys.stdout)


_LOOKED_THROUGH = 2**18
"""Transfers up to which it is looked whether ranks add alike."""


def _worth_telling(plan: Plan, *, asked_for: bool) -> SumOrder | None:
    """In which order the plan adds, where that was asked for, or where ranks may get different bits."""
    from coppice.schedule.verification.sums import sum_order

    schedule = plan.schedule
    if not asked_for and (schedule is None or schedule.num_transfers > _LOOKED_THROUGH):
        return None
    found = sum_order(plan.body)
    return found if asked_for or (found is not None and not found.ranks_agree) else None


def given_options(context: typer.Context) -> set[str]:
    """Options given on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def plan_fields(
    result: PlannedResult,
    timed: list[tuple[str, str]],  # The lines about time at a size
    *,
    processor_seconds: float | None = None,  # What the whole process has taken, from its start on
) -> list[tuple[str, str]]:
    """Output lines about a plan."""
    loss = "optimal" if not result.loss else f"{percent_text(result.loss)} below the optimum"
    if result.loss and result.report.optimal:
        loss = "optimal, as switches only pass on what they get"
    fields = bound_fields(result.bound)
    rate = bandwidth_text(result.algbw_gb_per_s, result.busbw_gb_per_s)
    if any(name == PIPELINED for name, _ in timed):
        rate = f"{rate} by its busiest link"
    fields.append((result.plan.planner, f"{rate}: {loss}"))
    if result.ring_searched:
        fields.append(("gain over best ring", _ring_text(result)))
    fields += timed
    trees = result.shape
    if trees is not None:
        per_root = result.trees_per_root
        shown = "differ" if per_root is None else str(per_root)
        fields.append(("trees", f"{shown} per root, {trees.distinct_trees} distinct{_proved_text(result)}"))
        heights = f"{trees.max_height} at most, {float(trees.mean_height):.3g} on average"
        fields.append(("height", heights + trees.together))
    if result.report.max_link_load is not None:
        fields.append(("worst link load", percent_text(result.report.max_link_load)))
    fields.append(("verified", _verified_text(result)))
    spent = result.seconds["bound"] + result.seconds["plan"]
    checked, memory = seconds_text(result.seconds["verify"]), size_text(result.peak_rss_bytes)
    took = [f"{seconds_text(spent)} to plan", f"{checked} to verify", f"{memory} of memory"]
    if processor_seconds is not None:
        took.insert(2, f"{seconds_text(processor_seconds)} of processor time in all")
    fields.append(("took", ", ".join(took)))
    return fields


def _sized_fields(sized: SizedPlan | None) -> list[tuple[str, str]]:
    """What the plan takes at the sizes that it is for, beside what is fastest there and what nothing undercuts."""
    if sized is None:
        return []
    chosen, words, limits = sized.preferred, [], []
    for size, time_us in chosen.time_us.items():
        name, best = chosen.fastest[size]
        beside = "nothing faster" if time_us <= best else f"{name} {time_text(best)}"
        words.append(f"{short_size(size)} {time_text(time_us)} ({beside})")
        least, gap = sized.least[size], sized.gap(size)
        over = "nothing is faster" if gap <= 0 else f"the plan takes {100 * gap:.3g}% longer"
        limits.append(f"{short_size(size)} {time_text(least.time_us)}, {over}: {least.limit}")
    fields = [("planned for", f"{chosen.taken.name}: {', '.join(words)}")]
    if sized.in_any_order:
        fields.append(("in any order", _any_order_text(sized)))
    if sized.untried:
        names = shortened(list(sized.untried), 6)
        fields.append(("not tried", f"{names}: other algorithms look faster, and --effort high tries more"))
    return [*fields, *(("least time", each) for each in limits)]


def _any_order_text(sized: SizedPlan) -> str:
    """What plans that add in any order take, and what the one order costs."""
    words = []
    for size, (name, time_us) in sized.in_any_order.items():
        cost = sized.preferred.time_us[size] / time_us - 1 if time_us else 0.0
        words.append(f"{short_size(size)} {time_text(time_us)} by {name} ({100 * cost:+.3g}%)")
    return ", ".join(words)


def _sized_record(sized: SizedPlan | None) -> dict[str, Any]:
    """The same as JSON values."""
    if sized is None:
        return {}
    from coppice.simulation.least_time import least_record

    chosen = sized.preferred
    fastest = {str(size): {"name": name, "time_us": us} for size, (name, us) in chosen.fastest.items()}
    times = {str(size): us for size, us in chosen.time_us.items()}
    rows = [
        {
            "simulated_seconds": time_us / 1e6,
            **least_record(sized.least[size]),
            "gap": sized.gap(size),
            **(
                {"in_any_order_seconds": sized.in_any_order[size][1] / 1e6}
                if size in sized.in_any_order
                else {}
            ),
        }
        for size, time_us in chosen.time_us.items()
    ]
    only = rows[0] if len(rows) == 1 else {}
    return {
        "planned_for": {
            "name": chosen.taken.name,
            "time_us_by_size": times,
            "time_us": times,
            "fastest": fastest,
        },
        "sizes": rows,
        "untried_names": list(sized.untried),
        **{key: only[key] for key in ("simulated_seconds", "least_seconds", "gap") if only},
    }


PIPELINED = "steady state"
"""Name of the line about plans whose steps wait for each other, so that links idle in messages of any size."""


def _pipelined_fields(row: Simulated | None, steady: SteadyRates) -> list[tuple[str, str]]:
    """The rate in messages of unbounded size and that of the largest, where they stay below what links let through."""
    if row is None and not steady.steps_wait:
        return []
    largest = f"algbw {number(row.timeline.algbw_gb_per_s)} GB/s at 64 GiB" if row is not None else ""
    if not steady.steps_wait:
        return [("largest", largest)]
    return [(PIPELINED, "; ".join(filter(None, (steady.text, largest))))]


_SHARES = (0.5, 0.9)
"""Shares of the rate whose message sizes are told."""


def _reach_text(reached: dict[float, int | None] | None, model: Model) -> str:
    """From which size on the plan has its rate."""
    if reached is None:
        return "many transfers: `coppice simulate` shows the rate at each size"
    words = [
        f"{'over 64 GiB' if size is None else size_text(size)} for {100 * share:.0f}%"
        for share, size in reached.items()
    ]
    return f"{', '.join(words)} of the rate (model {model.name})"


def _proved_text(result: PlannedResult) -> str:
    """How near the plan is to the best with as many trees, where a number was asked for."""
    loss = result.loss_with_trees
    if loss is None:
        return ""
    as_many = "as many in two phases" if len(result.phases) > 1 else "as many"
    best = (
        f"within {percent_text(loss)} of the best with {as_many}"
        if loss
        else f"nothing faster with {as_many}"
    )
    if any(phase.fewest is None for phase in result.phases):
        return f"; {best}"
    fewest = max(phase.fewest or 0 for phase in result.phases)
    proved = all(phase.fewest == phase.trees for phase in result.phases)
    number = "no fewer will do" if proved else f"{plural(fewest, 'tree')} needed at least"
    return f"; {number}, {best}"


def _ring_text(result: PlannedResult) -> str:
    """Gain over the best ring, or that there is none."""
    gain, ring = result.ring_gain, result.ring
    if not result.plan.problem.collective.made_of_trees:
        return "none: a ring cannot perform it"
    if gain is None or ring is None:
        return "none: no ring passes through all ranks"
    rate = f"best ring {bandwidth_text(ring.algbw_gb_per_s, ring.busbw_gb_per_s)}"
    return f"{float(gain):.3g}x ({rate})"


def _verified_text(result: PlannedResult) -> str:
    """What the verification says."""
    report = result.report
    if not report.ok:
        return f"no: {report.failures[0]}"
    return f"yes; {report.proof_in_words}"


MAKING = {
    "algorithm": "--algorithm",
    "parameters": "--parameter",
    "order": "--order",
    "relay_gpus": "--relay-gpus",
    "trees": "--trees",
    "sizes": "--sizes",
    "effort": "--effort",
    "prefer": "--prefer",
    "deterministic": "--deterministic",
    "in_network": "--in-network",
    "ring": "--ring",
    "weights": "--weights",
    "demands": "--demands",
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
    for name, flag in MAKING.items():
        if name in given:
            raise InputError(
                f"a repair keeps the trees of its plan, found {flag} as well: leave out {flag} or --repair."
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
