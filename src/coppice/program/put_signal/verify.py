"""Verification of a put/signal program: form, counts, freedom from deadlock and races, and the right result.

What passes is right in every order that the documents of the libraries allow, in and out of place as far as it is meant
for both, however often it is run: counters end as they began, and nobody writes into the memory of a rank that has not
begun.

The time grows with the slots that operations touch, and with calls x ranks x streams for what is known of others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coppice.errors import InputError
from coppice.program.memory import memory_of
from coppice.program.put_signal.order import call_order, is_graph_safe
from coppice.program.put_signal.program import PutSignalProgram
from coppice.program.put_signal.races import find_races
from coppice.program.put_signal.structure import check_form
from coppice.program.put_signal.twin import twin_runs
from coppice.program.put_signal.values import check_values
from coppice.schedule.verification.report import Findings, Verdict


@dataclass(frozen=True, kw_only=True)
class PutSignalReport(Verdict):
    """Result of the verification of a put/signal program; the attributes of :class:`Verdict`, and this."""

    subject: ClassVar[str] = "program"

    # It cannot stand still where it is captured as a graph either, where a counter holds one signal; None
    # where that was not asked since something else is wrong
    graph_safe: bool | None = None


def verify_put_signal(program: PutSignalProgram, *, schedules: int = 0) -> PutSignalReport:
    """Check that a put/signal program performs its collective.

    Args:
        schedules: Adversarial schedules under which what has passed is run as well, with data, in and out of place
            as far as it is meant for both (:mod:`coppice.program.put_signal.twin`).

    Returns:
        The report; failures are collected, not raised. A program that is malformed or stands still is not run.
    """
    if schedules < 0:
        raise InputError(f"expected `schedules` of 0 or more, found {schedules}.")
    findings = Findings()
    checked = {"calls": program.num_calls, "operations": program.num_operations}
    graph_safe = None
    check_form(program, findings)
    order = call_order(program, findings) if not findings.failures else None
    if order is not None:
        checked["pairs"] = checked["slots"] = 0
        ways = {"out of place": program.out_of_place, "in place": program.in_place}
        for way in (name for name, meant in ways.items() if meant):
            memory = memory_of(program, in_place=way == "in place")
            words = f"{way}, " if all(ways.values()) else ""
            checked["pairs"] += find_races(order, memory, findings, way=words)
            if not findings.failures:
                checked["slots"] += check_values(order, memory, findings, way=words)
            if findings.failures:
                break
        else:
            graph_safe = is_graph_safe(program)
            if schedules:
                checked |= _run(
                    program, [way == "in place" for way in ways if ways[way]], schedules, findings
                )
    return PutSignalReport(
        ok=not findings.failures, failures=tuple(findings.failures), checked=checked, graph_safe=graph_safe
    )


def _run(program: PutSignalProgram, ways: list[bool], schedules: int, findings: Findings) -> dict[str, int]:
    """Run it in every way that it is meant for; what was done."""
    done = [twin_runs(program, in_place=in_place, schedules=schedules) for in_place in ways]
    for each in done:
        if each.fault:
            findings.add(f"{each.fault}.")
    return {"schedules": sum(each.runs for each in done), "actions": sum(each.actions for each in done)}
