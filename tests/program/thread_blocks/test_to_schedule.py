"""A program made of a schedule gives back its transfers, and a schedule that verifies."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.algorithms.algorithm import Algorithm
from coppice.planners.planning import plan
from coppice.program.buffer_layout import in_sub_chunks
from coppice.program.dialects.thread_blocks.lower import lower_to_program
from coppice.program.dialects.thread_blocks.program import ProgramBuilder, StepOp
from coppice.program.dialects.thread_blocks.to_schedule import to_schedule
from coppice.program.dialects.thread_blocks.verify import verify_program
from coppice.schedule.forest import Forest
from coppice.schedule.lower import lower
from coppice.schedule.schedule import Op, Schedule
from coppice.schedule.verification.transfers import verify_schedule
from coppice.topology.presets import preset
from reference.catalogue import made_on_a_star, moving
from reference.oracle import ENTRIES, oracle_topology
from reference.programs import OUT, TMP, pair_all_reduce

TREES = [collective for collective in Collective if collective.made_of_trees]
# Ranks that take no part in the end are sent what they never use: out of place, no transfer comes of that.
UNUSED = {("recursive-doubling", Collective.REDUCE_SCATTER)}


def moves_of(schedule: Schedule, units: int) -> Counter[tuple[int, int, int, int]]:
    """(sender, receiver, operation, unit) of every transfer, in ``units`` units a block or in all."""
    cut = in_sub_chunks(schedule)
    factor = units // cut.num_chunks
    assert factor * cut.num_chunks == units
    found: Counter[tuple[int, int, int, int]] = Counter()
    rows = zip(*(getattr(schedule, name).tolist() for name in ("src", "dst", "op", "chunk")), strict=True)
    for src, dst, op, chunk in rows:
        for run in range(int(cut.start[chunk]), int(cut.start[chunk + 1])):
            first, count = int(cut.first[run]) * factor, int(cut.count[run]) * factor
            found.update((src, dst, op, unit) for unit in range(first, first + count))
    return found


def assert_back(body: Forest | Schedule, *, in_place: bool, fused: bool, unused: bool = False) -> None:
    schedule = lower(body) if isinstance(body, Forest) else body
    program = lower_to_program(body, in_place=in_place, fused=fused)
    again = to_schedule(program, schedule.topology)
    report = verify_schedule(again, relay_gpus=True)
    assert report.ok, report.failures
    found, given = moves_of(again, program.num_chunks), moves_of(schedule, program.num_chunks)
    if unused:
        assert not found - given
        assert {op for _, _, op, _ in given - found} <= {Op.COPY}
    else:
        assert found == given
    assert verify_program(lower_to_program(again, in_place=in_place)).ok


@pytest.mark.spread(2)
@pytest.mark.parametrize("collective", TREES)
@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if entry["N"] <= 16])
def test_forests(name: str, collective: Collective) -> None:
    topology = oracle_topology(name)
    root = topology.num_ranks // 2 if collective.rooted else None
    made = plan(Problem(topology=topology, collective=collective, root=root), trees=1, ring=False).plan
    for in_place, fused in ((True, True), (False, False)):
        assert_back(made.body, in_place=in_place, fused=fused)


@pytest.mark.spread(2)
@pytest.mark.parametrize("entry", moving())
def test_catalogue(entry: Algorithm) -> None:
    for ranks in (1, 2, 3, 6, 8):
        body = made_on_a_star(entry, ranks, ranks // 3)
        if body is None:
            continue
        ways = (False,) if entry.collective is Collective.ALL_TO_ALL else (True, False)
        for in_place in ways:
            assert_back(
                body, in_place=in_place, fused=not in_place, unused=(entry.name, entry.collective) in UNUSED
            )


def test_exchange_needs_steps() -> None:
    """Two ranks that swap and add: no order of rows says that, one step does."""
    again = to_schedule(pair_all_reduce(), preset("star", gpus=2))
    assert again.step.tolist() == [0, 0]
    assert sorted(zip(again.src.tolist(), again.dst.tolist(), strict=True)) == [(0, 1), (1, 0)]
    assert again.num_chunks == 1
    assert verify_schedule(again).ok


def test_tree_needs_no_steps() -> None:
    topology = preset("ring", gpus=4)
    made = plan(Problem(topology=topology, collective=Collective.ALL_REDUCE), trees=1, ring=False).plan
    again = to_schedule(lower_to_program(made.body), topology)
    assert np.all(again.step == -1)


def test_refused() -> None:
    program = pair_all_reduce()
    with pytest.raises(InputError, match="a topology of 2 ranks"):
        to_schedule(program, preset("star", gpus=3))
    first = ProgramBuilder(3)  # rank 1 passes on what rank 0 sent, apart from its own share
    first.step(first.block(0, send=1), StepOp.SEND, src=(OUT, 0))
    relay = first.block(1, recv=0, send=2)
    first.step(relay, StepOp.RECV, dst=(TMP, 0))
    first.step(relay, StepOp.SEND, src=(TMP, 0))
    first.step(relay, StepOp.SEND, src=(OUT, 0))
    last = first.block(2, recv=1)
    first.step(last, StepOp.RECV_REDUCE_COPY, src=(OUT, 0), dst=(OUT, 0))
    first.step(last, StepOp.RECV_REDUCE_COPY, src=(OUT, 0), dst=(OUT, 0))
    relayed = first.program(
        collective=Collective.REDUCE,
        root=2,
        num_chunks=1,
        in_place=True,
        out_of_place=False,
        input_chunks=[1, 1, 1],
        output_chunks=[1, 1, 1],
        scratch_chunks=[0, 1, 0],
    )
    assert verify_program(relayed).ok
    with pytest.raises(InputError, match=r"rank 1, thread block 0, step 2 \(send\) handles another value"):
        to_schedule(relayed, preset("star", gpus=3))
