"""Two claims beyond the collective itself: operands stay in rank order, and ranks may pass data on unasked."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from hashlib import sha256

import numpy as np
import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.schedule.files.plan_file import decode_plan, encode_plan
from coppice.schedule.lower import lower
from coppice.schedule.plan import Plan
from coppice.schedule.schedule import Schedule, routed
from coppice.schedule.verification.transfers import verify_schedule
from coppice.schedule.verification.verify import verify
from coppice.topology.model import Link, Node, NodeKind, Topology
from schedule.builders import make_schedule, ring_forest, star_topology

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
