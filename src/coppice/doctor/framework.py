"""Framework of the doctor: rules for files, and findings.

A rule is a function that looks at one file and yields complaints. It is declared beside the function, with a decorator,
in the table of its kind of file. What a rule looks at is a :class:`Subject`: the file as it stands, not the program
that a tolerant reader makes of it, with whatever is known beside it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Generic, NamedTuple, TypeVar

from coppice.display import Brief
from coppice.errors import CheckError
from coppice.text import short_size

_MOST_OF_A_RULE = 20

MSCCLPP = "mscclpp"
"""Name of the executor of MSCCL++ as a target."""

NCCL = "nccl"
"""Name of stock NCCL, which runs programs of puts and signals, as a target."""


class Severity(enum.StrEnum):
    """Severity of a finding."""

    ERROR = "error"
    """The file is refused or never used, ranks hang, or results are wrong."""

    WARNING = "warning"
    """It works in some cases only, or not as its author meant."""

    NOTE = "note"
    """Worth knowing."""


ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE

Path = tuple[str | int, ...]
"""Keys and indices that lead to a value of a JSON file."""

Place = int | Path
"""A line of the file, 0 where all of it is meant; or the path of a value."""

Complaint = tuple[Place, str, str] | tuple[Severity, Place, str, str]
"""(how bad, where, what is wrong, what to do); the severity is left out where it is the rule's own."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Subject:
    """A file under examination; each kind of file has a subclass."""

    file: str  # Name for messages

    def locate(self, place: Place) -> tuple[int, str]:
        """Line of a place, and its path as text if it has one."""
        return (place, "") if isinstance(place, int) else (0, "")

    def concerns(self, place: Place) -> bool:  # noqa: ARG002 (of kinds of files that know)
        """Whether a place is relevant to the job; others are omitted first."""
        return True

    def coverage(self, sizes: tuple[int, ...]) -> tuple[Coverage, ...]:  # noqa: ARG002 (likewise)
        """Rules in effect for the job's calls at given sizes, for files that choose by size."""
        return ()


class Coverage(NamedTuple):
    """Rules in effect for one kind of call."""

    call: str  # The call, in words
    # For each size in bytes what holds, in words, and the line of the file, 0 where there is none
    choices: tuple[tuple[int, str, int], ...]


S = TypeVar("S", bound=Subject)


class Need(NamedTuple):
    """Information that a rule requires."""

    what: str  # What to give, in words
    met: Callable[[Any], bool]  # Whether it is given


@dataclass(frozen=True)
class DoctorRule(Generic[S]):
    """A rule with its id, severity and consequence."""

    id: str  # Short id, such as `X03`
    severity: Severity  # Of its findings, unless a complaint brings its own
    title: str  # The rule in a few words
    why: str  # What happens where it is broken
    check: Callable[[S], Iterator[Complaint]]  # Yields the complaints about a file
    needs: Need | None = None  # What it cannot be decided without, None for nothing
    of_sizes: bool = False  # Its errors concern some of the sizes that are asked for, and not the others


class Rulebook(Generic[S]):
    """Rules for one kind of file, in the order of their ids."""

    def __init__(self) -> None:
        self._rules: dict[str, DoctorRule[S]] = {}

    def __iter__(self) -> Iterator[DoctorRule[S]]:
        return iter(sorted(self._rules.values(), key=lambda rule: rule.id))

    def rule(
        self,
        rule_id: str,
        severity: Severity,
        title: str,
        why: str,
        *,
        needs: Need | None = None,
        of_sizes: bool = False,
    ) -> Callable[[Callable[[S], Iterator[Complaint]]], Callable[[S], Iterator[Complaint]]]:
        """Decorator that registers a rule; arguments are those of :class:`DoctorRule`."""

        def declare(check: Callable[[S], Iterator[Complaint]]) -> Callable[[S], Iterator[Complaint]]:
            if rule_id in self._rules:
                raise ValueError(f"there are two rules {rule_id}")
            self._rules[rule_id] = DoctorRule(rule_id, severity, title, why, check, needs, of_sizes)
            return check

        return declare


@dataclass(frozen=True, kw_only=True, repr=False)
class Finding(Brief):
    """A violation of a rule, with its place and remedy."""

    rule: str  # Id of the rule
    severity: Severity  # How bad it is
    line: int  # Line of the file, 0 where it concerns all of it
    path: str  # JSON path of the place, empty in files of other kinds
    text: str  # What is wrong
    fix: str  # What to do
    why: str  # What happens where the rule is broken

    def record(self) -> dict[str, Any]:
        """The finding as JSON values."""
        place = {"line": self.line, "path": self.path} if self.path else {"line": self.line}
        return {
            "rule": self.rule,
            "severity": self.severity.value,
            **place,
            "text": self.text,
            "fix": self.fix,
        }

    def place(self, file: str) -> str:
        """Place of the finding as text."""
        return f"{file}:{self.line} {self.path}".rstrip() if self.line else file


class UndecidedRule(NamedTuple):
    """A rule that lacked information."""

    rule: str  # Its id
    title: str  # The rule in a few words
    lacks: str  # What to give


@dataclass(frozen=True, kw_only=True, repr=False)
class Diagnosis:
    """Findings about a file."""

    file: str  # The file
    target: str  # What was to read it, or what kind of file it was taken for
    heading: str  # The same in words: `for RCCL`, `as nccl-tuner`
    runtime: str  # The runtime that would load it, in words; empty for tuning files
    findings: tuple[Finding, ...]  # All findings, errors first, then by line
    hidden: Mapping[str, int]  # Findings left out, by rule, where a rule found very many
    # For each size in bytes that was asked for: why the file would not be used, or None; empty for tuning
    # files
    sizes: tuple[tuple[int, str | None], ...]
    undecided: tuple[UndecidedRule, ...]  # Rules that could not be decided for lack of what they need
    # What holds for calls of the job at the sizes that were asked for, of tuning files that choose by size
    coverage: tuple[Coverage, ...] = ()

    def __repr__(self) -> str:
        counts = ", ".join(
            f"{sum(each.severity is severity for each in self.findings)} {severity}s" for severity in Severity
        )
        return f"<Diagnosis of {self.file[-120:]} {self.heading}: {'ok' if self.ok else 'not ok'}, {counts}>"

    @property
    def loads(self) -> bool:
        """Whether there are no errors."""
        return all(finding.severity is not ERROR for finding in self.findings)

    @property
    def ok(self) -> bool:
        """Whether there are no errors, and the file is used at every requested size."""
        return self.loads and all(reason is None for _, reason in self.sizes)

    def require_ok(self) -> None:
        """Refuse a file that is not ok.

        Raises:
            CheckError: With the first reason.
        """
        if self.ok:
            return
        errors = [finding for finding in self.findings if finding.severity is ERROR]
        if errors:
            first = errors[0]
            place, more = first.place(self.file), f" ({len(errors) - 1} further errors)" if errors[1:] else ""
            broken = f"{self.runtime} cannot use {place}"
            if not self.runtime:
                broken = f"{place} breaks rule {first.rule} of {self.target}"
            raise CheckError(f"{broken}: {first.text}; {first.fix}{more}.")
        unused = [(size, reason) for size, reason in self.sizes if reason is not None]
        raise CheckError(
            f"{self.runtime} would not use {self.file} at {len(unused)} of {len(self.sizes)} sizes: "
            f"at {unused[0][0]} bytes {unused[0][1]}."
        )

    def lines(self) -> list[str]:
        """Findings as text."""
        good, bad = (
            ("it loads", "it will NOT work") if self.runtime else ("no errors", "it will NOT work as meant")
        )
        lines = [f"{self.file} {self.heading}: {good if self.loads else bad}"]
        for finding in self.findings:
            place = f"{finding.place(self.file)}: " if finding.line else ""
            effect = "" if finding.severity is NOTE else f" ({finding.why})"
            lines.append(f"  {finding.severity.value:<7}  {finding.rule}  {place}{finding.text}{effect}")
            lines.append(f"                fix: {finding.fix}")
        lines.extend(f"  ... and {count} more of {rule}" for rule, count in self.hidden.items())
        for reason, group in groupby(self.sizes, key=lambda pair: pair[1]):
            members = [short_size(size) for size, _ in group]
            span = members[0] + (f"..{members[-1]}" if members[1:] else "")
            lines.append(f"  {span}: {'used' if reason is None else f'NOT used: {reason}'}")
        for call, choices in self.coverage:
            lines.append(f"  {call}:")
            for words, spans in groupby(choices, key=lambda choice: choice[1:]):
                members = [short_size(choice[0]) for choice in spans]
                span = members[0] + (f"..{members[-1]}" if members[1:] else "")
                lines.append(f"    {span}: {words[0]}" + (f" (line {words[1]})" if words[1] else ""))
        if self.undecided:
            lines.append("  not decided:")
            lines += [f"    {rule.rule}  {rule.title}: give {rule.lacks}" for rule in self.undecided]
        return lines

    def record(self) -> dict[str, Any]:
        """Findings as JSON values."""
        found: dict[str, Any] = {"file": self.file, "target": self.target}
        found |= {"loads": self.loads} if self.runtime else {}
        found |= {"ok": self.ok, "findings": [finding.record() for finding in self.findings]}
        found |= {"hidden": dict(self.hidden)}
        if not self.runtime:
            found |= {"undecided": {rule.rule: rule.lacks for rule in self.undecided}}
            calls = [
                {
                    "call": call,
                    "sizes": [
                        {"size_bytes": size, "choice": words, "line": line} for size, words, line in choices
                    ],
                }
                for call, choices in self.coverage
            ]
            return found | ({"coverage": calls} if calls else {})
        sizes = [
            {"size_bytes": size, "used": reason is None, "reason": reason} for size, reason in self.sizes
        ]
        return found | {"sizes": sizes}


def run(
    subject: S,
    rules: Rulebook[S],
    *,
    target: str,  # As in :class:`Diagnosis`, like all that follow
    heading: str,
    runtime: str = "",
    # Likewise; no size uses a file with an error that concerns them all
    sizes: tuple[tuple[int, str | None], ...] = (),
    coverage: tuple[Coverage, ...] = (),
) -> Diagnosis:
    """Check a file against the rules of its kind."""
    findings: list[Finding] = []
    hidden: dict[str, int] = {}
    undecided: list[UndecidedRule] = []
    for rule in rules:
        if rule.needs is not None and not rule.needs.met(subject):
            undecided.append(UndecidedRule(rule.id, rule.title, rule.needs.what))
            continue
        whole = [
            complaint if len(complaint) == 4 else (rule.severity, *complaint)
            for complaint in rule.check(subject)
        ]
        # Many rows are cut, those that the job never meets first.
        kept = sorted(whole, key=lambda each: not subject.concerns(each[1]))[:_MOST_OF_A_RULE]
        if len(whole) > len(kept):
            hidden[rule.id] = len(whole) - len(kept)
        for severity, place, text, fix in kept:
            line, path = subject.locate(place)
            findings.append(
                Finding(
                    rule=rule.id, severity=severity, line=line, path=path, text=text, fix=fix, why=rule.why
                )
            )
    for_all = {rule.id for rule in rules if not rule.of_sizes}
    broken = {each.rule for each in findings if each.severity is ERROR and each.rule in for_all}
    if broken:
        refused = f"the file does not work as it stands ({', '.join(sorted(broken))})"
        sizes = tuple((size, reason or refused) for size, reason in sizes)
    order = list(Severity)
    findings.sort(key=lambda finding: (order.index(finding.severity), finding.line, finding.rule))
    return Diagnosis(
        file=subject.file,
        target=target,
        heading=heading,
        runtime=runtime,
        findings=tuple(findings),
        hidden=hidden,
        sizes=sizes,
        undecided=tuple(undecided),
        coverage=coverage,
    )
