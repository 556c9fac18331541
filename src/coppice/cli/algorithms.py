"""`coppice algorithms`: every name that `coppice plan --algorithm` takes."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from coppice.cli.options.completion import algorithm_names, collective_names
from coppice.cli.options.inputs import JsonOption
from coppice.collectives import Collective
from coppice.planners.algorithms.listing import Listed, listed

__all__ = ["algorithms"]


def algorithms(
    name: Annotated[
        str | None,
        typer.Argument(help="Show everything about this one.", autocompletion=algorithm_names),
    ] = None,
    *,
    collective: Annotated[
        Collective | None,
        typer.Option(
            "--collective",
            "-c",
            metavar="NAME",
            help="Only those that perform this collective.",
            parser=Collective.named,
            autocompletion=collective_names,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the algorithms that `coppice plan --algorithm` takes: what each performs, and for how many ranks.

    Conditions beyond the number of ranks (equal boxes, a switch that can add, ...) are those of a topology: `coppice
    plan` names the one that fails.

    \b
    Examples:
      coppice algorithms --collective all_reduce
      coppice algorithms rabenseifner
      coppice algorithms --json
    """  # noqa: D301 (\b is for the help formatter)
    entries = listed(collective, name)
    if as_json:
        sys.stdout.write(json.dumps([_record(entry) for entry in entries], indent=2) + "\n")
    elif name is not None:
        for entry in entries:
            _print_details(entry)
    else:
        _print_table(entries)


def _record(entry: Listed) -> dict[str, Any]:
    return {
        "name": entry.name,
        "collectives": [collective.value for collective in entry.collectives],
        "ranks": entry.ranks,
        "roots": entry.roots,
        "topological": entry.topological,
        "summary": entry.summary,
        "source": entry.source,
        "parameters": {
            key: {"default": parameter.default, "summary": parameter.summary}
            for key, parameter in entry.parameters.items()
        },
    }


def _print_table(entries: tuple[Listed, ...]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("algorithm", "collectives", "ranks", "parameters", "what it does"):
        table.add_column(heading, no_wrap=heading != "what it does")
    for entry in entries:
        names = ", ".join(collective.value for collective in entry.collectives)
        table.add_row(entry.name, names, entry.ranks, ", ".join(entry.parameters), entry.summary)
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=240)
    console.print(table)


def _print_details(entry: Listed) -> None:
    names = ", ".join(collective.value for collective in entry.collectives)
    typer.echo(f"{entry.name}: {entry.summary}")
    typer.echo(f"  performs  {names}")
    typer.echo(f"  ranks     {entry.ranks}")
    typer.echo(f"  source    {entry.source}")
    for key, parameter in entry.parameters.items():
        typer.echo(f"  --parameter {key}={parameter.default}  {parameter.summary}")
