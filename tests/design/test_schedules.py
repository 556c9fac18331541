"""Deliveries as schedules: they verify, reach the loads, and keep to what their pieces can express."""

from __future__ import annotations

from fractions import Fraction
from math import lcm

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.bounds.optimum import bound
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.design.evaluation import evaluate
from coppice.design.graph import Graph, graph_of
from coppice.design.recipes.parser import parse
from coppice.design.schedules.breadth_first import schedule_facts
from coppice.design.schedules.collectives import breadth_first_schedule, schedule_of
from coppice.design.schedules.deliveries import breadth_first_deliveries, loads_of
from coppice.errors import InputError
from coppice.schedule.verification.transfers import verify_schedule
from coppice.topology.model import Link, Node, Topology
from coppice.topology.presets import preset
from support.design_samples import random_graphs

PHASES = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE)


def expected_time(graph: Graph, collective: Collective) -> Fraction:
    forward = schedule_facts(graph).bandwidth_time
    backward = schedule_facts(graph.transposed()).bandwidth_time
    return {PHASES[0]: forward, PHASES[1]: backward, PHASES[2]: forward + backward}[collective]


@settings(max_examples=50, deadline=None)
@given(random_graphs(), st.sampled_from(PHASES), st.sampled_from([None, 1, 2, 3]))
def test_schedules_verify_and_reach_the_least_loads(
    graph: Graph, collective: Collective, pieces: int | None
) -> None:
    topology = graph.to_topology(gb_per_s=Fraction(25, 2), latency_us=1.0)
    made = breadth_first_schedule(graph, topology, collective, pieces=pieces)
    claimed = made.inv_rate(Fraction(25, 2))
    report = verify_schedule(made.schedule, claimed=claimed)
    assert report.ok, report.failures
    assert made.bandwidth_time >= expected_time(graph, collective)
    assert claimed >= bound(Problem(topology=topology, collective=collective)).inv_rate
    if pieces is None:
        assert made.bandwidth_time == expected_time(graph, collective)
        assert made.loss == 0
    # Links take less than a piece more than they should, in each step.
    for load, least in zip(made.step_loads, made.least_loads, strict=True):
        assert least <= load < least + Fraction(1, made.pieces)


@pytest.mark.parametrize(
    "text", ["torus(3, 4)", "line(circulant(9, 1, 3))", "degree(diamond, 2)", "line(complete(4)) * biring(3)"]
)
def test_images_under_automorphisms_are_schedules(text: str) -> None:
    graph = parse(text).build()
    for collective in PHASES:
        made = breadth_first_schedule(graph, graph.to_topology(), collective)
        report = verify_schedule(made.schedule, claimed=made.inv_rate(Fraction(1)))
        assert report.ok, report.failures
        assert made.bandwidth_time == expected_time(graph, collective)


def test_pieces_are_as_few_as_the_loads_need() -> None:
    made, facts = breadth_first_deliveries(parse("torus(3, 4, 5)").build())
    assert made.pieces == lcm(*(load.denominator for load in facts.step_loads)) == 6
    assert loads_of(made) == facts.step_loads
    few, _ = breadth_first_deliveries(parse("torus(3, 4, 5)").build(), max_runs=60 * 59 * 5)
    assert few.pieces == 4
    with pytest.raises(InputError, match="at most 3,539 transfers"):
        breadth_first_deliveries(parse("torus(3, 4, 5)").build(), max_runs=60 * 59 - 1)
    with pytest.raises(InputError, match="1 or more pieces"):
        breadth_first_deliveries(parse("biring(4)").build(), pieces=0)


def test_other_collectives_and_topologies_are_refused() -> None:
    graph = parse("biring(5)").build()
    made, _ = breadth_first_deliveries(graph)
    with pytest.raises(InputError, match="all_gather, reduce_scatter or all_reduce"):
        schedule_of(graph.to_topology(), Collective.BROADCAST, [made])
    with pytest.raises(InputError, match="a phase for each half"):
        schedule_of(graph.to_topology(), Collective.ALL_REDUCE, [made])
    with pytest.raises(InputError, match="every link of the graph"):
        schedule_of(parse("uniring(5)").build().to_topology(), Collective.ALL_GATHER, [made])
    with pytest.raises(InputError, match="rate above 0"):
        graph.to_topology(gb_per_s=0)


def test_topologies_of_others_with_rates_and_ranks_of_their_own() -> None:
    nodes = [Node(id=name, rank=rank) for name, rank in (("a", 2), ("b", 0), ("c", 1))]
    links = [
        Link(src=a, dst=b, gb_per_s=Fraction(rate))
        for a, b, rate in (("a", "b", 50), ("b", "c", 25), ("c", "a", 75))
    ]
    topology = Topology.of("triangle", nodes, links)
    graph, least = graph_of(topology)
    assert (graph.degree, least) == (5, 1)  # 125 GB/s leave a; the unit is 25 GB/s
    made = breadth_first_schedule(graph, topology)
    assert made.step_loads == (1,)
    assert made.bandwidth_time == Fraction(5, 3)
    report = verify_schedule(made.schedule, claimed=made.inv_rate(Fraction(25)))
    assert report.ok, report.failures
    assert report.inv_rate == Fraction(1, 25)
    with pytest.raises(InputError, match="direct-connect"):
        graph_of(preset("star", gpus=3))


@pytest.mark.parametrize("collective", [*PHASES, Collective.ALL_TO_ALL])
def test_evaluation_is_consistent(collective: Collective) -> None:
    graph = parse("circulant(12, 2, 3)").build()
    found = evaluate(
        graph,
        graph.to_topology(gb_per_s=25, latency_us=0.5),
        collective,
        sizes=[1024, 2**20],
        with_forest=True,
    )
    assert found.report.ok, found.report.failures
    assert 0 < found.share_of_optimum <= 1
    assert found.times_us[1024] < found.times_us[2**20]
    assert set(found.forest_times_us) == (set() if collective is Collective.ALL_TO_ALL else {1024, 2**20})
    record = found.record()
    assert record["verified"] is True
    assert record["recipe"] == "circulant(12, 2, 3)"
    with pytest.raises(InputError, match="expected one of all_gather"):
        evaluate(graph, graph.to_topology(), Collective.BROADCAST)


def test_all_to_all_is_bounded_by_distances() -> None:
    """Every block travels its distance: total capacity over total work bounds the rate."""
    graph = parse("kautz(2, 2)").build()
    found = evaluate(graph, graph.to_topology(), Collective.ALL_TO_ALL)
    assert found.bound.inv_rate >= Fraction(8, 5) * 30 / 12  # average distance, pairs, links
    assert found.plan.inv_rate >= found.bound.inv_rate
