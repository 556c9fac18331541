"""Plans made anew after faults are verified, reach the exact optimum of what is left, and say what became of them."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import coppice
from coppice import InputError, Problem, UnreachableError
from coppice.planners.replanning import Replanned, replan_after_faults
from planners.test_repairing import faults
from reference.expected import expected_inv_rate
from support.random_clusters import clusters

TREES = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_two_faults_leave_the_optimum(data: st.DataObject) -> None:
    whole = data.draw(clusters())
    now = data.draw(faults(whole))
    assume(now.num_ranks >= 2)
    if data.draw(st.booleans()):
        now = data.draw(faults(now))
    assume(now.num_ranks >= 2)
    collective = data.draw(st.sampled_from(TREES))
    given_plan = coppice.plan(whole, collective, ring=False)
    rooted = collective in ("broadcast", "reduce")
    assume(not rooted or whole.node_ids[whole.rank_nodes[0]] in now.node_index)
    problem = Problem(now, collective, root=0 if rooted else None)
    try:
        best = coppice.bound(problem)
    except UnreachableError:
        with pytest.raises(UnreachableError):
            replan_after_faults(given_plan, now)
        return
    found = replan_after_faults(given_plan, now)
    assert found.report.ok
    assert coppice.verify(found.plan).inv_rate == found.inv_rate == best.attainable
    assert found.loss == 0
    assert found.unmoved is None or found.unmoved >= found.inv_rate
    assert found.before.inv_rate == given_plan.inv_rate


def replanned(collective: str = "all_gather", **faulty: Any) -> Replanned:
    whole = coppice.load("dgx-a100", boxes=2)
    return coppice.replan(whole, collective, **faulty).replanned


def test_the_optimum_is_that_of_an_independent_program() -> None:
    found = replanned(nodes={"box1/nic3": "30%"})
    assert found.inv_rate == expected_inv_rate(found.problem)
    assert found.algbw_gb_per_s == 16 * Fraction(615, 2) / 15  # a GPU gets 15 shards over 300 and 7.5 GB/s


@pytest.mark.parametrize("collective", ["all_gather", "all_reduce"])
@pytest.mark.parametrize("fault", [{"nodes": {"box1/nic3": "30%"}}, {"remove": ["rank3"]}])
def test_trees_stay_low(collective: str, fault: dict[str, Any]) -> None:
    found = replanned(collective, **fault)
    assert found.is_low
    assert found.loss == 0


def test_a_fault_in_a_place_that_is_idle_moves_nothing() -> None:
    found = coppice.replan(
        "ring", "all_gather", links={("gpu0", "gpu1"): 1}
    ).replanned  # the rate that it has
    assert found.unmoved == found.before.inv_rate == found.inv_rate


def test_a_plan_that_is_not_of_trees_is_planned_anew() -> None:
    found = replanned("all_to_all", remove=["box0/nic2"])
    assert (found.how, found.max_height, found.loss) == ("planned anew", None, 0)
    assert found.report.ok


def test_demands_follow_the_ranks_that_are_left() -> None:
    whole = coppice.load("star", gpus=4)
    demands = [[0, 1, 2, 3], [4, 0, 5, 6], [7, 8, 0, 9], [1, 2, 3, 0]]
    given_plan = coppice.plan(whole, "all_to_all", demands=demands)
    found = replan_after_faults(given_plan, coppice.degrade(whole, remove=["rank1"]))
    assert found.problem.demands == ((0, 2, 3), (7, 0, 9), (1, 3, 0))
    assert found.loss == 0


def test_times_at_sizes_and_a_job() -> None:
    found = coppice.replan(
        "dgx-a100",
        "all_gather",
        nodes={"gpu3": "30%"},
        sizes=["1M"],
        job="gpt-7.5b",
        parallel="tp=8",
        global_batch=8,
    )
    [row] = found.times
    assert row.size_bytes == 2**20
    assert row.fastest_us <= row.now_us
    assert [[way.way for way in each.rows] for each in found.ways] == [
        ["as it is", "laid out anew"],
        ["keep", "keep, laid out anew"],
    ]
    assert "fewer" in found.ways[1].why_not  # the one box cannot be drained


@pytest.mark.parametrize(
    ("given_arguments", "message"),
    [
        ({}, "expected faults, found none"),
        ({"remove": ["rank0"], "parallel": "tp=2"}, "`parallel` and `global_batch` with `job`"),
        ({"remove": ["rank0"], "model": "ideal"}, "expected `model` with `sizes`"),
        ({"remove": ["rank0", "rank1", "rank2"]}, "expected at least two ranks"),
    ],
)
def test_what_cannot_be_is_refused(given_arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        coppice.replan(coppice.load("star", gpus=4), "all_gather", **given_arguments)


def test_a_plan_of_something_else_is_refused() -> None:
    whole = coppice.load("star", gpus=4)
    other = coppice.plan(coppice.load("star", gpus=5), "all_gather")
    with pytest.raises(InputError, match="expected a plan of all_gather on star of 4"):
        coppice.replan(whole, "all_gather", remove=["rank0"], plan=other)


def test_cut_off_ranks_are_told() -> None:
    with pytest.raises(UnreachableError):
        coppice.replan("ring", "all_gather", remove=[("gpu0", "gpu1"), ("gpu3", "gpu4")])
