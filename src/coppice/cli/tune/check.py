"""`coppice tune check`: a regression gate for a table of rules."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from coppice.cli.options.inputs import JsonOption
from coppice.cli.output.render import print_json, print_lines
from coppice.errors import CheckError
from coppice.text import short_size
from coppice.tuning.check import Checked, check_runs
from coppice.tuning.records import Run, read_runs
from coppice.tuning.table import RuleTable, read_table
from coppice.tuning.undo import undo_line

__all__ = ["check", "measured_again"]


def check(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="Table of `coppice tune fit`.")],
    runs: Annotated[
        Path, typer.Argument(metavar="BASELINE", help="Measurements, whose sizes are measured again.")
    ],
    *,
    ranks: Annotated[int, typer.Option("--ranks", metavar="N", help="Measure again on so many ranks.")] = 0,
    lab: Annotated[
        str | None,
        typer.Option("--lab", metavar="NAME", help="Measure again in this lab.", show_default=False),
    ] = None,
    launcher: Annotated[
        str | None, typer.Option("--launcher", metavar="PATH", help="mpirun or mpiexec.", show_default=False)
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--launcher-option", metavar="WORD", help="Further word for the launcher; may be repeated."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option("-n", "--rounds", min=1, help="Rounds when measuring again.")] = 15,
    tolerance: Annotated[
        float, typer.Option("--tolerance", min=0, help="Relative loss that is no failure.")
    ] = 0.03,
    as_json: JsonOption = False,
) -> None:
    """Measure with the rules in use beside the default; exit code 1 if a size is slower beyond noise.

    With --ranks or --lab, the library runs with the exported rules at all collectives and sizes of BASELINE. Without,
    BASELINE itself is judged: measurements made after the fit, at the choices of the table.

    \b
    Examples:
      coppice tune check table.csv runs.jsonl --ranks 8
    """  # noqa: D301 (\b is for the help formatter)
    rules, known = read_table(table), read_runs([runs])
    if ranks or lab is not None:
        known = measured_again(
            rules, known, ranks=ranks, lab=lab, launcher=launcher, options=options or [], rounds=rounds
        )
    found = check_runs(rules, known, tolerance=tolerance)
    bad = [each for each in found if each.slower]
    if as_json:
        print_json({"ok": not bad, "sizes": [_record(each) for each in found]})
    else:
        print_lines([*_lines(found), undo_line(rules.library)])
    if bad:
        worst = min(bad, key=lambda each: each.verdict.gain)
        msg = (
            f"expected no size to be slower than by default beyond noise, found {len(bad)} of {len(found)}, the worst "
            f"{worst.shape} of {short_size(worst.size_bytes)} by {worst.rule} with a gain of {worst.verdict.gain:.2f}: "
            "measure and fit again."
        )
        raise CheckError(msg)


def measured_again(
    rules: RuleTable,
    known: tuple[Run, ...],
    *,
    ranks: int,
    lab: str | None,
    launcher: str | None,
    options: list[str],
    rounds: int,
) -> tuple[Run, ...]:
    """Measurements of the library with the rules in use, at the collectives and sizes of others."""
    from coppice.tuning.deployed import deployed_environment
    from coppice.tuning.sweep import sweep_mpi
    from coppice.tuning.worker import Spec

    with tempfile.TemporaryDirectory(prefix="coppice-tune-") as directory:
        output = Path(directory) / "runs.jsonl"
        sweep_mpi(
            Spec(
                library=rules.library,
                collectives=list(dict.fromkeys(run.collective for run in known)),
                sizes=sorted({run.size_bytes for run in known}),
                rounds=rounds,
                output=str(output),
                deployed=True,
            ),
            ranks=ranks,
            lab=lab,
            launcher=launcher,
            options=options,
            environment=deployed_environment(rules, Path(directory)),
        )
        return read_runs([output])


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
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _record(each: Checked) -> dict[str, Any]:
    return {
        "collective": each.shape.collective.value,
        "nodes": each.shape.nodes,
        "ranks": each.shape.ranks,
        "size_bytes": each.size_bytes,
        "rule": each.rule,
        "gain": each.verdict.gain,
        "low": each.verdict.low,
        "high": each.verdict.high,
        "p_slower": each.p_slower,
        "slower": each.slower,
    }
