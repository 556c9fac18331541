"""The topology argument and the options that every command with a topology shares.

A command declares its parameters with these annotated types and hands them to :func:`load_topology`::

    def bound(
        topology: TopologyArgument,
        boxes: BoxesOption = None,
        rates: RatesOption = None,
        settings: SetOption = None,
        ranks: RanksOption = None,
        relays: RelaysOption = False,
        round_digits: RoundOption = None,
    ) -> None:
        loaded = load_topology(
            topology,
            boxes=boxes,
            rates=rates,
            settings=settings,
            ranks=ranks,
            relays=relays,
            round_digits=round_digits,
        )
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from coppice.errors import InputError
from coppice.topology import Topology, round_rates, subset
from coppice.topology.sources import resolve_reading

__all__ = [
    "BoxesOption",
    "JsonOption",
    "OutputOption",
    "RanksOption",
    "RatesOption",
    "RelaysOption",
    "RoundOption",
    "SetOption",
    "TopologyArgument",
    "load_topology",
    "parse_ranks",
    "parse_settings",
]

TopologyArgument = Annotated[
    str,
    typer.Argument(
        metavar="TOPOLOGY",
        help="Preset name (`coppice topology list`) or file: coppice JSON/YAML, a cluster file, "
        "NCCL/RCCL XML, `nvidia-smi topo -m` or `rocm-smi --showtopo` text; - is standard input.",
        show_default=False,
    ),
]
BoxesOption = Annotated[
    int | None, typer.Option("--boxes", min=1, help="Number of boxes of a box preset.", show_default=False)
]
RatesOption = Annotated[
    str | None,
    typer.Option("--rates", help="Rates of a preset: nominal (default) or measured (the achievable class)."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Parameter of a preset; may be repeated."),
]
RanksOption = Annotated[
    str | None,
    typer.Option("--ranks", help="Only these ranks take part, such as 0,1,2 or 0-7,16; they are renumbered."),
]
RelaysOption = Annotated[
    bool,
    typer.Option("--relays", help="GPUs left out by --ranks may forward data, as switches do."),
]
RoundOption = Annotated[
    int | None,
    typer.Option(
        "--round", min=0, max=9, metavar="DIGITS", help="Round all rates (GB/s) to this many decimals."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON to standard output.")]
OutputOption = Annotated[
    Path | None, typer.Option("-o", "--output", help="File to write.", show_default=False, metavar="FILE")
]


def load_topology(
    spec: str,
    *,
    boxes: int | None = None,
    rates: str | None = None,
    settings: Sequence[str] | None = None,
    ranks: str | None = None,
    relays: bool = False,
    round_digits: int | None = None,
) -> Topology:
    """The topology that a command line asks for; warnings of its reader go to standard error.

    Args:
        spec: Preset name, file name, or ``-``.
        boxes: Number of boxes of a preset.
        rates: ``nominal`` or ``measured``, for a preset.
        settings: ``KEY=VALUE`` parameters of a preset.
        ranks: Ranks that take part, as text (see :func:`parse_ranks`); None takes all.
        relays: GPUs that do not take part may forward.
        round_digits: Decimals to which rates are rounded.

    Raises:
        InputError: If the topology cannot be had as asked.
    """
    options = parse_settings(settings or ())
    if rates is not None:
        options["rates"] = rates
    reading = resolve_reading(spec, boxes=boxes, options=options)
    for warning in reading.warnings:
        typer.echo(f"warning: {warning}", err=True)
    topology = reading.topology
    if round_digits is not None:
        topology = round_rates(topology, round_digits)
    if ranks is not None:
        topology = subset(topology, parse_ranks(ranks), relays=relays)
    return topology


def parse_settings(settings: Sequence[str], *, option: str = "--set") -> dict[str, str]:
    """``KEY=VALUE`` texts as a dictionary.

    Args:
        settings: The texts.
        option: The option that they were given to, for messages.

    >>> parse_settings(["dims=4x4", "fabric=rail"])
    {'dims': '4x4', 'fabric': 'rail'}

    Raises:
        InputError: If a text has no ``=`` or a key repeats.
    """
    options: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            msg = f"expected {option} KEY=VALUE, found {setting!r}: write both, with an equals sign between them."
            raise InputError(msg)
        if key in options:
            msg = f"{option} gives {key} twice ({options[key]!r} and {value!r}): keep one."
            raise InputError(msg)
        options[key] = value.strip()
    return options


def parse_ranks(text: str) -> list[int]:
    """A list of ranks from text such as ``0,1,2`` or ``0-7,16``.

    >>> parse_ranks("0-2,7")
    [0, 1, 2, 7]

    Raises:
        InputError: If the text is not such a list.
    """
    ranks: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        numbers = (first, last) if dash else (first,)
        if any(not number.isdecimal() or len(number) > 7 for number in numbers):
            msg = f"expected ranks such as 0,1,2 or 0-7,16, found {part.strip()!r} in --ranks {text}."
            raise InputError(msg)
        low, high = int(numbers[0]), int(numbers[-1])
        if high < low:
            msg = f"expected a range of ranks from low to high, found {part.strip()!r}: write {high}-{low}."
            raise InputError(msg)
        ranks.extend(range(low, high + 1))
    return ranks
