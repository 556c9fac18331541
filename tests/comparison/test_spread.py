"""The search for the shape of a broadcast over boxes: near the least time by itself, and the same for reductions."""

from __future__ import annotations

from typing import Any

import pytest

from coppice.bounds.problem import Problem
from coppice.comparison.sizes.candidates import as_it_is_us
from coppice.comparison.sizes.spread import SpreadFigures, SpreadSearch
from coppice.planners.spread_over_boxes import SpreadShape
from coppice.schedule.schedule import Schedule
from coppice.schedule.verification.transfers import verify_schedule
from coppice.simulation.least_time import LeastTimes
from coppice.simulation.models import model_of
from coppice.topology.presets import preset

MODEL = model_of("nccl-2.30")


def searched(problem: Problem, size: int) -> tuple[float, SpreadShape, int]:
    """Time and shape of what is found, which is verified, and how many were looked at."""
    looks = 0

    def judge(body: Schedule, below_us: float) -> float:
        nonlocal looks
        looks += 1
        return as_it_is_us(body, size, MODEL, below_us)

    found = SpreadSearch(problem, MODEL).fastest(size, judge, 1e9)
    for _, shape, body in found:
        assert verify_schedule(body).ok
        assert body.num_chunks % shape.turns == 0
        assert shape.home_last or not len(body.after)
    assert not found[-1][1].home_last
    assert found[0][0] == min(each[0] for each in found)
    time_us, shape, _ = found[0]
    return time_us, shape, looks


@pytest.mark.parametrize(
    ("name", "more", "size", "most"),
    [
        ("dgx-a100", {"boxes": 4}, 2**16, 0.10),
        ("dgx-h100", {"boxes": 8}, 2**16, 0.105),
        ("dgx-a100", {"boxes": 4}, 2**20, 0.075),
        ("dgx-a100", {"boxes": 4}, 2**24, 0.03),
        ("dgx-h100", {"boxes": 4}, 2**22, 0.055),
        ("dgx-h100", {"boxes": 4}, 2**26, 0.025),
        ("dgx-h100", {"boxes": 8}, 2**20, 0.08),
        ("dgx-h100", {"boxes": 8}, 2**24, 0.055),
        ("gb200-nvl72", {}, 2**24, 0.065),
        ("gb200-nvl72", {}, 2**26, 0.045),
    ],
)
def test_a_middle_size_is_near_the_least_time(
    name: str, more: dict[str, Any], size: int, most: float
) -> None:
    problem = Problem(preset(name, **more), "broadcast", root=0)
    time_us, _, looks = searched(problem, size)
    assert time_us / LeastTimes(problem, MODEL).at(size).time_us - 1 < most
    assert looks < 20


def test_smaller_messages_go_straight_to_all_boxes_and_larger_ones_in_more_chunks() -> None:
    problem = Problem(preset("dgx-h100", boxes=4), "broadcast", root=9)
    shapes = [searched(problem, size)[1] for size in (2**14, 2**20, 2**24)]
    assert [each.passed > 0 for each in shapes] == [False, True, True]
    assert [each.turns for each in shapes] == sorted(each.turns for each in shapes)
    assert shapes[1].direct_share > 4 * shapes[2].direct_share > 0


def test_two_boxes_pass_nothing_on() -> None:
    _, shape, _ = searched(Problem(preset("dgx-a100", boxes=2), "broadcast", root=0), 2**20)
    assert shape.direct == 0


@pytest.mark.parametrize("turns", [1, 2, 7])
def test_figures_are_of_chunks_of_both_kinds_or_of_one(turns: int) -> None:
    for share in (0.0, 0.01, 0.4, 1.0):
        shape = SpreadFigures(turns=turns, direct_share=share).shape
        if shape is None:
            assert turns == 1
            assert 0 < share < 1
        else:
            assert shape.turns == turns
            assert (shape.direct > 0) == (share > 0)
            assert (shape.passed > 0) == (share < 1)


def test_there_is_none_without_boxes() -> None:
    problem = Problem(preset("ring", gpus=6), "broadcast", root=0)
    assert not SpreadSearch(problem, MODEL).fastest(2**20, lambda *_: 1.0, 1e9)
