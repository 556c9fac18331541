"""`coppice tune fit`, `from-logs` and `report`: fit a rule table to measurements, and report on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from coppice.cli.options.declaring import with_options
from coppice.cli.options.inputs import RunOption, collective_run, load_topology, print_warnings
from coppice.cli.output import print_json, print_lines, print_note, without_key
from coppice.cli.terminal import terminal_width
from coppice.errors import InputError
from coppice.files import write_atomically
from coppice.options import argument, option
from coppice.options.shared import JsonOption, OutputOption
from coppice.text import columns, short_size
from coppice.verbs.tune import FitOptions, write_table

if TYPE_CHECKING:
    from coppice.topology.model import Topology
    from coppice.tuning.fit import Fit, SizeRule

RunsArgument = Annotated[list[Path], argument("Files of `coppice tune sweep`.", metavar="RUNS...")]


@with_options("runs output topology boxes settings alpha least_gain extend seed as_json")
def fit(
    asked: FitOptions,
    *,
    runs: RunsArgument,
    output: Annotated[Path | None, option("Table to write (CSV).", "-o", "--output", metavar="FILE")] = None,
    as_json: JsonOption = False,
) -> None:
    """Find the fastest choice of every shape and size, and keep it where it beats the default significantly.

    A rule needs a corrected p-value below --alpha and an interval of its gain above 1; neighbouring sizes share a
    choice where that costs little. With --topology, every rule says which share of the bandwidth bound it reaches.

    \b
    Examples:
      coppice tune fit runs.jsonl --topology cluster.json -o table.csv
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.tuning.records import read_runs
    from coppice.tuning.table import undo_line

    found, network = asked.fit(read_runs(runs), load_topology)
    _write(found, network, output)
    if as_json:
        print_json("tune-fit", without_key(found.record(), "version"))
        return
    print_lines(_lines(found))
    if output is not None:
        print_lines([f"written to {output}", f"{undo_line(found.library)}, once it is exported"])


@with_options("files ... topology boxes settings alpha least_gain")
def from_logs(
    asked: FitOptions,
    *,
    files: Annotated[
        list[Path],
        argument("Output of nccl-tests, logs of NCCL, the inspector.", metavar="FILES..."),
    ],
    library: Annotated[str, option("One of: nccl, rccl.", "--library", "-l", metavar="NAME")] = "nccl",
    collective: RunOption = None,
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fit rules to nccl-tests output and NCCL logs, for the default and with NCCL_ALGO and NCCL_PROTO set.

    One run of each proves nothing: a rule needs about five of both, more at larger numbers of choices.

    \b
    Examples:
      coppice tune from-logs default-*.log ring-ll-*.log tree-ll-*.log -o table.csv
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.logs.reading import read_logs
    from coppice.tuning.logged import runs_of_logs
    from coppice.tuning.table import undo_line

    if library not in ("nccl", "rccl"):
        raise InputError(
            f"expected --library nccl or rccl, found {library!r}: other libraries leave no logs of choices."
        )
    logs = read_logs(files, collective=collective_run(collective))
    print_warnings(logs)
    runs, left = runs_of_logs(logs, library=library)
    found, network = asked.fit(runs, load_topology)
    _write(found, network, output)
    for each in left:
        print_note(f"note: {each}")
    if as_json:
        print_json("tune-fit", without_key(found.record(), "version"))
        return
    print_lines(_lines(found))
    if output is not None:
        print_lines([f"written to {output}", f"{undo_line(library)}, once it is exported"])


@with_options("... topology boxes settings alpha least_gain")
def report(
    asked: FitOptions,
    *,
    runs: RunsArgument,
    output: Annotated[Path, option("Page to write.", "-o", "--output", metavar="FILE")] = Path("tuning.html"),
    as_json: JsonOption = False,
) -> None:
    """Write a page with heat maps of gain and of distance from the bound, the rules, and every comparison.

    \b
    Examples:
      coppice tune report runs.jsonl --topology cluster.json -o tuning.html
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.tuning.records import read_runs
    from coppice.tuning.report import tuning_html
    from coppice.tuning.table import undo_line

    found, network = asked.fit(read_runs(runs), load_topology)
    page = tuning_html(found, topology="" if network is None else network.name).encode()
    write_atomically(output, page)
    if as_json:
        print_json(
            "tune-report",
            {
                "output": str(output),
                "output_bytes": len(page),
                "bytes": len(page),
                "undo": undo_line(found.library),
            },
        )
        return
    print_lines([f"written to {output} ({len(page)} bytes)", undo_line(found.library)])


def _write(found: Fit, network: Topology | None, output: Path | None) -> None:
    """Write the table of a fit, where a file is named."""
    if output is not None:
        write_table(found, network, output)


def _lines(found: Fit) -> list[str]:
    """The rules in words, with gain, interval and share of the bound."""
    title = f"{found.library} {found.version}".rstrip()
    rows: list[tuple[str, ...]] = [
        ("collective", "nodes", "ranks", "from", "to", "choice", "gain", "95 % interval", "of the bound")
    ]
    rows += [_row(rule) for rule in found.rules]
    sizes = [size for each in found.sizes.values() for size in each]
    changed = [size for size in sizes if size.taken is not None]
    outliers = sum(each.verdict.outliers for size in sizes for each in size.candidates)
    repeats = sum(each.verdict.repeats for size in sizes for each in size.candidates)
    refused = {str(choice): reason for size in sizes for choice, reason in size.refused}
    lines = [
        f"{title}: another choice than the default at {len(changed)} of {len(sizes)} sizes",
        *columns(rows, max_width=terminal_width(), spare=[1, 2, 8, 7]),
    ]
    lines.append(f"{repeats} times, {outliers} of them far from the others; all count")
    lines += [f"{choice} did not run: {reason}" for choice, reason in refused.items()]
    return lines


def _row(rule: SizeRule) -> tuple[str, ...]:
    from coppice.tuning.fit import NO_END

    changed = rule.choice is not None
    return (
        str(rule.shape.collective),
        str(rule.shape.nodes),
        str(rule.shape.ranks),
        short_size(rule.first_bytes),
        "-" if rule.last_bytes == NO_END else short_size(rule.last_bytes),
        str(rule.choice or "default"),
        f"{rule.gain:.2f}" if changed else "-",
        f"{rule.low:.2f} .. {rule.high:.2f}" if changed else "-",
        "-" if rule.reached is None else f"{100 * rule.reached:.0f} %",
    )
