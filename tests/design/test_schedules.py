"""Schedules of direct-connect graphs: breadth-first balance, deliveries, and every entry of the oracle."""

from __future__ import annotations

import json
from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.bounds.optimum import bound
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.design.evaluation import evaluate
from coppice.design.families.abelian import two_jumps
from coppice.design.graph import Graph, graph_of
from coppice.design.recipes.parser import parse
from coppice.design.schedules.breadth_first import (
    breadth_first_deliveries,
    loads_of,
    moore_steps,
    schedule_facts,
)
from coppice.design.schedules.collectives import breadth_first_schedule, schedule_of
from coppice.errors import InputError, UnreachableError
from coppice.schedule.verification.transfers import verify_schedule
from coppice.topology.model import Link, Node, Topology
from coppice.topology.presets import preset
from reference.breadth_first import loads_by_lp, loads_by_sets
from support.design_samples import links_of, random_graphs
from support.shared_data import SHARED, needs_shared

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


@settings(max_examples=60, deadline=None)
@given(random_graphs())
def test_loads_are_those_of_the_tightest_sets(graph: Graph) -> None:
    assert list(schedule_facts(graph).step_loads) == loads_by_sets(graph.num_nodes, links_of(graph))


@settings(max_examples=15, deadline=None)
@given(random_graphs(most=7))
def test_loads_are_optima_of_the_linear_programs(graph: Graph) -> None:
    found = [float(load) for load in schedule_facts(graph).step_loads]
    assert found == pytest.approx(loads_by_lp(graph.num_nodes, links_of(graph)), abs=1e-7)


@settings(max_examples=60, deadline=None)
@given(random_graphs(most=14))
def test_no_graph_beats_the_bounds(graph: Graph) -> None:
    facts = schedule_facts(graph)
    assert facts.steps >= moore_steps(graph.num_nodes, graph.degree)
    assert facts.bandwidth_time >= Fraction(graph.num_nodes - 1, graph.num_nodes)


@pytest.mark.parametrize("nodes", range(5, 201))
def test_two_jumps_are_optimal(nodes: int) -> None:
    facts = schedule_facts(parse(f"two_jump({nodes})").build())
    # ceil((sqrt(2 N - 1) - 1) / 2) without roots: the least D with (2 D + 1)^2 >= 2 N - 1.
    assert facts.steps == next(d for d in range(1, nodes) if (2 * d + 1) ** 2 >= 2 * nodes - 1)
    assert facts.bandwidth_time == Fraction(nodes - 1, nodes)
    low, high = two_jumps(nodes)
    assert high == low + 1


def test_automorphisms_only_save_work() -> None:
    for text in (
        "torus(3, 4)",
        "line(circulant(9, 1, 3))",
        "degree(diamond, 2) * uniring(3)",
        "line(complete(4)) * biring(3)",
    ):
        graph = parse(text).build()
        plain = Graph(name="", degree=graph.degree, start=graph.start, dst=graph.dst, count=graph.count)
        assert graph.orders
        assert graph.block < graph.num_nodes
        assert schedule_facts(graph) == schedule_facts(plain)


def test_one_node_needs_no_step() -> None:
    assert schedule_facts(Graph.of("one", 1, [0], [0])) == (0, (), 0)


def test_moore_bound_counts_layers() -> None:
    for degree in range(1, 6):
        for ranks in range(1, 300):
            steps = moore_steps(ranks, degree)
            assert sum(degree**i for i in range(steps + 1)) >= ranks
            assert steps == 0 or sum(degree**i for i in range(steps)) < ranks


def test_a_graph_that_is_not_connected_is_refused() -> None:
    with pytest.raises(UnreachableError, match="node 0 cannot reach node 2"):
        schedule_facts(Graph.of("apart", 3, [0, 1, 2], [1, 0, 0]))
    with pytest.raises(UnreachableError, match="node 2 cannot reach node 0"):
        schedule_facts(Graph.of("apart", 3, [0, 1, 0], [1, 0, 2]))


def test_too_many_distances_are_refused() -> None:
    nodes = np.arange(2**15)
    with pytest.raises(InputError, match="distances"):
        schedule_facts(Graph.of("long", 2**15, nodes, (nodes + 1) % 2**15))


# The oracle's names as recipes.
RECIPES = {
    "K_4,4": "bipartite(4)",
    "K_8,8": "bipartite(8)",
    "C(13,{2, 3})": "circulant(13, 2, 3)",
    "C(16,{2, 3})": "circulant(16, 2, 3)",
    "C(16,{3, 4})": "circulant(16, 3, 4)",
    "C(25,{3, 4})": "circulant(25, 3, 4)",
    "C(256,{11, 12})": "circulant(256, 11, 12)",
    "C(32,{4, 5})": "circulant(32, 4, 5)",
    "K_8": "complete(8)",
    "deBruijn(2,3)": "debruijn(2, 3)",
    "C(16,{3,4}) * 3": "degree(circulant(16, 3, 4), 3)",
    "DiC8{1,3}": "diamond",
    "DiCirculant(6,1..4)": "dicirculant(6, 1, 2, 3, 4)",
    "odd graph O4": "odd(4)",
    "petersen": "petersen",
    "L(BiRing8)": "line(biring(8))",
    "L(K_4,4)": "line(bipartite(4))",
    "L^2((DiC8{1,3})^[]2)": "line^2(diamond^2)",
    "L^3(C(16,{3,4}))": "line^3(circulant(16, 3, 4))",
    "(UniRing4 [] UniRing8)^[]2": "(uniring(4) * uniring(8))^2",
    "BiRing4 [] BiRing6": "biring(4) * biring(6)",
    "K_3 [] BiRing5": "complete(3) * biring(5)",
    "UniRing4 [] UniRing8": "uniring(4) * uniring(8)",
    "BiRing(2,5)": "biring(5)",
    "BiRing(2,9)": "biring(9)",
}


def entries() -> list[dict[str, Any]]:
    path = SHARED / "oracles" / "direct_connect_oracle.json"
    return json.loads(path.read_text())["entries"] if path.is_file() else []


def recipe_text(name: str) -> str:
    if name in RECIPES:
        return RECIPES[name]
    if name.startswith("Pi("):
        return "gkautz" + name.removeprefix("Pi")
    if name.startswith("torus"):
        return f"torus({name.removeprefix('torus').replace('x', ', ')})"
    return name  # hypercube(3)


@needs_shared
def test_there_are_fifty() -> None:
    assert len(entries()) == 50


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry["name"])
def test_entry(entry: dict[str, Any]) -> None:
    recipe = parse(recipe_text(entry["name"]))
    graph = recipe.build()
    assert (graph.num_nodes, graph.degree) == (entry["N"], entry["d"])
    assert (recipe.size.ranks, recipe.size.degree) == (entry["N"], entry["d"])
    found = schedule_facts(graph)
    assert found.steps == entry["T_L"]
    assert list(found.step_loads) == [Fraction(load) for load in entry["U"]]
    assert found.bandwidth_time == Fraction(entry["T_B"])
    assert moore_steps(entry["N"], entry["d"]) == entry["T_L_moore"]
    facts = recipe.facts()
    assert facts.steps >= found.steps
    assert facts.bandwidth_time >= found.bandwidth_time
    if facts.exact:
        assert (facts.steps, facts.bandwidth_time) == (found.steps, found.bandwidth_time)
    assert facts.bidirectional == graph.bidirectional
