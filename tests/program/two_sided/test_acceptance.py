"""The quick answer is yes for right programs and never for wrong ones, however small they are."""

from __future__ import annotations

import random

import pytest

from coppice.program.deadlock import Deadlock
from coppice.program.memory import memory_of
from coppice.program.two_sided.order import find_order
from coppice.program.two_sided.program import Program
from coppice.program.two_sided.races import find_races
from coppice.program.two_sided.structure import check_structure
from coppice.program.two_sided.verify import Contents, accepts, verify_program
from coppice.schedule.verification.report import Findings
from reference.programs_mutants import KINDS, mutant
from reference.programs_samples import SAMPLES


def both(program: Program) -> list[tuple[int | None, int | None]]:
    """Answers of the quick and of the slow way, where a program can be run and does not race."""
    messages = check_structure(program, Findings())
    if messages is None:
        return []
    try:
        order = find_order(program, messages, depth=2)
    except Deadlock:
        return []
    waves = [*order.waves, *([step] for step in order.rest)]
    found = []
    for in_place in [way for way in (True, False) if (program.in_place if way else program.out_of_place)]:
        memory = memory_of(program, in_place=in_place)
        if find_races(program, memory, messages, order.steps)[1]:
            continue
        contents = Contents(program, memory)
        contents.run(order.steps, messages)
        found.append((accepts(program, memory, messages, waves), None if contents.count else contents.slots))
    return found


def test_right_programs_are_accepted() -> None:
    for program in SAMPLES:
        answers = both(program)
        assert answers
        for quick, slow in answers:
            assert quick == slow is not None


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_mutants_are_accepted_only_where_they_are_right(kind: str) -> None:
    rng = random.Random(11)
    for program in SAMPLES:
        changed = mutant(program, kind, rng)
        for quick, slow in both(changed) if changed is not None else []:
            assert quick == slow


def test_wide_programs_take_the_quick_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coppice.program.two_sided.verify._WIDE", 1)
    monkeypatch.delattr("coppice.program.two_sided.verify.Contents.run")
    for program in SAMPLES:
        assert verify_program(program).ok
