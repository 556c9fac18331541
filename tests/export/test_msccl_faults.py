"""Small files of every feature and of every fault: what is right verifies, what is wrong is named with its place."""

from __future__ import annotations

import re

import pytest

from coppice.export.msccl.document import parse_document
from coppice.export.msccl.reader import program_of
from coppice.program.memory import Buffer
from coppice.program.two_sided.program import Program, StepOp
from coppice.program.two_sided.verify import verify_program
from reference.programs_run import run_program
from support.msccl_notation import File
from support.msccl_right_files import RIGHT
from support.msccl_wrong_files import WRONG


def program(file: File) -> Program:
    return program_of(parse_document(file.text.encode(), file="sample.xml")).program


def good(chosen: Program, depth: int, seed: int) -> bool:
    ways = [way for way in (True, False) if (chosen.in_place if way else chosen.out_of_place)]
    return all(run_program(chosen, in_place=way, depth=depth, seed=seed).good for way in ways)


@pytest.mark.parametrize("name", RIGHT)
def test_right_files(name: str) -> None:
    file, chosen = RIGHT[name], program(RIGHT[name])
    for depth in (1, 2, 8):
        report = verify_program(chosen, depth=depth)
        assert report.ok == (depth >= file.depth), report.failures
        assert all(good(chosen, depth, seed) == report.ok for seed in range(6))
    found = verify_program(chosen).warnings
    assert bool(found) == bool(file.warning)
    assert all(re.search(file.warning, warning) for warning in found)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_files(name: str) -> None:
    file, chosen = WRONG[name], program(WRONG[name])
    report = verify_program(chosen, depth=2)
    assert re.search(file.fault, report.failures[0]), report.failures
    if file.depth:
        assert verify_program(chosen, depth=file.depth).ok
        assert not verify_program(chosen, depth=file.depth - 1).ok


RUNNABLE = [
    name
    for name in WRONG
    if "not there" not in name and name not in ("no peer", "its own peer", "two on one connection")
]


@pytest.mark.parametrize("name", RUNNABLE)
def test_wrong_files_go_wrong(name: str) -> None:
    chosen = program(WRONG[name])
    assert any(not good(chosen, 2, seed) for seed in range(200))


def test_every_operation_buffer_and_collective_has_a_file() -> None:
    programs = [program(file) for file in RIGHT.values()]
    assert {StepOp(op) for each in programs for op in each.op.tolist()} >= set(StepOp) - {StepOp.NOP}
    used = {
        buffer
        for each in programs
        for column in (each.src_buffer, each.dst_buffer)
        for buffer in column.tolist()
    }
    assert used == set(Buffer)
    assert len({each.collective for each in programs}) == 8
    assert any(len(each.dep_block) > 1 for each in programs)
    assert {each.protocol for each in programs} == {"Simple", "LL", "LL128"}
