"""Plans for sizes: never slower than what was looked at, never faster than the least time."""

from __future__ import annotations

import pytest

import coppice
from coppice.bounds.problem import Problem
from coppice.comparison import compare
from coppice.comparison.planned import plan_for
from coppice.errors import InputError
from coppice.simulation.models import model_of
from coppice.simulation.simulator import fastest
from coppice.topology.presets import preset

CASES = [
    ("dgx-1v", {}, "all_gather"),
    ("dgx-1v", {}, "all_reduce"),
    ("mi250", {}, "broadcast"),
    ("star", {"gpus": 6}, "all_to_all"),
    ("torus", {"dims": (3, 3)}, "reduce_scatter"),
    ("dgx-a100", {"boxes": 2}, "gather"),
]


@pytest.mark.parametrize(("name", "more", "collective"), CASES)
def test_no_algorithm_is_faster_and_the_gap_is_that_of_the_time(
    name: str, more: dict[str, object], collective: str
) -> None:
    problem = Problem(
        preset(name, **more), collective, root=0 if collective in ("broadcast", "gather") else None
    )
    for size in (4096, 2**20):
        found = plan_for(problem, size, ring=False)
        own = fastest(found.result.plan.body, size, model=model_of(None)).time_us
        rows = compare(problem, sizes=[size], jobs=1, in_network=False, relay_gpus=False)
        best = rows.best(size)
        assert best is not None
        assert own <= best.time_us * (1 + 1e-9), best.algorithm
        assert found.preferred.time_us == {size: own}
        assert found.gap(size) == pytest.approx(own / found.least[size].time_us - 1)
        assert found.gap(size) > -1e-9
        assert found.result.report.ok


def test_efforts_only_add_what_is_looked_at() -> None:
    problem = Problem(preset("dgx-a100", boxes=2), "all_reduce")
    quick, normal = (plan_for(problem, "16K", effort=each, ring=False) for each in ("quick", "normal"))
    assert quick.preferred.taken.planner is None
    assert normal.preferred.time_us[2**14] <= quick.preferred.time_us[2**14]
    assert normal.result.plan.planner == normal.preferred.taken.planner
    with pytest.raises(InputError, match="expected an effort of quick, normal, high"):
        plan_for(problem, "16K", effort="much")


def test_switches_that_help_are_counted_among_what_is_possible() -> None:
    star = coppice.load("dgx-h100", boxes=1)
    found = plan_for(Problem(star, "all_reduce"), "1K,64M", in_network=True, ring=False)
    assert all(found.gap(size) > -1e-9 for size in found.least)
