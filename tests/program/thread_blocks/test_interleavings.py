"""What the verifier says against what happens: programs are run with numbers, in random orders.

Whatever verifies ends right in every order and leaves no message behind; whatever deadlocks deadlocks in every
order; whatever is a race makes a difference in some order, or at least mostly one can be found.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.program.dialects.thread_blocks.program import Program
from coppice.program.dialects.thread_blocks.verify import ProgramReport, verify_program
from reference.programs_mutants import KINDS, mutant
from reference.programs_run import Outcome, run_program
from reference.programs_samples import SAMPLES

RIGHT = 3
"""Orders in which a program that verifies is run."""
SEARCHED = 40
"""Orders in which a difference is looked for."""


def ways(program: Program) -> list[bool]:
    """In place and not, as the program is meant."""
    return [way for way in (True, False) if (program.in_place if way else program.out_of_place)]


def runs(program: Program, depth: int, times: int, seed: int = 0) -> list[Outcome]:
    """Outcomes in random orders, in every way the program is meant to run."""
    return [
        run_program(program, in_place=way, depth=depth, seed=seed + turn, data_seed=seed)
        for way in ways(program)
        for turn in range(times)
    ]


def only(report: ProgramReport, words: str) -> bool:
    """All failures are of one sort."""
    told = [failure for failure in report.failures if not failure.startswith("..")]
    return bool(told) and all(words in failure for failure in told)


def judge(program: Program, depth: int, seed: int) -> str:
    """The sort of a verdict, after it was held against what happens: right, stuck, race, outcome or other."""
    report = verify_program(program, depth=depth)
    if report.ok:
        for outcome in runs(program, depth, RIGHT, seed) + runs(program, 8, RIGHT, seed):
            assert outcome.good, outcome
        return "right"
    if report.safe_bytes and (program.max_bytes is None or program.max_bytes > report.safe_bytes):
        return judge(replace(program, max_bytes=report.safe_bytes), depth, seed)
    if "it deadlocks" in report.failures[0]:
        assert not any(outcome.finished for outcome in runs(program, depth, RIGHT, seed))
        return "stuck"
    if any("nothing puts them in order" in failure for failure in report.failures):
        return "race" if only(report, "nothing puts them in order") else "other"
    if any(
        f"slot {digit}" in failure and "of the output of rank" in failure
        for failure in report.failures
        for digit in "0123456789"
    ):
        # Without a race all orders end alike, so they all end wrong.
        prefixed = program.in_place and program.out_of_place
        for outcome, way in zip(runs(program, depth, 1, seed), ways(program), strict=True):
            named = [
                f
                for f in report.failures
                if not prefixed or f.startswith("in place" if way else "out of place")
            ]
            if any("of the output of rank" in failure for failure in named):
                assert not outcome.right
        return "outcome"
    return "other"


@pytest.mark.parametrize("depth", [1, 2, 8])
def test_samples(depth: int) -> None:
    """All of them are right with 2 messages a connection; with 1 some deadlock, and then always."""
    found = [judge(program, depth, seed) for seed, program in enumerate(SAMPLES)]
    assert set(found) == ({"right", "stuck"} if depth == 1 else {"right"})


@settings(max_examples=400, deadline=None)
@given(
    which=st.integers(0, len(SAMPLES) - 1),
    kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=2),
    depth=st.sampled_from([1, 2, 8]),
    seed=st.integers(0, 2**32),
)
def test_verdicts_come_true(which: int, kinds: list[str], depth: int, seed: int) -> None:
    rng = random.Random(seed)
    program: Program | None = SAMPLES[which]
    for kind in kinds:
        changed = None if program is None else mutant(program, kind, rng)
        program = changed or program
    assert program is not None
    judge(program, depth, seed)


def differs(program: Program, seed: int) -> bool:
    """Two orders end with different values, or one of them wrong."""
    for way in ways(program):
        seen = set()
        for turn in range(SEARCHED):
            outcome = run_program(program, in_place=way, depth=8, seed=seed + turn, data_seed=seed)
            if not outcome.right:
                return True
            seen.add(outcome.output)
    return len(seen) > 1


def test_races_are_seen() -> None:
    """Of the programs that race and do nothing else wrong, most end wrong in some order that a short search finds.

    Not all: the value that is overwritten too early may be the one that was to be there, or nobody may need it.
    """
    rng = random.Random(5)
    racing, seen = 0, 0
    for turn in range(4 * len(SAMPLES)):
        program = SAMPLES[turn % len(SAMPLES)]
        kind = ("drop_dependency", "swap_steps")[turn // len(SAMPLES) % 2]
        changed = mutant(program, kind, rng)
        if changed is None:
            continue
        if judge(changed, 2, turn) == "race":
            racing += 1
            seen += differs(changed, turn)
    assert racing >= 200
    assert seen >= 0.9 * racing, (seen, racing)
