"""The front door: claims and bounds of a plan are held against counts."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.bounds.problem import Problem
from coppice.bounds.result import Bound
from coppice.collectives import Collective
from coppice.schedule.explanation import explain
from coppice.schedule.forest import Forest
from coppice.schedule.lower import lower
from coppice.schedule.plan import Plan
from coppice.schedule.verification.verify import cut_inv_rate, verify
from coppice.topology.model import Link, Node, Topology
from schedule.builders import (
    chain,
    forests,
    make_forest,
    reversed_tree,
    ring_forest,
    ring_topology,
    star_forest,
)


def plan_with_bound(forest: Forest, inv_rate: Fraction, cut: tuple[int, ...], claimed: Fraction) -> Plan:
    problem = Problem(topology=forest.topology, collective=forest.collective)
    bound = Bound(problem=problem, inv_rate=inv_rate, cut=cut)
    return Plan(problem=problem, inv_rate=claimed, forest=forest, bound=bound)


def test_an_optimal_plan_is_recognised() -> None:
    report = verify(plan_with_bound(ring_forest(5), Fraction(2), (0, 1, 2, 3), Fraction(2)))
    assert report.ok, report.failures
    assert (report.bound_proved, report.optimal, report.max_link_load) == (True, True, 1)


def test_a_slower_plan_is_right_but_not_optimal() -> None:
    trees = [chain(root, 5, 1) for root in range(5)]
    forest = make_forest(ring_topology(5), Collective.ALL_GATHER, trees)
    report = verify(plan_with_bound(forest, Fraction(2), (0, 1, 2, 3), Fraction(4)))
    assert report.ok, report.failures
    assert (report.bound_proved, report.optimal) == (True, False)


def test_a_bound_that_its_cut_does_not_prove_is_a_failure() -> None:
    report = verify(plan_with_bound(ring_forest(5), Fraction(2), (0, 1), Fraction(2)))
    assert any("proves 1 per shard" in failure for failure in report.failures)
    assert report.bound_proved is False
    everything = verify(plan_with_bound(ring_forest(5), Fraction(2), (0, 1, 2, 3, 4), Fraction(2)))
    assert not everything.ok


def test_a_bound_without_cut_and_witness_is_a_failure() -> None:
    """Only an all-reduce or all-to-all may lack a witness, as in files of older versions; then nothing is proved."""
    report = verify(plan_with_bound(ring_forest(5), Fraction(2), (), Fraction(2)))
    assert not report.ok
    assert "proves nothing, as it is empty, less than the claimed bound 2" in report.failures[0]
    reduced = verify(plan_with_bound(ring_forest(5, Collective.ALL_REDUCE), Fraction(1, 5), (), Fraction(4)))
    assert reduced.ok
    assert reduced.bound_proved is None
    assert not reduced.optimal


def test_figures_of_a_bound_that_contradict_it_are_failures() -> None:
    plan = plan_with_bound(ring_forest(5), Fraction(2), (0, 1, 2, 3), Fraction(2))
    assert plan.bound is not None
    forged = {"attainable": Fraction(1)}, {"alternatives": {"two-phase": Fraction(1, 2)}}
    for change in forged:
        report = verify(replace(plan, bound=replace(plan.bound, **change)))
        assert any("the bound says that" in failure for failure in report.failures), change
    assert verify(replace(plan, bound=replace(plan.bound, attainable=Fraction(2)))).ok


def test_an_explanation_calls_only_what_is_proved_and_reached_the_optimum() -> None:
    reached = explain(plan_with_bound(ring_forest(5), Fraction(2), (0, 1, 2, 3), Fraction(2)))
    assert reached.summary[0][0] == "optimum"
    trees = [chain(root, 5, 1) for root in range(5)]
    slow = make_forest(ring_topology(5), Collective.ALL_GATHER, trees)
    slower = explain(plan_with_bound(slow, Fraction(2), (0, 1, 2, 3), Fraction(4)))
    assert slower.summary[0][0] == "bound"
    assert "proved, no schedule is faster" in slower.summary[0][1]
    claimed = plan_with_bound(ring_forest(5, Collective.ALL_REDUCE), Fraction(1, 5), (), Fraction(4))
    names = [name for name, _ in explain(claimed).summary]
    assert names[0] == "claimed bound"
    assert "optimum" not in names
    assert "bottleneck" not in names


def test_a_plan_faster_than_its_bound_refutes_it() -> None:
    forest = ring_forest(5, Collective.ALL_REDUCE)
    report = verify(plan_with_bound(forest, Fraction(2), (0, 1), Fraction(2)))
    assert any("the bound is wrong" in failure for failure in report.failures)


def test_all_reduce_needs_more_than_one_cut() -> None:
    report = verify(
        plan_with_bound(ring_forest(4, Collective.ALL_REDUCE), Fraction(3, 4), (0,), Fraction(3, 4))
    )
    assert report.ok, report.failures
    assert (report.bound_proved, report.optimal) == (None, False)


def test_schedules_come_in_by_the_same_door() -> None:
    forest = ring_forest(4, Collective.ALL_REDUCE)
    problem = Problem(topology=forest.topology, collective=forest.collective)
    assert verify(Plan(problem=problem, inv_rate=Fraction(3, 4), schedule=lower(forest))).ok
    assert not verify(Plan(problem=problem, inv_rate=Fraction(1, 2), schedule=lower(forest))).ok


def test_impossible_problems_are_failures() -> None:
    forest = ring_forest(4)
    problem = Problem(topology=forest.topology, collective=forest.collective, weights=(1, 1))
    report = verify(Plan(problem=problem, inv_rate=Fraction(1), forest=forest))
    assert "one weight for each" in report.failures[0]


def line() -> Topology:
    nodes = [Node(id="a"), Node(id="b"), Node(id="c")]
    links = [
        Link(src="a", dst="b", gb_per_s=Fraction(3), duplex=False),
        Link(src="b", dst="c", gb_per_s=Fraction(1, 2)),
    ]
    return Topology.of("line", nodes, links)


CUTS: list[tuple[Problem, tuple[int, ...], Fraction | None]] = [
    (Problem(topology=line(), collective=Collective.ALL_GATHER), (0, 1), Fraction(4)),
    (Problem(topology=line(), collective=Collective.ALL_GATHER), (1, 2), None),
    (Problem(topology=line(), collective=Collective.ALL_GATHER, weights=(1, 2, 5)), (0, 1), Fraction(6)),
    (Problem(topology=line(), collective=Collective.ALL_GATHER, weights=(0, 2, 5)), (0,), Fraction(0)),
    (Problem(topology=line(), collective=Collective.REDUCE_SCATTER, weights=(1, 2, 5)), (0, 1), Fraction(10)),
    (Problem(topology=line(), collective=Collective.BROADCAST, root=0), (0,), Fraction(1, 3)),
    (Problem(topology=line(), collective=Collective.BROADCAST, root=1), (0,), Fraction(0)),
    (Problem(topology=line(), collective=Collective.REDUCE, root=2), (0,), Fraction(1, 3)),
    (Problem(topology=line(), collective=Collective.REDUCE, root=0), (0,), Fraction(0)),
    (Problem(topology=line(), collective=Collective.ALL_REDUCE), (0, 1), Fraction(2)),
    (Problem(topology=line(), collective=Collective.ALL_TO_ALL), (0, 1), Fraction(4)),
    (
        Problem(topology=line(), collective=Collective.ALL_TO_ALL, demands=((9, 1, 2), (0, 9, 5), (4, 4, 9))),
        (0, 1),
        Fraction(14),
    ),
    (Problem(topology=line(), collective=Collective.ALL_TO_ALL), (), Fraction(0)),
    (Problem(topology=line(), collective=Collective.ALL_TO_ALL), (0, 1, 2), Fraction(0)),
]


@pytest.mark.parametrize(("problem", "cut", "expected"), CUTS)
def test_what_a_cut_proves(problem: Problem, cut: tuple[int, ...], expected: Fraction | None) -> None:
    assert cut_inv_rate(problem, cut) == expected


@given(forests(Collective.ALL_REDUCE), st.data())
@settings(max_examples=150, deadline=None)
def test_no_forest_beats_any_cut(forest: Forest, data: st.DataObject) -> None:
    """Whatever is accepted takes at least what every cut proves."""
    cut = data.draw(st.sets(st.integers(0, forest.topology.num_nodes - 1)))
    problem = Problem(topology=forest.topology, collective=forest.collective)
    report = verify(Plan(problem=problem, inv_rate=Fraction(10**6), forest=forest))
    assert report.ok, report.failures
    assert report.inv_rate is not None
    proof = cut_inv_rate(problem, sorted(cut))
    assert proof is not None
    assert proof <= report.inv_rate


def test_star_bound() -> None:
    assert verify(plan_with_bound(star_forest(4), Fraction(3), (0, 1, 2, 4), Fraction(3))).optimal


def test_reduce_scatter_mirrors() -> None:
    trees = [reversed_tree(chain(root, 4, step)) for root in range(4) for step in (1, -1)]
    forest = make_forest(ring_topology(4), Collective.REDUCE_SCATTER, trees)
    plan = plan_with_bound(forest, Fraction(3, 2), (0,), Fraction(3, 2))
    assert verify(plan).optimal
    assert not verify(replace(plan, inv_rate=Fraction(1))).ok
