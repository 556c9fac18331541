"""What objects say of themselves: short, whatever they hold."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.planning import plan
from coppice.schedule.lower import lower
from coppice.schedule.verification.report import Report
from coppice.topology.presets import preset

MOST = 400


@pytest.mark.parametrize("collective", [Collective.ALL_GATHER, Collective.ALL_REDUCE, Collective.BROADCAST])
def test_short_however_long_the_names(collective: Collective) -> None:
    topology = replace(preset("torus", dims=(2, 3)), name="x" * 10_000)
    root = 0 if collective.rooted else None
    result = plan(Problem(topology=topology, collective=collective, root=root), ring=False)
    made = replace(result.plan, planner="y" * 10_000)
    assert made.forest is not None
    schedule = lower(made.forest)
    for each in (topology, made.problem, result.bound, made.forest, schedule, made, result.report):
        text = repr(each)
        assert text.startswith(f"{type(each).__name__}(")
        assert "\n" not in text
        assert len(text) < MOST
    assert f"{schedule.num_transfers} transfers" in repr(schedule)


def test_a_report_says_what_failed() -> None:
    assert repr(Report(ok=False, failures=("z" * 10_000,)))[:22] == "Report(1 failure: zzzz"
    assert len(repr(Report(ok=False, failures=("z" * 10_000,)))) < MOST
    assert repr(Report(ok=True)) == "Report(ok)"
    assert "optimal" in repr(Report(ok=True, optimal=True, inv_rate=Fraction(1, 3), checked={"trees": 3}))


def test_a_problem_says_where_its_data_go() -> None:
    star = preset("star", gpus=3)
    assert "gather to rank 1," in repr(Problem(topology=star, collective=Collective.GATHER, root=1))
    assert "scatter from rank 1," in repr(Problem(topology=star, collective=Collective.SCATTER, root=1))
    weighted = Problem(topology=star, collective=Collective.ALL_GATHER, weights=(1, 2, 3))
    assert "all_gather, with weights," in repr(weighted)
