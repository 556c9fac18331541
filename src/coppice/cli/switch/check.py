"""`coppice switch check`: model-check an aggregation protocol against losses, duplicates and reordering."""

from __future__ import annotations

from typing import Annotated

import typer
from msgspec import Struct, structs

from coppice.cli.options.declaring import with_options
from coppice.cli.output import print_fields, print_json, print_lines
from coppice.errors import InputError
from coppice.options import option, parse_settings
from coppice.options.shared import JsonOption


class SearchedFaults(Struct, frozen=True, kw_only=True):
    """Faults of a network, as often as they may happen."""

    losses: Annotated[int, option("packets that may be lost", ge=0)] = 1
    duplicates: Annotated[int, option("packets that may arrive again, at any later moment", ge=0)] = 1
    early_timeouts: Annotated[int, option("premature time-outs", ge=0)] = 1


class CheckLimits(Struct, frozen=True, kw_only=True):
    """What a search ends at."""

    most_events: Annotated[int, option("depth beyond which nothing is searched", ge=0)] = 1_000_000
    most_states: Annotated[int, option("states at which it stops", ge=1)] = 1_000_000


@with_options()
def check(
    *,
    protocol: Annotated[
        str,
        option("System in the network: switchml and others.", "--system", metavar="NAME", was=["--protocol"]),
    ] = "switchml",
    workers: Annotated[int, option("Workers of the job.", ge=1)] = 2,
    slots: Annotated[int, option("Number of aggregation slots.", ge=1)] = 1,
    elements: Annotated[str, option("Elements of each tensor, one after the other.", metavar="N,N")] = "3",
    values: Annotated[int, option("Values of a packet.", ge=1)] = 1,
    tree: Annotated[
        str | None,
        option("Workers below each switch, and a root above.", "--below", metavar="N,N", was=["--tree"]),
    ] = None,
    faults: Annotated[SearchedFaults, option("Faults of packets", "--fault")],
    in_order: Annotated[bool, option("Packets of a link arrive in the order of their sending.")] = False,
    settings: Annotated[
        list[str] | None,
        option("Setting of the protocol; may be repeated.", "--set", metavar="KEY=VALUE"),
    ] = None,
    limits: Annotated[CheckLimits, option("Upper limits", "--limit")],
    as_json: JsonOption = False,
) -> None:
    """Search every interleaving of arrivals, losses, copies and time-outs for a wrong sum or an end that never comes.

    The machines that run are those of `coppice switch serve`. A fault is printed with the fewest packets that lead to
    it, and the exit code is 1.

    \b
    Examples:
      coppice switch check --workers 2 --slots 1 --elements 3 --fault losses=2
      coppice switch check --fault losses=0 --fault early_timeouts=0 --set published_rule=1
      coppice switch check --workers 3 --slots 2 --elements 2,1 --fault duplicates=0 --fault early_timeouts=0
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.innetwork.simulated import search_interleavings

    found = search_interleavings(
        protocol=protocol,
        workers=workers,
        slots=slots,
        elements=_numbers(elements, "elements"),
        values=values,
        tree=None if tree is None else _numbers(tree, "tree"),
        reordering=not in_order,
        settings={key: _number(key, value) for key, value in parse_settings(settings or ()).items()},
        **structs.asdict(faults),
        **structs.asdict(limits),
    )
    if as_json:
        print_json("switch-check", found.record())
    else:
        searched = f"{found.states:,} states, {found.events:,} events, up to {found.depth} deep"
        title = f"{protocol}: {'every worker gets the sum, and everyone ends' if found.ok else 'FAULT'}"
        whole = (
            "everything within the budgets"
            if found.whole
            else "a part: raise most_states or most_events of --limit"
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
