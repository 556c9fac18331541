"""`coppice tune from-logs`: a table of rules from measurements that somebody already has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coppice.cli.options.inputs import BoxesOption, OutputOption, SetOption
from coppice.cli.output.render import print_lines
from coppice.cli.tune.fit import AlphaOption, GainOption, TopologyOption, fit_lines, fitted
from coppice.errors import InputError
from coppice.files import write_atomically
from coppice.logs.reading import read_logs
from coppice.tuning.from_logs import runs_of_logs
from coppice.tuning.table import RuleTable, encode_table
from coppice.tuning.undo import undo_line

__all__ = ["from_logs"]


def from_logs(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILES...", help="Output of nccl-tests, logs of NCCL, the inspector."),
    ],
    *,
    library: Annotated[
        str, typer.Option("--library", "-l", metavar="nccl|rccl", help="The library.")
    ] = "nccl",
    output: OutputOption = None,
    topology: TopologyOption = None,
    boxes: BoxesOption = None,
    settings: SetOption = None,
    alpha: AlphaOption = 0.01,
    least_gain: GainOption = 0.03,
) -> None:
    """Fit rules to what nccl-tests printed and NCCL logged, for the default and with NCCL_ALGO and NCCL_PROTO set.

    One run of each proves nothing: a rule needs about five of both, more at larger numbers of choices.

    \b
    Examples:
      coppice tune from-logs default-*.log ring-ll-*.log tree-ll-*.log -o table.csv
    """  # noqa: D301 (\b is for the help formatter)
    if library not in ("nccl", "rccl"):
        msg = f"expected --library nccl or rccl, found {library!r}: other libraries leave no logs of choices."
        raise InputError(msg)
    runs, left = runs_of_logs(read_logs(files), library=library)
    found, loaded = fitted(
        runs,
        topology=topology,
        boxes=boxes,
        settings=settings,
        alpha=alpha,
        least_gain=least_gain,
        extend=False,
        seed=0,
    )
    words = "" if loaded is None else f"{loaded.name} {loaded.sha256[:16]}"
    if output is not None:
        write_atomically(output, encode_table(RuleTable.of(found, topology=words)).encode())
    print_lines(fit_lines(found))
    for each in left:
        typer.echo(f"note: {each}", err=True)
    if output is not None:
        print_lines([f"written to {output}", f"{undo_line(library)}, once it is exported"])
