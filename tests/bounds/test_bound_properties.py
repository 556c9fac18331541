"""The bound on random graphs: against every cut, the references, and under changes whose effect is known."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from coppice.bounds import Problem, bound
from coppice.bounds.network import Network
from coppice.bounds.tree_units import fixed_trees
from coppice.collectives import Collective
from coppice.errors import UnreachableError
from coppice.topology.model import Link, Topology
from reference import attainable, brute_force
from reference.expected import broadcast_view, cut_ratio, expected_inv_rate
from reference.fixed_trees import floors_stay_balanced, smallest_inv_tree_rate
from reference.maxflow import max_flow
from reference.network import describe, network_of, supply_of
from reference.strategies import (
    BALANCED_FAMILIES,
    CONNECTED_FAMILIES,
    FAMILIES,
    UNBALANCED_FAMILIES,
    problems,
    seeded,
    seeded_problem,
    slow_uplinks,
    topologies,
)

relaxed = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
thorough = settings(relaxed, max_examples=2000)


def check_against_all_cuts(problem: Problem) -> None:
    expected = brute_force.inv_rate(broadcast_view(problem), supply_of(problem))
    if expected is None:
        with pytest.raises(UnreachableError):
            bound(problem)
        return
    result = bound(problem)
    assert result.inv_rate == expected, describe(problem)
    if expected:
        assert cut_ratio(problem, result.cut) == expected, f"cut {result.cut}: {describe(problem)}"


@relaxed
@given(problem=problems(FAMILIES))
def test_equals_the_worst_of_all_cuts(problem: Problem) -> None:
    check_against_all_cuts(problem)


@pytest.mark.slow
@thorough
@given(problem=problems(FAMILIES))
def test_equals_the_worst_of_all_cuts_thoroughly(problem: Problem) -> None:
    check_against_all_cuts(problem)


def check_against_the_reference(seed: int) -> None:
    problem = seeded_problem(seed, FAMILIES)
    expected = expected_inv_rate(problem)
    try:
        found = bound(problem).inv_rate
    except UnreachableError:
        found = None
    assert found == expected, describe(problem)


@pytest.mark.parametrize("block", range(8))
@pytest.mark.spread(3)
def test_native_equals_reference(block: int) -> None:
    for seed in range(block * 200, block * 200 + 200):
        check_against_the_reference(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_native_equals_reference_thoroughly(block: int) -> None:
    for seed in range(10**6 + block * 1500, 10**6 + block * 1500 + 1500):
        check_against_the_reference(seed)


class TestAttainable:
    @relaxed
    @given(problem=problems(BALANCED_FAMILIES))
    def test_is_the_bound_where_switches_can_forward_all(self, problem: Problem) -> None:
        assume(broadcast_view(problem).can_forward_all())
        result = bound(problem)
        assert result.attainable == result.inv_rate, describe(problem)

    @pytest.mark.parametrize("block", range(6))
    def test_equals_the_program_over_all_cuts(self, block: int) -> None:
        for seed in range(block * 20, block * 20 + 20):
            problem = seeded_problem(seed, UNBALANCED_FAMILIES, 9)
            result = bound(problem)
            assert result.attainable is not None
            assert result.attainable >= result.inv_rate, describe(problem)
            if result.inv_rate:
                rate = attainable.attainable_rate(broadcast_view(problem), supply_of(problem))
                assert float(result.attainable) * rate == pytest.approx(1, rel=1e-7), describe(problem)

    @pytest.mark.parametrize("collective", [Collective.ALL_GATHER, Collective.REDUCE_SCATTER], ids=str)
    def test_equals_the_program_where_copying_would_help(self, collective: Collective) -> None:
        differs = 0
        for seed in range(60):
            problem = Problem(topology=seeded(seed, (slow_uplinks,), 9), collective=collective)
            result = bound(problem)
            assert result.attainable is not None
            rate = attainable.attainable_rate(broadcast_view(problem), supply_of(problem))
            assert float(result.attainable) * rate == pytest.approx(1, rel=1e-7), describe(problem)
            differs += result.attainable > result.inv_rate
        assert differs >= 5  # otherwise the family shows nothing


class TestAllReduce:
    @pytest.mark.parametrize("block", range(6))
    def test_equals_the_program_over_all_cuts(self, block: int) -> None:
        for seed in range(block * 8, block * 8 + 8):
            topology = seeded(seed, CONNECTED_FAMILIES, 7)
            result = bound(Problem(topology=topology, collective=Collective.ALL_REDUCE))
            assert result.attainable is not None
            rate = attainable.all_reduce_rate(network_of(topology))
            assert float(result.attainable) * rate == pytest.approx(1, rel=1e-7), describe(topology)

    @pytest.mark.parametrize("block", range(4))
    def test_never_slower_than_two_phases(self, block: int) -> None:
        for seed in range(block * 10, block * 10 + 10):
            topology = seeded(seed, BALANCED_FAMILIES, 9)
            result = bound(Problem(topology=topology, collective=Collective.ALL_REDUCE))
            halves = [
                expected_inv_rate(Problem(topology=topology, collective=collective))
                for collective in (Collective.REDUCE_SCATTER, Collective.ALL_GATHER)
            ]
            two_phase = sum(half for half in halves if half is not None) / topology.num_ranks
            assert result.inv_rate <= two_phase, describe(topology)
            assert two_phase in result.alternatives.values(), describe(topology)


def relabelled(problem: Problem, order: list[int]) -> Problem:
    """The same problem with its nodes listed in another order; each keeps its rank."""
    topology = problem.topology
    nodes = topology.nodes()
    return replace(problem, topology=Topology.of(topology.name, [nodes[v] for v in order], topology.links()))


def reranked(problem: Problem, new_rank: list[int]) -> Problem:
    """The same problem with rank r called ``new_rank[r]``."""
    topology = problem.topology
    nodes = [
        node if node.rank is None else replace(node, rank=new_rank[node.rank]) for node in topology.nodes()
    ]
    weights = problem.weights
    if weights is not None:
        weights = tuple(weights[new_rank.index(rank)] for rank in range(len(weights)))
    return replace(
        problem,
        topology=Topology.of(topology.name, nodes, topology.links()),
        root=None if problem.root is None else new_rank[problem.root],
        weights=weights,
    )


class TestInvariance:
    @relaxed
    @given(problem=problems(), data=st.data())
    def test_names_do_not_matter(self, problem: Problem, data: st.DataObject) -> None:
        order = data.draw(st.permutations(range(problem.topology.num_nodes)))
        ranks = data.draw(st.permutations(range(problem.topology.num_ranks)))
        expected = bound(problem)
        for changed in (relabelled(problem, order), reranked(problem, ranks)):
            result = bound(changed)
            assert result.inv_rate == expected.inv_rate, describe(problem)
            assert result.attainable == expected.attainable, describe(problem)

    @relaxed
    @given(problem=problems(), numerator=st.integers(1, 1000), denominator=st.integers(1, 1000))
    def test_rates_scale(self, problem: Problem, numerator: int, denominator: int) -> None:
        factor = Fraction(numerator, denominator)
        topology = problem.topology
        links = [replace(link, gb_per_s=link.gb_per_s * factor) for link in topology.links()]
        scaled = replace(problem, topology=Topology.of(topology.name, topology.nodes(), links))
        expected, result = bound(problem), bound(scaled)
        assert result.inv_rate * factor == expected.inv_rate, describe(problem)
        assert expected.attainable is not None
        assert result.attainable is not None
        assert result.attainable * factor == expected.attainable, describe(problem)

    @relaxed
    @given(problem=problems(), data=st.data())
    def test_another_link_never_hurts(self, problem: Problem, data: st.DataObject) -> None:
        topology = problem.topology
        src, dst = data.draw(
            st.lists(st.sampled_from(topology.node_ids), min_size=2, max_size=2, unique=True)
        )
        rate = data.draw(st.fractions(Fraction(1, 10), 20, max_denominator=10))
        links = [*topology.links(), Link(src=src, dst=dst, gb_per_s=rate, duplex=False)]
        wider = replace(problem, topology=Topology.of(topology.name, topology.nodes(), links))
        before, after = bound(problem), bound(wider)
        assert after.inv_rate <= before.inv_rate, f"{src} -> {dst} at {rate} on {describe(problem)}"
        assert before.attainable is not None
        assert after.attainable is not None
        assert after.attainable <= before.attainable, f"{src} -> {dst} at {rate} on {describe(problem)}"

    @relaxed
    @given(problem=problems())
    def test_reducing_is_spreading_on_the_transposed_graph(self, problem: Problem) -> None:
        mirror = {
            Collective.ALL_GATHER: Collective.REDUCE_SCATTER,
            Collective.REDUCE_SCATTER: Collective.ALL_GATHER,
            Collective.BROADCAST: Collective.REDUCE,
            Collective.REDUCE: Collective.BROADCAST,
        }
        turned = replace(
            problem, topology=problem.topology.transposed(), collective=mirror[problem.collective]
        )
        expected, result = bound(problem), bound(turned)
        assert result.inv_rate == expected.inv_rate, describe(problem)
        assert result.attainable == expected.attainable, describe(problem)

    @relaxed
    @given(topology=topologies(), weight=st.integers(1, 9))
    def test_equal_weights_are_no_weights(self, topology: Topology, weight: int) -> None:
        plain = Problem(topology=topology, collective=Collective.ALL_GATHER)
        weighted = replace(plain, weights=(weight,) * topology.num_ranks)
        assert bound(weighted).algbw_gb_per_s == bound(plain).algbw_gb_per_s, describe(topology)
        assert bound(weighted).inv_rate == weight * bound(plain).inv_rate, describe(topology)

    @relaxed
    @given(topology=topologies(), data=st.data())
    def test_one_weight_alone_is_a_broadcast(self, topology: Topology, data: st.DataObject) -> None:
        root = data.draw(st.integers(0, topology.num_ranks - 1))
        weights = tuple(int(rank == root) for rank in range(topology.num_ranks))
        alone = Problem(topology=topology, collective=Collective.ALL_GATHER, weights=weights)
        broadcast = Problem(topology=topology, collective=Collective.BROADCAST, root=root)
        assert bound(alone).inv_rate == bound(broadcast).inv_rate, describe(topology)

    @relaxed
    @given(topology=topologies(), data=st.data())
    def test_broadcast_is_the_least_flow_from_the_root(self, topology: Topology, data: st.DataObject) -> None:
        root = data.draw(st.integers(0, topology.num_ranks - 1))
        network = network_of(topology)
        source = network.terminals[root]
        rate = min(max_flow(network.capacity, source, t).value for t in network.terminals if t != source)
        problem = Problem(topology=topology, collective=Collective.BROADCAST, root=root)
        assert bound(problem).inv_rate == 1 / Fraction(rate), describe(topology)


class TestFixedTrees:
    @pytest.mark.parametrize("block", range(10))
    def test_native_equals_reference_and_keeps_the_guarantee(self, block: int) -> None:
        for seed in range(block * 20, block * 20 + 20):
            problem = seeded_problem(seed, CONNECTED_FAMILIES, 10)
            trees = random.Random(seed).randint(1, 6)
            network = broadcast_view(problem)
            expected = smallest_inv_tree_rate(network, supply_of(problem), trees=trees)
            assert expected is not None
            found = fixed_trees(Network.of(problem), trees).inv_rate
            assert found == expected / trees, f"{trees} trees, {describe(problem)}"
            best = bound(problem).inv_rate
            assert found >= best, f"{trees} trees, {describe(problem)}"
            if floors_stay_balanced(network, expected):
                loss = 1 / (trees * min(network.capacity.values()))
                assert found <= best + loss, f"{trees} trees, {describe(problem)}"
