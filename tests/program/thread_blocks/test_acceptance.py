"""The judge of values says yes to programs that come out right with numbers, and never to others, however small."""

from __future__ import annotations

import random

import pytest

from coppice.program.dialects.thread_blocks.order import execution_order
from coppice.program.dialects.thread_blocks.program import Program
from coppice.program.dialects.thread_blocks.structure import check_structure
from coppice.program.dialects.thread_blocks.unroll import unroll
from coppice.program.judge import Judgement
from coppice.program.memory import memory_of
from coppice.program.order import Deadlock
from coppice.schedule.verification.report import Findings
from reference.programs_mutants import KINDS, mutant
from reference.programs_run import run_program
from reference.programs_samples import SAMPLES


def both(program: Program) -> list[tuple[bool, bool]]:
    """Whether values are right by the judge and where they are numbers, if a program can be run and does not race."""
    messages = check_structure(program, Findings())
    if messages is None:
        return []
    try:
        order = execution_order(program, messages, depth=2)
    except Deadlock:
        return []
    found = []
    for in_place in [way for way in (True, False) if (program.in_place if way else program.out_of_place)]:
        memory = memory_of(program, in_place=in_place)
        judgement = Judgement(unroll(program, messages, order, memory), memory)
        if not len(judgement.races):
            values = judgement.values
            wrong = len(values.wrong_slots.slot) + len(values.wrong_sums.value) + int(values.missing.sum())
            found.append((not wrong, run_program(program, in_place=in_place, depth=2, seed=1).good))
    return found


def test_right_programs_are_accepted() -> None:
    for program in SAMPLES:
        answers = both(program)
        assert answers
        assert set(answers) == {(True, True)}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_mutants_are_accepted_only_where_they_are_right(kind: str) -> None:
    rng = random.Random(11)
    for program in SAMPLES:
        changed = mutant(program, kind, rng)
        for judged, carried_out in both(changed) if changed is not None else []:
            assert carried_out or not judged
