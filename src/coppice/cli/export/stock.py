"""Exports that libraries and launchers read as they are shipped, for `coppice export`."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from coppice.cli.export.request import Request
from coppice.cli.options.inputs import load_topology, parse_settings
from coppice.errors import InputError
from coppice.export.exported import Exported
from coppice.export.registry import STOCK, Kind, Option, Source, Target
from coppice.files import read_bytes, write_atomically
from coppice.schedule.files.plan_file import FORMAT, decode_plan
from coppice.schedule.plan import Plan
from coppice.text import parse_sizes, suggestion
from coppice.topology.model import Topology

__all__ = ["OPTIONS", "export_stock", "export_stock_format", "read_options", "stock_help"]

OPTIONS = frozenset({"--option", "--boxes", "--rates", "--set", "--ranks"})
"""Options that go with these exports; what stands in ``--option`` is up to each."""


def export_stock_format(request: Request) -> None:
    """Write what ``request`` asks for, as :func:`export_stock` does."""
    export_stock(
        request.source,
        request.to,
        options=request.options,
        output=request.output,
        boxes=request.boxes,
        rates=request.rates,
        settings=request.settings,
        ranks=request.ranks,
    )


def export_stock(
    spec: str,
    name: str,
    *,
    options: Sequence[str] = (),
    output: Path | None = None,
    boxes: int | None = None,
    rates: str | None = None,
    settings: Sequence[str] | None = None,
    ranks: str | None = None,
) -> Exported:
    """Write a file for a stock library or launcher; notes go to standard error.

    Args:
        spec: Topology (preset or file) or plan file; ``-`` is standard input.
        name: Export, a key of :data:`coppice.export.registry.STOCK`.
        options: ``KEY=VALUE`` texts for the export.
        output: File to write; None or ``-`` is standard output.
        boxes: Number of boxes of a preset.
        rates: Class of rates of a preset.
        settings: ``KEY=VALUE`` parameters of a preset or reader.
        ranks: Ranks that take part, as text.

    Returns:
        What was written.

    Raises:
        InputError: If the source, the export or an option cannot be used.
    """
    if name not in STOCK:
        msg = f"there is no export {name!r}: {suggestion(name, STOCK)}"
        raise InputError(msg)
    target = STOCK[name]
    chosen = read_options(target, name, options)
    plan = _plan(spec)
    source: Plan | Topology
    if plan is None:
        if target.source is Source.PLAN:
            msg = f"{name} is made of a plan, found none at {spec}: make one with `coppice plan ... -o plan.json`."
            raise InputError(msg)
        source = load_topology(spec, boxes=boxes, rates=rates, settings=settings, ranks=ranks)
    else:
        if boxes is not None or rates is not None or settings or ranks is not None:
            msg = f"{spec} is a plan with its own topology: leave out --boxes, --rates, --set and --ranks."
            raise InputError(msg)
        source = plan if target.source is Source.PLAN else plan.topology
    made = target.make(source, **chosen)
    if output is None or str(output) == "-":
        sys.stdout.write(made.text)
    else:
        write_atomically(output, made.text.encode())
    for note in made.notes:
        typer.echo(f"note: {note}", err=True)
    return made


def read_options(target: Target, name: str, texts: Sequence[str]) -> dict[str, Any]:
    """The options of an export from ``KEY=VALUE`` texts.

    Raises:
        InputError: If an option is unknown, or its value cannot be read.
    """
    values: dict[str, Any] = {}
    for key, text in parse_settings(texts, option="--option").items():
        if key not in target.options:
            hint = suggestion(key, target.options) if target.options else "it has none."
            msg = f"{name} has no option {key!r}: {hint}"
            raise InputError(msg)
        values[key] = _value(key, text, target.options[key])
    return values


_WIDTH = 92
_KINDS = {
    Kind.TEXT: "TEXT",
    Kind.NUMBER: "N",
    Kind.FLAG: "yes|no",
    Kind.NAMES: "A,B,...",
    Kind.SIZES: "SIZES",
    Kind.FILE: "FILE",
}


def stock_help(indent: str = "    ") -> str:
    r"""Options of every export of this module, for the help of the command.

    Args:
        indent: What stands before every line, as in a docstring.

    Examples:
        >>> print(stock_help("").split("\n\n")[-1].removeprefix("\b\n"))
        --to rccl-rings: NCCL_RINGS: rings for what a plan performs on one box, for RCCL as it is
        shipped. Its --option KEY=VALUE:
          rings=N  number of rings, 1 .. 64 (default: what loses least)
    """
    paragraphs = []
    for name, target in STOCK.items():
        lines = textwrap.wrap(f"--to {name}: {target.summary} Its --option KEY=VALUE:", _WIDTH)
        for key, option in target.options.items():
            values = "|".join(option.choices) if option.kind is Kind.CHOICE else _KINDS[option.kind]
            head = f"  {key}={values}"
            lines += textwrap.wrap(
                f"{head}  {option.help}", _WIDTH, subsequent_indent="      ", break_on_hyphens=False
            )
        paragraphs.append("\n".join(f"{indent}{line}" for line in ("\b", *lines)))
    return "\n\n".join(paragraphs)


def _value(key: str, text: str, option: Option) -> Any:
    if option.kind is Kind.CHOICE and text not in option.choices:
        msg = f"expected {key} to be one of {', '.join(option.choices)}, found {text!r}."
        raise InputError(msg)
    if option.kind is Kind.NUMBER:
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            msg = f"expected {key} to be a number ({option.help}), found {text!r}."
            raise InputError(msg)
        return int(text)
    if option.kind is Kind.FLAG:
        if text not in ("yes", "no"):
            msg = f"expected {key} to be yes or no, found {text!r}."
            raise InputError(msg)
        return text == "yes"
    if option.kind is Kind.NAMES:
        return tuple(part.strip() for part in text.split(","))
    if option.kind is Kind.SIZES:
        return parse_sizes(text, option=key)
    return Path(text) if option.kind is Kind.FILE else text


def _plan(spec: str) -> Plan | None:
    """The plan in a file, or None where it is something else."""
    if spec == "-" or not Path(spec).is_file():
        return None
    data = read_bytes(spec)
    start = data[:4096].lstrip()
    if start.startswith(b"{") and f'"{FORMAT}"'.encode() in start:
        return decode_plan(data, name=spec)
    return None
