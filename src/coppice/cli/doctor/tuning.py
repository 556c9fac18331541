"""`coppice doctor` for files that stock libraries read: tables, graphs, topologies, rings, trees, rules, variables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coppice.cli.options.inputs import load_topology, parse_settings
from coppice.cli.output.render import print_json, print_lines
from coppice.doctor.msccl.diagnose import Severity
from coppice.doctor.tuning import Artefact, Given, TuningDiagnosis, diagnose_tuning, tuning_rules
from coppice.errors import InputError
from coppice.export.nccl.tuner import Dialect
from coppice.files import read_bytes
from coppice.logs.reading import read_log
from coppice.text import suggestion

__all__ = ["ARTEFACTS", "GIVEN", "doctor_tuning", "given_from"]

ARTEFACTS = tuple(str(artefact) for artefact in Artefact)

GIVEN: Mapping[str, str] = {
    "dialect": f"of a tuner table: {', '.join(Dialect)}",
    "topology": "preset or file: where the job runs",
    "boxes": "number of boxes of that preset",
    "log": "log of NCCL, with its cost model, channels and plug-ins",
    "dump": "the library's own dump of graphs or of the topology",
    "shapes": "communicators of the job, NODESxRANKS such as 4x32,1x8",
    "channels": "channels of its communicators",
    "version": "version of the library, such as 2.27.7, 5.0.11, or rccl-2.21.5",
    "gpus": "GPUs of a host",
    "nics": "names of the NICs in the plug-in's list, such as mlx5_0,mlx5_1",
}
"""What `--option` tells the doctor of a job, with its meaning."""

_SHAPE = re.compile(r"([0-9]{1,6})x([0-9]{1,7})")
_VERSION = re.compile(r"(rccl-|nccl-)?([0-9]{1,3}(?:\.[0-9]{1,3}){0,2})")


def doctor_tuning(file: str, artefact: str, *, options: Sequence[str], as_json: bool) -> None:
    """Examine a tuning file, print what is found, and refuse it if there is an error.

    Args:
        file: The file; ``-`` is standard input.
        artefact: What it is, one of :data:`ARTEFACTS`.
        options: ``KEY=VALUE`` texts, keys of :data:`GIVEN`.
        as_json: Print JSON.

    Raises:
        InputError: If the file or what is given cannot be read.
        CheckError: If a rule with an error is broken.
    """
    given = given_from(options)
    name = "standard input" if file == "-" else file
    found = diagnose_tuning(read_bytes(file), artefact, file=name, given=given)
    if as_json:
        print_json(_record(found))
    else:
        print_lines(_lines(found))
    found.require_ok()


def given_from(options: Sequence[str]) -> Given:
    """What is known of a job, from ``KEY=VALUE`` texts.

    Raises:
        InputError: If a key is unknown or a value cannot be read.

    Examples:
        >>> given_from(["shapes=4x32,1x8", "version=2.27.7"]).known_shapes == {(4, 32), (1, 8)}
        True
    """
    values = parse_settings(options, option="--option")
    for key in values:
        if key not in GIVEN:
            msg = f"the doctor has no option {key!r}: {suggestion(key, GIVEN)}"
            raise InputError(msg)
    dialect = values.get("dialect")
    if dialect is not None and dialect not in list(Dialect):
        msg = f"expected dialect={'|'.join(Dialect)}, found {dialect!r}."
        raise InputError(msg)
    if "boxes" in values and "topology" not in values:
        msg = "boxes counts those of a preset: give it with topology=PRESET."
        raise InputError(msg)
    version = _VERSION.fullmatch(values.get("version", ""))
    if "version" in values and version is None:
        msg = f"expected version such as 2.27.7 or rccl-2.21.5, found {values['version']!r}."
        raise InputError(msg)
    return Given(
        dialect=None if dialect is None else Dialect(dialect),
        topology=load_topology(values["topology"], boxes=_number(values, "boxes"))
        if "topology" in values
        else None,
        log=read_log(Path(values["log"])) if "log" in values else None,
        dump=read_bytes(values["dump"]) if "dump" in values else None,
        shapes=_shapes(values.get("shapes")),
        channels=_number(values, "channels"),
        version=None if version is None else tuple(map(int, version[2].split("."))),
        rccl=version is not None and version[1] == "rccl-",
        gpus=_number(values, "gpus"),
        nics=tuple(part.strip() for part in values["nics"].split(",")) if "nics" in values else (),
    )


def _number(values: Mapping[str, str], key: str) -> int | None:
    text = values.get(key)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 8 and int(text)):
        msg = f"expected {key} as a number of 1 or more, found {text!r}."
        raise InputError(msg)
    return int(text)


def _shapes(text: str | None) -> tuple[tuple[int, int], ...]:
    found = []
    for part in [] if text is None else text.split(","):
        match = _SHAPE.fullmatch(part.strip())
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            msg = f"expected shapes as NODESxRANKS such as 4x32 (32 ranks in all), found {part!r}."
            raise InputError(msg)
        found.append((int(match[1]), int(match[2])))
    return tuple(found)


def _lines(found: TuningDiagnosis) -> list[str]:
    rules = {rule.id: rule for rule in tuning_rules(found.artefact)}
    words = "no errors" if found.ok else "it will NOT work as meant"
    lines = [f"{found.file} as {found.artefact}: {words}"]
    for finding in found.findings:
        place = f"{found.file}:{finding.line}: " if finding.line else ""
        effect = "" if finding.severity is Severity.NOTE else f" ({rules[finding.rule].why})"
        lines.append(f"  {finding.severity.value:<7}  {finding.rule}  {place}{finding.text}{effect}")
        lines.append(f"                fix: {finding.fix}")
    lines.extend(f"  ... and {count} more of {rule}" for rule, count in found.hidden.items())
    if found.undecided:
        lines.append("  not decided:")
        lines += [f"    {rule}  {rules[rule].title}: give {lacks}" for rule, lacks in found.undecided.items()]
    return lines


def _record(found: TuningDiagnosis) -> dict[str, Any]:
    return {
        "file": found.file,
        "target": found.artefact.value,
        "ok": found.ok,
        "findings": [
            {
                "rule": finding.rule,
                "severity": finding.severity.value,
                "line": finding.line,
                "text": finding.text,
                "fix": finding.fix,
            }
            for finding in found.findings
        ],
        "hidden": dict(found.hidden),
        "undecided": dict(found.undecided),
    }
