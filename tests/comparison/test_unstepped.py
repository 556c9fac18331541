"""Algorithms in steps, judged in pieces: what is the fastest once it is in order is not passed over."""

from __future__ import annotations

from math import inf

import pytest

from coppice.bounds.problem import Problem
from coppice.comparison.planned import plan_for
from coppice.comparison.sizes.candidates import FEW_ROWS, is_short
from coppice.comparison.sizes.unstepped import in_pieces_us
from coppice.planners.choice import from_catalogue
from coppice.planners.ordering import pipelined
from coppice.planners.planning import plan
from coppice.schedule.schedule import routed
from coppice.simulation.known_times import KnownTimes
from coppice.simulation.models import model_of
from coppice.simulation.simulator import fastest
from coppice.topology.presets import preset

FOUR = Problem(preset("dgx-a100", boxes=4), "all_reduce")


def test_pieces_tell_which_algorithm_is_worth_an_order() -> None:
    times = KnownTimes(model_of(None))
    found = {}
    for between in ("direct", "circulant", "at-once"):
        body = from_catalogue(FOUR, "two-level", {"inside": "at-once", "between": between}).body
        found[between] = in_pieces_us(body, 2**22, times, inf, 0.0)
        assert found[between] < times.fastest(body, 2**22).time_us
        assert in_pieces_us(body, 2**22, times, found[between] / 2, 0.0) >= found[between]
    assert min(found, key=found.__getitem__) == "circulant"


def test_what_needs_its_steps_is_judged_as_a_pipeline() -> None:
    model = model_of(None)
    body = from_catalogue(FOUR, "two-level", {"inside": "at-once", "between": "whole"}).body
    found = in_pieces_us(body, 2**18, KnownTimes(model), inf, 0.0)
    assert found == fastest(pipelined(routed(body), 4, 1), 2**18, model=model).time_us
    assert found < fastest(body, 2**18, model=model).time_us


def test_other_schedules_are_not_judged_so() -> None:
    ring = from_catalogue(FOUR, "ring").body
    assert is_short(ring)
    assert in_pieces_us(ring, 2**20, KnownTimes(model_of("mpi-tcp")), inf, 0.0) == inf  # there steps bind
    forest = plan(FOUR, ring=False).plan.body
    many = from_catalogue(Problem(preset("dgx-a100", boxes=8), "all_reduce"), "ring").body
    assert many.num_transfers > FEW_ROWS
    for body in (forest, many):
        assert not is_short(body)
        assert in_pieces_us(body, 2**20, KnownTimes(model_of(None)), inf, 0.0) == inf


@pytest.mark.slow
@pytest.mark.parametrize(("size", "gap"), [(2**22, 0.05), (2**24, 0.03)])
def test_an_all_reduce_of_a_middle_size_goes_round_the_boxes(size: int, gap: float) -> None:
    found = plan_for(FOUR, size, ring=False)
    assert "two-level" in found.preferred.taken.name
    assert found.gap(size) < gap
