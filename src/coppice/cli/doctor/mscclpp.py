"""`coppice doctor --target mscclpp`: will the MSCCL++ executor load this execution plan, and use it at these sizes?"""

from __future__ import annotations

from itertools import groupby
from typing import Any

from coppice.cli.output.render import print_json, print_lines
from coppice.doctor.msccl.diagnose import Severity
from coppice.doctor.mscclpp.diagnose import PlanDiagnosis, doctor_plan, plan_rules
from coppice.text import short_size

__all__ = ["TARGET", "doctor_mscclpp"]

TARGET = "mscclpp"
"""What `--target` names."""


def doctor_mscclpp(file: str, *, ranks: int | None, sizes: tuple[int, ...], as_json: bool) -> None:
    """Examine an execution plan and print what was found.

    Args:
        file: The file; ``-`` is standard input.
        ranks: Ranks of the communicator, or None.
        sizes: Message sizes at which it is to be used.
        as_json: Print JSON.

    Raises:
        CheckError: If it would not work, or not be used.
        InputError: If it cannot be read.
    """
    diagnosis = doctor_plan(file, ranks=ranks, sizes=sizes)
    if as_json:
        print_json(_record(diagnosis))
    else:
        print_lines(_lines(diagnosis))
    diagnosis.require_ok()


def _lines(diagnosis: PlanDiagnosis) -> list[str]:
    why = {rule.id: rule.why for rule in plan_rules()}
    verdict = "it loads" if diagnosis.loads else "it will NOT work"
    lines = [f"{diagnosis.file} for the executor of MSCCL++ 0.9: {verdict}"]
    for finding in diagnosis.findings:
        effect = "" if finding.severity is Severity.NOTE else f" ({why[finding.rule]})"
        place = f"{diagnosis.file}:{finding.line} {finding.path}"
        lines.append(f"  {finding.severity.value:<7}  {finding.rule}  {place}: {finding.text}{effect}")
        lines.append(f"                fix: {finding.fix}")
    lines.extend(f"  ... and {count} more of {rule}" for rule, count in diagnosis.hidden.items())
    for reason, group in groupby(diagnosis.sizes, key=lambda pair: pair[1]):
        members = [pair[0] for pair in group]
        span = short_size(members[0]) + ("" if len(members) == 1 else f"..{short_size(members[-1])}")
        lines.append(f"  {span}: {'used' if reason is None else f'NOT used: {reason}'}")
    return lines


def _record(diagnosis: PlanDiagnosis) -> dict[str, Any]:
    return {
        "file": diagnosis.file,
        "target": TARGET,
        "loads": diagnosis.loads,
        "ok": diagnosis.ok,
        "findings": [
            {
                "rule": finding.rule,
                "severity": finding.severity.value,
                "line": finding.line,
                "path": finding.path,
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
