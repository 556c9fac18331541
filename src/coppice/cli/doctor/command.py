"""`coppice doctor`: will a runtime load this file, and use it at these sizes?"""

from __future__ import annotations

from itertools import groupby
from typing import Annotated, Any

import typer

from coppice.cli.doctor.mscclpp import TARGET as MSCCLPP
from coppice.cli.doctor.mscclpp import doctor_mscclpp
from coppice.cli.doctor.tuning import ARTEFACTS, GIVEN, doctor_tuning
from coppice.cli.options.inputs import JsonOption
from coppice.cli.options.sizes import parse_sizes, short_size
from coppice.cli.output.render import print_json, print_lines
from coppice.doctor.msccl.diagnose import Diagnosis, Severity, rules
from coppice.doctor.msccl.diagnose import doctor as examine
from coppice.errors import InputError
from coppice.export.msccl.targets import TARGETS

__all__ = ["doctor"]


def doctor(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="MSCCL XML, MSCCL++ JSON or tuning file; - is standard input.",
            show_default=False,
        ),
    ],
    *,
    target: Annotated[
        str,
        typer.Option(
            "--target",
            metavar="NAME",
            help=f"Runtime that is to read MSCCL XML ({', '.join(TARGETS)}), {MSCCLPP}, or kind of a tuning file "
            f"({', '.join(ARTEFACTS)}).",
            show_default=False,
        ),
    ],
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", min=1, metavar="N", help="Ranks of the communicator.", show_default=False),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            "--size", "-s", metavar="LIST", help="Message sizes, such as 1M:1G or 64K,1M.", show_default=False
        ),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="KEY=VALUE",
            help=f"Tuning files: what is known of the job, out of {', '.join(GIVEN)}; may be repeated.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say whether a runtime will load a file and use it, and if not, why and what to do.

    Every rule of the target's loader is checked, those that it does not check itself included. Whether the
    algorithm is right is another question: `coppice import` verifies it. Exit code 1 if there is an error, or a
    size at which the file would not be used.

    Tuning files are tuner tables, graphs, topologies, rings and trees that NCCL and RCCL read as they are shipped,
    rules of Open MPI and variables of MPICH; libraries hardly check them. The more is told of the job, the more rules
    can be decided; the rest are listed.

    \b
    Examples:
      coppice doctor algo.xml --target rccl
      coppice doctor algo.xml --target rccl --ranks 16 --size 1M:1G
      coppice doctor plan.mscclpp.json --target mscclpp --ranks 8 --size 1M:1G
      coppice doctor table.csv --target nccl-tuner --option dialect=rccl-builtin --option log=nccl.log
      coppice doctor rules.conf --target ompi-rules --option shapes=4x32,1x8 --option version=5.0.11
    """  # noqa: D301 (\b is for the help formatter)
    if target in ARTEFACTS:
        if ranks is not None or size is not None:
            msg = f"--ranks and --size are for MSCCL XML: tell the doctor of {target} files by --option (shapes=2x16)."
            raise InputError(msg)
        doctor_tuning(file, target, options=options or (), as_json=as_json)
        return
    if options:
        msg = "--option is for tuning files: give --ranks and --size for MSCCL XML."
        raise InputError(msg)
    sizes = () if size is None else parse_sizes(size, option="--size")
    if target == MSCCLPP:
        doctor_mscclpp(file, ranks=ranks, sizes=sizes, as_json=as_json)
        return
    diagnosis = examine(file, target, ranks=ranks, sizes=sizes)
    if as_json:
        print_json(_record(diagnosis))
    else:
        print_lines(_lines(diagnosis))
    diagnosis.require_ok()


def _lines(diagnosis: Diagnosis) -> list[str]:
    why = {rule.id: rule.why for rule in rules()}
    lines = [
        f"{diagnosis.file} for {diagnosis.target.title}: {'it loads' if diagnosis.loads else 'it will NOT work'}"
    ]
    for finding in diagnosis.findings:
        place = f"{diagnosis.file}:{finding.line}: " if finding.line else ""
        effect = "" if finding.severity is Severity.NOTE else f" ({why[finding.rule]})"
        lines.append(f"  {finding.severity.value:<7}  {finding.rule}  {place}{finding.text}{effect}")
        lines.append(f"                fix: {finding.fix}")
    lines.extend(f"  ... and {count} more of {rule}" for rule, count in diagnosis.hidden.items())
    for reason, group in groupby(diagnosis.sizes, key=lambda pair: pair[1]):
        members = [pair[0] for pair in group]
        span = short_size(members[0]) + ("" if len(members) == 1 else f"..{short_size(members[-1])}")
        lines.append(f"  {span}: {'used' if reason is None else f'NOT used: {reason}'}")
    return lines


def _record(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "file": diagnosis.file,
        "target": diagnosis.target.name,
        "loads": diagnosis.loads,
        "ok": diagnosis.ok,
        "findings": [
            {
                "rule": finding.rule,
                "severity": finding.severity.value,
                "line": finding.line,
                "text": finding.text,
                "fix": finding.fix,
            }
            for finding in diagnosis.findings
        ],
        "hidden": diagnosis.hidden,
        "sizes": [
            {"size_bytes": size, "used": reason is None, "reason": reason} for size, reason in diagnosis.sizes
        ],
    }
