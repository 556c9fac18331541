"""Trees of one root that are grown side by side, in pieces that fill lines."""

from __future__ import annotations

from typing import Any

import pytest

from coppice.bounds.problem import Problem
from coppice.comparison.planned import plan_for
from coppice.comparison.sizes.side_by_side import side_by_side
from coppice.schedule.schedule import Schedule
from coppice.schedule.verification.transfers import verify_schedule
from coppice.simulation.models import model_of
from coppice.topology.presets import preset


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize(
    ("name", "more"), [("torus", {"dims": (3, 3)}), ("hypercube", {"dimension": 3}), ("ring", {"gpus": 5})]
)
def test_pieces_are_as_many_as_may_be_and_all_arrive(
    name: str, more: dict[str, Any], collective: str
) -> None:
    problem = Problem(preset(name, **more), collective, root=1)
    found = list(side_by_side(problem, model_of(None), [2**20], most_messages=2**12))
    assert found
    for one in found:
        body = one.made.body
        assert isinstance(body, Schedule)
        assert verify_schedule(body).ok
        assert body.num_transfers <= 2**12
    # Not all numbers are powers of two: some fill the lines of a protocol.
    pieces = [int(str(one.made.parameters["pieces"])) for one in found]
    assert any(each & (each - 1) for each in pieces)


def test_a_middle_size_on_a_torus_goes_along_them() -> None:
    found = plan_for(preset("torus", dims=(4, 4)), 2**22, collective="broadcast", root=0)
    assert "side by side" in found.preferred.taken.name
    assert found.gap(2**22) < 0.03


@pytest.mark.parametrize("collective", ["all_gather", "all_reduce", "gather"])
def test_other_collectives_have_none(collective: str) -> None:
    root = 0 if collective == "gather" else None
    problem = Problem(preset("torus", dims=(3, 3)), collective, root=root)
    assert not list(side_by_side(problem, model_of(None), [2**20], most_messages=2**12))
