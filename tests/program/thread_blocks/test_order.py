"""The order of execution: every step once, after all that it waits for, whichever way it is found."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

import coppice.program.order
from coppice.program.dialects.thread_blocks.order import execution_order
from coppice.program.dialects.thread_blocks.program import Program
from coppice.program.dialects.thread_blocks.structure import message_pairs
from coppice.program.order import Deadlock
from coppice.schedule.verification.report import Findings
from reference.programs import pair_all_reduce, ring_all_gather, ring_all_reduce, with_columns

PROGRAMS = [ring_all_gather(2), ring_all_gather(7), ring_all_reduce(3), ring_all_reduce(6), pair_all_reduce()]


def assert_in_order(program: Program, order: NDArray[np.int64], depth: int) -> None:
    assert sorted(order.tolist()) == list(range(program.num_steps))
    time = np.empty(program.num_steps, dtype=np.int64)
    time[order] = np.arange(program.num_steps)
    for block in range(program.num_blocks):
        assert (np.diff(time[program.step_start[block] : program.step_start[block + 1]]) > 0).all()
    messages = message_pairs(program, Findings())
    assert (time[messages.send] < time[messages.recv]).all()
    for row, place in enumerate(messages.place.tolist()):
        if place >= depth:
            assert time[messages.recv[row - depth]] < time[messages.send[row]]
    for step in range(program.num_steps):
        rank = program.step_place(step)[0]
        for row in range(int(program.dep_start[step]), int(program.dep_start[step + 1])):
            block = program.rank_start[rank] + program.dep_block[row]
            assert time[program.step_start[block] + program.dep_step[row]] < time[step]


@pytest.mark.parametrize("narrow", [0, 16, 10**6], ids=["waves", "as it comes", "one by one"])
@pytest.mark.parametrize("depth", [2, 8])
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_step_after_what_it_waits_for(
    program: Program, depth: int, narrow: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coppice.program.order, "_PATIENCE", 2)
    monkeypatch.setattr(coppice.program.order, "_NARROW", narrow)
    messages = message_pairs(program, Findings())
    for seed in (None, 1, 2):
        assert_in_order(program, execution_order(program, messages, depth=depth, seed=seed), depth)


@pytest.mark.parametrize("narrow", [0, 10**6])
def test_what_stands_still_does_so_however_it_is_run(narrow: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coppice.program.order, "_PATIENCE", 2)
    monkeypatch.setattr(coppice.program.order, "_NARROW", narrow)
    late = with_columns(pair_all_reduce(), dep_block=[1, 1], dep_step=[3, 3])
    told = set()
    for program, depth in ((late, 2), (ring_all_reduce(5), 1)):
        messages = message_pairs(program, Findings())
        for seed in (None, 1, 2, 3):
            with pytest.raises(Deadlock) as caught:
                execution_order(program, messages, depth=depth, seed=seed)
            told.add(str(caught.value))
    assert len(told) == 2


def test_no_steps_at_all() -> None:
    empty = with_columns(
        ring_all_gather(2), step_start=[0, 0, 0], dep_start=[0], dep_block=[], dep_step=[],
        op=[], src_buffer=[], src_offset=[], dst_buffer=[], dst_offset=[], count=[],
    )  # fmt: skip
    assert execution_order(empty, message_pairs(empty, Findings()), depth=2).tolist() == []
