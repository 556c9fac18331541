"""Will the MSCCL++ executor load this execution plan, and use it at these sizes? If not: why, and what to do.

Every rule is a small function that looks at one file as it stands and yields complaints, each with the JSON path of the
place. The loader checks few of them: most of what it takes without a word ends in memory that is overwritten, in ranks
that wait for ever, or in wrong sums. Kinds of rules:

    J   keys and values of the file
    C   channels, remote buffers, barriers and semaphores
    O   operations
    L   limits of the executor
    Z   chunks and sizes
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from coppice.doctor.msccl.diagnose import Severity
from coppice.doctor.mscclpp.walk import Path, PlanCase
from coppice.errors import CheckError, InputError
from coppice.export.mscclpp.document import line_of, parse_document, path_text
from coppice.files import file_name, read_bytes

__all__ = [
    "PlanDiagnosis",
    "PlanFinding",
    "PlanRule",
    "diagnose_plan",
    "doctor_plan",
    "plan_rules",
]

_MOST_OF_A_RULE = 20

Complaint = tuple[Path, str, str]
"""(where, what is wrong, what to do)"""


@dataclass(frozen=True, kw_only=True)
class PlanFinding:
    """One complaint.

    Attributes:
        rule: Id of the rule.
        severity: How bad it is.
        line: Line of the file.
        path: JSON path of the place.
        text: What is wrong.
        fix: What to do.
    """

    rule: str
    severity: Severity
    line: int
    path: str
    text: str
    fix: str


@dataclass(frozen=True)
class PlanRule:
    """A rule of the executor.

    Attributes:
        id: Short id, such as ``O03``.
        severity: Of its findings.
        title: The rule in a few words.
        why: What happens where it is broken.
        check: Yields the complaints about a case.
    """

    id: str
    severity: Severity
    title: str
    why: str
    check: Callable[[PlanCase], Iterator[Complaint]]


@dataclass(frozen=True, kw_only=True)
class PlanDiagnosis:
    """What the doctor found.

    Attributes:
        file: The file.
        findings: All findings, errors first, then by line.
        sizes: For each size that was asked for: why the plan would not be used, or None.
        hidden: Findings left out, by rule, where a rule found very many.
    """

    file: str
    findings: tuple[PlanFinding, ...]
    sizes: tuple[tuple[int, str | None], ...]
    hidden: dict[str, int]

    @property
    def loads(self) -> bool:
        """No finding is an error."""
        return all(finding.severity is not Severity.ERROR for finding in self.findings)

    @property
    def ok(self) -> bool:
        """It works, and would be used at every size that was asked for."""
        return self.loads and all(reason is None for _, reason in self.sizes)

    def require_ok(self) -> None:
        """Refuse a file that is not ok.

        Raises:
            CheckError: With the first reason.
        """
        if self.ok:
            return
        errors = [finding for finding in self.findings if finding.severity is Severity.ERROR]
        if errors:
            first = errors[0]
            more = f" ({len(errors) - 1} further errors)" if len(errors) > 1 else ""
            place = f"{self.file}:{first.line} {first.path}"
            msg = f"the MSCCL++ executor cannot use {place}: {first.text}; {first.fix}{more}."
            raise CheckError(msg)
        unused = [(size, reason) for size, reason in self.sizes if reason is not None]
        msg = (
            f"the MSCCL++ executor would not use {self.file} at {len(unused)} of {len(self.sizes)} sizes: at "
            f"{unused[0][0]} bytes {unused[0][1]}."
        )
        raise CheckError(msg)


def doctor_plan(
    path: str | os.PathLike[str], *, ranks: int | None = None, sizes: tuple[int, ...] = ()
) -> PlanDiagnosis:
    """Examine an execution plan.

    Args:
        path: The file; ``-`` is standard input.
        ranks: Ranks of the communicator; None leaves that open.
        sizes: Message sizes M in bytes, as nccl-tests counts them.

    Raises:
        InputError: If the file cannot be read, or is no JSON.
    """
    return diagnose_plan(read_bytes(path), file=file_name(path), ranks=ranks, sizes=sizes)


def diagnose_plan(
    data: bytes, *, file: str = "plan.json", ranks: int | None = None, sizes: tuple[int, ...] = ()
) -> PlanDiagnosis:
    """Examine the bytes of an execution plan.

    Args:
        data: The bytes.
        file: Name for messages.
        ranks: As in :func:`doctor_plan`.
        sizes: As in :func:`doctor_plan`.

    Raises:
        InputError: As :func:`doctor_plan`.
    """
    from coppice.doctor.mscclpp.sizes import reason_not_used

    if any(size < 0 for size in sizes):
        msg = f"expected sizes of 0 bytes or more, found {min(sizes)}."
        raise InputError(msg)
    document = parse_document(data, file=file)
    case = PlanCase(document=document, ranks=ranks)
    findings: list[PlanFinding] = []
    hidden: dict[str, int] = {}
    for rule in plan_rules():
        for shown, (path, text, fix) in enumerate(rule.check(case), start=1):
            if shown > _MOST_OF_A_RULE:
                hidden[rule.id] = shown - _MOST_OF_A_RULE
                continue
            findings.append(
                PlanFinding(
                    rule=rule.id,
                    severity=rule.severity,
                    line=line_of(document.text, path),
                    path=path_text(path),
                    text=text,
                    fix=fix,
                )
            )
    order = list(Severity)
    findings.sort(key=lambda finding: (order.index(finding.severity), finding.line, finding.rule))
    return PlanDiagnosis(
        file=file,
        findings=tuple(findings),
        sizes=tuple((size, reason_not_used(case, size)) for size in sizes),
        hidden=hidden,
    )


def plan_rules() -> tuple[PlanRule, ...]:
    """All rules in the order of their ids."""
    from coppice.export import (
        mscclpp_doctor_channels,
        mscclpp_doctor_form,
        mscclpp_doctor_operations,
        mscclpp_doctor_room,
        mscclpp_doctor_sizes,
    )

    modules = (
        mscclpp_doctor_form,
        mscclpp_doctor_channels,
        mscclpp_doctor_operations,
        mscclpp_doctor_room,
        mscclpp_doctor_sizes,
    )
    return tuple(sorted((rule for module in modules for rule in module.RULES), key=lambda rule: rule.id))
