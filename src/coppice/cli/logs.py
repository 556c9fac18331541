"""`coppice logs`: read logs, benchmark tables and dumps of libraries into one table, and compare two runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coppice.cli.options.declaring import with_options
from coppice.cli.options.default_command import defaulting_to
from coppice.cli.options.inputs import RunOption, collective_run, print_warnings
from coppice.cli.output import Stages, print_fields, print_json, print_lines
from coppice.cli.terminal import terminal_width
from coppice.errors import InputError
from coppice.options import argument
from coppice.options.shared import JsonOption
from coppice.text import columns, plural, short_size

if TYPE_CHECKING:
    from coppice.diagnosis.recorded.compare import ComparedCall, ComparedRuns
    from coppice.logs.records import Log, LoggedMeasurement

_MOST_LINES = 200
_BUFFERS = {None: "-", True: "one", False: "two"}


app = typer.Typer(
    cls=defaulting_to("read"),
    no_args_is_help=True,
    help="Read logs and results of libraries and benchmarks (`read FILE...`), and compare two runs.",
)


@app.command()
@with_options()
def read(
    files: Annotated[list[str], argument("Logs and dumps; - is standard input.", metavar="FILE...")],
    *,
    collective: RunOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read logs and results of libraries and benchmarks, and print them as one table.

    The kind of a file is found by its content: the table of nccl-tests, rccl-tests or mscclpp-test (text, JSON of -J,
    CSV or JSON lines), the log of NCCL or RCCL (NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING), records of NCCL's
    inspector, graphs (NCCL_GRAPH_DUMP_FILE), topology (NCCL_TOPO_DUMP_FILE). What launchers and log collectors put
    before lines is taken away. Files of one job are put together.

    \b
    Examples:
      coppice logs all_reduce.log
      coppice logs inspector/*.log --json
      coppice logs nccl.log graph.xml topo.xml
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.logs.reading import read_logs

    given = collective_run(collective)
    with Stages() as stages:
        stages.begin(f"reading {plural(len(files), 'file')}")
        found = read_logs(files, collective=given)
    if as_json:
        print_json("logs", {"files": [log.record() for log in found]})
    else:
        print_lines(_lines(found))
    print_warnings(found)


@app.command()
@with_options()
def compare(
    old: Annotated[
        str, argument("Log or results of the run before, or a folder of repeated runs.", metavar="OLD")
    ],
    new: Annotated[str, argument("Those of the run that is to be no slower.", metavar="NEW")],
    *,
    collective: RunOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two runs of the same collectives; exit code 1 where one is slower by more than the noise.

    The noise is measured: by repeated runs where a side is a folder of them, else by how far the changes of
    neighbouring sizes lie apart; times of single iterations (nccl-tests -I) add to it. One in a hundred comparisons of
    equal runs is a false alarm. What else differs is told: versions, plug-ins, variables, algorithms.

    \b
    Examples:
      coppice logs compare before.txt after.txt
      coppice logs compare nccl-2.27/ nccl-2.28/ --json
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.diagnosis.recorded.compare import compare_runs
    from coppice.diagnosis.recorded.records import read_records

    given = collective_run(collective)
    with Stages() as stages:
        stages.begin("reading both runs")
        records = [read_records(_files_of(each), collective=given) for each in (old, new)]
    found = compare_runs(*records)
    if as_json:
        print_json("logs-compare", found.record())
    else:
        print_fields(f"{new} against {old}", _summary(found))
        print_lines(_changes(found))
    found.require_ok()


def _files_of(name: str) -> list[str]:
    """A file, or those of a folder."""
    where = Path(name)
    if name == "-" or not where.is_dir():
        return [name]
    found = sorted(str(each) for each in where.iterdir() if each.is_file() and not each.name.startswith("."))
    if not found:
        raise InputError(f"expected logs in the folder {name}, found none: give a file, or a folder of them.")
    return found


def _summary(found: ComparedRuns) -> list[tuple[str, str]]:
    slower, faster = sum(each.slower for each in found.calls), sum(each.faster for each in found.calls)
    fields = [
        (
            "calls",
            f"{len(found.calls)} compared: {slower} slower, {faster} faster, the rest within the noise",
        ),
        ("noise", f"{100 * found.noise:.2g}% of a time, by {found.noise_from}"),
    ]
    for each in found.whole:
        verdict = "slower" if each.slower else "faster" if each.faster else "noise"
        fields.append(("together", f"{each.words}: {100 * (each.ratio - 1):+.2g}% ({verdict})"))
    if found.only_old or found.only_new:
        fields.append(("not compared", f"{found.only_old} of the old run, {found.only_new} of the new one"))
    fields += [("changed", each) for each in found.changes]
    return fields


def _changes(found: ComparedRuns) -> list[str]:
    """Calls as a table: those that changed, else those that changed most."""
    order = sorted(found.calls, key=lambda each: (each.p_value, -abs(each.ratio - 1)))
    shown = [each for each in order if each.slower or each.faster] or order[:5]
    rows: list[tuple[str, ...]] = [("call", "old us", "new us", "change", "noise", "", "algorithm")]
    rows += [_change(each) for each in shown]
    return columns(rows[: _MOST_LINES + 1], "lrrrrll", max_width=terminal_width(), spare=[6, 0])


def _change(each: ComparedCall) -> tuple[str, ...]:
    one, other = each.old_algorithm or "-", each.new_algorithm or "-"
    return (
        each.words,
        f"{each.old_us:.6g}",
        f"{each.new_us:.6g}",
        f"{100 * (each.ratio - 1):+.3g}%",
        f"{100 * each.noise:.2g}%",
        "slower" if each.slower else "faster" if each.faster else "",
        one if one == other else f"{one} -> {other}",
    )


def _lines(found: Sequence[Log]) -> list[str]:
    lines = [line for log in found for line in _head(log)]
    measured = [measurement for log in found for measurement in log.measurements]
    if measured:
        lines += ["", *_table(_times(measured))]
    if any(each.iterations for each in measured):
        lines += ["", *_table(_iterations(measured))]
    decisions = [decision for log in found for decision in log.decisions]
    if decisions:
        rows = [("chosen", "ranks", "nodes", "size", "calls", "algorithm", "protocol", "channels")]
        rows += [
            (
                "(not named)" if each.collective is None else str(each.collective),
                _text(each.ranks),
                _text(each.nodes),
                f"{each.rank_bytes} B a rank" if each.size_bytes is None else short_size(each.size_bytes),
                str(each.calls),
                each.algorithm,
                each.protocol,
                _text(each.channels),
            )
            for each in decisions
        ]
        lines += ["", *_table(rows)]
    for log in found:
        for communicator in log.communicators:
            if communicator.cells:
                lines += [
                    "",
                    f"cost model of {_shape(communicator.ranks, communicator.nodes)} ({log.file}:{communicator.line})",
                ]
                lines += _table(
                    [
                        ("collective", "algorithm", "protocol", "latency us", "GB/s"),
                        *(
                            (
                                str(c.collective),
                                c.algorithm,
                                c.protocol,
                                f"{c.latency_us:g}",
                                f"{c.gb_per_s:g}",
                            )
                            for c in communicator.cells
                            if c.gb_per_s
                        ),
                    ]
                )
        for graph in log.graphs:
            lines.append(
                f"  {graph.kind}: {plural(graph.nchannels, 'channel')} of {float(graph.speed_intra):g} GB/s inside and "
                f"{float(graph.speed_inter):g} GB/s between nodes, {graph.type_intra}/{graph.type_inter}"
            )
            lines += [f"    {' '.join(_channel(channel))}" for channel in graph.channels]
    return lines


def _channel(channel: Any) -> list[str]:
    words = [f"{gpu.dev}" for gpu in channel.gpus]
    entry = [] if channel.entry is None else [f"NIC{channel.entry}"]
    return [*entry, *words, *([] if channel.exit is None else [f"NIC{channel.exit}"])]


def _head(log: Log) -> list[str]:
    parts = [log.kind]
    if log.version:
        parts.append(f"version {log.version}")
    if log.tuner is not None:
        parts.append(f"tuner {log.tuner}" if log.tuner else "no tuner plug-in")
    if log.topology is not None:
        parts.append(f"{plural(log.topology.num_ranks, 'GPU')}, {plural(log.topology.num_links, 'link')}")
    for name, count in (("measurement", len(log.measurements)), ("communicator", len(log.communicators))):
        if count:
            parts.append(plural(count, name))
    lines = [f"{log.file}: {', '.join(parts)}"]
    forced = [f"{name}={value}" for name, value in log.settings.items() if log.forced]
    if forced:
        lines.append(f"  the choice is limited by the environment: {', '.join(forced)}")
    if log.beside:
        calls = ", ".join(f"{name} ({count})" for name, count in log.beside.items())
        lines.append(f"  calls that no tuner is asked about: {calls}")
    return lines


_COLUMNS = (
    *("measured", "ranks", "nodes", "size", "buffers", "times", "median us", "least us", "algbw GB/s"),
    *("algorithm", "protocol", "channels", "wrong"),
)


def _times(measured: Sequence[LoggedMeasurement]) -> list[tuple[str, ...]]:
    """Measurements of one kind and size together."""
    groups: dict[tuple[Any, ...], list[LoggedMeasurement]] = {}
    for each in measured:
        key = (each.collective, each.ranks, each.nodes, each.size_bytes, each.algorithm, each.protocol)
        groups.setdefault((*key, each.channels, each.in_place, each.of_kernels), []).append(each)

    def order(members: list[LoggedMeasurement]) -> tuple[Any, ...]:
        first = members[0]
        cell = (first.algorithm or "", first.protocol or "", first.channels or 0, bool(first.in_place))
        return (str(first.collective), first.ranks or 0, first.nodes or 0, first.size_bytes, *cell)

    rows: list[tuple[str, ...]] = [_COLUMNS]
    for members in sorted(groups.values(), key=order):
        first = members[0]
        median = statistics.median(each.time_us for each in members)
        wrong = [each.wrong for each in members if each.wrong is not None]
        rows.append(
            (
                str(first.collective) if first.of_kernels else f"{first.collective} (host)",
                _text(first.ranks),
                _text(first.nodes),
                short_size(first.size_bytes),
                _BUFFERS[first.in_place],
                str(len(members)),
                f"{median:.6g}",
                f"{min(each.time_us for each in members):.6g}",
                f"{first.size_bytes / median / 1000:.4g}" if median else "-",
                first.algorithm or "-",
                first.protocol or "-",
                _text(first.channels),
                str(sum(wrong)) if wrong else "-",
            )
        )
    return rows


def _iterations(measured: Sequence[LoggedMeasurement]) -> list[tuple[str, ...]]:
    """How far the iterations of a measurement lie apart."""
    rows: list[tuple[str, ...]] = [
        ("iterations of", "size", "buffers", "number", "least us", "99% us", "most us", "variation")
    ]
    for each in measured:
        times = each.iterations
        if times is not None:
            rows.append(
                (
                    str(each.collective),
                    short_size(each.size_bytes),
                    _BUFFERS[each.in_place],
                    str(len(times.times_us) - times.skipped) if times.times_us else "-",
                    f"{times.least_us:.6g}",
                    f"{times.p99_us:.6g}",
                    f"{times.most_us:.6g}",
                    f"{times.variation_percent:.3g}%",
                )
            )
    return rows


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    hidden = len(rows) - _MOST_LINES - 1
    return columns(rows[: _MOST_LINES + 1], max_width=terminal_width(), spare=[7, 5, 4, 12, 11, 2, 1]) + (
        [f"... and {hidden} more (--json gives all)"] if hidden > 0 else []
    )


def _shape(ranks: int | None, nodes: int | None) -> str:
    if ranks is None or nodes is None:
        return "a communicator of unknown shape"
    return f"{plural(ranks, 'rank')} on {plural(nodes, 'node')}"


def _text(value: int | None) -> str:
    return "-" if value is None else str(value)
