"""The front door: claims and bounds of a plan are held against counts."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.bounds.problem import Problem
from coppice.bounds.result import Bound
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.schedule.explanation import explain
from coppice.schedule.files.plan_file import decode_plan, encode_plan
from coppice.schedule.forest import Forest
from coppice.schedule.lower import lower
from coppice.schedule.plan import Plan
from coppice.schedule.schedule import Schedule, routed
from coppice.schedule.verification.transfers import verify_schedule
from coppice.schedule.verification.verify import cut_inv_rate, verify
from coppice.topology.model import Link, Node, NodeKind, Topology
from schedule.builders import (
    chain,
    forests,
    make_forest,
    make_schedule,
    reversed_tree,
    ring_forest,
    ring_topology,
    star_forest,
    star_topology,
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


Row = tuple[int, int, int, int, tuple[int, ...] | None, int]
COPY, ADD = 0, 1


def reduce_of_four(*pairs: tuple[int, int], step: tuple[int, ...] = (), ordered: bool = True) -> Schedule:
    """A reduce to rank 0 on a star; pairs are (sender, receiver)."""
    steps = step or tuple(range(len(pairs)))
    rows: list[Row] = [(0, a, b, ADD, (a, 4, b), s) for (a, b), s in zip(pairs, steps, strict=True)]
    schedule = make_schedule(star_topology(4), Collective.REDUCE, rows, chunk_slot=[0], root=0)
    return replace(schedule, ordered=ordered)


@pytest.mark.parametrize(
    "pairs",
    [((3, 2), (2, 1), (1, 0)), ((1, 0), (3, 2), (2, 0)), ((1, 2), (2, 3), (3, 0)), ((1, 0), (2, 0), (3, 0))],
)
def test_neighbouring_intervals_may_be_joined(pairs: tuple[tuple[int, int], ...]) -> None:
    report = verify_schedule(reduce_of_four(*pairs))
    assert report.ok, report.failures
    assert report.ordered
    assert not verify_schedule(reduce_of_four(*pairs, ordered=False)).ordered


def test_others_may_not() -> None:
    across = reduce_of_four((2, 0), (3, 1), (1, 0))
    assert verify_schedule(replace(across, ordered=False)).ok
    report = verify_schedule(across)
    assert not report.ok
    assert not report.ordered
    assert "transfer 0 joins ranks 2 to 0 in chunk 0 at rank 0" in report.failures[0]
    # Ranks do not close a circle: 3 is no neighbour of 0.
    assert not verify_schedule(reduce_of_four((2, 1), (3, 0), (1, 0))).ok


def test_rows_of_one_step_are_joined_in_row_order() -> None:
    assert verify_schedule(reduce_of_four((1, 0), (2, 0), (3, 0), step=(0, 0, 0))).ordered
    turned = reduce_of_four((2, 0), (1, 0), (3, 0), step=(0, 0, 0))
    assert verify_schedule(replace(turned, ordered=False)).ok
    assert not verify_schedule(turned).ok


def test_long_sets_are_told_as_runs() -> None:
    rows: list[Row] = [(0, r, r + 1, ADD, (r, 9, r + 1), -1) for r in (0, 1, 3, 5)]
    rows += [(0, 2, 6, ADD, (2, 9, 6), -1)]
    schedule = make_schedule(star_topology(9), Collective.REDUCE, rows, chunk_slot=[0], root=6)
    report = verify_schedule(replace(schedule, ordered=True))
    assert "joins ranks 0-2 to 5-6" in report.failures[0]


def plan_of(schedule: Schedule, **parameters: bool) -> Plan:
    root = schedule.root if schedule.collective.rooted else None
    problem = Problem(topology=schedule.topology, collective=schedule.collective, root=root)
    return Plan(
        problem=problem, inv_rate=Fraction(10), schedule=schedule, planner="hand", parameters=parameters
    )


def test_plan_files_keep_the_claim() -> None:
    schedule = reduce_of_four((3, 2), (2, 1), (1, 0))
    data = encode_plan(plan_of(schedule))
    assert b'"ordered": true' in data
    again = decode_plan(data, name="plan.json")
    assert again.schedule is not None
    assert again.schedule.ordered
    assert verify(again).ordered
    assert encode_plan(again) == data
    silent = encode_plan(plan_of(replace(schedule, ordered=False)))
    assert "ordered" not in json.loads(silent)
    read = decode_plan(silent, name="plan.json").schedule
    assert read is not None
    assert not read.ordered


def test_a_forest_claims_no_order() -> None:
    forest = ring_forest(4, Collective.ALL_REDUCE)
    problem = Problem(topology=forest.topology, collective=forest.collective)
    data = encode_plan(Plan(problem=problem, inv_rate=Fraction(10), forest=forest, planner="hand"))
    body = data.rpartition(b',\n"sha256"')[0].replace(b'"trees"', b'"ordered": true,\n"trees"')
    sealed = body + b',\n"sha256": "' + sha256(body).hexdigest().encode() + b'"}\n'
    with pytest.raises(InputError, match="expected trees and edges, or slot_weight"):
        decode_plan(sealed, name="plan.json")
    assert verify(plan_of(lower(forest))).ok


def past_a_rank() -> Schedule:
    """A broadcast over a chain of ranks in which the far rank is reached past the middle one."""
    nodes = [Node(id="a"), Node(id="b"), Node(id="c"), Node(id="s", kind=NodeKind.SWITCH)]
    links = [Link(src=x, dst=y, gb_per_s=Fraction(1)) for x, y in ("as", "sb", "bc")]
    chain = Topology.of("chain", nodes, links)
    rows: list[Row] = [(0, 0, 1, COPY, (0, 3, 1), 0), (0, 0, 2, COPY, (0, 3, 1, 2), 0)]
    return make_schedule(chain, Collective.BROADCAST, rows, chunk_slot=[0], root=0)


def test_paths_through_ranks_need_permission() -> None:
    schedule = past_a_rank()
    refused = verify_schedule(schedule)
    assert not refused.ok
    assert "path 1 leads through b, which is rank 1" in refused.failures[0]
    assert "relayed_paths" not in refused.checked
    report = verify_schedule(schedule, relay_gpus=True)
    assert report.ok, report.failures
    assert report.checked["relayed_paths"] == 1
    assert report.inv_rate == 2  # the shared links carry everything twice
    assert not verify_schedule(replace(schedule, path=np.array([0, 0], np.int32)), relay_gpus=True).ok


def test_default_routes_pass_ranks_only_with_permission() -> None:
    schedule = replace(past_a_rank(), path=np.array([-1, -1], dtype=np.int32))
    assert "default route" in verify_schedule(schedule).failures[0]
    assert verify_schedule(schedule, relay_gpus=True).ok
    assert verify_schedule(routed(schedule, relay_gpus=True), relay_gpus=True).inv_rate == 2


def test_a_plan_says_whether_ranks_relay() -> None:
    schedule = past_a_rank()
    assert verify(plan_of(schedule, relay_gpus=True)).ok
    assert verify(decode_plan(encode_plan(plan_of(schedule, relay_gpus=True)), name="plan.json")).ok
    assert not verify(plan_of(schedule, relay_gpus=False)).ok
    assert not verify(plan_of(schedule)).ok
