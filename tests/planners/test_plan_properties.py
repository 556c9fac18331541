"""Plans for random graphs: they verify, and they are as fast as anything can be, whatever the graph."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from coppice.bounds import Problem, bound
from coppice.bounds.network import Network
from coppice.bounds.tree_units import fixed_trees
from coppice.collectives import Collective
from coppice.errors import UnreachableError
from coppice.planners.forest.planner import plan_forest
from coppice.topology.model import Node, Topology
from reference import attainable
from reference.expected import broadcast_view, expected_inv_rate
from reference.fixed_trees import floors_stay_balanced, smallest_inv_tree_rate
from reference.network import describe, network_of, supply_of
from reference.plans import judged_inv_rate
from reference.strategies import (
    BALANCED_FAMILIES,
    CONNECTED_FAMILIES,
    UNBALANCED_FAMILIES,
    disconnected,
    problems,
    seeded,
    seeded_problem,
    slow_uplinks,
)

relaxed = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
thorough = settings(relaxed, max_examples=2000)


def check(problem: Problem) -> None:
    """The plan is as fast as the cut bound where switches can forward all, and as any forest elsewhere."""
    reached = judged_inv_rate(problem, plan_forest(problem))
    network = broadcast_view(problem)
    lowest = expected_inv_rate(problem)
    assert lowest is not None
    if network.can_forward_all():
        assert reached == lowest, describe(problem)
        return
    assert reached >= lowest, describe(problem)
    assert reached == bound(problem).attainable, describe(problem)
    if lowest and network.num_nodes <= 9:
        rate = attainable.attainable_rate(network, supply_of(problem))
        assert float(reached) * rate == pytest.approx(1, rel=1e-7), describe(problem)


@relaxed
@given(problem=problems(BALANCED_FAMILIES))
def test_attains_the_bound(problem: Problem) -> None:
    check(problem)


@relaxed
@given(problem=problems(UNBALANCED_FAMILIES, 9))
def test_attains_what_unbalanced_switches_allow(problem: Problem) -> None:
    check(problem)


@pytest.mark.slow
@thorough
@given(problem=problems(CONNECTED_FAMILIES))
def test_attains_the_optimum_thoroughly(problem: Problem) -> None:
    check(problem)


@pytest.mark.parametrize("block", range(20))
def test_attains_the_bound_of_the_twin(block: int) -> None:
    for seed in range(block * 50, block * 50 + 50):
        check(seeded_problem(seed, BALANCED_FAMILIES))


@pytest.mark.parametrize("block", range(5))
def test_attains_the_optimum_of_the_twin_where_copying_would_help(block: int) -> None:
    for seed in range(block * 10, block * 10 + 10):
        for collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
            check(Problem(topology=seeded(seed, (slow_uplinks,), 9), collective=collective))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_attains_the_optimum_of_the_twin_thoroughly(block: int) -> None:
    for seed in range(10**6 + block * 500, 10**6 + block * 500 + 500):
        check(seeded_problem(seed, CONNECTED_FAMILIES))


@pytest.mark.parametrize("block", range(10))
def test_all_reduce(block: int) -> None:
    for seed in range(block * 7, block * 7 + 7):
        topology = seeded(seed, CONNECTED_FAMILIES, 7)
        problem = Problem(topology=topology, collective=Collective.ALL_REDUCE)
        reached = judged_inv_rate(problem, plan_forest(problem))
        assert reached == bound(problem).attainable, describe(topology)
        rate = attainable.all_reduce_rate(network_of(topology))
        assert float(reached) * rate == pytest.approx(1, rel=1e-7), describe(topology)


@pytest.mark.parametrize("block", range(10))
def test_fixed_number_of_trees(block: int) -> None:
    for seed in range(block * 20, block * 20 + 20):
        problem = seeded_problem(seed, BALANCED_FAMILIES, 10)
        trees = random.Random(seed).randint(1, 6)
        network = broadcast_view(problem)
        inv_tree_rate = smallest_inv_tree_rate(network, supply_of(problem), trees=trees)
        assert inv_tree_rate is not None
        reached = judged_inv_rate(problem, plan_forest(problem, trees=trees))
        if floors_stay_balanced(network, inv_tree_rate):
            assert reached == inv_tree_rate / trees, f"{trees} trees, {describe(problem)}"
        else:
            assert reached >= inv_tree_rate / trees, f"{trees} trees, {describe(problem)}"
        assert reached >= fixed_trees(Network.of(problem), trees).inv_rate, (
            f"{trees} trees, {describe(problem)}"
        )


@relaxed
@given(problem=problems((disconnected,)))
def test_disconnected_is_planned_or_refused_like_the_bound(problem: Problem) -> None:
    expected = expected_inv_rate(problem)
    if expected is None:
        with pytest.raises(UnreachableError):
            plan_forest(problem)
    else:
        assert judged_inv_rate(problem, plan_forest(problem)) == expected, describe(problem)


@relaxed
@given(problem=problems())
def test_same_input_same_forest(problem: Problem) -> None:
    first, second = plan_forest(problem), plan_forest(problem)
    for column in (
        "tree_root",
        "tree_weight",
        "tree_start",
        "edge_src",
        "edge_dst",
        "edge_path",
        "path_nodes",
    ):
        np.testing.assert_array_equal(getattr(first, column), getattr(second, column))


@pytest.mark.parametrize("collective", [c for c in Collective if c.made_of_trees], ids=str)
def test_a_single_rank_needs_no_transfer(collective: Collective) -> None:
    topology = Topology.of("alone", [Node(id="g")], [])
    problem = Problem(topology=topology, collective=collective, root=0 if collective.rooted else None)
    forest = plan_forest(problem)
    assert forest.num_edges == 0
    assert judged_inv_rate(problem, forest) == 0


def test_reduce_trees_are_broadcast_trees_turned_round() -> None:
    for seed in range(30):
        problem = Problem(topology=seeded(seed, BALANCED_FAMILIES), collective=Collective.REDUCE_SCATTER)
        mirror = replace(problem, topology=problem.topology.transposed(), collective=Collective.ALL_GATHER)
        assert judged_inv_rate(problem, plan_forest(problem)) == judged_inv_rate(
            mirror, plan_forest(mirror)
        ), describe(problem)
