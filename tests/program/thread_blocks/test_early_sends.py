"""Sends with LL that RCCL counts as done too early: what the verifier says, and what waves of threads do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.doctor import diagnose
from coppice.errors import CheckError, InputError, UnreachableError
from coppice.export.formats import MscclXmlOptions
from coppice.export.msccl.document import parse_document
from coppice.export.msccl.export import export_msccl_xml
from coppice.export.msccl.reader import judge_document
from coppice.export.msccl.writer import msccl_xml
from coppice.planners.algorithms.catalogue import algorithms
from coppice.planners.planning import plan
from coppice.program.dialects.thread_blocks.cutting import AMD, NVIDIA, PATIENT
from coppice.program.dialects.thread_blocks.lower import lower_to_program
from coppice.program.dialects.thread_blocks.program import Program, ProgramBuilder, StepOp
from coppice.program.dialects.thread_blocks.races import settled
from coppice.program.dialects.thread_blocks.unroll import early_sends
from coppice.program.dialects.thread_blocks.verify import verify_program
from coppice.program.memory import Buffer
from coppice.schedule.plan import Plan
from coppice.topology.presets import preset
from reference.programs import built
from reference.programs_waves import goes_wrong

OUT, SCRATCH = Buffer.OUTPUT, Buffer.SCRATCH
COLLECTIVES = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.ALL_GATHER)


def planned(algorithm: str, *, ranks: int = 4, collective: Collective = Collective.ALL_REDUCE) -> Plan:
    problem = Problem(topology=preset("star", gpus=ranks), collective=collective)
    return plan(problem, algorithm=algorithm).plan


def as_written(made: Plan) -> Program:
    """With LL, without a thought of when sends are done."""
    return lower_to_program(made.body, fused=False, protocol="LL")


def sweep() -> Iterator[tuple[str, Program]]:
    for ranks in (3, 4):
        for name, collective in algorithms():
            if collective in COLLECTIVES:
                try:
                    made = planned(name, ranks=ranks, collective=collective)
                    yield f"{name} {collective} {ranks}", as_written(made)
                except (InputError, CheckError, UnreachableError):
                    continue


def test_the_verifier_and_waves_of_threads_agree_over_the_catalogue() -> None:
    """What goes wrong is refused, nothing else is, and all of it is right once it is settled."""
    refused = set()
    for seed, (name, program) in enumerate(sweep()):
        assert verify_program(program, buffers=PATIENT).ok
        wrong = goes_wrong(program, orders=3, seed=seed)
        report = verify_program(program)
        assert not (wrong and report.ok), name
        if report.ok:
            assert settled(program, AMD) is program, name
            continue
        refused.add(name)
        # Of three ranks, one sends what nobody needs in the end: the race is there, and harms nothing.
        harmless = name == "recursive-doubling reduce_scatter 3"
        assert wrong or harmless or goes_wrong(program, orders=100, seed=seed), name
        made = settled(program, AMD)
        assert verify_program(made).ok, name
        assert made.num_steps > program.num_steps
        assert verify_program(made, depth=1).ok == verify_program(program, depth=1, buffers=PATIENT).ok
        assert not goes_wrong(made, orders=10, seed=seed), name
    kinds = (
        "allgather-reduce all_reduce",
        "recursive-doubling all_reduce",
        "recursive-multiplying all_reduce",
    )
    both = (*kinds, "recursive-doubling reduce_scatter")
    assert refused == {f"{kind} {ranks}" for kind in both for ranks in (3, 4)}


@pytest.mark.parametrize("algorithm", ["recursive-doubling", "recursive-multiplying"])
def test_mutants_of_settled_programs_are_refused(algorithm: str) -> None:
    """A wait that is moved from the copy back to its send, one at a time."""
    program = settled(as_written(planned(algorithm)), AMD)
    early = early_sends(program, AMD)
    behind = np.flatnonzero(early[program.dep_target - 1] & (program.op[program.dep_target] == StepOp.COPY))
    assert len(behind) >= 6
    wrong = 0
    for row in behind.tolist():
        position = program.dep_step.copy()
        position[row] -= 1
        mutant = replace(program, dep_step=position)
        report = verify_program(mutant)
        assert not report.ok
        assert "slot 0 of the output" in report.failures[0]
        wrong += goes_wrong(mutant, orders=20, seed=row)
    assert wrong >= len(behind) // 2


def test_only_sends_with_ll_in_rccl_are_early() -> None:
    program = as_written(planned("recursive-doubling"))
    assert not verify_program(program).ok
    assert not verify_program(program, buffers=AMD).ok
    assert verify_program(program, buffers=NVIDIA).ok
    for protocol in ("Simple", "LL128"):
        assert verify_program(replace(program, protocol=protocol)).ok
        assert settled(replace(program, protocol=protocol), AMD).num_steps == program.num_steps


def swap(*, second: StepOp, offset: int, count: int) -> Program:
    """Two ranks; at rank 0 a send of slots 0 and 1, and right behind it, without a wait, a step that writes."""
    build = ProgramBuilder(2)
    for rank in range(2):
        block = build.block(rank, send=1 - rank, recv=1 - rank)
        if second is StepOp.REDUCE:
            build.step(block, StepOp.SEND, src=(OUT, 0), count=2)
            build.step(block, StepOp.RECV, dst=(SCRATCH, 0), count=2)
        build.step(block, StepOp.SEND, src=(OUT, 0), count=2)
        if second is StepOp.REDUCE:
            build.step(block, second, src=(SCRATCH, 0), dst=(OUT, offset), count=count)
            build.step(block, StepOp.RECV, dst=(SCRATCH, 0), count=2)
        else:
            build.step(block, second, dst=(OUT, offset), count=count)
    return built(build, Collective.ALL_REDUCE, 2, 3, scratch=2, protocol="LL")


@pytest.mark.parametrize(
    ("second", "offset", "count", "race"),
    [
        (StepOp.RECV, 0, 2, False),  # each thread writes what it has read
        (StepOp.RECV, 1, 2, True),  # another thread does
        (StepOp.REDUCE, 0, 2, True),  # reductions are shared out otherwise
        (StepOp.REDUCE, 2, 1, False),  # another slot
    ],
)
def test_the_step_behind_a_send_in_its_own_thread_block(
    second: StepOp, offset: int, count: int, *, race: bool
) -> None:
    program = swap(second=second, offset=offset, count=count)
    found = [each for each in verify_program(program).failures if "counts as done" in each]
    assert bool(found) == race
    assert not any("counts as done" in each for each in verify_program(settled(program, AMD)).failures)


def test_exports_for_rccl_with_ll_are_settled_and_those_for_others_are_not() -> None:
    made = planned("recursive-doubling", ranks=8)
    text = {
        target: export_msccl_xml(made, MscclXmlOptions(target=target, protocol="LL", size="all"))
        for target in ("rccl", "azure-executor")
    }
    rccl = judge_document(parse_document(text["rccl"].text.encode(), file="a.xml"))
    assert rccl.report.ok
    assert text["rccl"].text.count('type="cpy"') == 20
    assert any("20 sends with LL that others wait for have a copy" in note for note in text["rccl"].notes)
    azure = text["azure-executor"]
    assert 'type="cpy"' not in azure.text
    document = parse_document(azure.text.encode(), file="a.xml")
    assert judge_document(document, target="azure-executor").report.ok


def test_a_file_with_the_race_is_refused_for_rccl_only_and_made_right_by_an_export() -> None:
    text = msccl_xml(as_written(planned("recursive-doubling", ranks=8)), target="rccl")
    document = parse_document(text.encode(), file="race.xml")
    assert not judge_document(document).report.ok
    assert not judge_document(document, target="rccl").report.ok
    assert judge_document(document, target="msccl").report.ok
    plan_only = judge_document(document, runs=False)
    assert plan_only.report.ok
    assert "RCCL must not run the file as it stands" in plan_only.warnings[0]
    found = [each for each in diagnose(text, "rccl").findings if each.rule == "H04"]
    assert len(found) == 1
    assert "(and 19 others likewise)" in found[0].text
    assert "export FILE --to msccl-xml" in found[0].fix
    assert not [each for each in diagnose(text, "azure-executor").findings if each.rule == "H04"]
    again = export_msccl_xml(plan_only.program, MscclXmlOptions(target="rccl"))
    assert judge_document(parse_document(again.text.encode(), file="again.xml"), target="rccl").report.ok
    assert not [each for each in diagnose(again.text, "rccl").findings if each.rule == "H04"]
