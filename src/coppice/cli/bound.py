"""`coppice bound`: print the optimal rate of a collective, and its bottleneck cut."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from coppice.cli.options.declaring import with_options
from coppice.cli.options.inputs import ProblemOptions
from coppice.cli.options.measuring import chosen_model
from coppice.cli.output import Stages, print_fields, print_json, print_lines, to_stdout
from coppice.cli.terminal import terminal_width
from coppice.errors import InputError
from coppice.options import option
from coppice.options.shared import JsonOption, ModelOption, TreesOption
from coppice.text import (
    bandwidth_text,
    columns,
    number,
    parse_sizes,
    percent_text,
    plural,
    rate_line,
    seconds_text,
    short_size,
    time_text,
)
from coppice.verbs.bounding import GB, GroupBoundOptions

if TYPE_CHECKING:
    from coppice.bounds.figures import BoundFigures
    from coppice.bounds.result import Bound
    from coppice.simulation.least_time import LeastTime


@with_options(
    "topology boxes collective root weights demands sizes model trees groups job global_batch priority ranks relays "
    "in_network rates settings round_digits output as_json"
)
def bound(
    asked: ProblemOptions,
    options: GroupBoundOptions,
    *,
    sizes: Annotated[
        str | None,
        option(
            "Least time at these message sizes as well, with a certificate each: 64K, 1K,1M or 1K:4G.",
            "--size",
            "--sizes",
            "-s",
            metavar="SIZES",
        ),
    ] = None,
    model: ModelOption = None,
    trees: TreesOption = None,
    output: Annotated[
        Path | None,
        option(
            "With --size: file for the certificates, which `coppice verify` checks.",
            "-o",
            "--output",
            metavar="FILE",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the optimal rate of a collective on a topology, exactly, with the bottleneck cut that proves it.

    No schedule is faster than this, whatever its algorithm: the bytes that must cross the bottleneck cut need that
    long. Where switches can copy and add, it holds for schedules that do without, and the bound with them stands
    beside it. Rates are GB/s (1e9 bytes per second), algbw and busbw as in nccl-tests. With --groups, the least time in
    which the network carries what all groups of a training job exchange, and the links that set it.

    \b
    Examples:
      coppice bound dgx-a100 --boxes 2 --collective all_gather
      coppice bound cluster.json --collective broadcast --root 3
      coppice bound dgx-a100 --boxes 2 --collective all_gather --size 1K:4G:16
      coppice bound dgx-a100 --boxes 4 --ranks 0-15 --json
      coppice bound torus --set dims=4x4x4 --collective all_to_all
      coppice bound dgx-h100 --boxes 128 --groups tp=8,pp=8,dp=16 --job gpt-175b --global-batch 1024
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.bounds.figures import bound_figures, bound_record
    from coppice.planners.choice import trees_and_tolerance
    from coppice.schedule.explanation import title_of
    from coppice.schedule.files.bounds_file import write_bounds
    from coppice.simulation.least_time import LeastTimes, least_record

    if sizes is None and (model is not None or output is not None):
        raise InputError("expected --model and -o with --size, found one alone: give the sizes.")
    if options.at_once:
        if sizes is not None:
            raise InputError("expected groups of a job at once, found --size with them: leave it out.")
        if (
            trees is not None
            or asked.root is not None
            or asked.weights is not None
            or asked.demands is not None
        ):
            raise InputError(
                "expected groups of a job at once, found --trees, --root, --weights or --demands with them: "
                "leave these out."
            )
        _print_together(asked, options, as_json=as_json)
        return
    if sizes is not None and options.in_network:
        raise InputError("expected --size without --in-network, found both: leave one out.")
    count, tolerance = trees_and_tolerance(trees)
    with Stages() as stages:
        stages.begin("reading the topology")
        problem = asked.load_problem()
        stages.begin("computing the bound")
        figures = bound_figures(problem, trees=count, tolerance=tolerance, in_network=options.in_network)
        times: list[LeastTime] = []
        if sizes is not None:
            stages.begin("computing least times")
            times = LeastTimes(problem, chosen_model(model)).over(parse_sizes(sizes, option="--size"))
            if output is not None:
                write_bounds(
                    [bound for each in times for bound in each.bounds], output, model=times[0].model.name
                )
    printed = to_stdout(output, as_json=as_json)
    if as_json:
        more = {"sizes": [least_record(each) for each in times]} if times else {}
        print_json("bound", {**bound_record(figures), **more})
        return
    (name, optimum), *fields = bound_fields(figures.bound)
    if figures.switches_could_help:
        optimum = f"{optimum}, where only GPUs copy and add"
    elif figures.in_network:
        optimum = f"{optimum}, where switches copy and add if they can"
    fields = [
        (name, optimum),
        *fields,
        *_class_fields(figures),
        *_tree_fields(figures, asked=trees is not None),
    ]
    fields.append(("rates", figures.problem.topology.source or "as the topology states them"))
    if times:
        fields.append(("least time under", times[0].model.text))
        if output is not None and not printed:
            fields.append(("written to", str(output)))
    print_fields(title_of(problem), fields, file=sys.stderr if printed else sys.stdout)
    if times and not printed:
        print_lines(["", *_times_table(times)])


def _times_table(times: list[LeastTime]) -> list[str]:
    """A line for each size."""
    rows = [("size", "least time", "algbw", "limited by")]
    for each in times:
        rate = f"{number(each.size_bytes / each.time_us / 1000)} GB/s" if each.time_us else "-"
        rows.append((short_size(each.size_bytes), time_text(each.time_us), rate, each.limit))
    return columns(rows, "rrrl", max_width=terminal_width())


def _print_together(asked: ProblemOptions, options: GroupBoundOptions, *, as_json: bool) -> None:
    """The least time of all groups at once, checked by itself."""
    from coppice.bounds.together.describe import (
        class_fields,
        class_records,
        limit_words,
        shares_of,
        together_record,
    )

    with Stages() as stages:
        stages.begin("reading the topology")
        topology = asked.load()
        stages.begin("computing the bound")
        bounds, title = options.together(topology, str(asked.collective))
        found = bounds[-1]
    if as_json:
        print_json("bound-groups", {**together_record(found), "priority_classes": class_records(bounds)})
        return
    fields = [("least time", f"{seconds_text(float(found.seconds))} in which the network carries all groups")]
    fields = [*class_fields(bounds), *fields]
    fields.append(("limited by", limit_words(found)))
    shares = shares_of(found)
    if len(shares) > 1:
        fields.append(("of it", ", ".join(f"{name} {100 * share:.3g}%" for name, share in shares.items())))
    for each in found.demands:
        size = f"{float(max(each.size_bytes)) / GB:.4g} GB"
        words = f"{each.collective} of up to {size} in {plural(len(each.groups), 'group')} of {each.members}"
        fields.append((each.name, words))
    proof = "the sets" if found.priced is None else "the prices"
    fields.append(("proved", f"counted again from {proof}, the links and what groups exchange"))
    print_fields(title, fields)


def bound_fields(found: Bound) -> list[tuple[str, str]]:
    """Output lines about a bound."""
    from coppice.bounds.describe import describe_cut

    fields = [
        ("optimum", bandwidth_text(found.algbw_gb_per_s, found.busbw_gb_per_s)),
        ("time per shard", f"{found.inv_rate} ns per byte" if found.inv_rate else "0"),
        ("bottleneck", describe_cut(found)),
    ]
    if found.attainable is not None and found.attainable != found.inv_rate:
        fields.append(("known to be reached", _compared(found, found.attainable)))
    fields += [
        (name, _compared(found, rate))
        for name, rate in found.alternatives.items()
        if name != "combined" or rate not in (found.inv_rate, found.alternatives.get("two-phase"))
    ]
    return fields


def _class_fields(figures: BoundFigures) -> list[tuple[str, str]]:
    """The line about the class of schedules, where switches could do more."""
    if not figures.switches_could_help:
        return []
    more = "`--in-network` gives the bound with them"
    if figures.helped is not None:
        rate = bandwidth_text(figures.helped.algbw_gb_per_s, figures.helped.busbw_gb_per_s)
        more = f"with them {rate} at most (`--in-network`)"
    return [("holds for", f"{figures.holds_for}, {more}")]


def _compared(found: Bound, inv_rate: Fraction) -> str:
    """Another rate beside the optimum, and by how much it is worse."""
    if not inv_rate or inv_rate == found.inv_rate:
        return "as fast"
    rate = f"algbw {rate_line(found.problem.shards / inv_rate)}"
    if inv_rate < found.inv_rate:
        return f"{rate}: {float(found.inv_rate / inv_rate):.4g}x as fast"
    return f"{rate}: {percent_text(1 - found.inv_rate / inv_rate)} below the optimum"


def _tree_fields(figures: BoundFigures, *, asked: bool) -> list[tuple[str, str]]:
    """The lines about the number of trees."""
    if figures.trees_per_root is None:
        return []
    if not asked:
        # A plan has fewer where all trees of each shape go together.
        count = figures.trees_per_root
        words = "1 reaches it exactly" if count == 1 else f"{count} reach it exactly, perhaps fewer"
        return [("trees per root", words)]
    rate = bandwidth_text(figures.algbw_gb_per_s, figures.busbw_gb_per_s)
    loss = f"{percent_text(figures.loss)} below the optimum" if figures.loss else "optimal"
    if figures.exact_with_trees:
        line = f"{rate}: {loss}"
    else:
        line = f"at most {rate}: {loss}; {percent_text(figures.open_share)} below that is known to be reached"
    return [(f"with {plural(figures.trees_per_root, 'tree')} per root", line)]
