"""The text of MSCCL XML, made from columns, against one that is written line by line."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import coppice.export.msccl.writer
from coppice.errors import InputError
from coppice.export.msccl.targets import TARGETS
from coppice.export.msccl.writer import encode_msccl_xml
from coppice.program.two_sided.program import Program, StepOp
from reference.programs_mutants import mutant
from reference.programs_samples import SAMPLES
from reference.programs_xml import lines_of


def below_the_head(program: Program, target: str) -> str:
    text = b"".join(encode_msccl_xml(program, TARGETS[target])).decode()
    head, algo, rest = text.split("\n", 2)
    assert head.startswith("<!--")
    assert algo.startswith("<algo ")
    return rest


def assert_same(program: Program, target: str) -> bool:
    """Both write the same, or refuse in the same words."""
    if program.collective not in TARGETS[target].collectives:
        return False
    found = [
        told(lambda: "".join(lines_of(program, TARGETS[target]))),
        told(lambda: below_the_head(program, target)),
    ]
    assert found[0] == found[1]
    return not found[0].startswith("refused")


def told(write: Callable[[], str]) -> str:
    """The text, or the words of the refusal."""
    try:
        return write()
    except InputError as error:
        return f"refused: {error}"


@pytest.mark.parametrize("target", TARGETS)
def test_samples(target: str) -> None:
    assert sum(assert_same(program, target) for program in SAMPLES) > 100


@pytest.mark.parametrize("seed", range(3))
def test_programs_of_random_operations(seed: int) -> None:
    """Reductions that follow each other, steps that do nothing, and waits for those."""
    numbers, rng = np.random.default_rng(seed), random.Random(seed)
    written = 0
    for program in SAMPLES[seed::3]:
        op = program.op.copy()
        op[numbers.random(len(op)) < 0.5] = StepOp.REDUCE
        op[numbers.random(len(op)) < 0.05] = StepOp.NOP
        changed = replace(
            program,
            op=op,
            dst_buffer=np.ones_like(program.dst_buffer),
            src_buffer=np.zeros_like(program.src_buffer),
            dst_offset=numbers.integers(0, 2, len(op)).astype(np.int32),
            count=numbers.integers(1, 3, len(op)).astype(np.int32),
        )
        changed = mutant(changed, "drop_step", rng) or changed
        written += assert_same(changed, "azure-executor")
    assert written > 20


def test_pieces_and_tables_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coppice.export.msccl.writer, "_PIECE", 5)
    monkeypatch.setattr(coppice.export.msccl.writer, "_MANY", 3)
    assert sum(assert_same(program, "rccl") for program in SAMPLES[::7]) > 20
