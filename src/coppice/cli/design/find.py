"""`coppice design --num-ranks N --degree D`: Pareto-optimal graphs, the best for a workload, and their cabling."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coppice.cli.design.show import LimitOption
from coppice.cli.options.declaring import with_options
from coppice.cli.output import print_json, print_lines, progress_bar
from coppice.cli.terminal import terminal_width
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.files import write_atomically
from coppice.options import option
from coppice.options.shared import JobsOption, JsonOption, SizeOption
from coppice.text import columns, parse_size, plural, size_text

if TYPE_CHECKING:
    from coppice.design.search.table import Cell, GraphEntry
    from coppice.design.search.workload import CollectiveWorkload, NetworkOption


@with_options()
def find(
    ctx: typer.Context,
    *,
    ranks: Annotated[
        str | None,
        option("Number of ranks, or a range such as 2:64.", "--num-ranks", metavar="N", was=["--ranks"]),
    ] = None,
    degree: Annotated[str | None, option("Ports of a rank, or a range such as 2:8.", metavar="D")] = None,
    bidirectional: Annotated[bool, option("Only graphs whose links are full-duplex cables.")] = False,
    size: SizeOption | None = None,
    collective: Annotated[
        Collective,
        option("all_reduce, all_gather or reduce_scatter of that size.", metavar="NAME"),
    ] = Collective.ALL_REDUCE,
    alpha_us: Annotated[float, option("Time of a step beyond that of its bytes.", ge=0)] = 10.0,
    node_gb_per_s: Annotated[
        str, option("Bandwidth of a rank, over all its ports.", metavar="RATE")
    ] = "12.5",
    output: Annotated[
        Path | None,
        option(
            "Write the front and the cabling list of each of its graphs.", "-o", "--output", metavar="DIR"
        ),
    ] = None,
    cabling: Annotated[
        Path | None,
        option("Write the cabling list of the best graph for --size as CSV.", metavar="FILE"),
    ] = None,
    limits: LimitOption,
    tries: Annotated[
        int | None,
        option(
            "Circulants that are looked at for each size [default: 2000, 100 for a range].", metavar="N", ge=1
        ),
    ] = None,
    results: Annotated[
        Path | None,
        option("Append base graphs to this file (JSON lines), and resume from it.", metavar="FILE"),
    ] = None,
    jobs: JobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the Pareto-optimal direct-connect networks for a number of ranks and ports, with their recipes.

    Steps are those of an all-gather; T_B is its bandwidth time in units of M over the bandwidth of a rank. Base graphs
    are evaluated exactly, expansions follow by formula, and the graphs found are scheduled themselves.

    \b
    Examples:
      coppice design --num-ranks 1024 --degree 4 -o designs
      coppice design --num-ranks 64 --degree 4 --size 1M --alpha-us 10 --node-gb-per-s 12.5 --cabling best.csv
      coppice design --num-ranks 2:64 --degree 2:4 --results bases.jsonl --json
      coppice design show 'line^3(circulant(16,3,4))' -o topo.json
    """  # noqa: D301 (\b is for the help formatter)
    given = ranks is not None or degree is not None
    if ctx.invoked_subcommand is not None:
        if given:
            raise InputError(
                f"expected no --num-ranks and --degree before `{ctx.invoked_subcommand}`, found some: leave them out."
            )
        return
    from coppice.design.cabling import cabling_of, check_limits
    from coppice.design.search.finder import find as find_graphs
    from coppice.design.search.finder import write_front
    from coppice.design.search.workload import baselines, options
    from coppice.topology.model import exact_rate

    if ranks is None or degree is None:
        raise InputError(
            "expected `--num-ranks` and `--degree` together, found one of them at most: give both, or a subcommand."
        )
    goals = [(n, d) for n in _range(ranks, "--num-ranks") for d in _range(degree, "--degree")]
    for goal in goals:
        check_limits(*goal, limits)
    single = len(goals) == 1
    if not single and (output or cabling or size):
        raise InputError(
            "--output, --cabling and --size are for one number of ranks and one degree: leave out the range."
        )
    if cabling is not None and size is None:
        raise InputError(
            "--cabling writes the list of the best graph: say for which `--size`, or take `-o DIR` for all of them."
        )
    workload = None
    if size is not None:
        from coppice.design.search.workload import CollectiveWorkload

        workload = CollectiveWorkload(
            collective=collective,
            size_bytes=parse_size(size, option="--size"),
            alpha_us=alpha_us,
            node_gb_per_s=exact_rate(node_gb_per_s, where="--node-gb-per-s"),
        )
    with progress_bar() as on_progress:
        fronts = find_graphs(
            goals,
            both_ways=bidirectional,
            tries=tries,
            measure=single,
            jobs=jobs,
            results=results,
            on_progress=on_progress,
        )
    if not single:
        _print_many(fronts, as_json=as_json)
        return
    cell, front = next(iter(fronts.items()))
    if not front:
        raise InputError(
            f"expected a graph of {cell[0]} ranks and degree {cell[1]}, found none: "
            "choose a degree below the number of ranks, or leave out `--bidirectional`."
        )
    chosen = [] if workload is None else options(front, workload)
    others = [] if workload is None else baselines(*cell, workload)
    record: dict[str, Any] = {
        "ranks": cell[0],
        "degree": cell[1],
        "bidirectional": bidirectional,
        "front": [entry.record() for entry in front],
    }
    if workload is not None:
        record["workload"] = workload.record()
        record["options"] = [option.record() for option in [*chosen, *others]]
    written = []
    if output is not None:
        written += write_front(output, front, limits, record)
    if cabling is not None and chosen[0].entry is not None:
        made = cabling_of(chosen[0].entry.recipe.build(), limits)
        write_atomically(cabling, made.csv_text().encode())
        written.append(f"{cabling}: {len(made.ends):,} {made.kind}s of {made.graph.name}")
    if as_json:
        print_json("design", record)
        return
    lines = _front_lines(cell, front)
    if workload is not None:
        lines += ["", *_workload_lines(workload, chosen, others)]
    if written:
        lines += ["", "written", *(f"  {line}" for line in written)]
    print_lines(lines)


def _range(text: str, option: str) -> range:
    """A number, or FIRST:LAST."""
    match = re.fullmatch(r"\s*(\d{1,7})(?:\s*:\s*(\d{1,7}))?\s*", text, re.ASCII)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise InputError(f"expected {option} to be a number or a range such as 2:64, found {text!r}.")
    return range(int(match[1]), int(match[2] or match[1]) + 1)


def _front_lines(cell: Cell, front: list[GraphEntry]) -> list[str]:
    """The front as a table."""
    from coppice.design.families.family import optimum
    from coppice.design.schedules.breadth_first import moore_steps

    rows = [("steps", "T_B", "", "links", "recipe")]
    for entry in front:
        links = "full duplex" if entry.facts.bidirectional else "one way"
        bound = "" if entry.facts.exact else " at most"
        rows.append(
            (str(entry.steps), str(entry.time), f"{float(entry.time):.5f}{bound}", links, str(entry.recipe))
        )
    best = optimum(cell[0])
    return [
        f"{plural(cell[0], 'rank')} of degree {cell[1]}: {plural(len(front), 'graph')} that nothing found beats",
        f"no graph takes fewer than {plural(moore_steps(*cell), 'step')} or less than T_B {best} = {float(best):.5f}",
        "",
        *columns(rows, "rrlll", max_width=terminal_width(), spare=[3]),
    ]


def _workload_lines(
    workload: CollectiveWorkload, chosen: list[NetworkOption], others: list[NetworkOption]
) -> list[str]:
    """What the workload takes on each."""
    fastest = chosen[0].time_us
    rows = [("network", "ports", "steps", "T_B", "us", "")]
    for each in sorted([*chosen, *others], key=lambda each: each.time_us):
        ratio = "best" if each is chosen[0] else f"{each.time_us / fastest:.2f} x" if fastest else ""
        rows.append(
            (
                each.name,
                str(each.ports),
                f"{each.steps:,}",
                f"{float(each.time):.5f}",
                f"{each.time_us:,.2f}",
                ratio,
            )
        )
    title = (
        f"{workload.collective} of {size_text(workload.size_bytes)}, {workload.alpha_us:g} us a step, "
        f"{float(workload.node_gb_per_s):g} GB/s a rank: steps x alpha + T_B x M / bandwidth"
    )
    return [
        title,
        "",
        *columns(rows, "lrrrrr", max_width=terminal_width(), spare=[1, 3]),
    ]


def _print_many(fronts: dict[Cell, list[GraphEntry]], *, as_json: bool) -> None:
    """Every front, a line for each graph."""
    if as_json:
        print_json(
            "design-several", {"fronts": [entry.record() for front in fronts.values() for entry in front]}
        )
        return
    rows = [("ranks", "degree", "steps", "T_B", "", "recipe")]
    for (ranks, degree), front in fronts.items():
        for entry in front:
            figures = (str(entry.steps), str(entry.time), f"{float(entry.time):.5f}")
            rows.append((str(ranks), str(degree), *figures, str(entry.recipe)))
    print_lines(columns(rows, "rrrrll"))
