"""`coppice algorithms`: list the names for `coppice plan --algorithm`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from coppice.cli.options.declaring import with_options
from coppice.cli.output import print_json, print_lines
from coppice.cli.terminal import LEAST_WIDTH, terminal_width
from coppice.collectives import Collective
from coppice.options import argument, option
from coppice.options.shared import JsonOption
from coppice.text import columns

if TYPE_CHECKING:
    from coppice.outputs.shapes.planning import AlgorithmJson
    from coppice.planners.choice import Listed


@with_options()
def algorithms(
    name: Annotated[
        str | None,
        argument("Show everything about this one."),
    ] = None,
    *,
    collective: Annotated[
        Collective | None,
        option("Only those that perform this collective.", "--collective", "-c", metavar="NAME"),
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
    from coppice.planners.choice import listed

    entries = listed(collective, name)
    if as_json:
        print_json("algorithms", {"algorithms": [_record(entry) for entry in entries]})
    elif name is not None:
        for entry in entries:
            _print_details(entry)
    else:
        _print_table(entries)


def _record(entry: Listed) -> AlgorithmJson:
    return {
        "name": entry.name,
        "collectives": [collective.value for collective in entry.collectives],
        "rank_rule": entry.ranks,
        "ranks": entry.ranks,
        "roots": entry.roots,
        "topological": entry.topological,
        "summary": entry.summary,
        "source": entry.source,
        "parameter_list": [
            {"name": key, "default": parameter.default, "summary": parameter.summary}
            for key, parameter in entry.parameters.items()
        ],
        "parameters": {
            key: {"default": parameter.default, "summary": parameter.summary}
            for key, parameter in entry.parameters.items()
        },
    }


def _print_table(entries: tuple[Listed, ...]) -> None:
    rows = [("algorithm", "collectives", "ranks", "parameters", "what it does")]
    rows += [
        (
            entry.name,
            ", ".join(collective.value for collective in entry.collectives),
            entry.ranks,
            ", ".join(entry.parameters),
            entry.summary,
        )
        for entry in entries
    ]
    print_lines(columns(rows, max_width=terminal_width(), spare=[3, 2, 4], words=LEAST_WIDTH))


def _print_details(entry: Listed) -> None:
    names = ", ".join(collective.value for collective in entry.collectives)
    lines = [f"{entry.name}: {entry.summary}"]
    lines += [f"  performs  {names}", f"  ranks     {entry.ranks}", f"  source    {entry.source}"]
    lines += [
        f"  --parameter {key}={parameter.default}  {parameter.summary}"
        for key, parameter in entry.parameters.items()
    ]
    print_lines(lines)
