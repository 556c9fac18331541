"""The native balance against its definition, and against the bounds that nothing may beat."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings

from coppice.design.families.abelian import two_jumps
from coppice.design.graph import Graph
from coppice.design.recipes.parser import parse
from coppice.design.schedules.breadth_first import moore_steps, schedule_facts
from coppice.errors import InputError, UnreachableError
from reference.breadth_first import loads_by_lp, loads_by_sets
from support.design_samples import links_of, random_graphs


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
