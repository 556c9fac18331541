"""`coppice switch check`: model-check an aggregation protocol against losses, duplicates and reordering."""

from __future__ import annotations

from typing import Annotated

import typer

from coppice.cli.options.inputs import JsonOption, parse_settings
from coppice.cli.output.render import print_fields, print_json, print_lines
from coppice.errors import InputError


def check(
    *,
    protocol: Annotated[
        str, typer.Option("--protocol", help="What the parties speak: switchml and others.")
    ] = "switchml",
    workers: Annotated[int, typer.Option("--workers", min=1, help="Workers of the job.")] = 2,
    slots: Annotated[int, typer.Option("--slots", min=1, help="Number of aggregation slots.")] = 1,
    elements: Annotated[
        str, typer.Option("--elements", metavar="N,N", help="Elements of each tensor, one after the other.")
    ] = "3",
    values: Annotated[int, typer.Option("--values", min=1, help="Values of a packet.")] = 1,
    tree: Annotated[
        str | None, typer.Option("--tree", metavar="N,N", help="Workers below each switch, and a root above.")
    ] = None,
    losses: Annotated[int, typer.Option("--losses", min=0, help="Packets that may be lost.")] = 1,
    duplicates: Annotated[
        int, typer.Option("--duplicates", min=0, help="Packets that may arrive again, at any later moment.")
    ] = 1,
    early_timeouts: Annotated[
        int, typer.Option("--early-timeouts", min=0, help="Number of premature time-outs.")
    ] = 1,
    in_order: Annotated[
        bool, typer.Option("--in-order", help="Packets of a link arrive in the order of their sending.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Setting of the protocol; may be repeated."),
    ] = None,
    most_events: Annotated[
        int, typer.Option("--most-events", min=0, help="Depth beyond which nothing is searched.")
    ] = 1_000_000,
    most_states: Annotated[
        int, typer.Option("--most-states", min=1, help="States at which the search stops.")
    ] = 1_000_000,
    as_json: JsonOption = False,
) -> None:
    """Search every interleaving of arrivals, losses, copies and time-outs for a wrong sum or an end that never comes.

    The machines that run are those of `coppice switch serve`. A fault is printed with the fewest packets that lead to
    it, and the exit code is 1.

    \b
    Examples:
      coppice switch check --workers 2 --slots 1 --elements 3 --losses 2
      coppice switch check --losses 0 --early-timeouts 0 --set published_rule=1
      coppice switch check --workers 3 --slots 2 --elements 2,1 --duplicates 0 --early-timeouts 0
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.innetwork.simulated.all_reduce import search_interleavings

    found = search_interleavings(
        protocol=protocol,
        workers=workers,
        slots=slots,
        elements=_numbers(elements, "elements"),
        values=values,
        tree=None if tree is None else _numbers(tree, "tree"),
        losses=losses,
        duplicates=duplicates,
        early_timeouts=early_timeouts,
        reordering=not in_order,
        settings={key: _number(key, value) for key, value in parse_settings(settings or ()).items()},
        most_events=most_events,
        most_states=most_states,
    )
    if as_json:
        print_json(found.record())
    else:
        searched = f"{found.states:,} states, {found.events:,} events, up to {found.depth} deep"
        title = f"{protocol}: {'every worker gets the sum, and everyone ends' if found.ok else 'FAULT'}"
        whole = (
            "everything within the budgets" if found.whole else "a part: raise --most-states or --most-events"
        )
        print_fields(
            title, [("searched", searched), ("that is", whole if found.ok else "up to the first fault")]
        )
        if not found.ok:
            print_lines([f"{found.fault}, after", *found.numbered()])
    if not found.ok:
        raise typer.Exit(1)


def _numbers(text: str, option: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise InputError(
            f"expected `{option}` as whole numbers with commas between, found {text!r}."
        ) from None


def _number(key: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise InputError(f"expected a number for the setting {key}, found {value!r}.") from None
