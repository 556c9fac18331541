"""Programs of several instances: every one has its part of the data, its channels and its thread blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import CheckError, InputError
from coppice.planners.algorithms.catalogue import algorithms, case_of, make
from coppice.planners.planning import plan
from coppice.program.dialects.thread_blocks.lower import lower_to_program, replicated
from coppice.program.dialects.thread_blocks.to_schedule import to_schedule
from coppice.program.dialects.thread_blocks.verify import verify_program
from coppice.schedule.forest import Forest
from coppice.schedule.lower import lower
from coppice.schedule.schedule import Schedule
from coppice.schedule.verification.transfers import verify_schedule
from coppice.topology.presets import preset

MOVING = [each for each in Collective if each is not Collective.BARRIER]


def body_of(collective: Collective, *, trees: int | None = None) -> Forest | Schedule:
    problem = Problem(
        topology=preset("dgx-a100", boxes=2) if collective.made_of_trees else preset("star", gpus=4),
        collective=collective,
        root=1 if collective.rooted else None,
    )
    return plan(problem, trees=trees, ring=False).plan.body


@pytest.mark.parametrize("collective", MOVING)
def test_every_collective(collective: Collective) -> None:
    body = body_of(collective, trees=1 if collective.made_of_trees else None)
    schedule = lower(body) if isinstance(body, Forest) else body
    twice, part = replicated(schedule, 3)
    assert verify_schedule(twice).ok
    assert verify_schedule(twice).inv_rate == verify_schedule(schedule).inv_rate
    assert np.bincount(part).tolist() == [schedule.num_chunks] * 3
    for in_place in (False,) if collective is Collective.ALL_TO_ALL else (True, False):
        for fused in (True, False):
            one = lower_to_program(body, in_place=in_place, fused=fused, channels=2)
            more = lower_to_program(body, in_place=in_place, fused=fused, channels=6, instances=3)
            assert more.num_chunks == 3 * one.num_chunks
            assert more.most_blocks == 3 * one.most_blocks
            assert more.num_channels == 3 * one.num_channels
            assert verify_program(more).ok, verify_program(more).failures


@pytest.mark.parametrize("name", ["recursive-doubling", "ring", "rabenseifner"])
def test_messages_stay_whole(name: str) -> None:
    """The parts of an all-reduce are side by side: a message that was one is one in every instance."""
    entry = algorithms()[name, Collective.ALL_REDUCE]
    problem = Problem(topology=preset("star", gpus=8), collective=Collective.ALL_REDUCE)
    body = make(entry, case_of(entry, problem))
    one = lower_to_program(body, channels=1)
    two = lower_to_program(body, channels=2, instances=2)
    assert two.num_steps == 2 * one.num_steps
    assert sorted(two.count.tolist()) == sorted([*one.count.tolist()] * 2)
    assert verify_program(two).ok


def test_the_way_back_finds_all_instances() -> None:
    body = body_of(Collective.ALL_REDUCE, trees=1)
    program = lower_to_program(body, channels=8, instances=4)
    again = to_schedule(program, preset("dgx-a100", boxes=2))
    assert verify_schedule(again).ok
    assert again.num_transfers == 4 * lower(body).num_transfers  # type: ignore[arg-type]


def test_waits_stay_within_their_instance() -> None:
    """Further dependencies are copied row by row."""
    body = body_of(Collective.ALL_GATHER, trees=1)
    schedule = lower(body)  # type: ignore[arg-type]
    rows = schedule.num_transfers
    waiting = replace(
        schedule,
        after_start=np.where(np.arange(rows + 1) == rows, 2, 0),
        after=np.array([0, 5], dtype=np.int32),
    )
    twice, part = replicated(waiting, 2)
    assert twice.after_start[-5:].tolist() == [0, 0, 0, 2, 4]
    assert twice.after.tolist() == [0, 10, 1, 11]
    assert part[twice.chunk[twice.after]].tolist() == [0, 0, 1, 1]


def test_too_many_instances_are_refused() -> None:
    body = body_of(Collective.ALL_GATHER, trees=1)
    with pytest.raises(CheckError, match="at most 2 instances, one channel each, found 3"):
        lower_to_program(body, channels=2, instances=3)
    with pytest.raises(CheckError, match=r"found \d+, one for each peer and each of 4 instances: use fewer"):
        lower_to_program(body, channels=8, instances=4, max_blocks=16)
    with pytest.raises(InputError, match="1 instance or more, found 0"):
        lower_to_program(body, instances=0)
