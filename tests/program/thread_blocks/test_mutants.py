"""Programs with one thing gone wrong: the verifier refuses every one that goes wrong when it is run."""

from __future__ import annotations

import random
import zlib

import pytest

from coppice.program.dialects.thread_blocks.program import Program
from coppice.program.dialects.thread_blocks.verify import verify_program
from reference.programs_mutants import KINDS, mutant
from reference.programs_run import run_program
from reference.programs_samples import SAMPLES

ORDERS = 6
"""Random orders in which a mutant is run."""

LEAST = {
    "aim_elsewhere": 400,
    "change_buffer": 350,
    "change_channel": 400,
    "change_count": 400,
    "change_offset": 400,
    "drop_dependency": 140,
    "drop_reduce": 200,
    "drop_step": 400,
    "other_place": 250,
    "reduce_twice": 180,
    "swap_steps": 220,
}
"""Mutants of each kind that must be seen to go wrong, so that the test tests something."""


def goes_wrong(program: Program, seed: int) -> bool:
    """Some order ends without the right result, or with messages left, or cannot be carried out."""
    for in_place in [way for way in (True, False) if (program.in_place if way else program.out_of_place)]:
        for turn in range(ORDERS):
            for depth in (2, 8):
                if not run_program(program, in_place=in_place, depth=depth, seed=seed + turn).good:
                    return True
    return False


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_mutants_that_go_wrong_are_refused(kind: str) -> None:
    rng = random.Random(zlib.crc32(kind.encode()))
    wrong = 0
    for seed, program in enumerate(SAMPLES):
        changed = mutant(program, kind, rng)
        if changed is None or not goes_wrong(changed, seed):
            continue
        wrong += 1
        report = verify_program(changed, depth=2)
        assert not report.ok, (seed, kind)
        assert report.failures[0].strip()
    assert wrong >= LEAST[kind], wrong


def test_every_kind_is_counted() -> None:
    assert set(LEAST) == set(KINDS)
