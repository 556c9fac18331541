"""The references agree with each other, two independent ways to each number, before they judge the native core.

Also the kernels ``violated_cuts`` and ``pack_trees`` by themselves, below the planner that calls them.
"""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from coppice import _core
from coppice.bounds import Problem
from coppice.bounds.all_reduce import combined_all_reduce
from coppice.bounds.all_to_all.concurrent_flow import concurrent_flow
from coppice.bounds.attainable import attainable_rate
from coppice.collectives import Collective
from coppice.schedule.forest import Phase
from coppice.topology.model import Topology
from reference import attainable, bound, brute_force, fixed_trees, packing
from reference.counting import count_trees
from reference.expected import broadcast_view
from reference.maxflow import max_flow
from reference.network import Link, Supply, describe, network_of, scaled_to_integers, supply_of
from reference.oracle import ENTRIES, NAMES, oracle_topology
from reference.packing import Tree
from reference.strategies import (
    BALANCED_FAMILIES,
    CONNECTED_FAMILIES,
    FAMILIES,
    UNBALANCED_FAMILIES,
    seeded,
    seeded_problem,
    slow_uplinks,
    topologies,
)
from support.blocks import blocks
from support.shared_data import needs_shared

relaxed = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def equal_supply(topology: Topology) -> dict[int, int]:
    return dict.fromkeys(topology.rank_nodes.tolist(), 1)


def random_supply(topology: Topology, seed: int) -> dict[int, int]:
    """Equal shares, one root, or weights from 0 to 4 that are not all zero."""
    rng = random.Random(seed)
    terminals = topology.rank_nodes.tolist()
    root = rng.choice(terminals)
    kind = seed % 3
    if kind == 0:
        return dict.fromkeys(terminals, 1)
    if kind == 1:
        return {v: int(v == root) for v in terminals}
    return {v: rng.randint(0, 4) + (v == root) for v in terminals}


class TestMaxFlow:
    def test_value_and_both_extreme_cuts(self) -> None:
        # s -> a -> b -> c -> t with two equally narrow links: the extreme cuts differ
        flow = max_flow({("s", "a"): 5, ("a", "b"): 2, ("b", "c"): 3, ("c", "t"): 2}, "s", "t")
        assert flow.value == 2
        assert flow.source_side == {"s", "a"}
        assert flow.sink_side == {"t"}

    def test_needs_to_undo_a_path(self) -> None:
        capacity = {("s", "a"): 1, ("s", "b"): 1, ("a", "b"): 1, ("a", "t"): 1, ("b", "t"): 1}
        assert max_flow(capacity, "s", "t").value == 2

    def test_fractions_stay_exact(self) -> None:
        capacity = {("s", "a"): Fraction(1, 3), ("a", "t"): Fraction(1, 7), ("s", "t"): Fraction(1, 2)}
        assert max_flow(capacity, "s", "t").value == Fraction(9, 14)

    @relaxed
    @given(topology=topologies(FAMILIES))
    def test_value_equals_the_least_cut(self, topology: Topology) -> None:
        network = network_of(topology)
        source, sink = network.terminals[0], network.terminals[1]
        flow = max_flow(network.capacity, source, sink)
        assert network.leaving(flow.source_side) == flow.value, describe(topology)  # type: ignore[arg-type]
        assert network.entering(flow.sink_side) == flow.value, describe(topology)  # type: ignore[arg-type]
        assert flow.source_side.isdisjoint(flow.sink_side)


class TestBound:
    @pytest.mark.parametrize("block", range(8))
    def test_newton_equals_enumeration(self, block: int) -> None:
        for seed in range(block * 50, block * 50 + 50):
            topology = seeded(seed, FAMILIES)
            network, supply = network_of(topology), random_supply(topology, seed // len(FAMILIES))
            found, expected = bound.optimum(network, supply), brute_force.inv_rate(network, supply)
            assert (found and found.inv_rate) == expected, f"{describe(topology)}\n{supply}"
            if found is not None and found.inv_rate:
                assert found.cut in brute_force.worst_cuts(network, supply), f"{describe(topology)}\n{supply}"

    def test_disconnected_is_impossible_for_all_gather(self) -> None:
        for seed in range(len(FAMILIES) - 1, 300, len(FAMILIES)):
            topology = seeded(seed, FAMILIES)
            assert topology.name.startswith("disconnected")
            assert bound.optimum(network_of(topology), equal_supply(topology)) is None, describe(topology)


class TestPacking:
    @pytest.mark.parametrize("block", range(5))
    def test_published_route_attains_the_bound(self, block: int) -> None:
        for seed in range(block * 24, block * 24 + 24):
            topology = seeded(seed, BALANCED_FAMILIES, 9)
            network, supply = network_of(topology), random_supply(topology, seed // len(BALANCED_FAMILIES))
            best = bound.optimum(network, supply)
            assert best is not None
            if not best.inv_rate:
                continue
            trees = packing.optimal_forest(network, supply, best.inv_rate)
            counted = count_trees(network, trees)
            total = sum(supply.values())
            assert counted.time_per_total(network) * total == best.inv_rate, describe(topology)
            (share,) = counted.share.values()
            assert share == {v: Fraction(w, total) for v, w in supply.items() if w}, describe(topology)

    def test_too_fast_a_rate_is_refused(self) -> None:
        topology = seeded(0, BALANCED_FAMILIES)
        network, supply = network_of(topology), equal_supply(topology)
        best = bound.optimum(network, supply)
        assert best is not None
        with pytest.raises(ValueError, match=r"too narrow|keeps"):
            packing.optimal_forest(network, supply, best.inv_rate * Fraction(99, 100))


class TestAttainable:
    @relaxed
    @given(topology=topologies(BALANCED_FAMILIES, 8))
    def test_equals_the_bound_where_switches_can_forward_all(self, topology: Topology) -> None:
        network, supply = network_of(topology), equal_supply(topology)
        assert network.can_forward_all()
        expected = brute_force.inv_rate(network, supply)
        assert expected is not None
        assert math.isclose(attainable.attainable_rate(network, supply) * expected, 1, rel_tol=1e-7), (
            describe(topology)
        )

    @relaxed
    @given(topology=topologies(UNBALANCED_FAMILIES, 8))
    def test_never_beats_the_bound(self, topology: Topology) -> None:
        network, supply = network_of(topology), equal_supply(topology)
        expected = brute_force.inv_rate(network, supply)
        assert expected is not None
        assert attainable.attainable_rate(network, supply) * expected <= 1 + 1e-7, describe(topology)

    def test_a_switch_that_would_have_to_copy(self) -> None:
        # a -> w -> b, c at full rate each: only with copying would a reach both at rate 1
        topology = seeded(0)
        network = network_of(topology)
        fork = type(network)(4, (0, 1, 2), {(0, 3): Fraction(1), (3, 1): Fraction(1), (3, 2): Fraction(1)})
        root = {0: 1, 1: 0, 2: 0}
        assert brute_force.inv_rate(fork, root) == 1
        assert math.isclose(attainable.attainable_rate(fork, root), 0.5, rel_tol=1e-9)


class TestFixedTrees:
    @pytest.mark.parametrize("seed", range(40))
    def test_smallest_by_enumeration_and_guarantee(self, seed: int) -> None:
        topology = seeded(seed, CONNECTED_FAMILIES, 8)
        network, supply = network_of(topology), random_supply(topology, seed // 5)
        best = brute_force.inv_rate(network, supply)
        assert best is not None
        for trees in (1, 2, 3, 5):
            found = fixed_trees.smallest_inv_tree_rate(network, supply, trees=trees)
            assert found is not None
            wanted = {v: trees * w for v, w in supply.items()}
            assert not brute_force.violated(network, fixed_trees.room(network, found), wanted)
            if best:
                smaller = found * Fraction(10**9 - 1, 10**9)
                assert brute_force.violated(network, fixed_trees.room(network, smaller), wanted)
                assert best <= found / trees <= best + 1 / (trees * min(network.capacity.values()))

    def test_k_of_the_optimum_loses_nothing(self) -> None:
        for seed in range(40):
            topology = seeded(seed, BALANCED_FAMILIES, 7)
            network, supply = network_of(topology), equal_supply(topology)
            best = bound.optimum(network, supply)
            assert best is not None
            trees = packing.exact_trees(network, best.inv_rate)
            found = fixed_trees.smallest_inv_tree_rate(network, supply, trees=trees)
            assert found == trees * best.inv_rate, describe(topology)


@needs_shared
@pytest.mark.parametrize("name", NAMES)
def test_references_reproduce_the_oracle(name: str) -> None:
    topology = oracle_topology(name)
    network, supply = network_of(topology), equal_supply(topology)
    expected = ENTRIES[name]["expected"]
    best = bound.optimum(network, supply)
    assert best is not None
    assert best.inv_rate == Fraction(expected["inv_x_star"])
    assert packing.exact_trees(network, best.inv_rate) == expected["k"]
    if network.num_nodes <= 16:
        assert brute_force.inv_rate(network, supply) == best.inv_rate


@needs_shared
@pytest.mark.parametrize("name", [name for name in NAMES if ENTRIES[name]["N"] <= 8])
def test_references_reproduce_fixed_trees_of_the_oracle(name: str) -> None:
    topology = oracle_topology(name)
    for trees, value in ENTRIES[name]["expected"]["fixed_k"].items():
        found = fixed_trees.smallest_inv_tree_rate(
            network_of(topology), equal_supply(topology), trees=int(trees)
        )
        assert found == Fraction(value["U"]), f"k = {trees}"


@needs_shared
@pytest.mark.parametrize("name", ["complete6_hetero", "pcie_box4", "star_switch_one_slow", "tree7_switches"])
def test_reference_of_all_reduce_reproduces_the_oracle(name: str) -> None:
    rate = attainable.all_reduce_rate(network_of(oracle_topology(name)))
    assert rate == pytest.approx(ENTRIES[name]["expected"]["allreduce_lp_algbw"], rel=1e-5)


@needs_shared
@pytest.mark.parametrize("name", ["complete6_hetero", "pcie_box4", "star_switch_one_slow", "tree7_switches"])
def test_reference_of_all_to_all_reproduces_the_oracle(name: str) -> None:
    rate = brute_force.all_to_all_rate(network_of(oracle_topology(name)))
    assert rate == pytest.approx(ENTRIES[name]["expected"]["alltoall_max_concurrent_flow"], rel=1e-5)


class TestCutKernel:
    """``violated_cuts`` finds a cut iff there is one, and each cut that it finds is real."""

    @pytest.mark.parametrize("block", range(4))
    def test_agrees_with_enumeration(self, block: int) -> None:
        for seed in range(block * 100, block * 100 + 100):
            topology = seeded(seed, FAMILIES)
            network, supply = network_of(topology), random_supply(topology, seed // len(FAMILIES))
            capacity, _ = scaled_to_integers(network.capacity)
            factor = random.Random(seed).randint(1, 12)
            scaled = {v: w * factor for v, w in supply.items()}
            demand = sum(scaled.values())
            found = _core.violated_cuts(
                network.num_nodes,
                topology.src,
                topology.dst,
                np.array([capacity[link] for link in network.capacity], dtype=np.int64),
                np.array([scaled.get(v, 0) for v in range(network.num_nodes)], dtype=np.int64),
                np.array([v in network.terminals for v in range(network.num_nodes)], dtype=np.bool_),
                demand,
                1000,
            )
            assert bool(found) == brute_force.violated(network, capacity, scaled), describe(topology)
            for sinks in (set(x.tolist()) for x in found):
                entering = sum(c for (u, v), c in capacity.items() if u not in sinks and v in sinks)
                assert sinks & set(network.terminals), describe(topology)
                assert entering + sum(scaled.get(v, 0) for v in sinks) < demand, describe(topology)


def kernel_trees(topology: Topology, room: dict[Link, int], supply: Supply, **way: int) -> list[Tree]:
    """Trees packed by the kernel, in the form of the reference; ``way`` says how they are found."""
    network = network_of(topology)
    found = _core.pack_trees(
        network.num_nodes,
        topology.src,
        topology.dst,
        np.array([room[link] for link in network.capacity], dtype=np.int64),
        np.array([supply.get(v, 0) for v in range(network.num_nodes)], dtype=np.int64),
        np.array([v in network.terminals for v in range(network.num_nodes)], dtype=np.bool_),
        **way,
    )
    assert not len(found["violated"]), f"refused for {found['violated']}: {describe(topology)}"
    start, nodes = found["path_start"].tolist(), found["path_nodes"].tolist()
    paths = [tuple(nodes[start[p] : start[p + 1]]) for p in found["edge_path"].tolist()]
    ends = found["tree_start"].tolist()
    return [
        Tree(root, weight, tuple(paths[ends[t] : ends[t + 1]]))
        for t, (root, weight) in enumerate(
            zip(found["tree_root"].tolist(), found["tree_weight"].tolist(), strict=True)
        )
    ]


OPTIONS: dict[str, dict[str, int]] = {
    "grown": {},
    "every path tried": {"always_exhaustive": True},
    "by splitting": {"most_checks": 0},
    "some by splitting": {"most_checks": 3},
}


class TestPackingKernel:
    """``pack_trees`` fills links to the last tree where the reference says that it can, whichever way it grows."""

    @pytest.mark.parametrize("way", OPTIONS)
    @pytest.mark.parametrize("block", blocks(10, always=1))
    def test_packs_at_the_bound(self, block: int, way: str) -> None:
        for seed in range(block * 100, block * 100 + 100):
            topology = seeded(seed, BALANCED_FAMILIES)
            network, supply = network_of(topology), random_supply(topology, seed // len(BALANCED_FAMILIES))
            best = bound.optimum(network, supply)
            assert best is not None
            if not best.inv_rate:
                continue
            number = packing.exact_trees(network, best.inv_rate)
            room = {link: int(number * best.inv_rate * c) for link, c in network.capacity.items()}
            wanted = {v: number * w for v, w in supply.items()}
            counted = count_trees(network, kernel_trees(topology, room, wanted, **OPTIONS[way]))
            total = sum(wanted.values())
            assert counted.total == total, describe(topology)
            assert counted.share[Phase.BROADCAST] == {v: Fraction(w, total) for v, w in wanted.items() if w}
            for link, load in counted.load.items():
                assert load <= room[link], f"{load} trees on {link}, {room[link]} fit: {describe(topology)}"

    def test_names_the_cut_that_is_too_narrow(self) -> None:
        for seed in range(100):
            topology = seeded(seed, BALANCED_FAMILIES)
            network, supply = network_of(topology), equal_supply(topology)
            best = bound.optimum(network, supply)
            assert best is not None
            number = 3 * packing.exact_trees(network, best.inv_rate)
            room = {link: int(number * best.inv_rate * c) for link, c in network.capacity.items()}
            wanted = {v: (number + 1) * w for v, w in supply.items()}
            found = _core.pack_trees(
                network.num_nodes,
                topology.src,
                topology.dst,
                np.array([room[link] for link in network.capacity], dtype=np.int64),
                np.array([wanted.get(v, 0) for v in range(network.num_nodes)], dtype=np.int64),
                np.array([v in network.terminals for v in range(network.num_nodes)], dtype=np.bool_),
            )
            sinks = set(found["violated"].tolist())
            entering = sum(c for (u, v), c in room.items() if u not in sinks and v in sinks)
            assert sinks & set(network.terminals), describe(topology)
            assert entering < sum(w for v, w in wanted.items() if v not in sinks), describe(topology)


@pytest.mark.parametrize("block", blocks(10, always=2))
def test_attainable_rate(block: int) -> None:
    for seed in range(block * 20, block * 20 + 20):
        problem = seeded_problem(seed, UNBALANCED_FAMILIES, 9)
        rate = attainable.attainable_rate(broadcast_view(problem), supply_of(problem))
        found = attainable_rate(problem)
        assert float(found.inv_rate) * rate == pytest.approx(1, rel=1e-7), describe(problem)
        check_capacity(problem, found.capacity)


def check_capacity(problem: Problem, capacity: list) -> None:
    """What is said to be packable is within the links, and no switch sends more than it gets."""
    topology = problem.topology
    surplus = dict.fromkeys(range(topology.num_nodes), 0)
    for e, (u, v) in enumerate(zip(topology.src.tolist(), topology.dst.tolist(), strict=True)):
        assert 0 <= capacity[e] <= topology.gb_per_s(e), f"link {u} -> {v}: {describe(problem)}"
        surplus[u] += capacity[e]
        surplus[v] -= capacity[e]
    sign = -1 if problem.collective.reduces else 1
    for w in network_of(topology).switches:
        assert sign * surplus[w] <= 0, f"node {w}: {describe(problem)}"


@pytest.mark.parametrize("block", blocks(10, always=2))
def test_combined_all_reduce(block: int) -> None:
    for seed in range(block * 14, block * 14 + 14):
        topology = seeded(seed, CONNECTED_FAMILIES, 7)
        found = combined_all_reduce(Problem(topology=topology, collective=Collective.ALL_REDUCE))
        assert found.exact, describe(topology)
        assert found.rate is not None
        rate = attainable.all_reduce_rate(network_of(topology))
        assert float(found.rate) == pytest.approx(rate, rel=1e-7), describe(topology)
        assert sum(found.root_rates.values()) == found.rate, describe(topology)


@pytest.mark.parametrize("block", blocks(6, always=2))
def test_concurrent_flow(block: int) -> None:
    for seed in range(block * 12, block * 12 + 12):
        topology = seeded(seed, (*BALANCED_FAMILIES, slow_uplinks), 7)
        found = concurrent_flow(Problem(topology=topology, collective=Collective.ALL_TO_ALL))
        rate = brute_force.all_to_all_rate(network_of(topology))
        assert found.exact, describe(topology)
        assert float(found.inv_rate) * rate == pytest.approx(1, rel=1e-7), describe(topology)
