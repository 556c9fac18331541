"""Files that say nothing of sizes are judged for those at which they come to an end; others for what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coppice.bounds.problem import Problem
from coppice.cli import app
from coppice.collectives import Collective
from coppice.doctor import diagnose
from coppice.errors import CheckError, InputError
from coppice.export.formats import MscclXmlOptions
from coppice.export.importing import import_plan
from coppice.export.msccl.document import parse_document
from coppice.export.msccl.export import export_msccl_xml
from coppice.export.msccl.reader import judge_document, program_of
from coppice.planners.planning import plan
from coppice.program.dialects.thread_blocks.program import Program, StepOp
from coppice.program.dialects.thread_blocks.verify import verify_program
from coppice.program.memory import Buffer
from coppice.topology.presets import preset
from reference.programs_run import run_program
from support.msccl_notation import File
from support.msccl_right_files import RIGHT
from support.msccl_wrong_files import WRONG


def swap(sizes: str) -> str:
    """Two ranks that send 4 slots to each other, in two messages, before they receive: right for short messages."""
    gpus = "".join(
        f'''<gpu id="{rank}" i_chunks="12" o_chunks="24" s_chunks="0">
<tb id="0" send="{1 - rank}" recv="{1 - rank}" chan="0">
'''
        + "".join(
            f'<step s="{s}" type="{kind}" srcbuf="o" srcoff="{first}" dstbuf="o" dstoff="{first}" cnt="6" depid="-1" '
            'deps="-1" hasdep="0"/>\n'
            for s, (kind, first) in enumerate(
                [("s", 12 * rank), ("s", 12 * rank + 6), ("r", 12 - 12 * rank), ("r", 18 - 12 * rank)]
            )
        )
        + "</tb>\n</gpu>\n"
        for rank in range(2)
    )
    return (
        '<algo name="swap" proto="Simple" nchannels="1" nchunksperloop="24" ngpus="2" coll="allgather" inplace="1" '
        f'outofplace="0"{sizes}>\n{gpus}</algo>\n'
    )


MOST = (2**21 // 6) * 24  # 6 slots in a message of 2 MiB


def test_a_file_without_sizes_is_verified_up_to_the_size_at_which_it_hangs() -> None:
    judged = judge_document(parse_document(swap("").encode(), file="a.xml"))
    assert judged.report.ok
    assert judged.program.max_bytes == MOST
    assert f'maxBytes="{MOST}"' in " ".join(judged.warnings)


@pytest.mark.parametrize("stated", ["0", str(MOST + 1), str(2**30)])
def test_a_file_that_states_larger_sizes_fails_with_the_remedy(stated: str) -> None:
    document = parse_document(swap(f' minBytes="0" maxBytes="{stated}"').encode(), file="a.xml")
    with pytest.raises(CheckError, match=f'maxBytes="{MOST}"'):
        judge_document(document).report.require_ok()


def test_the_size_that_it_names_is_right() -> None:
    document = parse_document(swap(f' minBytes="0" maxBytes="{MOST}"').encode(), file="a.xml")
    judged = judge_document(document)
    assert judged.report.ok
    assert not judged.warnings


def test_commands_say_so(tmp_path: Path) -> None:
    file = tmp_path / "swap.xml"
    file.write_text(swap(""), encoding="utf-8")
    made = import_plan(file)
    assert f'maxBytes="{MOST}"' in " ".join(made.warnings)
    answer = CliRunner().invoke(app, ["verify", str(file)])
    assert answer.exit_code == 0
    assert f"messages of up to {MOST} bytes" in answer.stdout
    doctor = CliRunner().invoke(app, ["doctor", str(file), "--target", "msccl", "--size", "3M,48M"])
    assert "3M: used" in doctor.stdout
    assert f"48M: NOT used: ranks would hang above {MOST} bytes" in doctor.stdout
    assert doctor.exit_code == 1
    other = CliRunner().invoke(app, ["verify", str(file), "--target", "nccl"])
    assert other.exit_code == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            '{"format": "coppice-put-signal", "version": 1}',
            "a program of puts and signals, which `coppice verify`",
        ),
        ('{"name": "x", "collective": "allreduce", "gpus": []}', "an execution plan of MSCCL\\+\\+"),
        ('{"format": "coppice-plan", "version": 1}', "a plan, which `coppice verify`, `explain`, `simulate`"),
        ("from coppice import language\n", "`coppice compile FILE"),
    ],
)
def test_other_files_are_named_with_the_command_that_takes_them(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        diagnose(text.encode(), "rccl")


def test_unequal_demands_are_why_no_runtime_takes_a_plan() -> None:
    demands = [[0, 1, 0], [0, 0, 1], [1, 0, 0]]  # every rank sends to the next
    problem = Problem(topology=preset("star", gpus=3), collective=Collective.ALL_TO_ALL, demands=demands)
    for target in ("msccl", "rccl"):
        with pytest.raises(
            InputError, match="found demands of 0 to 1: runtimes have no call for unequal demands"
        ):
            export_msccl_xml(plan(problem).plan, MscclXmlOptions(target=target, size="all"))


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
