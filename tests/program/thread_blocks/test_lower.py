"""Lowered programs verify: forests of the oracle's topologies and all algorithms of the catalogue, in every form."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import CheckError, InputError
from coppice.planners.algorithms.algorithm import Algorithm
from coppice.planners.algorithms.catalogue import algorithms
from coppice.planners.planning import plan
from coppice.program.buffer_layout import in_sub_chunks
from coppice.program.dialects.thread_blocks.lower import lower_to_program
from coppice.program.dialects.thread_blocks.program import Program, StepOp
from coppice.program.dialects.thread_blocks.verify import verify_program
from coppice.schedule.forest import Forest
from coppice.schedule.schedule import Schedule
from coppice.topology.presets import preset
from reference.catalogue import made_on_a_star, moving
from reference.oracle import ENTRIES, oracle_topology

TREES = [collective for collective in Collective if collective.made_of_trees]


def planned(problem: Problem, trees: int | None = 1) -> Forest | Schedule:
    made = plan(problem, trees=trees if problem.collective.made_of_trees else None, ring=False).plan
    body = made.forest or made.schedule
    assert body is not None
    return body


def problem_of(name: str, collective: Collective, root: int | None = None, **options: int) -> Problem:
    return Problem(topology=preset(name, **options), collective=collective, root=root)


def forms(collective: Collective) -> list[tuple[bool, bool]]:
    """(in place, fused)"""
    ways = (False,) if collective is Collective.ALL_TO_ALL else (True, False)
    return [(in_place, fused) for in_place in ways for fused in (True, False)]


def assert_right(program: Program) -> None:
    for depth in (2, 8):
        report = verify_program(program, depth=depth)
        assert report.ok, report.failures
    assert not report.warnings


@pytest.mark.parametrize("collective", TREES)
@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if entry["N"] <= 16])
def test_forests(name: str, collective: Collective) -> None:
    topology = oracle_topology(name)
    root = topology.num_ranks // 2 if collective.rooted else None
    body = planned(Problem(topology=topology, collective=collective, root=root))
    for in_place, fused in forms(collective):
        assert_right(lower_to_program(body, in_place=in_place, fused=fused))


@pytest.mark.parametrize("entry", moving(slow=True))
def test_catalogue(entry: Algorithm) -> None:
    for ranks in (1, 2, 3, 4, 6):
        body = made_on_a_star(entry, ranks, ranks // 3)
        if body is None:
            continue
        for in_place, fused in forms(entry.collective):
            program = lower_to_program(body, in_place=in_place, fused=fused, channels=3, max_count=4)
            assert program.count.max(initial=1) <= 4 or ranks == 1 or not in_place
            assert_right(program)


def test_two_boxes_of_mi250_fit_64_thread_blocks() -> None:
    """One thread block for each tree and role would take more than 64."""
    body = planned(problem_of("mi250", Collective.ALL_REDUCE, boxes=2))
    most = 0
    for channels in (1, 8, 32):
        for fused in (True, False):
            program = lower_to_program(body, channels=channels, max_blocks=64, fused=fused)
            assert program.most_blocks <= 64
            assert program.num_channels <= channels
            most = max(most, program.most_blocks)
            assert_right(program)
    assert most > 32  # what fits is made use of


def test_fewer_channels_where_thread_blocks_are_few() -> None:
    body = planned(problem_of("mi250", Collective.ALL_GATHER, boxes=2))
    free = lower_to_program(body, channels=32)
    capped = lower_to_program(body, channels=32, max_blocks=12)
    assert capped.most_blocks <= 12 < free.most_blocks
    assert capped.num_channels < free.num_channels
    assert_right(capped)
    with pytest.raises(CheckError, match="expected at most 1 thread blocks a rank, found"):
        lower_to_program(body, max_blocks=1)


def test_ring_all_reduce_is_fused() -> None:
    """The textbook sequence of the ring: send, receive-reduce-sends, one that keeps the sum, copy-sends, receive."""
    ranks = 5
    body = made_on_a_star(algorithms()["ring", Collective.ALL_REDUCE], ranks, 0)
    assert body is not None
    program = lower_to_program(body)
    middle = [StepOp.RECV_REDUCE_SEND] * (ranks - 2)
    wanted = [
        StepOp.SEND,
        *middle,
        StepOp.RECV_REDUCE_COPY_SEND,
        *[StepOp.RECV_COPY_SEND] * (ranks - 2),
        StepOp.RECV,
    ]
    assert program.most_blocks == 1
    assert program.op.reshape(ranks, -1).tolist() == [[int(op) for op in wanted]] * ranks
    assert not len(program.dep_block)
    plain = lower_to_program(body, fused=False)
    assert set(plain.op.tolist()) == {StepOp.SEND, StepOp.RECV, StepOp.REDUCE}
    assert plain.scratch_chunks.tolist() == [1] * ranks


def test_multiplicity_becomes_count() -> None:
    """Trees of different weights are messages of different lengths, and all bytes are there."""
    body = planned(problem_of("mi250", Collective.ALL_GATHER, boxes=2), trees=None)
    assert isinstance(body, Forest)
    program = lower_to_program(body, channels=2)
    assert program.num_chunks == 32 * 83
    assert len(np.unique(program.count)) > 1
    report = verify_program(program)
    assert report.ok, report.failures


def test_paths_between_two_ranks_get_channels_of_their_own() -> None:
    problem = problem_of("dgx-a100", Collective.ALL_GATHER, boxes=2)
    body = planned(problem)
    assert_right(lower_to_program(body, channels=8))


def test_refused() -> None:
    body = planned(problem_of("star", Collective.ALL_TO_ALL, gpus=4))
    with pytest.raises(InputError, match="out of place"):
        lower_to_program(body)
    gather = planned(problem_of("star", Collective.ALL_GATHER, gpus=4))
    with pytest.raises(InputError, match="1 channel or more"):
        lower_to_program(gather, channels=0)
    barrier = made_on_a_star(algorithms()["bruck", Collective.BARRIER], 4, 0)
    assert barrier is not None
    with pytest.raises(InputError, match="found a barrier"):
        lower_to_program(barrier)
    weighted = Problem(topology=preset("star", gpus=3), collective=Collective.ALL_GATHER, weights=(1, 2, 3))
    with pytest.raises(InputError, match="blocks of equal size, found weights 1 to 3"):
        lower_to_program(planned(weighted))


def test_shares_that_are_too_fine() -> None:
    body = made_on_a_star(algorithms()["ring", Collective.ALL_GATHER], 2, 0)
    assert isinstance(body, Schedule)
    double = replace(
        body,
        chunk_slot=np.repeat(body.chunk_slot, 2),
        chunk_share=np.array([1, 2**24, 1, 2**24], dtype=np.int64),
        chunk=body.chunk * 2,
    )
    with pytest.raises(InputError, match="plan with fewer trees"):
        in_sub_chunks(double)


# What a program says is needed: each change of it is found.


@pytest.mark.parametrize(
    "collective", [Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE]
)
@pytest.mark.parametrize("fused", [True, False])
def test_changes_are_found(collective: Collective, fused: bool) -> None:
    program = lower_to_program(planned(problem_of("mi250", collective, boxes=1)), fused=fused, channels=2)
    random = np.random.default_rng(1)
    assert verify_program(program).ok
    for column, shift in (("src_offset", 1), ("dst_offset", 1), ("count", 1), ("op", 1), ("dep_step", 0)):
        values = getattr(program, column)
        rows = np.flatnonzero(values > 0) if column != "dep_step" else np.arange(len(values))
        for row in random.choice(rows, size=min(12, len(rows)), replace=False).tolist():
            changed = values.copy()
            if column == "dep_step":
                changed[row] = 0
                if values[row] == 0:
                    continue
            elif column == "op":
                changed[row] = StepOp.NOP
            else:
                changed[row] -= shift
            report = verify_program(replace(program, **{column: changed}))
            if column == "dep_step":  # what waits less may still be in order through other ranks
                continue
            assert not report.ok, (column, row)


def test_every_dependency_dropped_is_a_race() -> None:
    """Without any dependencies thread blocks of a rank trip over each other."""
    program = lower_to_program(planned(problem_of("mi250", Collective.ALL_GATHER, boxes=1)), channels=1)
    assert len(program.dep_block)
    free = replace(
        program,
        dep_start=np.zeros_like(program.dep_start),
        dep_block=program.dep_block[:0],
        dep_step=program.dep_step[:0],
    )
    report = verify_program(free)
    assert "nothing puts them in order" in report.failures[0]
