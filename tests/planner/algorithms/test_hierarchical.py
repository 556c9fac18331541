"""Two levels with leaders: every collective, every root, and the pipeline of segments."""

from __future__ import annotations

import numpy as np
import pytest

from coppice.bounds.result import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.algorithms.catalogue import case_of, find
from coppice.schedule.schedule import Op, Schedule
from coppice.topology.presets import preset
from planner.algorithms.crossbar import RANKS, check_cost, made, verified

COLLECTIVES = (
    Collective.ALL_REDUCE,
    Collective.BROADCAST,
    Collective.REDUCE,
    Collective.ALL_GATHER,
    Collective.GATHER,
    Collective.SCATTER,
    Collective.BARRIER,
)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_cost(collective: Collective, ranks: int) -> None:
    check_cost("hierarchical", collective, ranks, root=ranks - 1)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("group", [1, 2, 3, 6, 12])
def test_cost_of_every_group(collective: Collective, group: int) -> None:
    low, up = (group - 1).bit_length(), (12 // group - 1).bit_length()
    stated = {
        Collective.ALL_REDUCE: 2 * (low + up),
        Collective.ALL_GATHER: 2 * low + 12 // group - 1,
        Collective.BARRIER: 2 * low + up,
    }
    for root in (0, 7) if collective.rooted else (0,):
        schedule = check_cost("hierarchical", collective, 12, root, group=group)
        assert int(schedule.step.max()) + 1 == stated.get(collective, low + up)


@pytest.mark.parametrize(("segments", "iterations"), [(1, 4), (2, 5), (6, 9)])
def test_tasks_overlap(segments: int, iterations: int) -> None:
    """With groups and leaders alike in number, every iteration has as many steps as a tree has levels."""
    schedule = made(
        "hierarchical", Collective.ALL_REDUCE, preset("star", gpus=16), group=4, segments=segments
    )
    assert isinstance(schedule, Schedule)
    verified(schedule)
    assert int(schedule.step.max()) + 1 == 2 * iterations
    within = schedule.src // 4 == schedule.dst // 4
    adds = schedule.op == Op.REDUCE
    for segment in range(segments):
        rows = schedule.chunk == segment
        kinds = [within & adds, ~within & adds, ~within & ~adds, within & ~adds]
        begun = [int(schedule.step[rows & kind].min()) for kind in kinds]
        assert begun == [2 * (segment + task) for task in range(4)]


@pytest.mark.parametrize("collective", [Collective.BROADCAST, Collective.REDUCE])
@pytest.mark.parametrize("root", [0, 5, 11])
def test_segments_of_rooted_collectives(collective: Collective, root: int) -> None:
    verified(made("hierarchical", collective, preset("star", gpus=12), root, group=3, segments=4), root)


def test_only_leaders_leave_a_box() -> None:
    schedule = made("hierarchical", Collective.BROADCAST, preset("dgx-a100", boxes=3), 13)
    assert isinstance(schedule, Schedule)
    verified(schedule, 13)
    between = schedule.src // 8 != schedule.dst // 8
    assert set((schedule.src[between] % 8).tolist()) == {5}
    assert int(between.sum()) == 2


def test_a_reduction_and_a_broadcast_meet_no_rank_twice() -> None:
    """Of one level, in one step, in one direction."""
    schedule = made("hierarchical", Collective.ALL_REDUCE, preset("star", gpus=16), group=16, segments=5)
    assert isinstance(schedule, Schedule)
    for ends in (schedule.src, schedule.dst):
        _, count = np.unique(np.stack([schedule.step, ends]), axis=1, return_counts=True)
        assert count.max() == 1


def test_cost_of_segments_is_not_stated() -> None:
    entry = find("hierarchical", Collective.ALL_REDUCE)
    problem = Problem(topology=preset("star", gpus=4), collective=Collective.ALL_REDUCE)
    assert entry.cost is not None
    with pytest.raises(InputError, match="expected one segment"):
        entry.cost(case_of(entry, problem, {"segments": 2}))
