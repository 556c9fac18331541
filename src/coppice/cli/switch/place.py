"""`coppice switch place`: choose the switches of a network that aggregate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from coppice.cli.options.declaring import with_options
from coppice.cli.options.inputs import TopologyOptions, parse_ranks
from coppice.cli.output import Stages, print_fields, print_json
from coppice.options import option
from coppice.options.shared import USUAL_SIZE, JsonOption, SizeOption
from coppice.text import percent_text, plural, shortened, size_text, time_text

if TYPE_CHECKING:
    from coppice.innetwork.placement import AggregationPlacement, BusiestLink

_MOST_NAMES = 12
_MOST_JOBS = 4


@with_options("topology boxes budget jobs trees size ranks relays rates settings round_digits as_json")
def place(
    where: TopologyOptions,
    *,
    budget: Annotated[int, option("Switches that can get the feature at most.", metavar="K", ge=1)],
    jobs: Annotated[
        list[str] | None,
        option(
            "Ranks that all-reduce together, such as 0-15; repeated for jobs at once [default: all ranks].",
            "--job-ranks",
            metavar="RANKS",
            was=["--job"],
        ),
    ] = None,
    trees: Annotated[
        int,
        option(
            "Equal parts of each job, each added in a tree of its own.",
            "--parts",
            metavar="N",
            ge=1,
            was=["--trees"],
        ),
    ] = 1,
    size: SizeOption = USUAL_SIZE,
    as_json: JsonOption = False,
) -> None:
    """Choose the aggregation switches of a network so that all-reduces load its busiest link least.

    A switch that adds sends one stream towards the root of a tree, and copies the result on its way back; any other
    sends on all that comes in. Streams take the default routes. One job in one tree is solved exactly on networks of
    any size; several are solved exactly or bracketed. Times are those that the busiest link needs at its rate.

    \b
    Examples:
      coppice switch place fat-tree --budget 4
      coppice switch place fat-tree --set leaves=32 --set gpus_per_leaf=32 --set spines=16 --budget 16 --parts 4
      coppice switch place cluster.json --budget 2 --job-ranks 0-7 --job-ranks 8-15 --size 256M --json
    """  # noqa: D301 (\b is for the help formatter)
    with Stages() as stages:
        stages.begin("reading the topology")
        from coppice.innetwork.placement import place_aggregation

        topology = where.load()
        stages.begin("placing")
        found = place_aggregation(
            topology,
            budget=budget,
            jobs=None if jobs is None else [parse_ranks(each, option="--job-ranks") for each in jobs],
            trees=trees,
            size=size,
        )
    if as_json:
        print_json("switch-place", found.record())
        return
    print_fields(_title(found), _fields(found))


def _title(found: AggregationPlacement) -> str:
    jobs = f"{plural(len(found.jobs), 'job')} of " if len(found.jobs) > 1 else ""
    sizes = sorted({len(job) for job in found.jobs})
    ranks = plural(sizes[0], "rank") if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} ranks"
    return f"all-reduce of {size_text(found.size_bytes)} by {jobs}{ranks} on {found.topology.name}"


def _fields(found: AggregationPlacement) -> list[tuple[str, str]]:
    """What is printed about a placement."""
    chosen = shortened(found.chosen, _MOST_NAMES) if found.chosen else "none"
    count = f"{len(found.chosen)} of {found.candidates}"
    fields = [("switches", f"{chosen} ({count}, budget {found.budget})")]
    if found.given:
        fields.append(("have it", shortened(found.given, _MOST_NAMES)))
    several = len(found.jobs) > 1
    fields += [
        (
            f"root of job {at}" if several else "root" if len(roots) == 1 else "roots",
            shortened(roots, _MOST_NAMES),
        )
        for at, roots in enumerate(found.roots[:_MOST_JOBS])
    ]
    if len(found.roots) > _MOST_JOBS:
        fields.append(
            ("and so on", f"for {plural(len(found.roots) - _MOST_JOBS, 'job')} more (`--json` has all)")
        )
    least = time_text(float(found.least_time_us))
    proof = (
        f"{least}: proved, no choice within the budget is better"
        if found.proved
        else f"{least} at least: {percent_text(found.gap, most_decimals=1)} below what was found"
    )
    return [
        *fields,
        ("busiest link", _link(found.busiest)),
        ("lower bound", proof),
        ("everywhere", f"{time_text(float(found.everywhere_us))} at least, if all switches add"),
        ("without", f"{_link(found.without)}: {_times(found, found.without)}"),
        ("host ring", f"{_link(found.ring)}: {_times(found, found.ring)}"),
    ]


def _link(link: BusiestLink) -> str:
    a, b = link.ends
    return f"{time_text(float(link.time_us))}, {a} - {b} carries {size_text(float(link.load_bytes))}"


def _times(found: AggregationPlacement, other: BusiestLink) -> str:
    """How much longer, or shorter, another way takes."""
    return f"{float(other.time_us / found.busiest.time_us):.3g}x the time"
