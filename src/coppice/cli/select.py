"""`coppice select`: predict a library's pick for a call, with the reason and its schedule."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import structs

from coppice.cli.options.declaring import with_options
from coppice.cli.options.inputs import load_topology, print_warnings, sorted_settings
from coppice.cli.output import print_fields, print_json, print_lines, to_stdout, without_key
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.options import argument, option
from coppice.options.names import COST_INPUTS, SELECTING
from coppice.options.shared import (
    BoxesOption,
    CollectiveOption,
    JsonOption,
    NumRanksOption,
    OutputOption,
    RatesOption,
    RootOption,
    SizesOption,
)
from coppice.text import columns, parse_sizes, plural, short_size, size_text
from coppice.verbs.simulating import SelectedCall

if TYPE_CHECKING:
    from coppice.selection import Selection
    from coppice.topology.model import Topology

MOST_PLANNED = 4_096
"""Ranks on one switch, up to which `-o` makes a topology where only their number is given."""

LibraryOption = Annotated[
    str,
    option(
        f"One of: {', '.join(SELECTING)}; nccl-2.21 is NCCL in that version.",
        "--library",
        "-l",
        metavar="NAME",
    ),
]


@with_options()
def select(
    topology: Annotated[
        str | None,
        argument(
            "Preset name or file, as for `coppice plan`; without it, give --num-ranks.", metavar="[TOPOLOGY]"
        ),
    ] = None,
    *,
    library: LibraryOption,
    sizes: SizesOption,
    collective: CollectiveOption = Collective.ALL_REDUCE,
    ranks: NumRanksOption = None,
    ranks_per_box: Annotated[
        int | None,
        option("How many of --num-ranks share a box.", metavar="N", ge=1),
    ] = None,
    boxes: BoxesOption = None,
    rates: RatesOption = None,
    settings: Annotated[
        list[str] | None,
        option(
            f"Input of NCCL's cost model ({', '.join(COST_INPUTS)}) or parameter of a preset; may be repeated.",
            "--set",
            metavar="KEY=VALUE",
        ),
    ] = None,
    call: Annotated[SelectedCall, option("What else is known of the call", "--call")],
    root: RootOption = None,
    log: Annotated[
        Path | None,
        option(
            "Log of NCCL or RCCL: predict by the cost model that it prints, instead of ours.", metavar="FILE"
        ),
    ] = None,
    why: Annotated[bool, option("Print every rule that was tested, or every predicted time.")] = False,
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict the algorithm that a library picks for a call, in its own terms and as an algorithm of `coppice plan`.

    Open MPI, MPICH and MVAPICH2 decide by tables of ranks and sizes, NCCL by a cost model; docs/selection.md says from
    which versions, and what is not modelled. With -o, the schedule is written as a plan, on the topology given or on
    one switch.

    \b
    Examples:
      coppice select --library open-mpi --collective all_reduce --num-ranks 48 --size 64K --why
      coppice select --library mpich --collective broadcast --num-ranks 100 --size 1M -o plan.json
      coppice select dgx-h100 --boxes 4 --library nccl --collective all_reduce --size 1M --why
      coppice select --library nccl --num-ranks 64 --ranks-per-box 8 --size 1G --set channels=16 --set bw_inter=24
      coppice select --library open-mpi --collective all_reduce --num-ranks 48 --size 1K:1G:4
      coppice select --library nccl --log tuning.log --collective all_reduce --size 1M --why
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.selection import select as make_selection

    printed = to_stdout(output, as_json=as_json)
    inputs, others = sorted_settings(settings, library)
    wanted = parse_sizes(sizes, option="--size")
    if len(wanted) > 1 and (why or output is not None):
        raise InputError(f"--why and -o are about one size, found {len(wanted)} in --size {sizes}: give one.")
    if log is not None:
        if library != "nccl" or topology is not None or ranks_per_box is not None or inputs:
            raise InputError(
                "expected --library nccl and neither a topology, --ranks-per-box nor --set beside --log: "
                "the log says all of it."
            )
        from coppice.logs.reading import read_log
        from coppice.tuning.logged import select_by_log

        loaded, told = None, read_log(log)
        print_warnings([told])
        picks = [select_by_log(told, collective, size, ranks=ranks) for size in wanted]
    else:
        loaded = _load(
            topology, ranks=ranks, ranks_per_box=ranks_per_box, boxes=boxes, rates=rates, settings=others
        )
        picks = [
            make_selection(
                library,
                collective,
                size,
                ranks=ranks,
                topology=loaded,
                ranks_per_box=ranks_per_box,
                **structs.asdict(call),
                settings=inputs,
                root=root,
            )
            for size in wanted
        ]
    if len(picks) > 1:
        if as_json:
            print_json("select-several", {"selections": [each.record() for each in picks]})
        else:
            _print_table(picks, wanted)
        return
    (picked,) = picks
    if output is not None:
        _write(picked, loaded, root=root, output=str(output))
    if printed:
        return
    if as_json:
        # The version of the format stands where that of the library does in a list.
        print_json("select", without_key(picked.record(), "version"))
        return
    fields = _fields(picked)
    if output is not None:
        fields.append(("written to", str(output)))
    title = f"{picked.library} {picked.version}: {picked.function} of {size_text(wanted[0])}"
    print_fields(f"{title} among {plural(picked.ranks, 'rank')}", fields)
    if why:
        print_lines(["", *_why_lines(picked)])


def _load(
    topology: str | None,
    *,
    ranks: int | None,
    ranks_per_box: int | None,
    boxes: int | None,
    rates: str | None,
    settings: list[str],
) -> Topology | None:
    """The topology, or None where only numbers of ranks are given."""
    if topology is None:
        for name, value in (("--boxes", boxes), ("--rates", rates), ("--set", settings)):
            if value:
                raise InputError(
                    f"{name} is for a topology: name one, or say it by `--num-ranks` and `--ranks-per-box`."
                )
        if ranks is None:
            raise InputError(
                "expected a topology or a number of ranks, found neither: name a preset or give `--num-ranks N`."
            )
        return None
    if ranks is not None or ranks_per_box is not None:
        raise InputError(
            "expected a topology or a number of ranks, found both: leave out `--num-ranks` and `--ranks-per-box`."
        )
    return load_topology(topology, boxes=boxes, rates=rates, settings=settings)


def _write(picked: Selection, topology: Topology | None, *, root: int | None, output: str) -> None:
    """Write the schedule of the pick as a plan."""
    from coppice.bounds.problem import Problem

    if picked.ours is None:
        raise InputError(f"{picked.runs_as} of {picked.library} has no schedule here: {picked.reason}.")
    from coppice.planners.planning import plan
    from coppice.schedule.files.plan_file import write_plan
    from coppice.topology.presets import preset

    if topology is None:
        if picked.ranks > MOST_PLANNED:
            found = f"found {picked.ranks:,}: name a topology, or plan fewer."
            raise InputError(f"expected up to {MOST_PLANNED:,} ranks for `-o`, {found}")
        if picked.ours.startswith(("nvls", "collnet")):
            raise InputError(f"{picked.ours} works inside boxes: name a topology for `-o`, such as dgx-h100.")
        topology = preset("star", gpus=picked.ranks)
    rooted = picked.collective.rooted and root is None
    problem = Problem(topology=topology, collective=picked.collective, root=0 if rooted else root)
    result = plan(problem, algorithm=picked.ours, parameters=picked.parameters)
    write_plan(result.plan, output)


def _print_table(picks: Sequence[Selection], sizes: Sequence[int]) -> None:
    """The picks of several sizes, a line each."""
    first = picks[0]
    rows = [("size", "picks", "algorithm here")]
    for size, each in zip(sizes, picks, strict=True):
        options = "".join(f" --parameter {key}={value}" for key, value in each.parameters.items())
        rows.append((short_size(size), each.algorithm, f"{each.ours}{options}" if each.ours else "none"))
    title = f"{first.library} {first.version}: {first.function} among {plural(first.ranks, 'rank')}"
    print_lines([title, *(f"  {line}" for line in columns(rows, "rll"))])


def _fields(picked: Selection) -> list[tuple[str, str]]:
    """The lines about a pick."""
    number = "" if picked.id is None else f" (id {picked.id})"
    fields = [("decided by", picked.component), ("picks", f"{picked.algorithm}{number}")]
    if picked.runs_as not in ("", picked.algorithm) and picked.cell is None:
        fields.append(("runs as", f"{picked.runs_as}: it falls back on it"))
    if picked.cell is not None and picked.cell.time_us is not None:
        fields.append(("predicted time", f"{picked.cell.time_us:.4g} us by the {picked.model_name}"))
    if picked.ours is None:
        fields.append(("algorithm here", f"none: {picked.reason}"))
    else:
        options = "".join(f" --parameter {key}={value}" for key, value in picked.parameters.items())
        fields.append(("algorithm here", f"--algorithm {picked.ours}{options}"))
    fields.extend(
        (part.role, f"{part.selection.algorithm} among {plural(part.selection.ranks, 'rank')}")
        for part in picked.parts
    )
    fields.extend(("assumed" if i == 0 else "", words) for i, words in enumerate(picked.assumptions))
    fields.extend(("note" if i == 0 else "", words) for i, words in enumerate(picked.notes))
    return fields


def _why_lines(picked: Selection) -> list[str]:
    """The trail of rules, or the table of times."""
    lines = [f"source: {picked.source}"]
    table = None
    for step in picked.why:
        if step.table != table:
            lines.append(f"{step.table}:")
            table = step.table
        values = f"  ({step.values})" if step.values else ""
        lines.append(f"  {'yes' if step.held else ' no'}  {'  ' * step.depth}{step.rule}{values}")
    for part in picked.parts:
        lines.extend(["", f"{part.role}:", *_why_lines(part.selection)[1:]])
    if picked.cells:
        lines.extend(_cell_lines(picked))
    return lines


def _cell_lines(picked: Selection) -> list[str]:
    """Every algorithm and protocol with its terms, the fastest first."""
    order = sorted(picked.cells, key=lambda cell: (cell.time_us is None, cell.time_us or 0.0))
    lines = [f"{'algorithm':<14} {'protocol':<8} {'time us':>12} {'= latency us':>13} {'+ M / GB/s':>12}"]
    for cell in order:
        name = f"{cell.algorithm:<14} {cell.protocol:<8}"
        if cell.time_us is None:
            lines.append(f"{name} {'-':>12} {cell.unavailable}")
            continue
        lines.append(f"{name} {cell.time_us:>12.2f} {cell.latency_us:>13.2f} {cell.gb_per_s:>12.3f}")
        lines.extend(f"{'':<26}{term}" for term in cell.terms)
    return lines
