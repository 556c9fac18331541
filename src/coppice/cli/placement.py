"""`coppice placement`: map parallel axes to a cluster, and choose reduction programs along them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from coppice.cli.options.declaring import with_options
from coppice.cli.options.inputs import TopologyOptions
from coppice.cli.options.measuring import chosen_model
from coppice.cli.output import Stages, print_fields, print_json, print_lines
from coppice.cli.terminal import LEAST_WIDTH, terminal_width
from coppice.options import option
from coppice.options.shared import USUAL_SIZE, JsonOption, ModelOption, RelayGpusOption, SizeOption
from coppice.text import columns, plural, size_text, time_text

if TYPE_CHECKING:
    from coppice.comparison.placed import PlacementResult

INTERRUPTED = 130


class ListedPrograms(Struct, frozen=True, kw_only=True):
    """How much is listed."""

    programs: Annotated[int, option("programs of each placement in JSON", ge=1)] = 10


@with_options(
    "topology boxes axes reduce size hierarchy most_calls model relay_gpus listed top ranks relays rates settings "
    "round_digits as_json"
)
def placement(
    where: TopologyOptions,
    *,
    axes: Annotated[
        str,
        option("Size of each axis, the slowest first: dp=4,tp=8.", metavar="NAME=N,..."),
    ],
    reduce: Annotated[
        str,
        option(
            "Axes to all-reduce along: dp; dp+tp for both together; dp,tp for one after the other, each "
            "perhaps with its own size (dp=64M,tp=16M). Every axis has to occur: tp=0 if it exchanges nothing.",
            metavar="NAME,...",
        ),
    ],
    size: SizeOption = USUAL_SIZE,
    hierarchy: Annotated[
        str | None,
        option(
            "Levels from the outside in, such as node=4,gpu=8 [default: boxes and their GPUs].",
            metavar="NAME=N,...",
        ),
    ] = None,
    most_calls: Annotated[int, option("Calls of a program at most.", ge=1, le=5)] = 5,
    model: ModelOption = None,
    relay_gpus: RelayGpusOption = False,
    listed: Annotated[ListedPrograms, option("How many to list", "--list", was=["--limit"])],
    top: Annotated[int, option("How many to print.", metavar="N", ge=1, was=["--rows"])] = 12,
    as_json: JsonOption = False,
) -> None:
    """Time all mappings of parallel axes to the GPUs, each with all reduction programs along them.

    A placement is a matrix: how often each axis is cut at each level of the cluster. A program is a list of
    collectives over parts of a group; each call is simulated with all groups at once, so that they share the
    network, and beside it stands what no schedule of these groups can beat. Ctrl-C keeps the best found so far.

    \b
    Examples:
      coppice placement dgx-h100 --boxes 4 --axes dp=4,tp=8 --reduce dp=64M,tp=1G
      coppice placement dgx-a100 --boxes 4 --axes dp=8,tp=4 --reduce dp=256M,tp=16M --json
    """  # noqa: D301 (\b is for the help formatter)
    with Stages() as stages:
        stages.begin("reading the topology")
        from coppice.comparison.placing import placement as run

        found = run(
            where.load(),
            axes=axes,
            reduce=reduce,
            size=size,
            hierarchy=hierarchy,
            model=chosen_model(model),
            most_calls=most_calls,
            relay_gpus=relay_gpus,
            on_stage=stages.begin,
        )
    if as_json:
        print_json("placement", found.record(most=listed.programs))
    else:
        levels = " x ".join(f"{name} {n}" for name, n in found.hierarchy.items())
        sized = ", ".join(
            f"{'+'.join(each.axes)} ({size_text(each.size_bytes)})" for each in found.best.reductions
        )
        print_fields(f"{axes} on {found.topology.name} ({levels}), reducing {sized}", _fields(found))
        print_lines(["", *_table(found, top)])
    if found.interrupted:
        raise typer.Exit(INTERRUPTED)


def _fields(found: PlacementResult) -> list[tuple[str, str]]:
    """What is printed about the best placement."""
    best = found.best
    counts = sorted({len(each.programs) for one in found.placed for each in one.reductions})
    programs = plural(counts[-1], "program") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} programs"
    seen = "" if len(found.placed) == found.number else f", {len(found.placed)} of them timed"
    fields = [("placements", f"{found.number}{seen}, with {programs} each")]
    if found.interrupted:
        fields.append(("interrupted", "the best found so far"))
    fields += [
        ("best", str(best.placement)),
        *(("program" if not n else "then", each.best.words) for n, each in enumerate(best.reductions)),
        ("time", f"{time_text(best.time_us)}; nothing takes less than {time_text(best.bound_us)}"),
        *(("bound", each.bound_words) for each in best.reductions),
    ]
    if found.default is None:
        fields.append(("default", "no placement has the last axis fastest"))
    else:
        factor = f"{found.default_factor:.3g}x the time of the best"
        fields.append(("default", f"{found.default.placement}: {factor}"))
    left_out = sum(each.left_out for one in found.placed for each in one.reductions)
    if left_out:
        fields.append(
            ("left out", f"{plural(left_out, 'program')} whose devices have no path but through GPUs")
        )
    verified = "not verified: too many transfers"
    if found.verified is not None:
        verified = f"yes: {plural(found.verified, 'group')} of the best, each an all-reduce"
    return [
        *fields,
        ("spread", f"{found.spread:.3g}x from the best to the slowest program of the slowest placement"),
        ("verified", verified),
        ("timed by", f"{found.model.name}: each call simulated with all groups at once"),
    ]


def _table(found: PlacementResult, rows: int) -> list[str]:
    """Placements, the fastest first."""
    heads = (" x ".join(found.hierarchy), "time", "bound", "x best", "program")
    lines = [heads]
    for each in found.placed[:rows]:
        cuts = [
            f"{axis} {'x'.join(map(str, row))}"
            for axis, row in zip(each.placement.axes, each.placement.matrix, strict=True)
        ]
        factor = each.time_us / found.best.time_us if found.best.time_us else 1.0
        short = "; ".join(one.best.short for one in each.reductions)
        lines.append(
            (", ".join(cuts), time_text(each.time_us), time_text(each.bound_us), f"{factor:.2f}", short)
        )
    more = len(found.placed) - rows
    return [
        *columns(lines, "lrrrl", max_width=terminal_width(), spare=[3, 2], words=LEAST_WIDTH),
        *([f"and {plural(more, 'placement')} more (`--top`)"] if more > 0 else []),
    ]
