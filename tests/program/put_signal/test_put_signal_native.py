"""The native machine beside the one in Python: the same actions may come next, and the same goes wrong; and the judge
that tries all runs finds nothing else."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from random import Random
from time import sleep
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.export.put_signal.document import parse_put_signal
from coppice.program.dialects.put_signal.fuzzer import (
    PutSignalContents,
    PutSignalFault,
    fault_sentence,
    fuzz,
    fuzz_runs,
    intervals_of,
    native_runs,
)
from coppice.program.dialects.put_signal.lower import lower_put_signal
from coppice.program.dialects.put_signal.program import PutSignalProgram
from coppice.program.dialects.put_signal.structure import check_form
from coppice.program.dialects.put_signal.verify import verify_put_signal
from coppice.program.memory import Buffer, memory_of
from coppice.schedule.verification.report import Findings
from reference.put_signal_explore import explore
from reference.put_signal_machine import PutSignalMachine, PutSignalScript
from support.put_signal_cases import MUTATIONS, forest, mutated, small_programs, text_of, tree_of

PROGRAMS = range(len(small_programs()))
KINDS_OF_ADVERSARIES = 11


def ways(program: PutSignalProgram) -> list[bool]:
    return [way for way, meant in ((False, program.out_of_place), (True, program.in_place)) if meant]


def program_of(tree: dict[str, Any]) -> PutSignalProgram | None:
    """A program that was tampered with; None where its form is unsound."""
    try:
        program = parse_put_signal(text_of(tree), file="mutated").program
    except InputError:
        return None
    findings = Findings()
    check_form(program, findings)
    return None if findings.failures else program


def with_fault(place: int, number: int) -> PutSignalProgram | None:
    """A small program with a fault put in, where its form is sound."""
    return program_of(mutated(tree_of(small_programs()[place]), number)[1])


def same_on_both(program: PutSignalProgram, number: int, *, in_place: bool) -> str:
    """Let the machine in Python do what the native one did; what went wrong."""
    fault, first, second, happenings, numbers, possible = native_runs(program, in_place=in_place).trace(
        number
    )
    script = PutSignalScript(program, in_place=in_place)
    machine = PutSignalMachine(script, PutSignalContents(layout=program, seed=7))
    for action, others in zip(
        zip(happenings.tolist(), numbers.tolist(), strict=True), possible.tolist(), strict=True
    ):
        assert not machine.wrong
        assert len(machine.enabled) == others
        machine.perform(machine.enabled.index(action))
    words = machine.wrong or ("" if machine.over else "it deadlocks")
    assert machine.wrong or not machine.enabled
    assert words == fault_sentence(program, PutSignalFault(fault), first, second)
    return words


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(PROGRAMS), st.integers(0, 10**6), st.integers(0, 2**40))
def test_both_machines_do_the_same(place: int, fault: int, number: int) -> None:
    for program in (small_programs()[place], with_fault(place, fault)):
        if program is not None:
            for in_place in ways(program):
                same_on_both(program, number, in_place=in_place)


@pytest.mark.parametrize("adversary", range(KINDS_OF_ADVERSARIES))
def test_every_kind_of_adversary_on_a_larger_program(adversary: int) -> None:
    program = lower_put_signal(
        forest("ring", Collective.ALL_REDUCE, (("gpus", 6),)), pieces=3, communicators=2
    )
    assert not same_on_both(program, KINDS_OF_ADVERSARIES * 5 + adversary, in_place=adversary % 2 == 0)


@pytest.mark.parametrize("mutation", range(-1, len(MUTATIONS), 4))
def test_slots_stand_together_only_where_they_do_the_same(mutation: int) -> None:
    """The native machine runs stretches of many slots, the one in Python every slot."""
    body = forest("star", Collective.ALL_TO_ALL, (("gpus", 3),))
    tree = tree_of(lower_put_signal(body, pieces=8, graphs=False))
    if mutation >= 0:
        MUTATIONS[mutation](tree, Random(mutation))
    program = program_of(tree)
    assert program is not None
    memory = memory_of(program, in_place=False)
    assert len(intervals_of(program, memory).first) < memory.words * 3 // 4
    for number in range(KINDS_OF_ADVERSARIES):
        same_on_both(program, number, in_place=False)


def test_stretches_end_where_an_output_goes_on_with_another_rank_s_block() -> None:
    tree = tree_of(lower_put_signal(forest("star", Collective.ALL_TO_ALL, (("gpus", 3),)), pieces=4))
    slots = tree["chunks"]
    tree["calls"] = [[{"stream": 0, "local": [["copy", "input", 0, "output", 0, slots]]}] for _ in range(3)]
    program = program_of(tree)
    assert program is not None
    memory = memory_of(program, in_place=False)
    found = intervals_of(program, memory)
    outputs = [
        int(base) + block for base in memory.base[Buffer.OUTPUT] for block in range(0, slots, slots // 3)
    ]
    assert set(outputs) <= set(found.first.tolist())
    assert len(found.first) == 2 * len(outputs)  # inputs are cut as the outputs that they are copied to
    assert "wrong output" in fuzz_runs(program, in_place=False).fault


def agreement(numbers: range, *, most_states: int, schedules: int) -> Counter[str]:
    """What the native machine and the judge of all runs say of programs with a fault; fails where they differ."""
    outcome: Counter[str] = Counter()
    for number in numbers:
        program = with_fault(number % len(PROGRAMS), number)
        if program is None:
            continue
        for in_place in ways(program):
            native = fuzz_runs(program, in_place=in_place, schedules=schedules)
            judged = explore(program, in_place=in_place, most_states=most_states)
            if judged.complete:
                assert bool(native.fault) == bool(judged.fault), (number, native.fault, judged.fault)
                outcome["wrong" if native.fault else "right"] += 1
            elif native.fault:
                assert not verify_put_signal(program).ok, number
                outcome["wrong"] += 1
    return outcome


def test_the_native_machine_agrees_with_the_judge_of_all_runs() -> None:
    outcome = agreement(range(240), most_states=300, schedules=66)
    assert outcome["wrong"] > 150
    assert outcome["right"] > 5


@pytest.mark.slow
def test_ten_thousand_programs_on_which_both_agree() -> None:
    outcome = agreement(range(10_000), most_states=5_000, schedules=1000)
    assert outcome["wrong"] > 6_000


@pytest.mark.parametrize("kind", range(len(MUTATIONS)))
def test_a_wrong_program_of_each_kind_of_fault_is_caught(kind: int) -> None:
    """Each mutation makes some program wrong, and the native machine finds that out in its runs."""
    for number in range(200):
        tree = tree_of(small_programs()[number % len(PROGRAMS)])
        if MUTATIONS[kind](tree, Random(number)) is None:
            continue
        program = program_of(tree)
        if program is not None and any(
            fuzz_runs(program, in_place=each, schedules=66).fault for each in ways(program)
        ):
            assert not verify_put_signal(program).ok
            return
    pytest.fail("no program is wrong")


@pytest.mark.parametrize("elements", [1, 3, 64])
def test_a_sum_that_takes_an_operand_twice_is_caught_by_values(elements: int) -> None:
    """No race and no circle: only the contents tell."""
    tree = tree_of(lower_put_signal(forest("ring", Collective.ALL_REDUCE, (("gpus", 3),)), pieces=1))
    rows = [
        row for calls in tree["calls"] for call in calls for row in call.get("local", ()) if row[0] == "sum"
    ]
    rows[-1][3:5] = rows[-1][1:3]
    program = parse_put_signal(text_of(tree), file="twice").program
    found = fuzz_runs(program, in_place=False, elements=elements, schedules=2)
    assert "ends with a wrong output" in found.fault
    assert found.runs == 1


def large_program() -> PutSignalProgram:
    return lower_put_signal(forest("ring", Collective.ALL_REDUCE, (("gpus", 8),)), pieces=4)


def test_ctrl_c_stops_it() -> None:
    native = native_runs(large_program(), in_place=False)

    def send() -> None:
        sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        native.run(0, 10**12)
    sender.join()


def test_the_number_of_a_run_decides_on_it_alone() -> None:
    native = native_runs(large_program(), in_place=True)
    together = [native.trace(number) for number in (3, 21)]
    again = [native.trace(number) for number in (21, 3)]
    for one, other in zip(together, reversed(again), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one[3:], other[3:], strict=True))
    assert not np.array_equal(together[0][4], together[1][4])
    assert fuzz(large_program(), in_place=True, seed=5, schedules=4).runs == 4
