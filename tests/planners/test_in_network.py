"""Plans in which switches copy and add: verified, no slower than without, no faster than the bound allows."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from coppice.bounds import Problem, bound
from coppice.bounds.attainable import in_network_bound, in_network_optimum
from coppice.collectives import Collective
from coppice.errors import InputError, UnreachableError
from coppice.planners.forest.in_network import plan_in_network
from coppice.planners.forest.planner import plan_forest
from coppice.planners.planning import plan
from coppice.schedule.files.plan_file import decode_plan, encode_plan
from coppice.schedule.forest import Forest, Phase
from coppice.schedule.loads import forest_loads
from coppice.schedule.plan import Plan
from coppice.schedule.verification.verify import verify
from coppice.topology import resolve
from coppice.topology.model import Link, Node, NodeKind, Topology
from planners.template_cases import assert_same_columns
from reference.oracle import ENTRIES, NAMES, oracle_topology
from reference.strategies import problem_on, seeded, slow_uplinks, unbalanced
from schedule.builders import slow_verdict
from support.shared_data import needs_shared

TREE_COLLECTIVES = [collective for collective in Collective if collective.made_of_trees]
SWITCHED = [name for name in NAMES if ENTRIES[name]["switches"]]
SOME_SWITCHED = [
    pytest.param(name, marks=[pytest.mark.slow] if at % 3 else []) for at, name in enumerate(SWITCHED)
]


def able(
    topology: Topology, nodes: list[int] | None = None, *, copy: bool = True, add: bool = True
) -> Topology:
    """The topology with some switches (None: all) able to copy and to add."""
    flags = topology.rank < 0
    if nodes is not None:
        flags &= np.isin(np.arange(topology.num_nodes), nodes)
    return replace(topology, multicast=flags & copy, aggregate=flags & add)


@cache
def able_oracle(name: str) -> Topology:
    return able(oracle_topology(name))


def vertices(forest: Forest, phase: Phase) -> set[int]:
    """Nodes where trees of a phase begin, branch or end."""
    rows = forest.tree_phase[forest.edge_tree] == phase
    trees = forest.tree_root[forest.tree_phase == phase]
    return {*trees.tolist(), *forest.edge_src[rows].tolist(), *forest.edge_dst[rows].tolist()}


def check_no_idle_switch(forest: Forest) -> None:
    """A switch that a broadcast tree enters passes the data on; one that a reduce tree leaves was given some."""
    rank = forest.topology.rank
    for tree in range(forest.num_trees):
        ends = [(src, dst) for src, dst, _ in forest.edges(tree)]
        senders, receivers = {src for src, _ in ends}, {dst for _, dst in ends}
        idle = [v for v in senders ^ receivers if rank[v] < 0]
        assert not idle, f"tree {tree} ends or begins at {[forest.topology.node_ids[v] for v in idle]}"


def plain_time(problem: Problem) -> Fraction:
    found = bound(problem)
    return found.inv_rate if found.attainable is None else found.attainable


def checked_time(problem: Problem, forest: Forest) -> Fraction:
    """Time per shard of a plan that has been found right in every respect, and within its limits."""
    topology = problem.topology
    optimum = in_network_optimum(bound(problem))
    inv_rate = forest_loads(forest, problem.weights).inv_rate
    made = Plan(problem=problem, inv_rate=inv_rate, forest=forest, bound=optimum, planner="forest")
    report = verify(made)
    assert report.ok, report.failures
    assert report.inv_rate == inv_rate
    if problem.collective in (Collective.ALL_GATHER, Collective.ALL_REDUCE):
        assert slow_verdict(forest, problem.weights) == (True, inv_rate)
    assert optimum.inv_rate <= inv_rate <= plain_time(problem)
    for phase, flag in ((Phase.BROADCAST, topology.multicast), (Phase.REDUCE, topology.aggregate)):
        used = vertices(forest, phase)
        barred = {v for v in used if topology.rank[v] < 0 and not flag[v]}
        assert not barred, f"{phase.name} trees branch at {[topology.node_ids[v] for v in barred]}"
    check_no_idle_switch(forest)
    again = decode_plan(encode_plan(made), name="plan.json")
    assert verify(again).ok
    return inv_rate


@needs_shared
class TestForestOracle:
    @pytest.mark.parametrize("name", SWITCHED)
    def test_bound_of_all_reduce(self, name: str) -> None:
        problem = Problem(topology=able_oracle(name), collective=Collective.ALL_REDUCE)
        expected = ENTRIES[name]["expected"]["allreduce_lp_in_network_algbw"]
        assert float(1 / in_network_bound(problem).inv_rate) == pytest.approx(expected, abs=6e-7)

    @pytest.mark.parametrize("name", SWITCHED)
    def test_plan_of_all_reduce_lies_between_bound_and_plain_plan(self, name: str) -> None:
        problem = Problem(topology=able_oracle(name), collective=Collective.ALL_REDUCE)
        reached = checked_time(problem, plan_in_network(problem))
        expected = ENTRIES[name]["expected"]
        assert float(1 / reached) <= expected["allreduce_lp_in_network_algbw"] + 6e-7
        assert float(1 / reached) >= expected["allreduce_lp_algbw"] - 6e-7

    @pytest.mark.parametrize("name", SWITCHED)
    def test_all_reduce_reaches_the_bound_almost_everywhere(self, name: str) -> None:
        """Only one entry is known to leave a gap: packing trees with several copying switches is hard."""
        problem = Problem(topology=able_oracle(name), collective=Collective.ALL_REDUCE)
        reached = forest_loads(plan_in_network(problem)).inv_rate
        if name != "rand_eulerian_14_5c_5s":
            assert reached == in_network_bound(problem).inv_rate
        else:
            assert reached < plain_time(problem)

    @pytest.mark.parametrize(
        "collective", [c for c in TREE_COLLECTIVES if c is not Collective.ALL_REDUCE], ids=str
    )
    @pytest.mark.parametrize("name", SWITCHED)
    @pytest.mark.spread(3)
    def test_balanced_switches_gain_nothing_elsewhere(self, name: str, collective: Collective) -> None:
        """Every entry is balanced: what has to cross a cut is the same with copying and without."""
        root = 0 if collective.rooted else None
        problem = Problem(topology=able_oracle(name), collective=collective, root=root)
        assert in_network_bound(problem).inv_rate == plain_time(problem)
        assert checked_time(problem, plan_in_network(problem)) == plain_time(problem)

    @pytest.mark.parametrize("collective", TREE_COLLECTIVES, ids=str)
    @pytest.mark.parametrize("name", SWITCHED)
    @pytest.mark.spread(3)
    def test_without_flags_it_is_the_plain_plan(self, name: str, collective: Collective) -> None:
        root = 0 if collective.rooted else None
        problem = Problem(topology=oracle_topology(name), collective=collective, root=root)
        assert in_network_bound(problem).inv_rate == plain_time(problem)
        assert_same_columns(plan_in_network(problem), plan_forest(problem))

    @pytest.mark.parametrize("name", SWITCHED)
    def test_flags_alone_change_nothing(self, name: str) -> None:
        """Only a plan that is asked for in-network help uses it."""
        for collective in (Collective.ALL_REDUCE, Collective.ALL_GATHER):
            plain = plan_forest(Problem(topology=oracle_topology(name), collective=collective))
            flagged = plan_forest(Problem(topology=able_oracle(name), collective=collective))
            assert_same_columns(plain, flagged)
            for phase in Phase:
                assert all(able_oracle(name).rank[v] >= 0 for v in vertices(flagged, phase))

    @pytest.mark.parametrize("ability", ["copy", "add"])
    @pytest.mark.parametrize("name", SOME_SWITCHED)
    def test_half_of_the_ability(self, name: str, ability: str) -> None:
        topology = able(oracle_topology(name), copy=ability == "copy", add=ability == "add")
        problem = Problem(topology=topology, collective=Collective.ALL_REDUCE)
        reached = checked_time(problem, plan_in_network(problem))
        both = Problem(topology=able_oracle(name), collective=Collective.ALL_REDUCE)
        assert reached >= in_network_bound(both).inv_rate

    @pytest.mark.parametrize("name", SOME_SWITCHED)
    def test_some_switches_only(self, name: str) -> None:
        switches = np.flatnonzero(oracle_topology(name).rank < 0).tolist()
        for seed in range(3):
            chosen = random.Random(seed).sample(switches, len(switches) // 2)
            problem = Problem(topology=able(oracle_topology(name), chosen), collective=Collective.ALL_REDUCE)
            checked_time(problem, plan_in_network(problem))


def star(ranks: int, up: Fraction | int, down: Fraction | int, *, copy: bool, add: bool) -> Topology:
    hub = Node(id="hub", kind=NodeKind.SWITCH, multicast=copy, aggregate=add)
    links = []
    for i in range(ranks):
        links.append(Link(src=f"g{i}", dst="hub", gb_per_s=Fraction(up), duplex=False))
        links.append(Link(src="hub", dst=f"g{i}", gb_per_s=Fraction(down), duplex=False))
    return Topology.of("star", [*(Node(id=f"g{i}") for i in range(ranks)), hub], links)


class TestSwitchesShortOfInput:
    """A switch that sends more than it gets has nothing to send unless it copies (or adds, the other way)."""

    @pytest.mark.parametrize("ranks", [2, 3, 5, 8])
    def test_all_gather(self, ranks: int) -> None:
        flagged = star(ranks, 1, ranks - 1, copy=True, add=False)
        problem = Problem(topology=flagged, collective=Collective.ALL_GATHER)
        assert plain_time(problem) == ranks - 1
        assert in_network_bound(problem).inv_rate == 1
        forest = plan_in_network(problem)
        assert checked_time(problem, forest) == 1
        assert (flagged.num_nodes - 1 in vertices(forest, Phase.BROADCAST)) == (ranks > 2)
        plain = Problem(
            topology=star(ranks, 1, ranks - 1, copy=False, add=True), collective=Collective.ALL_GATHER
        )
        assert checked_time(plain, plan_in_network(plain)) == ranks - 1

    @pytest.mark.parametrize("ranks", [2, 3, 5, 8])
    def test_reduce_scatter(self, ranks: int) -> None:
        flagged = star(ranks, ranks - 1, 1, copy=False, add=True)
        problem = Problem(topology=flagged, collective=Collective.REDUCE_SCATTER)
        assert plain_time(problem) == ranks - 1
        forest = plan_in_network(problem)
        assert checked_time(problem, forest) == in_network_bound(problem).inv_rate == 1
        assert (flagged.num_nodes - 1 in vertices(forest, Phase.REDUCE)) == (ranks > 2)
        plain = Problem(
            topology=star(ranks, ranks - 1, 1, copy=True, add=False), collective=Collective.REDUCE_SCATTER
        )
        assert checked_time(plain, plan_in_network(plain)) == ranks - 1

    def test_unequal_shares(self) -> None:
        topology = star(3, 1, 2, copy=True, add=False)
        problem = Problem(topology=topology, collective=Collective.ALL_GATHER, weights=(1, 0, 3))
        # g2 sends 3 shares at rate 1; without copies, 1 + 1 + 3 + 3 shares come in over 2 of the 3 links
        assert checked_time(problem, plan_in_network(problem)) == 3

    @pytest.mark.parametrize("ranks", [2, 4])
    def test_broadcast_and_reduce(self, ranks: int) -> None:
        for collective, up, down in ((Collective.BROADCAST, 1, 3), (Collective.REDUCE, 3, 1)):
            problem = Problem(
                topology=star(ranks, up, down, copy=True, add=True), collective=collective, root=1
            )
            assert checked_time(problem, plan_in_network(problem)) == 1


class TestAllReduce:
    @pytest.mark.parametrize("ranks", [2, 3, 8])
    def test_star_runs_at_the_rate_of_a_link(self, ranks: int) -> None:
        problem = Problem(topology=star(ranks, 5, 5, copy=True, add=True), collective=Collective.ALL_REDUCE)
        assert checked_time(problem, plan_in_network(problem)) == Fraction(1, 5)
        assert plain_time(problem) == Fraction(2 * (ranks - 1), 5 * ranks)

    def test_only_a_switch_that_can_is_used(self) -> None:
        """Two planes, one with an adding and copying switch and one without."""
        nodes = [Node(id=f"g{i}") for i in range(4)]
        nodes += [
            Node(id="smart", kind=NodeKind.SWITCH, multicast=True, aggregate=True),
            Node(id="dull", kind=NodeKind.SWITCH),
        ]
        links = [
            Link(src=f"g{i}", dst=plane, gb_per_s=Fraction(10))
            for i in range(4)
            for plane in ("smart", "dull")
        ]
        problem = Problem(topology=Topology.of("planes", nodes, links), collective=Collective.ALL_REDUCE)
        forest = plan_in_network(problem)
        # apart, the planes run at 10 and 10 / (2 * 3 / 4); every tree spans the switch, which costs a part of it
        assert in_network_bound(problem).inv_rate == Fraction(3, 50)
        assert checked_time(problem, forest) <= Fraction(1, 15) < plain_time(problem)
        for phase in Phase:
            assert 4 in vertices(forest, phase)
            assert 5 not in vertices(forest, phase)

    def test_butterfly_leaves_a_gap_that_is_stated(self) -> None:
        """The bound of the butterfly is 2, and no packing of trees does better than 3/2."""
        names = {"s": NodeKind.GPU, "a": NodeKind.SWITCH, "b": NodeKind.SWITCH, "c": NodeKind.SWITCH}
        nodes = [
            Node(id=v, kind=kind, multicast=kind is NodeKind.SWITCH)
            for v, kind in [*names.items(), ("d", NodeKind.SWITCH), ("x", NodeKind.GPU), ("y", NodeKind.GPU)]
        ]
        wires = ["sa", "sb", "ax", "by", "ac", "bc", "cd", "dx", "dy", "xs", "ys"]
        links = [Link(src=a, dst=b, gb_per_s=Fraction(1), duplex=False) for a, b in wires]
        problem = Problem(
            topology=Topology.of("butterfly", nodes, links), collective=Collective.BROADCAST, root=0
        )
        assert in_network_bound(problem).inv_rate == Fraction(1, 2)
        reached = checked_time(problem, plan_in_network(problem))
        assert reached >= Fraction(2, 3)
        result = plan(problem, in_network=True, ring=False)
        assert result.inv_rate == reached
        assert result.loss == 1 - Fraction(1, 2) / reached


def random_able(seed: int) -> Topology:
    """A small random topology with switches that copy or add here and there."""
    choose = random.Random(f"abilities {seed}")
    topology = seeded(seed, (slow_uplinks, unbalanced), 8)
    nodes = [
        replace(node, multicast=choose.random() < 0.6, aggregate=choose.random() < 0.6)
        if node.kind is NodeKind.SWITCH
        else node
        for node in topology.nodes()
    ]
    return Topology.of(topology.name, nodes, topology.links())


def check_random(seed: int) -> None:
    topology = random_able(seed)
    problem = problem_on(random.Random(seed).randint, topology)
    if problem.collective is Collective.ALL_TO_ALL:
        problem = Problem(topology=topology, collective=Collective.ALL_GATHER)
    for tried in (problem, Problem(topology=topology, collective=Collective.ALL_REDUCE)):
        checked_time(tried, plan_in_network(tried))


@pytest.mark.parametrize("block", range(2))
def test_random_topologies(block: int) -> None:
    for seed in range(block * 12, block * 12 + 12):
        check_random(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_random_topologies_thoroughly(block: int) -> None:
    for seed in range(10**6 + block * 100, 10**6 + block * 100 + 100):
        check_random(seed)


class TestFrontDoor:
    def test_plan_prints_both_numbers(self) -> None:
        topology = able(resolve("dgx-a100", boxes=2))
        result = plan(
            Problem(topology=topology, collective=Collective.ALL_REDUCE), in_network=True, ring=False
        )
        assert result.algbw_gb_per_s == 200
        assert result.loss == 0
        assert result.report.ok
        assert result.bound.alternatives["without in-network"] == Fraction(3, 520)
        assert result.record()["alternatives"]["without in-network"] == "3/520"

    def test_plan_where_only_some_switches_make_up_for_missing_input(self) -> None:
        """The bound is then above what the cut proves, and is not said to follow from it."""
        problem = Problem(topology=star(3, 1, 2, copy=False, add=True), collective=Collective.ALL_GATHER)
        result = plan(problem, in_network=True, ring=False)
        assert result.report.ok
        assert result.inv_rate == result.bound.inv_rate == 2
        assert result.bound.cut == ()

    def test_dgx_h100_boxes(self) -> None:
        problem = Problem(topology=able(resolve("dgx-h100", boxes=2)), collective=Collective.ALL_REDUCE)
        assert checked_time(problem, plan_in_network(problem)) == in_network_bound(problem).inv_rate

    def test_refusals(self) -> None:
        box = star(3, 1, 1, copy=True, add=True)
        with pytest.raises(InputError, match="all_to_all"):
            plan_in_network(Problem(topology=box, collective=Collective.ALL_TO_ALL))
        with pytest.raises(InputError, match="`in_network`"):
            plan(Problem(topology=box, collective=Collective.ALL_REDUCE), in_network=True, trees=2)
        lonely = Topology.of("lonely", [*box.nodes(), Node(id="g3", rank=3)], box.links())
        with pytest.raises(UnreachableError):
            plan_in_network(Problem(topology=lonely, collective=Collective.ALL_REDUCE))

    def test_one_rank_has_nothing_to_do(self) -> None:
        problem = Problem(topology=star(1, 1, 1, copy=True, add=True), collective=Collective.ALL_REDUCE)
        assert plan_in_network(problem).num_edges == 0
