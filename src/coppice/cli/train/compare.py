"""`coppice train compare`: compare policies on a job with each other and with the bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from coppice.cli.options.declaring import with_options
from coppice.cli.output.render import Stages, print_json, print_lines
from coppice.cli.train.job_options import LAYOUT_OPTIONS, load_job
from coppice.iteration.job_options import JobOptions
from coppice.options import option
from coppice.options.shared import JobsOption, JsonOption, PlotOption
from coppice.text import columns, percent_text, plural, seconds_text

if TYPE_CHECKING:
    from coppice.iteration.composing.compared import ComparedPolicies, ComparedPolicy


@with_options(f"job policies picture jobs {LAYOUT_OPTIONS} collectives model rates settings ...")
def compare(
    options: JobOptions,
    *,
    policies: Annotated[
        str,
        option(
            "Policies with commas between them, joined by + where they are composed; all.",
            "--policy",
            metavar="LIST",
            was=["--policies"],
        ),
    ] = "all",
    picture: PlotOption = None,
    jobs: JobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate a job, or a workload of layers (.json), under policies, and print a table, the fastest first.

    The baseline (none) runs one forward and one backward pass in turn, and nothing overlaps. Of `all`, the best
    composition of an order, a policy of gradients and policies inside layers is found by trying the two best of each
    together. A policy that does not suit says why in a sentence.

    \b
    Examples:
      coppice train compare gpt-7.5b --topology dgx-a100 --boxes 2 --parallel tp=4,pp=2 --global-batch 32
      coppice train compare job.toml --policy ddp,dear,dear+breadth-first --plot policies.png
      coppice train compare workload.json --policy bytescheduler,p3,ddp --json
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.comparison.plot import check_picture
    from coppice.iteration.composing.compared import compare_on_layers, compare_policies, plot_policies

    names = tuple(name.strip() for name in policies.split(","))
    if picture is not None:
        check_picture(picture)
    layers = options.layers()
    with Stages() as stages:
        if layers is not None:
            title = options.job
            stages.begin("simulating")
            found = compare_on_layers(layers, names, processes=jobs)
        else:
            asked = load_job(options)
            title = f"{asked.name} on {asked.machines.name}"
            stages.begin("simulating")
            found = compare_policies(asked, names, processes=jobs)
    if picture is not None:
        plot_policies(found, picture, title=title)
    if as_json:
        print_json("train-compare", {"job": title, **found.record()})
        return
    print_lines(_text(title, found))


def _text(title: str, found: ComparedPolicies) -> list[str]:
    """The table, and below it what does not suit."""
    lines = [f"{title}: {plural(len(found.rows), 'row')}"]
    for family in found.baselines:
        least = seconds_text(found.compute_seconds(family))
        lines.append(f"no row takes less than {least}, the computation of the busiest device alone")
        rows: list[tuple[str, ...]] = [
            ("policy", "iteration", "gain", "lower bound", "exposed", "messages", "memory")
        ]
        rows += [_cells(found, each) for each in found.rows if each.family == family]
        lines += columns(rows, "lrrrrrr")
    if found.refused:
        lines.append("do not suit:")
        lines += [f"  {each.name}: {each.reason}" for each in found.refused]
    return lines


def _cells(found: ComparedPolicies, each: ComparedPolicy) -> tuple[str, ...]:
    from fractions import Fraction

    from coppice.iteration.composing.compared import gain_of

    baseline = found.baselines[each.family]
    gain = gain_of(each, baseline)
    late = f" ({plural(each.staleness, 'iteration')} late)" if each.staleness else ""
    return (
        f"{each.name}{late}",
        seconds_text(each.seconds),
        "" if each is baseline else percent_text(Fraction(round(gain, 4)), most_decimals=1),
        seconds_text(each.lower_bound_seconds),
        "" if each.exposed_seconds is None else seconds_text(each.exposed_seconds),
        "" if each.messages is None else str(each.messages),
        ""
        if each.memory_bytes is None
        else f"{each.memory_bytes / 1e9:.3g} GB{'' if each.fits else ', too much'}",
    )
