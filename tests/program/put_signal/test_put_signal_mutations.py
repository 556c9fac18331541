"""What the verifier passes is right in every run: the judge is the machine, which tries them all."""

from __future__ import annotations

from collections import Counter

import pytest

from coppice.errors import InputError
from coppice.export.put_signal.document import parse_put_signal
from coppice.program.dialects.put_signal.program import PutSignalProgram
from coppice.program.dialects.put_signal.verify import verify_put_signal
from reference.put_signal_explore import explore
from support.put_signal_cases import mutated, small_programs, text_of, tree_of


def ways(program: PutSignalProgram) -> list[bool]:
    return [way for way, meant in ((False, program.out_of_place), (True, program.in_place)) if meant]


@pytest.mark.parametrize("program", small_programs(), ids=lambda program: program.name)
def test_small_programs_are_right_in_every_run(program: PutSignalProgram) -> None:
    verify_put_signal(program).require_ok()
    for in_place in ways(program):
        found = explore(program, in_place=in_place, most_states=600)
        assert not found.fault


def judged(numbers: range, most_states: int) -> Counter[str]:
    """What became of mutated programs; fails where a wrong one passes."""
    programs = small_programs()
    trees = [tree_of(program) for program in programs]
    outcome: Counter[str] = Counter()
    for number in numbers:
        name, tree = mutated(trees[number % len(trees)], number // len(trees) * 31 + number)
        try:
            program = parse_put_signal(text_of(tree), file="mutated").program
        except InputError:
            outcome["refused"] += 1
            continue
        if not verify_put_signal(program).ok:
            outcome["caught"] += 1
            continue
        found = [explore(program, in_place=each, most_states=most_states) for each in ways(program)]
        faults = [each.fault for each in found if each.fault]
        assert not faults, (
            f"{programs[number % len(trees)].name}, number {number}: {name} passes, but {faults[0]}"
        )
        outcome["harmless" if all(each.complete for each in found) else "not followed to the end"] += 1
    return outcome


def test_mutated_programs_that_pass_are_right_in_every_run() -> None:
    outcome = judged(range(300), 200)
    assert outcome["caught"] > 150
    assert outcome["harmless"] > 5


@pytest.mark.slow
def test_ten_thousand_mutated_programs() -> None:
    outcome = judged(range(10_000), 20_000)
    assert sum(outcome.values()) == 10_000
    assert outcome["caught"] > 6_000
