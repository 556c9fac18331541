"""`coppice export --to chakra`: a directory of execution traces, one for each rank."""

from __future__ import annotations

import typer

from coppice.cli.export.request import Request
from coppice.cli.output.render import Stages
from coppice.errors import InputError
from coppice.export.chakra.traces import chakra_trace
from coppice.schedule.files.plan_file import read_plan
from coppice.text import parse_size, plural

__all__ = ["OPTIONS", "export_chakra"]

OPTIONS = frozenset({"--size", "--name"})
"""Options that go with Chakra traces."""


def export_chakra(request: Request) -> None:
    """Write the traces of a plan at one size, to a directory.

    Raises:
        InputError: If the size or the directory is missing, or the plan cannot be traced.
    """
    output = request.output
    if output is None or str(output) == "-":
        msg = "Chakra traces are a file for each rank: name a directory (`-o traces`)."
        raise InputError(msg)
    if request.size is None:
        msg = "a Chakra trace is of one message size: give it (`--size 64M`)."
        raise InputError(msg)
    size_bytes = parse_size(request.size, option="--size")
    with Stages() as stages:
        stages.begin("writing the traces")
        trace = chakra_trace(read_plan(request.source).body, size_bytes=size_bytes)
        written = trace.write(output, name=request.name or "trace")
    for note in trace.notes:
        typer.echo(f"note: {note}", err=True)
    typer.echo(f"{plural(len(written), 'trace')} with {trace.num_nodes:,} nodes written to {output}")
