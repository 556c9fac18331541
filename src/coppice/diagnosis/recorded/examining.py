"""Examine the files of a job: the table of rates, who waits for whom, and all rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from coppice.diagnosis.recorded import (  # noqa: F401 (they declare rules)
    hanging_rules,
    message_rules,
    rate_rules,
    setting_rules,
)
from coppice.diagnosis.recorded.achieved import AchievedRate, achieved
from coppice.diagnosis.recorded.records import RUN_RULES, RunRecords
from coppice.diagnosis.recorded.stopping import StoppedRank, stopped
from coppice.diagnosis.recorded.waiting import LateRank, late_ranks
from coppice.display import Brief
from coppice.doctor.framework import ERROR, Finding, Severity, UndecidedRule, run
from coppice.doctor.host import HOST_RULES, HostFile
from coppice.doctor.job_facts import JobFacts
from coppice.errors import CheckError
from coppice.text import plural


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RunDiagnosis(Brief):
    """What the files of a job show."""

    records: RunRecords
    rates: tuple[AchievedRate, ...]
    late: tuple[LateRank, ...]
    stopped: tuple[StoppedRank, ...]
    findings: tuple[Finding, ...]  # Errors first; the path of each is its file
    hidden: Mapping[str, int]
    undecided: tuple[UndecidedRule, ...]

    def __repr__(self) -> str:
        counts = ", ".join(
            f"{sum(each.severity is severity for each in self.findings)} {severity}s" for severity in Severity
        )
        return f"<diagnosis of {self.records.file}: {counts}>"

    @property
    def ok(self) -> bool:
        """Whether there are no errors."""
        return all(each.severity is not ERROR for each in self.findings)

    def require_ok(self) -> None:
        """Refuse a job with errors.

        Raises:
            CheckError: With the first error.
        """
        errors = [each for each in self.findings if each.severity is ERROR]
        if errors:
            more = f" (and {plural(len(errors) - 1, 'further error')})" if errors[1:] else ""
            raise CheckError(f"expected a job without errors, found {errors[0].text}: {errors[0].fix}{more}.")

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        findings = [
            {
                "rule": each.rule,
                "severity": each.severity.value,
                "file": each.path or self.records.file,
                "line": each.line,
                "text": each.text,
                "fix": each.fix,
            }
            for each in self.findings
        ]
        return {
            "files_read": list(self.records.files),
            "ok": self.ok,
            "achieved_rates": [each.record() for each in self.rates],
            "late_ranks": [each.record() for each in self.late],
            "stopped_ranks": [each.record() for each in self.stopped],
            "findings": findings,
            "hidden": dict(self.hidden),
            "undecided": {each.rule: each.lacks for each in self.undecided},
        }


def examine(records: RunRecords) -> RunDiagnosis:
    """Check the files of a job against all rules, those about hosts included.

    Args:
        records: The files (:func:`coppice.diagnosis.recorded.records.read_records`).
    """
    found = run(records, RUN_RULES, target="a run", heading="as a run")
    findings = list(found.findings)
    for file, data in records.texts:
        host = HostFile(file=file, data=data, facts=JobFacts())
        if host.is_log:
            of_host = run(host, HOST_RULES, target="a host", heading="as a host")
            findings += [replace(each, path=file) for each in of_host.findings]
    order = list(Severity)
    findings.sort(key=lambda each: (order.index(each.severity), each.rule, each.path, each.line))
    return RunDiagnosis(
        records=records,
        rates=achieved(records),
        late=late_ranks(records),
        stopped=stopped(records),
        findings=tuple(findings),
        hidden=found.hidden,
        undecided=found.undecided,
    )
