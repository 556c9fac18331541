"""Gather and scatter by one flow: verified, and exactly as fast as the narrowest cut allows."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from coppice.bounds import Problem, bound
from coppice.bounds.max_flow import max_flow
from coppice.collectives import Collective
from coppice.errors import InputError, UnreachableError
from coppice.planners.flow.planner import plan_flow
from coppice.schedule.files.plan_file import decode_plan, encode_plan
from coppice.schedule.plan import Plan
from coppice.schedule.verification.transfers import verify_schedule
from coppice.schedule.verification.verify import verify
from coppice.topology import resolve
from coppice.topology.model import Link, Node, NodeKind, Topology
from reference.maxflow import max_flow as reference_max_flow
from reference.network import describe
from reference.strategies import seeded

COLLECTIVES = [Collective.GATHER, Collective.SCATTER]


@pytest.mark.parametrize("collective", COLLECTIVES, ids=str)
@pytest.mark.parametrize("seed", range(60))
def test_the_bound_is_reached_exactly(seed: int, collective: Collective) -> None:
    topology = seeded(seed)
    root = seed % topology.num_ranks
    problem = Problem(topology=topology, collective=collective, root=root)
    best = bound(problem)
    made = Plan(
        problem=problem, inv_rate=best.inv_rate, schedule=plan_flow(problem), bound=best, planner="flow"
    )
    report = verify(made)
    assert report.ok, (report.failures, describe(problem))
    assert report.optimal
    assert report.inv_rate == best.inv_rate
    assert report.redundant == 0
    assert verify(decode_plan(encode_plan(made), name="plan.json")).optimal


@pytest.mark.parametrize("collective", COLLECTIVES, ids=str)
@pytest.mark.parametrize(
    ("spec", "boxes", "options"),
    [("torus", None, {"dims": "4x4"}), ("dgx-a100", 4, {}), ("ring", None, {"gpus": "7"})],
)
def test_presets(spec: str, boxes: int | None, options: dict[str, str], collective: Collective) -> None:
    topology = resolve(spec, boxes=boxes, options=options)
    problem = Problem(topology=topology, collective=collective, root=1)
    report = verify_schedule(plan_flow(problem))
    assert report.ok, report.failures
    assert report.inv_rate == bound(problem).inv_rate


def test_a_block_takes_two_ways_at_once() -> None:
    """Three ranks in a triangle of unequal links: one third of the far block goes round."""
    nodes = [Node(id=name) for name in "abc"]
    links = [
        Link(src=a, dst=b, gb_per_s=Fraction(rate))
        for a, b, rate in (("a", "b", 2), ("a", "c", 1), ("b", "c", 1))
    ]
    problem = Problem(topology=Topology.of("triangle", nodes, links), collective=Collective.GATHER, root=0)
    schedule = plan_flow(problem)
    assert verify_schedule(schedule).inv_rate == Fraction(2, 3)
    assert schedule.chunk_slot.tolist() == [1, 2, 2]
    assert sorted(schedule.chunk_share.tolist()[1:]) == [1, 2]


def test_one_rank_and_other_collectives() -> None:
    alone = Topology.of("alone", [Node(id="g")], [])
    schedule = plan_flow(Problem(topology=alone, collective=Collective.SCATTER, root=0))
    assert schedule.num_transfers == 0
    assert verify_schedule(schedule).ok
    with pytest.raises(InputError, match="gather and scatter"):
        plan_flow(Problem(topology=alone, collective=Collective.ALL_GATHER))


def test_no_way_to_the_root() -> None:
    nodes = [Node(id="a"), Node(id="b"), Node(id="s", kind=NodeKind.SWITCH)]
    links = [
        Link(src="a", dst="s", gb_per_s=Fraction(1), duplex=False),
        Link(src="s", dst="b", gb_per_s=Fraction(1), duplex=False),
    ]
    one_way = Topology.of("one way", nodes, links)
    assert verify_schedule(plan_flow(Problem(topology=one_way, collective=Collective.GATHER, root=1))).ok
    with pytest.raises(UnreachableError, match="no route between"):
        plan_flow(Problem(topology=one_way, collective=Collective.SCATTER, root=1))


@pytest.mark.parametrize("seed", range(60))
def test_flows_are_conserved_and_as_large_as_the_reference_says(seed: int) -> None:
    rng = random.Random(seed)
    nodes = rng.randint(2, 9)
    arcs = [(u, v) for u in range(nodes) for v in range(nodes) if u != v and rng.random() < 0.5]
    capacity = [rng.choice([0, 1, 3, 2**70]) * rng.randint(1, 5) for _ in arcs]
    flow = max_flow(nodes, [u for u, _ in arcs], [v for _, v in arcs], capacity, source=0, sink=nodes - 1)
    assert all(0 <= amount <= room for amount, room in zip(flow, capacity, strict=True))
    net = [0] * nodes
    for (u, v), amount in zip(arcs, flow, strict=True):
        net[u] -= amount
        net[v] += amount
    assert not any(net[1:-1])
    assert net[-1] == reference_max_flow(dict(zip(arcs, capacity, strict=True)), 0, nodes - 1).value
