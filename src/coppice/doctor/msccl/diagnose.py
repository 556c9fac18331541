"""Will that runtime load this MSCCL XML file, and use it at these sizes? If not: why, and what to do.

Every rule of a loader is a small function that looks at one file with the eyes of one target and yields findings.
Rules see the text as it stands, not the program that a tolerant reader makes of it. Three kinds of rules:

    text rules      what the hand-written XML readers of the runtimes trip over
    load rules      names, numbers and limits that the loaders check, or fail to check and then suffer from
    use rules       whether a call of this size, on this many ranks, in place or not, would take the file
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from coppice.errors import CheckError, InputError
from coppice.export.msccl.document import Document, parse_document
from coppice.export.msccl.reader import read_bytes
from coppice.export.msccl.targets import MscclTarget, target_named

__all__ = ["Case", "Diagnosis", "Finding", "Rule", "Severity", "diagnose", "doctor", "rules"]

_MOST_OF_A_RULE = 20


class Severity(enum.StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    """The runtime refuses the file, hangs, computes wrong results, or never uses it."""

    WARNING = "warning"
    """It works in some cases only, or not as its author meant."""

    NOTE = "note"
    """Worth knowing."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One complaint.

    Attributes:
        rule: Id of the rule.
        severity: How bad it is.
        line: Line of the file, 0 where it concerns all of it.
        text: What is wrong.
        fix: What to do.
    """

    rule: str
    severity: Severity
    line: int
    text: str
    fix: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Case:
    """What rules look at.

    Attributes:
        data: Bytes of the file.
        document: Its rows; None where it is no XML.
        target: The runtime.
        ranks: Ranks of the communicator, or None if not known.
        sizes: Message sizes M in bytes at which it is to be used.
    """

    data: bytes
    document: Document
    target: MscclTarget
    ranks: int | None
    sizes: tuple[int, ...]


Complaint = tuple[int, str, str]
"""(line, what is wrong, what to do)"""


@dataclass(frozen=True)
class Rule:
    """A rule of the loaders.

    Attributes:
        id: Short id, such as ``X03``.
        severity: Of its findings.
        title: The rule in a few words.
        why: What happens where it is broken.
        check: Yields the complaints about a case.
    """

    id: str
    severity: Severity
    title: str
    why: str
    check: Callable[[Case], Iterator[Complaint]]


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What the doctor found.

    Attributes:
        file: The file.
        target: The runtime.
        findings: All findings, errors first, then by line.
        sizes: For each size that was asked for: whether the file would be used, and why not.
        hidden: Findings left out, by rule, where a rule found very many.
    """

    file: str
    target: MscclTarget
    findings: tuple[Finding, ...]
    sizes: tuple[tuple[int, str | None], ...]
    hidden: dict[str, int]

    @property
    def loads(self) -> bool:
        """No finding is an error."""
        return all(finding.severity is not Severity.ERROR for finding in self.findings)

    @property
    def ok(self) -> bool:
        """It loads, and would be used at every size that was asked for."""
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
            place = f"{self.file}:{first.line}" if first.line else self.file
            more = f" ({len(errors) - 1} further errors)" if len(errors) > 1 else ""
            msg = f"{self.target.title} cannot use {place}: {first.text}; {first.fix}{more}."
            raise CheckError(msg)
        unused = [(size, reason) for size, reason in self.sizes if reason is not None]
        msg = (
            f"{self.target.title} would not use {self.file} at {len(unused)} of {len(self.sizes)} sizes: "
            f"at {unused[0][0]} bytes {unused[0][1]}."
        )
        raise CheckError(msg)


def doctor(
    path: str | os.PathLike[str],
    target: str,
    *,
    ranks: int | None = None,
    sizes: tuple[int, ...] = (),
) -> Diagnosis:
    """Examine an MSCCL XML file.

    Args:
        path: The file; ``-`` is standard input.
        target: Name of the runtime: ``rccl``, ``azure-executor`` or ``msccl``.
        ranks: Ranks of the communicator; None leaves that open.
        sizes: Message sizes M in bytes, as nccl-tests counts them.

    Raises:
        InputError: If the file cannot be read or is no MSCCL XML at all, or the target does not exist.
    """
    data, name = read_bytes(path)
    return diagnose(data, target, file=name, ranks=ranks, sizes=sizes)


def diagnose(
    data: bytes,
    target: str,
    *,
    file: str = "algo.xml",
    ranks: int | None = None,
    sizes: tuple[int, ...] = (),
) -> Diagnosis:
    """Examine the bytes of an MSCCL XML file.

    Args:
        data: The bytes.
        target: As in :func:`doctor`.
        file: Name for messages.
        ranks: As in :func:`doctor`.
        sizes: As in :func:`doctor`.

    Raises:
        InputError: As :func:`doctor`.
    """
    from coppice.doctor.msccl.use import reason_not_used

    if any(size < 0 for size in sizes):
        msg = f"expected sizes of 0 bytes or more, found {min(sizes)}."
        raise InputError(msg)
    case = Case(
        data=data,
        document=parse_document(data, file=file),
        target=target_named(target),
        ranks=ranks,
        sizes=sizes,
    )
    findings: list[Finding] = []
    hidden: dict[str, int] = {}
    for rule in rules():
        shown = 0
        for line, text, fix in rule.check(case):
            shown += 1
            if shown > _MOST_OF_A_RULE:
                hidden[rule.id] = shown - _MOST_OF_A_RULE
                continue
            findings.append(Finding(rule=rule.id, severity=rule.severity, line=line, text=text, fix=fix))
    order = list(Severity)
    findings.sort(key=lambda finding: (order.index(finding.severity), finding.line, finding.rule))
    return Diagnosis(
        file=file,
        target=case.target,
        findings=tuple(findings),
        sizes=tuple((size, reason_not_used(case, size)) for size in sizes),
        hidden=hidden,
    )


def rules() -> tuple[Rule, ...]:
    """All rules in the order of their ids."""
    from coppice.doctor.msccl import algo as doctor_algo
    from coppice.doctor.msccl import blocks as doctor_blocks
    from coppice.doctor.msccl import steps as doctor_steps
    from coppice.doctor.msccl import text as doctor_text
    from coppice.doctor.msccl import use as doctor_use

    modules = (doctor_text, doctor_algo, doctor_blocks, doctor_steps, doctor_use)
    return tuple(sorted((rule for module in modules for rule in module.RULES), key=lambda rule: rule.id))
