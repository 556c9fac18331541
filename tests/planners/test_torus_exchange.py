"""All-to-alls on a torus cross one dimension after the other, and keep the links of the longest one busy."""

from __future__ import annotations

import numpy as np
import pytest

from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.comparison.sizes.alike import for_alike_ranks
from coppice.planners.torus_exchange import torus_exchange
from coppice.schedule.verification.transfers import verify_schedule
from coppice.simulation.models import model_of
from coppice.simulation.simulator import fastest
from coppice.topology.presets import preset


@pytest.mark.parametrize(
    ("dims", "steps", "worse"),
    [
        ((5,), 2, 0.0),
        ((3, 5), 4, 0.0),
        ((8, 8), 8, 0.0),
        ((5, 5, 5), 6, 0.0),
        ((6, 6, 6), 9, 0.0),
        pytest.param((8, 8, 16), 16, 0.0, marks=pytest.mark.slow),
        ((2, 3, 4), 4, 0.09),  # few blocks do not come out even
        ((4, 4, 4), 6, 0.1),
        ((4, 4, 8), 8, 0.07),
    ],
    ids=str,
)
def test_blocks_take_the_shorter_way_in_each_dimension(
    dims: tuple[int, ...], steps: int, worse: float
) -> None:
    problem = Problem(preset("torus", dims=dims), "all_to_all")
    found = torus_exchange(problem)
    assert found is not None
    ranks = problem.topology.num_ranks
    small = ranks < 1024  # a million blocks take a while to follow
    assert not small or verify_schedule(found).ok
    hops = sum(min(each, n - each) * ranks // n for n in dims for each in range(n))
    assert found.num_transfers == ranks * hops
    size, model = ranks * 2**10, model_of("ideal")
    time_us = fastest(found, size, model=model, keep_hops=False).time_us
    least_us = size * float(bound_of(problem).inv_rate / ranks) / 1000
    assert least_us * (1 - 1e-9) <= time_us <= least_us * (1 + worse + 1e-9)
    assert int(found.step.max()) + 1 == steps


def test_a_rank_sends_a_message_for_each_link_and_step() -> None:
    found = torus_exchange(Problem(preset("torus", dims=(4, 4, 8)), "all_to_all"))
    assert found is not None
    messages = np.unique(np.stack([found.step, found.src, found.dst]), axis=1)
    assert messages.shape[1] <= 128 * 6 * (int(found.step.max()) + 1)


@pytest.mark.parametrize(("name", "collective"), [("dgx-1v", "all_to_all"), ("torus", "all_gather")])
def test_other_networks_and_collectives_have_none(name: str, collective: str) -> None:
    assert torus_exchange(Problem(preset(name), collective)) is None


def test_it_is_taken_where_a_flow_would_have_too_many_transfers() -> None:
    model = model_of("ideal")
    for dims, names in (((8, 8, 16), ["dimension by dimension"]), ((4, 6, 8), [])):
        problem = Problem(preset("torus", dims=dims), "all_to_all")
        found = for_alike_ranks(problem, model, {2**20: 0.0}, lambda *_: 0.0, lambda _: None)
        assert [each.name for each in found] == names
