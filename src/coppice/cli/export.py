"""`coppice export`: export a plan or a topology for a runtime, a library or a launcher."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import Struct

from coppice.cli import with_flags
from coppice.cli.options.declaring import with_options
from coppice.cli.options.inputs import load_topology
from coppice.cli.options.measuring import chosen_model
from coppice.cli.output import Stages, print_json, print_note, to_stdout, write_text
from coppice.errors import CoppiceError, InputError
from coppice.export.formats import FORMATS, MODEL
from coppice.options import Option, Size, argument, option, options_of, parse_settings
from coppice.options.shared import BoxesOption, JsonOption, OutputOption, RanksOption, RatesOption, SetOption
from coppice.text import parse_size, suggestion

if TYPE_CHECKING:
    from coppice.topology.model import Topology

RUNTIMES = ("msccl-xml", "mscclpp-json", "chakra")
"""Formats whose options have flags of their own."""

PICTURES = {
    "trace": "Messages of the plan at one size, simulated, for ui.perfetto.dev.",
    "html": "Report of the plan in one page, as `coppice report` writes it.",
    "svg": "Picture of the topology with the plan's loads and the bottleneck cut.",
    "dot": "The topology with the bottleneck cut, for Graphviz.",
}
"""What is written as `coppice simulate --trace` and `coppice report` write it."""

NAMES = (*RUNTIMES, *PICTURES, *(name for name in FORMATS if name not in RUNTIMES))
"""What `--to` names."""

SOURCE_FLAGS = ("--boxes", "--rates", "--set", "--ranks")
"""Options of a topology."""


class TimedPictureOptions(Struct, frozen=True, kw_only=True):
    """A picture with simulated times."""

    size: Annotated[Size | None, option("size of the message")] = None
    model: Annotated[str | None, option("what messages cost (default: nccl-2.30)")] = None


_TIMED_PICTURES = ("trace", "html")


def _shared_flags() -> dict[str, Option]:
    """Options of MSCCL XML, which have flags of their own, with what they mean for each format that has them."""
    shared = {}
    for name, chosen in FORMATS["msccl-xml"].options.items():
        words: dict[str, list[str]] = {}
        for to in NAMES:
            if to in FORMATS and name in _flagged(to):
                words.setdefault(FORMATS[to].options[name].help, []).append(to)
            elif to in _TIMED_PICTURES and name in TimedPictureOptions.__struct_fields__:
                words.setdefault(options_of(TimedPictureOptions)[name].help, []).append(to)
        text = "; ".join(f"{', '.join(names)}: {meaning}" for meaning, names in words.items())
        shared[name] = replace(chosen, help=f"{text}.")
    return shared


def _flagged(to: str) -> dict[str, str]:
    """Options of a format that have flags of their own, with the flag."""
    first = FORMATS["msccl-xml"].options
    return {
        key: first[key].flags[0]
        for key, each in FORMATS[to].options.items()
        if key in first and (to in RUNTIMES or each.kind is MODEL)
    }


FLAGS = _flagged("msccl-xml")
"""Options that have flags of their own, for the formats of :data:`RUNTIMES` (and the model of time, for all that
simulate); all others stand in `--option`."""


@with_options("source to output flags options ... as_json", flags=_shared_flags())
def export(
    source: Annotated[
        str,
        argument(
            "Plan file or set of plans; for some exports a topology; for msccl-xml also an MSCCL XML file of another "
            "target.",
            metavar="PLAN|TOPOLOGY",
        ),
    ],
    flags: dict[str, Any],
    *,
    to: Annotated[str, option(f"One of: {', '.join(NAMES)}.", metavar="FORMAT")],
    output: OutputOption = None,
    options: Annotated[
        list[str] | None,
        option("Option of another export; may be repeated.", "--option", metavar="KEY=VALUE"),
    ] = None,
    boxes: BoxesOption = None,
    rates: RatesOption = None,
    settings: SetOption = None,
    ranks: RanksOption = None,
    as_json: JsonOption = False,
) -> None:
    """Export a plan for a runtime, or tuning files for stock libraries and launchers.

    Of a set of plans a file is written for each range of sizes, into a folder. MSCCL XML is written within the limits
    of its target, and verified before: no deadlock, no race, the right result. A plan that does not fit is refused with
    the limit, by how much, and the next step (exit code 1).

    \b
    Examples:
      coppice export plan.json --to msccl-xml --target rccl -o algo.xml
      coppice export plan.json --to msccl-xml --target msccl --channels 4 --size 1M:1G -o algo.xml
      coppice export plan.json --to mscclpp-json --size 1M:1G -o plan.mscclpp.json
      coppice export plans/ --to msccl-xml --target rccl -o algorithms/
      coppice export dgx-h100 --boxes 4 --to rank-order --option launcher=slurm
      coppice export plan.json --to chakra --size 64M -o traces
    """  # noqa: D301 (\b is for the help formatter)
    if as_json:
        to_stdout(output or Path("-"), as_json=True, holds="the file", instead="algo.xml")
    if to not in NAMES:
        raise InputError(f"there is no export {to!r}: {suggestion(to, NAMES)}")
    values = dict(flags)
    given = [FLAGS[name] for name in values]
    given += ["--option"] if options else []
    given += [
        flag
        for flag, value in zip(SOURCE_FLAGS, (boxes, rates, settings or None, ranks), strict=True)
        if value is not None
    ]
    takes = flags_of(to)
    for flag in given:
        if flag not in takes:
            taken = ", ".join(sorted(takes)) or "none"
            raise InputError(f"{flag} does not go with --to {to}: leave it out (its options: {taken}).")
    if to in PICTURES:
        _export_picture(source, to, output=output, **values)
        if as_json:
            print_json("export", {"to": to, "output": str(output), "notes": []})
        return
    own = _own_options(to)
    for key, text in parse_settings(options or (), option="--option").items():
        if key not in own:
            hint = suggestion(key, own) if own else "it has none."
            raise InputError(f"{to} has no option {key!r}: {hint}")
        values[key] = text
    origin: str | Topology = source
    if to not in RUNTIMES:
        origin = _plan_or_topology(source, to, boxes=boxes, rates=rates, settings=settings, ranks=ranks)
    _export_format(origin, to, values, output=output, as_json=as_json)


def flags_of(to: str) -> Collection[str]:
    """Flags of a format; all others are refused."""
    if to in PICTURES:
        return {"--size", "--model"} if to in _TIMED_PICTURES else set()
    flags = set(_flagged(to).values())
    if to not in RUNTIMES:
        return {*flags, "--option", *SOURCE_FLAGS}
    return {*flags, "--option"} if _own_options(to) else flags


def _own_options(to: str) -> Mapping[str, Option]:
    """Options of a format that stand in `--option`."""
    flagged = _flagged(to)
    return {key: option for key, option in FORMATS[to].options.items() if key not in flagged}


def _plan_or_topology(
    source: str,
    to: str,
    *,
    boxes: int | None,
    rates: str | None,
    settings: Sequence[str] | None,
    ranks: str | None,
) -> str | Topology:
    """The name of a plan file as it is; anything else is a topology."""
    from coppice.export.registry import is_plan_file

    if not is_plan_file(source):
        if FORMATS[to].takes_plan:
            raise InputError(
                f"{to} is made of a plan, found none at {source}: make one with `coppice plan ... -o plan.json`."
            )
        return load_topology(source, boxes=boxes, rates=rates, settings=settings, ranks=ranks)
    if boxes is not None or rates is not None or settings or ranks is not None:
        raise InputError(
            f"{source} is a plan with its own topology: leave out --boxes, --rates, --set and --ranks."
        )
    return source


def _export_format(
    source: str | Topology, to: str, values: Mapping[str, Any], *, output: Path | None, as_json: bool
) -> None:
    """Write a format; notes go to standard error."""
    from coppice.export.registry import export as export_to

    printed = output is None or str(output) == "-"
    if to == "chakra" and printed:
        raise InputError("Chakra traces are a file for each rank: name a directory (`-o traces`).")
    flags = _flagged(to)
    try:
        with Stages() as stages:
            stages.begin(f"making {to}")
            path = None if printed else output
            made = export_to(source, to, on_stage=stages.begin, **values)
            if made.parts and printed:
                raise InputError(
                    "a set of plans makes a file for each range of sizes: name a folder (`-o algorithms/`)."
                )
            for name, part in (made.parts or {f"the {to}": made}).items():
                if part.read_as:
                    from coppice.doctor import diagnose

                    stages.begin("asking the doctor")
                    diagnose(part.text.encode(), part.read_as, options=part.known, file=name).require_ok()
            if path is not None:
                made.write(path)
            if printed:
                write_text(made.text, None)
    except CoppiceError as error:
        error.args = (_with_options(str(error), to), *error.args[1:])
        raise
    notes = [with_flags(_with_options(note, to), flags) for note in made.notes]
    if as_json:
        print_json("export", {"to": to, "output": str(output), "notes": notes})
        return
    for note in notes:
        print_note(f"note: {note}")
    if made.summary:
        typer.echo(f"{made.summary} written to {output}")


def _with_options(words: str, to: str) -> str:
    """What the library says, with options that have no flag as they are written here."""
    return re.sub(
        r"`([a-z]\w*)=([^`]+)`",
        lambda found: f"`--option {found[1]}={found[2]}`" if found[1] in _own_options(to) else found[0],
        words,
    )


def _export_picture(
    source: str, to: str, *, output: Path | None, size: str | None = None, model: str | None = None
) -> None:
    """Write what `coppice simulate --trace` or `coppice report` writes."""
    from coppice.report.page import DEFAULT_SIZE_BYTES
    from coppice.report.reporting import report_text
    from coppice.schedule.files.set_file import plan_at
    from coppice.simulation.simulator import fastest
    from coppice.simulation.trace import write_trace

    if to == "trace" and (output is None or str(output) == "-"):
        raise InputError("a trace is a file: name it (`-o trace.json`).")
    size_bytes = DEFAULT_SIZE_BYTES if size is None else parse_size(size, option="--size")
    with Stages() as stages:
        stages.begin("reading the plan")
        plan = plan_at(source, size)
        if to == "trace" and output is not None:
            stages.begin("simulating")
            timeline = fastest(plan.body, size_bytes, model=chosen_model(model))
            stages.begin("writing the trace")
            write_trace(timeline, output)
            return
        text = report_text(plan, f".{to}", size=size_bytes, model=model, on_stage=stages.begin)
    write_text(text, output)


_WIDTH = 92


def option_help(indent: str = "    ") -> str:
    r"""Help of `--option` for each format whose options have no flags of their own.

    Args:
        indent: What stands before every line, as in a docstring.

    Examples:
        >>> print(option_help("").split("\n\n")[-1].removeprefix("\b\n"))
        --to rccl-rings: NCCL_RINGS: rings for what a plan performs on one box, for RCCL as it is
        shipped. Its --option KEY=VALUE:
          rings=N  number of rings, 1 .. 64 (default: what loses least)
    """
    paragraphs = []
    for name, chosen in FORMATS.items():
        if name in RUNTIMES:
            continue
        own = " Its --option KEY=VALUE:" if chosen.options else ""
        lines = textwrap.wrap(f"--to {name}: {chosen.summary}{own}", _WIDTH)
        for key, each in _own_options(name).items():
            head = f"  {key}={each.metavar}"
            lines += textwrap.wrap(
                f"{head}  {each.help}", _WIDTH, subsequent_indent="      ", break_on_hyphens=False
            )
        paragraphs.append("\n".join(f"{indent}{line}" for line in ("\b", *lines)))
    return "\n\n".join(paragraphs)


export.__doc__ = f"{(export.__doc__ or '').rstrip()}\n\n{option_help()}\n"
