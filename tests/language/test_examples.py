"""The programs of examples/language: verified, fused, exported, and run with the right results."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import coppice
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.export.importing import read_program
from coppice.export.msccl.targets import TARGETS
from coppice.language import per_rank_program
from coppice.program.dialects.rank.lower import lower_for_run
from coppice.program.dialects.rank.program import RankProgram
from coppice.program.dialects.thread_blocks.program import Program, StepOp
from coppice.program.dialects.thread_blocks.verify import verify_program
from coppice.run.engines.datatype import DataType, ReduceOp
from coppice.run.engines.numpy import NumpyEngine, run_ranks
from coppice.schedule.files.plan_file import read_plan
from reference.programs_run import run_program
from support.language_examples import FOLDER, NAMES, NO_RUNTIME, RANKS, compiled, serves
from support.run_cases import case

ON_RUNTIMES = [name for name in NAMES if name not in NO_RUNTIME]


def test_all_published_programs_are_here() -> None:
    wanted = {
        "all_gather": ("ring", "recursive_doubling", "all_pairs"),
        "all_reduce": ("ring", "all_pairs", "one_step", "binomial_tree", "halving_doubling", "hierarchical"),
        "all_to_all": ("two_step", "three_step", "all_pairs"),
        "all_to": ("next",),
    }
    assert {f"{first}_{last}" for first, names in wanted.items() for last in names} == set(NAMES)


@pytest.mark.parametrize("ranks", [*RANKS, 8])
@pytest.mark.parametrize("name", NAMES)
def test_examples_verify(name: str, ranks: int) -> None:
    """By the schedule's verifier, and by that of programs in random orders."""
    if not serves(name, ranks):
        words = "not all 0" if name == "all_to_next" else "expected a power of two"
        with pytest.raises(InputError, match=rf"^{name}\.py:\d+: .*{words}"):
            compiled(name, ranks)
        return
    made = compiled(name, ranks)
    assert coppice.verify(made).ok
    if made.program is None:
        assert name in NO_RUNTIME
        return
    for seed in range(3):
        verify_program(made.program, seed=seed).require_ok()


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_a_ring_is_fused(ranks: int) -> None:
    """s, P-2 times rrs, rrcs, P-2 times rcs, r: at every rank."""
    program = compiled("all_reduce_ring", ranks).program
    assert program is not None
    expected = [
        StepOp.SEND,
        *[StepOp.RECV_REDUCE_SEND] * (ranks - 2),
        StepOp.RECV_REDUCE_COPY_SEND,
        *[StepOp.RECV_COPY_SEND] * (ranks - 2),
        StepOp.RECV,
    ]
    assert program.num_blocks == ranks
    for block in range(ranks):
        assert program.op[program.step_start[block] : program.step_start[block + 1]].tolist() == expected


def outcomes(program: Program, times: int) -> Counter[bool]:
    return Counter(
        run_program(program, in_place=program.in_place, depth=depth, seed=seed, data_seed=7).good
        for depth in (2, 8)
        for seed in range(times)
    )


@pytest.mark.parametrize("name", ON_RUNTIMES)
def test_files_do_the_same_in_every_order(name: str, tmp_path: Path) -> None:
    """What is written for a runtime, read back, and carried out by thread blocks that overtake each other."""
    made = compiled(name, 4)
    assert made.program is not None
    for target in TARGETS:
        refused = TARGETS[target].refused_types
        program = per_rank_program(made.source, fused=False) if refused else made.program
        path = tmp_path / f"{target}.xml"
        coppice.export(program, "msccl-xml", path, target=target)
        back, _, _ = read_program(path)
        assert isinstance(back, Program)
        verify_program(back).require_ok()
        assert outcomes(back, 4) == {True: 8}


@pytest.mark.parametrize("name", ON_RUNTIMES)
def test_plans_are_exported(name: str, tmp_path: Path) -> None:
    """Every plan goes the way of all plans: to all targets of MSCCL and to MSCCL++, read back and verified."""
    made = compiled(name, 4)
    path = tmp_path / "plan.json"
    coppice.write_plan(made, path)
    plan = read_plan(str(path))
    for target in TARGETS:
        file = tmp_path / f"{target}.xml"
        coppice.export(plan, "msccl-xml", file, target=target, size="1M")
        assert coppice.import_plan(file).plan.problem.collective is plan.problem.collective
    file = tmp_path / "mscclpp.json"
    coppice.export(plan, "mscclpp-json", file)
    assert coppice.import_plan(file).plan.problem.collective is plan.problem.collective
    assert coppice.simulate(plan, "1M").time_us > 0


def run_and_check(programs: list[RankProgram]) -> None:
    """Run the programs of all ranks in threads."""
    data = case(programs, dtype=DataType.INT64, seed=len(programs))

    def work(engine: NumpyEngine) -> None:
        rank = engine.rank
        given, output = data.inputs[rank], data.outputs[rank]
        engine.run(programs[rank], given, output, dtype=DataType.INT64, op=ReduceOp.SUM, timeout_s=60)

    assert run_ranks(len(programs), work) == [None] * len(programs)
    data.check(programs)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("name", ON_RUNTIMES)
def test_plans_run_on_the_numpy_engine(name: str, ranks: int) -> None:
    if not serves(name, ranks):
        return
    body = compiled(name, ranks).schedule
    for in_place in (True, False):
        if in_place and body.collective is Collective.ALL_TO_ALL:
            continue
        run_and_check(lower_for_run(body, 4 * ranks + 3, in_place=in_place))


def test_plans_run_in_processes_with_shared_memory(tmp_path: Path) -> None:
    """A process for each rank carries out all examples one after the other."""
    ranks = 4
    for name in NAMES:
        coppice.write_plan(compiled(name, ranks), tmp_path / f"{name}.json")
    (tmp_path / "exchange").mkdir()
    worker = Path(__file__).with_name("shm_plans_rank.py")
    started = [
        subprocess.Popen(
            [sys.executable, str(worker), str(tmp_path), str(rank), str(ranks)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    printed = [process.communicate(timeout=300)[0] for process in started]
    assert printed == [f"{len(NAMES)} right\n"] * ranks


def test_all_to_next_moves_blocks_to_the_next_rank() -> None:
    """Only what is asked for moves, and between boxes all GPUs share the work."""
    made = compiled("all_to_next", 8, 2)
    schedule = made.schedule
    assert schedule.slot_weight.reshape(8, 8).nonzero()[1].tolist() == list(range(1, 8))
    crossing = (schedule.src // 4) != (schedule.dst // 4)
    assert sorted(zip(schedule.src[crossing].tolist(), schedule.dst[crossing].tolist(), strict=True)) == [
        (rank, rank + 4) for rank in range(4)
    ]
    assert np.unique(schedule.chunk).size == schedule.num_chunks


@pytest.mark.parametrize(("ranks", "boxes"), [(2, 1), (3, 1), (5, 1), (4, 2), (6, 3)])
def test_all_to_next_runs_on_the_numpy_engine(ranks: int, boxes: int) -> None:
    """Every rank but the first ends with what the one before it had."""
    programs = lower_for_run(compiled("all_to_next", ranks, boxes).schedule, 6 * ranks, in_place=False)
    rng = np.random.default_rng(ranks)
    inputs = [rng.integers(0, 99, program.input_elements) for program in programs]
    outputs = [np.zeros(program.output_elements, dtype=np.int64) for program in programs]

    def work(engine: NumpyEngine) -> None:
        rank = engine.rank
        engine.run(
            programs[rank], inputs[rank], outputs[rank], dtype=DataType.INT64, op=ReduceOp.SUM, timeout_s=60
        )

    assert run_ranks(ranks, work) == [None] * ranks
    assert [len(inputs[-1]), len(outputs[0])] == [0, 0]
    for rank in range(1, ranks):
        assert len(outputs[rank]) > 0
        np.testing.assert_array_equal(outputs[rank], inputs[rank - 1])


def test_the_same_file_gives_the_same_bytes(tmp_path: Path) -> None:
    for number in range(2):
        made = coppice.compile_program(FOLDER / "all_reduce_hierarchical.py")
        coppice.write_plan(made, tmp_path / f"{number}.json")
        coppice.export(made.program, "msccl-xml", tmp_path / f"{number}.xml", target="msccl")
    for suffix in ("json", "xml"):
        assert (tmp_path / f"0.{suffix}").read_bytes() == (tmp_path / f"1.{suffix}").read_bytes()
