"""All-reduces on a hypercube: right for every number of halvings, with the steps and bytes that the theory says."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from coppice.bounds.problem import Problem
from coppice.comparison.planned import plan_for
from coppice.planners.cube_exchange import cube_labels, exchanged_in_cube
from coppice.schedule.loads import body_loads
from coppice.schedule.schedule import in_pieces
from coppice.schedule.verification.transfers import verify_schedule
from coppice.topology.operations import remove_links
from coppice.topology.presets import preset

CUBES: list[tuple[str, dict[str, Any], int]] = [
    ("hypercube", {"dimension": 1}, 1),
    ("ring", {"gpus": 4}, 2),
    ("hypercube", {"dimension": 3}, 3),
    ("torus", {"dims": (4, 4)}, 4),
]


@pytest.mark.parametrize(("name", "more", "dimensions"), CUBES)
def test_every_number_of_halvings_is_an_all_reduce_of_so_many_steps_and_bytes(
    name: str, more: dict[str, Any], dimensions: int
) -> None:
    problem = Problem(preset(name, **more), "all_reduce")
    for halvings in range(dimensions + 1):
        found = exchanged_in_cube(problem, halvings=halvings)
        assert found is not None
        assert verify_schedule(found).ok
        assert verify_schedule(in_pieces(found, 3)).ok
        assert int(found.step.max()) + 1 == dimensions + halvings
        left = Fraction(1, 2**halvings)
        sent = 2 * (1 - left) + (dimensions - halvings) * left  # of M, through all links of a rank
        rate = Fraction(int(problem.topology.capacity[0]), problem.topology.denominator)
        assert body_loads(found, problem).inv_rate / problem.shards == sent / dimensions / rate


@pytest.mark.parametrize(
    ("name", "more"),
    [("ring", {"gpus": 6}), ("ring", {"gpus": 8}), ("star", {"gpus": 8}), ("torus", {"dims": (8, 2)})],
)
def test_other_networks_have_no_labels(name: str, more: dict[str, Any]) -> None:
    assert cube_labels(preset(name, **more)) is None
    assert exchanged_in_cube(Problem(preset(name, **more), "all_reduce"), halvings=1) is None


def test_a_cube_with_crossed_links_or_another_collective_has_none() -> None:
    cube = preset("hypercube", dimension=3)
    assert cube_labels(cube) is not None
    assert cube_labels(remove_links(cube, [("gpu0", "gpu1")])) is None
    assert exchanged_in_cube(Problem(cube, "all_gather"), halvings=1) is None
    assert exchanged_in_cube(Problem(cube, "all_reduce"), halvings=4) is None


@pytest.mark.slow
def test_a_middle_size_takes_a_mix() -> None:
    """Between few steps and few bytes: 16 KiB on 16 GPUs that are a 4 x 4 torus."""
    found = plan_for(Problem(preset("torus", dims=(4, 4)), "all_reduce"), "16K")
    assert found.result.plan.parameters["halvings"] in (1, 2)
    assert found.gap(2**14) < 0.12
