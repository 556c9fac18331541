"""Verify a put/signal program: structure, counts, deadlock, data races, and the result.

What passes is right in every order that the documents of the libraries allow, in and out of place as far as it is meant
for both, however often it is run: counters end as they began, and nobody writes into the memory of a rank that has not
begun.

The time grows with the slots that operations touch, and with waits x ranks x streams for what is known of others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coppice.errors import InputError
from coppice.program.dialects.put_signal.fuzzer import fuzz_runs
from coppice.program.dialects.put_signal.order import CallOrder, call_order, is_graph_safe
from coppice.program.dialects.put_signal.program import PutSignalAct, PutSignalProgram
from coppice.program.dialects.put_signal.structure import check_form
from coppice.program.dialects.put_signal.unroll import unroll
from coppice.program.judge import Judgement
from coppice.program.memory import NO_CHUNK, memory_of
from coppice.rows import begins_run
from coppice.schedule.verification.report import Findings, Verdict

_EXAMPLES = 6


@dataclass(frozen=True, kw_only=True)
class PutSignalReport(Verdict):
    """Result of the verification of a put/signal program, a :class:`Verdict`."""

    subject: ClassVar[str] = "program"

    # It cannot deadlock where it is captured as a graph either, where a counter holds one signal; None
    # where that was not asked since something else is wrong
    graph_safe: bool | None = None


def verify_put_signal(program: PutSignalProgram, *, schedules: int = 0) -> PutSignalReport:
    """Verify that a put/signal program performs its collective.

    Args:
        schedules: Adversarial schedules under which what has passed is run as well, with data, in and out of place
            as far as it is meant for both (:mod:`coppice.program.dialects.put_signal.fuzzer`).

    Returns:
        The report; failures are collected, not raised. A program that is malformed or deadlocks is not run.
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
            judgement = Judgement(unroll(order, memory), memory)
            checked["pairs"] += len(judgement.conflicts.first)
            _tell_races(program, judgement, findings, words)
            if not findings.failures:
                checked["slots"] += len(memory.wanted.slot)
                _tell_values(order, judgement, findings, words)
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
    done = [fuzz_runs(program, in_place=in_place, schedules=schedules) for in_place in ways]
    for each in done:
        if each.fault:
            findings.add(f"{each.fault}.")
    return {"schedules": sum(each.runs for each in done), "actions": sum(each.actions for each in done)}


def _tell_races(program: PutSignalProgram, judgement: Judgement, findings: Findings, way: str) -> None:
    """Pairs of accesses that may happen at the same time, or in either order."""
    conflicts, accesses = judgement.conflicts, judgement.execution.accesses
    first, second = conflicts.first[judgement.races], conflicts.second[judgement.races]
    shown = np.lexsort((second, first))[:_EXAMPLES]
    pairs = zip(accesses.actor[first[shown]].tolist(), accesses.actor[second[shown]].tolist(), strict=True)
    sentences = [
        f"{way}{program.place(one)} and {program.place(two)} may come in either order, and "
        f"{_what(program, one, two)}."
        for one, two in pairs
    ]
    findings.add_examples(sentences, len(first), "pairs of operations")
    # Before a rank has begun its memory is the caller's.
    puts = np.flatnonzero(accesses.write & (program.act[accesses.actor] == PutSignalAct.PUT))
    operation, begin = accesses.actor[puts], accesses.begin[puts]
    early = operation[~judgement.known.holds(program.peer[operation], begin)]
    sentences = [
        f"{program.place(op)} may write into the memory of rank {program.peer[op]} before that has begun."
        for op in early[:_EXAMPLES].tolist()
    ]
    findings.add_examples(sentences, len(early), "puts")


def _what(program: PutSignalProgram, one: int, two: int) -> str:
    """What two operations have in common, roughly."""
    puts = [op for op in (one, two) if program.act[op] == PutSignalAct.PUT]
    if not puts:
        return "use the same slots"
    op = puts[-1]
    target = program.slots(int(program.target_buffer[op]), int(program.target[op]), int(program.count[op]))
    return f"use the same slots (rank {program.peer[op]} {target} is put to, or what the put reads)"


def _tell_values(order: CallOrder, judgement: Judgement, findings: Findings, way: str) -> None:
    """What is read, added or left that should not be."""
    program, values, accesses = order.program, judgement.values, judgement.execution.accesses
    missing = accesses.actor[np.repeat(np.arange(len(accesses.count)), accesses.count)[values.missing]]
    sums, slots = values.wrong_sums, values.wrong_slots
    adds = judgement.execution.values.actor[sums.value]
    found = [
        (op, 0, f"{program.place(op)} reads what nothing was written to.")
        for op in np.unique(missing).tolist()
    ]
    for row in np.flatnonzero(begins_run(adds)).tolist():
        op, one, other = int(adds[row]), sums.one[row], sums.other[row]
        again = f"adds a contribution to chunk {other} that it has already."
        what = again if one == other else f"adds chunk {other} to chunk {one}: expected the same."
        found.append((op, 1, f"{program.place(op)} {what}"))
    found.sort(key=lambda each: (order.level[program.call_of[each[0]]], *each[1::-1]))
    sentences = [sentence for *_, sentence in found]
    for row in np.flatnonzero(begins_run(slots.rank, slots.have == slots.want)).tolist():
        rank, slot, have, want = (int(each[row]) for each in (slots.rank, slots.slot, slots.have, slots.want))
        where = f"chunk {slot} of the output of rank {rank}"
        if have != want:
            words = "is never written" if have == NO_CHUNK else f"ends with chunk {have}"
            sentences.append(f"{where} {words}: expected chunk {want}.")
            continue
        lacks, _ = values.differing(row)
        name = (lacks & -lacks).bit_length() - 1
        sentences.append(
            f"{where} ends without the contribution of rank {name} ({lacks.bit_count()} missing)."
        )
    count = len(missing) + len(adds) + len(slots.rank)
    findings.add_examples([way + each for each in sentences[:_EXAMPLES]], count, "symbolic checks")
