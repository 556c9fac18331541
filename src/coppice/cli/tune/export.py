"""`coppice tune export`: a table of rules in the form that its library reads."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from coppice.cli.options.inputs import OutputOption
from coppice.files import write_atomically
from coppice.tuning.exports import FORMS, export_table
from coppice.tuning.table import read_table

__all__ = ["export"]


def export(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="Table of `coppice tune fit`.")],
    *,
    to: Annotated[str, typer.Option("--to", metavar="|".join(FORMS), help="Form of its library.")],
    output: OutputOption = None,
) -> None:
    """Write the rules for the library; notes on standard error say how to use them, and how to take them back.

    \b
    Examples:
      coppice tune export table.csv --to ompi-rules -o rules.conf
      coppice tune export table.csv --to nccl-tuner -o tuner.csv
    """  # noqa: D301 (\b is for the help formatter)
    made = export_table(read_table(table), to)
    if output is None or str(output) == "-":
        sys.stdout.write(made.text)
    else:
        write_atomically(output, made.text.encode())
    for note in made.notes:
        typer.echo(f"note: {note.replace('=FILE', f'={output.absolute()}') if output else note}", err=True)
