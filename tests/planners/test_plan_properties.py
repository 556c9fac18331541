"""Plans for random graphs: they verify, and they are as fast as anything can be, whatever the graph."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from coppice import _core
from coppice.bounds import Problem, bound
from coppice.bounds.network import Network, max_flow
from coppice.bounds.tree_units import fixed_trees
from coppice.collectives import Collective
from coppice.errors import InputError, UnreachableError
from coppice.planners.flow import plan_flow
from coppice.planners.forest.planner import plan_forest
from coppice.schedule.files.plan_file import decode_plan, encode_plan
from coppice.schedule.plan import Plan
from coppice.schedule.verification.transfers import verify_schedule
from coppice.schedule.verification.verify import verify
from coppice.topology import resolve
from coppice.topology.model import Link, Node, NodeKind, Topology
from reference import attainable
from reference.expected import broadcast_view, expected_inv_rate
from reference.fixed_trees import floors_stay_balanced, smallest_inv_tree_rate
from reference.heights import heights, mean_height
from reference.maxflow import max_flow as reference_max_flow
from reference.network import describe, network_of, supply_of
from reference.oracle import ENTRIES, NAMES, oracle_topology
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
from support.blocks import blocks
from support.shared_data import needs_shared

relaxed = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
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


@pytest.mark.parametrize("block", blocks(20, always=3))
def test_attains_the_bound_of_the_reference(block: int) -> None:
    for seed in range(block * 50, block * 50 + 50):
        check(seeded_problem(seed, BALANCED_FAMILIES))


@pytest.mark.parametrize("block", range(5))
def test_attains_the_optimum_of_the_reference_where_copying_would_help(block: int) -> None:
    for seed in range(block * 10, block * 10 + 10):
        for collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
            check(Problem(topology=seeded(seed, (slow_uplinks,), 9), collective=collective))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_attains_the_optimum_of_the_reference_thoroughly(block: int) -> None:
    for seed in range(10**6 + block * 500, 10**6 + block * 500 + 500):
        check(seeded_problem(seed, CONNECTED_FAMILIES))


@pytest.mark.parametrize("block", blocks(10, always=2))
def test_all_reduce(block: int) -> None:
    for seed in range(block * 7, block * 7 + 7):
        topology = seeded(seed, CONNECTED_FAMILIES, 7)
        problem = Problem(topology=topology, collective=Collective.ALL_REDUCE)
        reached = judged_inv_rate(problem, plan_forest(problem))
        assert reached == bound(problem).attainable, describe(topology)
        rate = attainable.all_reduce_rate(network_of(topology))
        assert float(reached) * rate == pytest.approx(1, rel=1e-7), describe(topology)


@pytest.mark.parametrize("block", blocks(10, always=3))
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


FIXED = [(name, int(k)) for name in NAMES for k in ENTRIES[name]["expected"]["fixed_k"]]


@needs_shared
class TestForestOracle:
    @pytest.mark.parametrize("collective", [Collective.ALL_GATHER, Collective.REDUCE_SCATTER], ids=str)
    @pytest.mark.parametrize("name", NAMES)
    def test_attains_the_optimum(self, name: str, collective: Collective) -> None:
        expected = ENTRIES[name]["expected"]
        problem = Problem(topology=oracle_topology(name), collective=collective)
        forest = plan_forest(problem)
        assert judged_inv_rate(problem, forest) == Fraction(expected["inv_x_star"])
        assert forest.total_weight == expected["k"] * problem.topology.num_ranks

    @pytest.mark.parametrize("name", NAMES)
    def test_attains_it_without_the_fast_search(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        problem = Problem(topology=oracle_topology(name), collective=Collective.ALL_GATHER)
        search, flows = _core.pack_trees, []

        def by_splitting(*columns: Any) -> dict[str, Any]:
            found = search(*columns, most_checks=0)
            flows.append(found["stats"]["flows"])
            return found

        monkeypatch.setattr(_core, "pack_trees", by_splitting)
        monkeypatch.setattr(_core, "pack_templates", lambda *_: {"complete": False, "violated": ()})
        assert judged_inv_rate(problem, plan_forest(problem)) == Fraction(
            ENTRIES[name]["expected"]["inv_x_star"]
        )
        assert min(flows) > 0

    @pytest.mark.parametrize("collective", [Collective.BROADCAST, Collective.REDUCE], ids=str)
    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.spread(4)
    def test_attains_the_best_rate_of_every_known_root(self, name: str, collective: Collective) -> None:
        topology = oracle_topology(name)
        for root, rate in ENTRIES[name]["expected"]["broadcast_rate"].items():
            rank = int(topology.rank[topology.node_index[root]])
            problem = Problem(topology=topology, collective=collective, root=rank)
            assert 1 / judged_inv_rate(problem, plan_forest(problem)) == Fraction(rate), f"root {root}"

    @pytest.mark.parametrize("name", NAMES)
    def test_attains_the_optimum_of_all_reduce(self, name: str) -> None:
        expected = ENTRIES[name]["expected"]
        problem = Problem(topology=oracle_topology(name), collective=Collective.ALL_REDUCE)
        reached = judged_inv_rate(problem, plan_forest(problem))
        assert reached == bound(problem).inv_rate
        assert float(1 / reached) == pytest.approx(expected["allreduce_lp_algbw"], abs=6e-7)
        assert 1 / reached >= Fraction(expected["rs_plus_ag_allreduce_algbw"])

    @pytest.mark.parametrize("collective", [Collective.ALL_GATHER, Collective.REDUCE_SCATTER], ids=str)
    @pytest.mark.parametrize("name", NAMES)
    def test_attains_the_optimum_with_unequal_shares(self, name: str, collective: Collective) -> None:
        topology, expected = oracle_topology(name), ENTRIES[name]["expected"]["weighted_roots"]
        weights = tuple(expected["weights"][topology.node_ids[v]] for v in topology.rank_nodes)
        problem = Problem(topology=topology, collective=collective, weights=weights)
        assert judged_inv_rate(problem, plan_forest(problem)) == Fraction(expected["max_w_over_B"])

    @pytest.mark.parametrize(("name", "trees"), FIXED)
    def test_fixed_number_of_trees(self, name: str, trees: int) -> None:
        problem = Problem(topology=oracle_topology(name), collective=Collective.ALL_GATHER)
        network = network_of(problem.topology)
        inv_tree_rate = Fraction(ENTRIES[name]["expected"]["fixed_k"][str(trees)]["U"])
        forest = plan_forest(problem, trees=trees)
        reached = judged_inv_rate(problem, forest)
        per_root = Fraction(forest.total_weight, problem.topology.num_ranks)
        assert (trees / per_root).denominator == 1, f"{per_root} trees per root, {trees} were asked for"
        if floors_stay_balanced(network, inv_tree_rate):
            assert reached == inv_tree_rate / trees
        else:
            assert inv_tree_rate / trees <= reached
        assert reached >= fixed_trees(Network.of(problem), trees).inv_rate


class TestHeights:
    """GPU-to-GPU hops, trees counted by weight; the limits are what the published tool builds, or better."""

    @pytest.mark.parametrize("boxes", [4, 8, 16])
    def test_many_a100_boxes_need_two_hops(self, boxes: int) -> None:
        problem = Problem(topology=resolve("dgx-a100", boxes=boxes), collective=Collective.ALL_GATHER)
        forest = plan_forest(problem)
        assert judged_inv_rate(problem, forest) == Fraction(boxes - 1, 25)
        assert max(heights(forest)) <= 2

    def test_two_a100_boxes(self) -> None:
        forest = plan_forest(Problem(topology=resolve("dgx-a100", boxes=2), collective=Collective.ALL_GATHER))
        assert mean_height(forest) < Fraction(35, 10)

    def test_two_mi250_boxes(self) -> None:
        problem = Problem(topology=resolve("mi250", boxes=2), collective=Collective.ALL_GATHER)
        forest = plan_forest(problem)
        assert judged_inv_rate(problem, forest) == Fraction(15, 166)
        assert mean_height(forest) < Fraction(83, 10)
        assert max(heights(forest)) < 22
        assert forest.num_trees <= 143


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


ARCS = np.array([0, 1], dtype=np.int32)
HEADS = np.array([1, 0], dtype=np.int32)
ONES = np.ones(2, dtype=np.int64)
BOTH = np.ones(2, dtype=np.bool_)
SHORT = {1: HEADS[:1], 2: ONES[:1], 3: ONES[:1], 4: BOTH[:1]}


def calls() -> dict[str, Any]:
    return {
        "violated_cuts": lambda *columns: _core.violated_cuts(2, *columns, 2),
        "cut_bound": lambda *columns: _core.cut_bound(2, *columns),
        "pack_trees": lambda *columns: _core.pack_trees(2, *columns),
    }


@pytest.mark.parametrize("name", sorted(calls()))
@pytest.mark.parametrize("place", sorted(SHORT))
def test_short_columns_are_refused(name: str, place: int) -> None:
    columns: list[Any] = [ARCS, HEADS, ONES, ONES, BOTH]
    calls()[name](*columns)
    columns[place] = SHORT[place]
    with pytest.raises(ValueError, match="entries, found 1"):
        calls()[name](*columns)


def test_templates_refuse_negative_orbits() -> None:
    orbits = np.zeros(2, dtype=np.int32)
    orders, elements = np.array([2], dtype=np.int64), np.array([0, 1], dtype=np.int64)
    arguments: tuple[Any, ...] = (2, ARCS, HEADS, ONES, ONES, BOTH, orders)
    assert _core.pack_templates(*arguments, orbits, elements, orbits)["complete"]
    with pytest.raises(ValueError, match="0 or more"):
        _core.pack_templates(*arguments, orbits, elements, orbits - 1)
    with pytest.raises(ValueError, match="link_orbit must have 2 entries"):
        _core.pack_templates(*arguments, orbits, elements, orbits[:1])
