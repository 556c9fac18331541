"""`coppice tune export`, `plugin` and `check`: deploy a rule table, and check whether it still pays."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coppice.cli.options.declaring import with_options
from coppice.cli.output import print_json, print_lines, print_note, to_stdout, write_text
from coppice.cli.terminal import terminal_width
from coppice.errors import CheckError
from coppice.options import argument, option, parse_settings
from coppice.options.names import PLUGINS, TUNING_FORMS
from coppice.options.shared import (
    JsonOption,
    LauncherOption,
    LauncherWordsOption,
    NumRanksOption,
    OutputOption,
    RoundsOption,
)
from coppice.text import columns, short_size

if TYPE_CHECKING:
    from coppice.tuning.sweep import Checked

plugin_app = typer.Typer(no_args_is_help=True, help="Build Coppice's plugins for NCCL and RCCL.")


@with_options()
def export(
    table: Annotated[Path, argument("Table of `coppice tune fit`.", metavar="TABLE")],
    *,
    to: Annotated[str, option("Form of its library.", metavar="|".join(TUNING_FORMS))],
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the rules for the library; notes on standard error explain how to use them, and how to undo that.

    \b
    Examples:
      coppice tune export table.csv --to ompi-rules -o rules.conf
      coppice tune export table.csv --to nccl-tuner -o tuner.csv
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.tuning.exports import export_table
    from coppice.tuning.table import read_table

    if as_json:
        to_stdout(output or Path("-"), as_json=True, holds="the rules", instead="rules.conf")
    made = export_table(read_table(table), to)
    write_text(made.text, output)
    notes = [note.replace("=FILE", f"={output.absolute()}") if output else note for note in made.notes]
    if as_json:
        print_json("export", {"to": to, "output": str(output), "notes": notes})
        return
    for note in notes:
        print_note(f"note: {note}")


@plugin_app.callback()
def plugin() -> None:
    """Build Coppice's plugins for NCCL and RCCL."""


@plugin_app.command("build")
@with_options()
def build(
    kind: Annotated[
        str, argument("Which plugin [default: tuner].", metavar=f"[{'|'.join(PLUGINS)}]")
    ] = "tuner",
    *,
    output: Annotated[
        Path | None,
        option("File to write [default: as NCCL looks for it].", "-o", "--output", metavar="FILE"),
    ] = None,
    compiler: Annotated[
        str | None,
        option(
            "C11 compiler, for env C++17, for net C++20 [default: $CC, cc; $CXX, c++].",
            "--cc",
            metavar="COMMAND",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compile a plugin, without CUDA and NCCL.

    tuner picks algorithms by a tuner table (API versions 3 to 6: NCCL 2.22 and later): it changes a call only where a
    line of the table holds and the library offers what the line names. net carries all-reduce, all-gather and
    reduce-scatter between nodes by trees over TCP (network and collective network, versions 8 to 12). env hands
    settings of `coppice tune plugin settings` to jobs that set nothing themselves (versions 1 and 2: NCCL 2.28.7 and
    later).

    \b
    Examples:
      coppice tune plugin build -o libnccl-tuner-coppice.so
      coppice tune plugin build net
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.tuning.building import NCCL_PLUGINS, build_plugin

    path = build_plugin(output, kind=kind, compiler=compiler)
    made = NCCL_PLUGINS[kind]
    use = f"export {made.variable}={path} {made.settings}"
    undo = f"unset {made.variable}"
    if as_json:
        print_json("tune-plugin", {"output": str(path), "use": use, "undo": undo})
        return
    print_lines([f"written to {path}", f"use:  {use}", f"undo: {undo}"])


@plugin_app.command("settings")
@with_options()
def settings(
    given: Annotated[list[str], argument("Variables of NCCL, RCCL or Coppice.", metavar="NAME=VALUE...")],
    *,
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a site's settings for the env plugin, with checked files and absolute paths.

    A job's own environment wins over the file.

    \b
    Examples:
      coppice tune plugin settings NCCL_ALGO=Ring NCCL_BUFFSIZE=8388608 -o site.conf
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.tuning.building import SETTINGS_VARIABLE, settings_text
    from coppice.version import __version__

    if as_json:
        to_stdout(output or Path("-"), as_json=True, holds="the settings", instead="site.conf")
    pairs = parse_settings(given, option="the argument")
    write_text(settings_text(pairs, notes=[f"written by coppice {__version__}"]), output)
    use = f"export NCCL_ENV_PLUGIN=coppice {SETTINGS_VARIABLE}={output.absolute() if output else 'FILE'}"
    if as_json:
        print_json("tune-plugin-settings", {"output": str(output), "settings": dict(pairs), "use": use})
        return
    print_note(f"note: use: {use}; take it back: unset {SETTINGS_VARIABLE}")


@with_options()
def check(
    table: Annotated[Path, argument("Table of `coppice tune fit`.", metavar="TABLE")],
    runs: Annotated[Path, argument("Measurements, whose sizes are measured again.", metavar="BASELINE")],
    *,
    ranks: NumRanksOption = None,
    lab: Annotated[str | None, option("Measure again in this lab.", metavar="NAME")] = None,
    launcher: LauncherOption = None,
    options: LauncherWordsOption = None,
    rounds: RoundsOption = 15,
    tolerance: Annotated[float, option("Relative loss that is no failure.", ge=0)] = 0.03,
    as_json: JsonOption = False,
) -> None:
    """Measure with the rules in use against the default; exit code 1 if a size is significantly slower.

    With --num-ranks or --lab, the library runs with the exported rules at all collectives and sizes of BASELINE.
    Without, BASELINE itself is judged: measurements made after the fit, at the choices of the table.

    \b
    Examples:
      coppice tune check table.csv runs.jsonl --num-ranks 8
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.tuning.records import read_runs
    from coppice.tuning.sweep import check_runs, measured_again
    from coppice.tuning.table import read_table, undo_line

    rules, known = read_table(table), read_runs([runs])
    if ranks or lab is not None:
        known = measured_again(
            rules, known, rounds=rounds, ranks=ranks or 0, lab=lab, launcher=launcher, options=options or ()
        )
    found = check_runs(rules, known, tolerance=tolerance)
    bad = [each for each in found if each.slower]
    if as_json:
        print_json("tune-check", {"ok": not bad, "sizes": [each.record() for each in found]})
    else:
        print_lines([*_lines(found), undo_line(rules.library)])
    if bad:
        worst = min(bad, key=lambda each: each.verdict.gain)
        raise CheckError(
            f"expected no size to be slower than by default beyond noise, found {len(bad)} of {len(found)}, the worst "
            f"{worst.shape} of {short_size(worst.size_bytes)} by {worst.rule} with a gain of {worst.verdict.gain:.2f}: "
            "measure and fit again."
        )


def _lines(found: tuple[Checked, ...]) -> list[str]:
    rows = [("collective", "size", "rule", "gain", "95 % interval", "p slower", "")]
    rows += [
        (
            str(each.shape),
            short_size(each.size_bytes),
            each.rule,
            f"{each.verdict.gain:.2f}",
            f"{each.verdict.low:.2f} .. {each.verdict.high:.2f}",
            f"{each.p_slower:.2g}",
            "SLOWER" if each.slower else "",
        )
        for each in found
    ]
    return columns(rows, max_width=terminal_width(), spare=[5, 4])
