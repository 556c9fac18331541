"""Two levels with leaders: every collective, every root, and the pipeline of segments."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.algorithms.catalogue import case_of, find
from coppice.planners.algorithms.parts.cost import Chain
from coppice.schedule.schedule import Op, Schedule
from coppice.topology.presets import preset
from planners.algorithms.crossbar import RANKS, check_cost, made, verified

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


@pytest.mark.parametrize("segments", [1, 2, 3, 6])
def test_tasks_overlap(segments: int) -> None:
    """While segment i is reduced in the groups, segment i - 3 is broadcast there, in the same steps."""
    low, up = 2, 3
    schedule = check_cost("hierarchical", Collective.ALL_REDUCE, 20, group=4, segments=segments)
    assert int(schedule.step.max()) + 1 == low * min(2 * segments, segments + 3) + up * (segments + 1)
    within = schedule.src // 4 == schedule.dst // 4
    adds = schedule.op == Op.REDUCE

    def steps(rows: np.ndarray, segment: int) -> set[int]:
        return set(schedule.step[rows & (schedule.chunk == segment)].tolist())

    for segment in range(segments):
        kinds = [within & adds, ~within & adds, ~within & ~adds, within & ~adds]
        first = [min(steps(kind, segment)) for kind in kinds]
        assert first == sorted(first)
        if segment >= 1:
            assert steps(~within & adds, segment) == steps(~within & ~adds, segment - 1)
        if segment >= 3:
            assert steps(within & adds, segment) == steps(within & ~adds, segment - 3)


@pytest.mark.parametrize("collective", [Collective.ALL_REDUCE, Collective.BROADCAST, Collective.REDUCE])
@pytest.mark.parametrize("group", [1, 3, 5, 15])
def test_cost_of_segments(collective: Collective, group: int) -> None:
    """The leader of the root takes part in every step."""
    low, up, segments = (group - 1).bit_length(), (15 // group - 1).bit_length(), 4
    check_cost("hierarchical", collective, 15, root=8, group=group, segments=segments)
    entry = find("hierarchical", collective)
    root = 8 if collective.rooted else None
    problem = Problem(topology=preset("star", gpus=15), collective=collective, root=root)
    assert entry.cost is not None
    cost = entry.cost(case_of(entry, problem, {"group": group, "segments": segments}))
    steps = (segments + 3) * low + (segments + 1) * up
    if collective is not Collective.ALL_REDUCE:
        steps = segments * (low + up)
    reduced = Fraction(low + up) if collective.reduces else Fraction(0)
    assert cost.chains == (Chain(messages=steps, sent=Fraction(steps, segments), reduced=reduced),)
    assert cost.sent == (1 if collective is Collective.REDUCE else low + up)


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
