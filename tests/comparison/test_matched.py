"""Chunks matched with links over time: verified, repeatable, no faster than the least time, and as fast as they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coppice.bounds.problem import Problem
from coppice.comparison.planned import plan_for
from coppice.comparison.sizes.matched import Matcher
from coppice.schedule.verification.transfers import verify_schedule
from coppice.simulation.least_time import LeastTimes
from coppice.simulation.models import model_of
from coppice.simulation.simulator import fastest
from coppice.topology.operations import remove_nodes
from coppice.topology.presets import preset

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "all_to_all")


def _problem(name: str, collective: str, **more: Any) -> Problem:
    rooted = collective in ("broadcast", "reduce")
    return Problem(preset(name, **more), collective, root=0 if rooted else None)


@pytest.mark.parametrize("model", ["nccl-2.30", "shm", "ideal"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_what_is_matched_is_right_and_takes_no_less_than_the_least_time(collective: str, model: str) -> None:
    boxes = 1 if collective == "all_to_all" else 2  # rails join GPUs of one number
    problem, assumed = _problem("dgx-a100", collective, boxes=boxes), model_of(model)
    times = LeastTimes(problem, assumed)
    for size in (2**10, 2**20):
        found = list(Matcher(problem, assumed, 2**13).schedules(size, below_us=np.inf))
        again = [body for _, body in Matcher(problem, assumed, 2**13).schedules(size, below_us=np.inf)]
        assert found
        for (_, body), other in zip(found, again, strict=True):
            assert verify_schedule(body).ok
            assert np.array_equal(body.src, other.src)
            assert np.array_equal(body.after, other.after)
            time_us = fastest(body, size, model=assumed, pieces=1).time_us
            assert time_us >= times.at(size).time_us * (1 - 1e-9)


@pytest.mark.parametrize(("name", "more"), [("torus", {"dims": (3, 4)}), ("hypercube", {"dimension": 4})])
@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "broadcast", "reduce"])
def test_what_is_held_back_takes_what_was_matched(collective: str, name: str, more: dict[str, Any]) -> None:
    """Also sums, which go ahead of their time where a rank waits for one receipt only."""
    problem, model = _problem(name, collective, **more), model_of(None)
    matcher = Matcher(problem, model, 2**16)
    for matched in matcher.fastest(2**16, np.inf)[:2]:
        held = list(matcher.held_back(matched))
        assert any(len(body.after) for body in held)
        took_us = [fastest(body, 2**16, model=model, pieces=1).time_us for body in held]
        assert min(took_us) <= matched.time_us * 1.005


def test_nothing_is_matched_that_takes_too_long_or_beyond_the_budget() -> None:
    problem, model = _problem("torus", "broadcast", dims=(3, 4)), model_of(None)
    times = [each.time_us for each, _ in Matcher(problem, model, 2**16).schedules(2**16, below_us=np.inf)]
    assert not list(Matcher(problem, model, 2**16).schedules(2**16, below_us=min(times) * 0.9))
    assert not list(Matcher(problem, model, 10).schedules(2**16, below_us=np.inf))


def test_ranks_that_no_route_joins_are_left_alone() -> None:
    """A GPU without a NIC has no route to other boxes, so there is no all-to-all of direct messages."""
    cut = remove_nodes(preset("dgx-a100", boxes=2), ["box0/nic0"])
    assert not list(
        Matcher(Problem(cut, "all_to_all"), model_of(None), 2**16).schedules(2**20, below_us=np.inf)
    )
    assert list(Matcher(Problem(cut, "all_gather"), model_of(None), 2**16).schedules(2**20, below_us=np.inf))


@pytest.mark.parametrize("collective", [pytest.param("broadcast", marks=pytest.mark.slow), "reduce"])
def test_a_plan_of_a_middle_size_is_matched_where_that_is_fastest(collective: str) -> None:
    found = plan_for(_problem("torus", collective, dims=(4, 4)), "64K")
    assert found.result.plan.parameters["matched_for"] == 2**16
    assert found.gap(2**16) < 0.10


def test_chunks_fill_the_lines_of_a_protocol() -> None:
    """LL128 sends whole lines of 120 bytes: chunks of 512 would take five lines, as those of 600 do."""
    found = [
        each
        for each, _ in Matcher(_problem("torus", "broadcast", dims=(4, 4)), model_of(None), 2**17).schedules(
            2**18, below_us=np.inf
        )
        if each.profile.name == "ll128"
    ]
    assert found
    for each in found:
        protocol = each.profile.protocol
        assert protocol is not None
        wire = int(protocol.wire_bytes_of(np.array([-(-(2**18) // each.chunks)]))[0]) * each.chunks
        assert wire * protocol.efficiency <= 1.005 * 2**18
