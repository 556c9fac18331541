"""Witnesses: the real ones prove the optimum exactly, and nothing whatever proves more than brute force finds."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from fractions import Fraction
from math import floor

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.bounds import bound
from coppice.bounds.all_reduce import combined_all_reduce
from coppice.bounds.problem import Problem
from coppice.bounds.result import (
    CutFamily,
    LinkLengths,
    LinkRange,
    NodePotential,
    WeightedCut,
    WholeTrees,
    partitioned,
)
from coppice.bounds.tree_optimum import whole_trees_bound
from coppice.collectives import Collective
from coppice.errors import CheckError, InputError
from coppice.planners.algorithms.catalogue import algorithms
from coppice.planners.choice import from_catalogue
from coppice.planners.planning import plan
from coppice.schedule.files.proof_columns import ProofRow, proof_row, read_proof
from coppice.schedule.loads import schedule_loads
from coppice.schedule.schedule import Schedule
from coppice.schedule.verification.proof import check_whole_trees, prove_by_cuts, prove_by_lengths
from coppice.schedule.verification.verify import verify
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.presets import preset
from coppice.topology.symmetry import find_symmetry
from reference.attainable import all_reduce_rate, attainable_rate, sink_sides
from reference.brute_force import all_to_all_rate
from reference.expected import broadcast_view
from reference.fixed_trees import smallest_inv_tree_rate
from reference.network import network_of, supply_of
from reference.strategies import seeded, seeded_problem

ONE, NONE = Fraction(1), Fraction(0)
SLACK = 1 + 1e-6
"""The brute force is a linear program in floats."""


def all_reduce(topology: Topology) -> Problem:
    return Problem(topology=topology, collective=Collective.ALL_REDUCE)


def random_family(choose: random.Random, problem: Problem) -> CutFamily:
    """Any weights on any sets with a rank, and on any nodes without one."""
    topology = problem.topology
    phases = {
        Collective.ALL_REDUCE: (1, 1),
        Collective.REDUCE: (0, 1),
        Collective.REDUCE_SCATTER: (0, 1),
    }.get(problem.collective, (1, 0))

    def weight(phase: int) -> Fraction:
        return phases[phase] * Fraction(choose.randint(0, 4), choose.randint(1, 3))

    cuts = []
    for _ in range(choose.randint(1, 6)):
        nodes = {v for v in range(topology.num_nodes) if choose.random() < 0.4}
        nodes.add(choose.choice(topology.rank_nodes.tolist()))
        cuts.append(WeightedCut(nodes=tuple(sorted(nodes)), broadcast=weight(0), reduce=weight(1)))
    free = np.flatnonzero(topology.rank < 0).tolist()
    potentials = [
        NodePotential(node=v, broadcast=weight(0), reduce=weight(1)) for v in free if choose.random() < 0.6
    ]
    return CutFamily(inv_rate=NONE, cuts=tuple(cuts), potentials=tuple(potentials))


def proved_at_most(found: Fraction | None, best_rate: float) -> bool:
    """The time that is proved is no more than what the best rate takes; None says that it is impossible."""
    if found is None:
        return best_rate < 1e-6
    return float(found) * best_rate <= SLACK


@given(st.integers(0, 10**6))
@settings(max_examples=120, deadline=None)
def test_no_family_of_cuts_proves_more_than_is_true_of_one_phase(seed: int) -> None:
    problem = seeded_problem(seed, most=6)
    family = random_family(random.Random(seed), problem)
    best = attainable_rate(broadcast_view(problem), supply_of(problem))
    assert proved_at_most(prove_by_cuts(problem, family).inv_rate, best)


@given(st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_no_family_of_cuts_proves_more_than_is_true_of_an_all_reduce(seed: int) -> None:
    problem = all_reduce(seeded(seed, most=6))
    family = random_family(random.Random(seed), problem)
    best = all_reduce_rate(network_of(problem.topology))
    assert proved_at_most(prove_by_cuts(problem, family).inv_rate, best)


@given(st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_no_lengths_prove_more_than_is_true_of_an_all_to_all(seed: int) -> None:
    problem = Problem(topology=seeded(seed, most=5), collective=Collective.ALL_TO_ALL)
    choose = random.Random(seed)
    length = tuple(choose.choice((0, 0, 1, 1, 2, 5)) for _ in range(problem.topology.num_links))
    found = prove_by_lengths(problem, LinkLengths(inv_rate=NONE, length=length))
    assert proved_at_most(found.inv_rate, all_to_all_rate(network_of(problem.topology)))


@pytest.mark.parametrize("seed", range(40))
def test_real_witnesses_prove_the_optimum_exactly(seed: int) -> None:
    """All-reduce and all-to-all on every family, and one phase where a switch has more out than in."""
    topology = seeded(seed, most=8)
    for problem in (
        all_reduce(topology),
        Problem(topology=topology, collective=Collective.ALL_TO_ALL),
        seeded_problem(seed, most=8),
    ):
        found = bound(problem)
        if found.proof is None:
            assert found.cut or not found.inv_rate
            continue
        prove = prove_by_lengths if isinstance(found.proof, LinkLengths) else prove_by_cuts
        assert prove(problem, found.proof).inv_rate == found.attainable == found.proof.inv_rate  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(20))
def test_without_time_what_is_said_is_proved_all_the_same(seed: int) -> None:
    topology = seeded(seed, most=8)
    for problem in (all_reduce(topology), Problem(topology=topology, collective=Collective.ALL_TO_ALL)):
        try:
            found = bound(problem, time_limit=0.0)
        except CheckError:  # one phase of it was not bounded in time, and it says so
            continue
        if found.proof is None:
            assert found.cut or not found.inv_rate
            continue
        prove = prove_by_lengths if isinstance(found.proof, LinkLengths) else prove_by_cuts
        proved = prove(problem, found.proof).inv_rate  # type: ignore[arg-type]
        assert proved is not None
        assert proved >= found.inv_rate > 0


@pytest.mark.parametrize("seed", range(30))
def test_plans_that_are_called_optimal_are_proved_to_be(seed: int) -> None:
    for problem in (seeded_problem(seed, most=7), all_reduce(seeded(seed, most=7))):
        result = plan(problem, ring=False)
        assert result.report.bound_proved
        if result.loss == 0:
            assert result.report.optimal
        if result.report.optimal and result.inv_rate:
            assert result.report.proof_in_words.startswith("optimal, proved: no ")


def test_a_family_under_a_symmetry_stands_for_its_images() -> None:
    topology = preset("torus", dims=(3, 3))
    symmetry = find_symmetry(topology)
    assert symmetry.order == 9
    problem = all_reduce(topology)
    one = CutFamily(
        inv_rate=NONE, cuts=(WeightedCut(nodes=(4,), broadcast=ONE, reduce=ONE),), symmetry=symmetry
    )
    images = partitioned([[v] for v in range(9)], [], NONE)
    assert prove_by_cuts(problem, one).inv_rate == prove_by_cuts(problem, images).inv_rate
    assert prove_by_cuts(problem, one).inv_rate == bound(problem).inv_rate
    wrong = symmetry.generators.copy()
    wrong[0] = np.roll(wrong[0], 1)
    with pytest.raises(CheckError):
        prove_by_cuts(problem, replace(one, symmetry=replace(symmetry, generators=wrong)))


@pytest.mark.parametrize("name", ["dgx-a100", "mi250", "pcie-box"])
def test_a_dual_found_with_orbits_proves_the_optimum(name: str) -> None:
    """The linear program has one variable for each orbit; its dual is stored once for all images."""
    problem = all_reduce(preset(name))
    symmetry = find_symmetry(problem.topology)
    assert symmetry.order > 1
    found = combined_all_reduce(problem, symmetry=symmetry, shortcut=False)
    assert found.proof is not None
    assert found.rate is not None
    assert prove_by_cuts(problem, found.proof).inv_rate == 1 / found.rate
    row = msgspec.convert(proof_row(problem.topology, found.proof), ProofRow)
    again = read_proof(problem.topology, row, "plan.json $.bound.proof")
    assert isinstance(again, CutFamily)
    assert again.symmetry is not None
    assert (again.cuts, again.potentials) == (found.proof.cuts, found.proof.potentials)
    assert prove_by_cuts(problem, again).inv_rate == 1 / found.rate


def in_one_box(rates: list[int], *, able: bool) -> Topology:
    nodes = [Node(id=f"g{i}") for i in range(len(rates))]
    nodes.append(Node(id="sw", kind=NodeKind.SWITCH, multicast=able, aggregate=able))
    return Topology.of(
        "box", nodes, [Link(src=f"g{i}", dst="sw", gb_per_s=Fraction(rate)) for i, rate in enumerate(rates)]
    )


def test_a_potential_at_a_switch_that_can_copy_proves_nothing_about_plans_that_copy() -> None:
    problem = all_reduce(in_one_box([3] * 4, able=True))
    family = partitioned([[0], [1], [2], [3]], [NodePotential(node=4, reduce=ONE)], bound(problem).inv_rate)
    assert prove_by_cuts(problem, family).inv_rate == bound(problem).inv_rate == Fraction(1, 2)
    with pytest.raises(CheckError, match="can add"):
        prove_by_cuts(problem, family, helped=True)
    plain, helped = plan(problem, ring=False), plan(problem, in_network=True, ring=False)
    assert (plain.inv_rate, helped.inv_rate) == (Fraction(1, 2), Fraction(1, 3))
    assert "without copying and adding in switches" in plain.report.proof_in_words
    assert helped.report.proof_in_words == "optimal, proved: no schedule is faster"
    borrowed = replace(helped.plan, bound=replace(bound(problem), inv_rate=helped.inv_rate))
    assert "does not hold" in verify(borrowed).failures[0]


WRONG = [
    (CutFamily(inv_rate=ONE, cuts=(WeightedCut(nodes=(4,), broadcast=ONE),)), "holds no rank"),
    (CutFamily(inv_rate=ONE, cuts=(WeightedCut(nodes=(0,), broadcast=-ONE),)), "0 or more"),
    (CutFamily(inv_rate=ONE, cuts=(WeightedCut(nodes=(9,), broadcast=ONE),)), "does not exist"),
    (CutFamily(inv_rate=ONE, cuts=(), potentials=(NodePotential(node=0, reduce=ONE),)), "can add"),
    (CutFamily(inv_rate=ONE, cuts=(), potentials=(NodePotential(node=7, reduce=ONE),)), "does not exist"),
]


@pytest.mark.parametrize(("family", "why"), WRONG)
def test_what_is_no_witness_is_refused(family: CutFamily, why: str) -> None:
    problem = all_reduce(in_one_box([3] * 4, able=False))
    with pytest.raises(CheckError, match=why):
        prove_by_cuts(problem, family)


def test_witnesses_of_other_collectives_are_refused() -> None:
    topology = in_one_box([3] * 4, able=False)
    family = partitioned([[0], [1]], [], ONE)
    with pytest.raises(CheckError, match="does not have"):
        prove_by_cuts(Problem(topology=topology, collective=Collective.ALL_GATHER), family)
    with pytest.raises(CheckError, match="proves nothing"):
        prove_by_cuts(Problem(topology=topology, collective=Collective.ALL_TO_ALL), family)
    with pytest.raises(CheckError, match="prove nothing"):
        prove_by_lengths(all_reduce(topology), LinkLengths(inv_rate=ONE, length=(1,) * 8))
    with pytest.raises(CheckError, match="8 lengths"):
        prove_by_lengths(
            Problem(topology=topology, collective=Collective.ALL_TO_ALL),
            LinkLengths(inv_rate=ONE, length=(1,) * 7),
        )


@pytest.mark.parametrize("seed", range(3))
def test_disjoint_sets_bound_schedules_that_are_no_trees(seed: int) -> None:
    """Disjoint sets, with any weights and potentials, hold for every algorithm of the catalogue."""
    choose = random.Random(seed)
    rates = [choose.randint(1, 5) for _ in range(8)]
    topology = preset("dgx-a100", boxes=2) if seed else in_one_box(rates, able=False)
    problem = all_reduce(topology)
    names = sorted(name for name, collective in algorithms() if collective is Collective.ALL_REDUCE)
    held = 0
    for name in names:
        try:
            body = from_catalogue(problem, name, relay_gpus=True).body
        except InputError:
            continue
        if not isinstance(body, Schedule):
            continue
        time = schedule_loads(body).inv_rate
        for _ in range(10):
            family = random_family(choose, problem)
            colour = [choose.randrange(4) for _ in range(topology.num_nodes)]
            parts = [[v for v in range(topology.num_nodes) if colour[v] == c] for c in range(3)]
            cuts = tuple(
                WeightedCut(nodes=tuple(part), broadcast=cut.broadcast, reduce=cut.reduce)
                for part, cut in zip(parts, family.cuts, strict=False)
                if (topology.rank[part] >= 0).any()
            )
            found = prove_by_cuts(problem, replace(family, cuts=cuts))
            assert found.for_schedules
            assert found.inv_rate is not None
            assert found.inv_rate <= time, name
        held += 1
    assert held > 8


def test_only_disjoint_sets_bind_schedules_of_every_kind() -> None:
    problem = all_reduce(in_one_box([3] * 4, able=False))
    for sets, apart in (([[0], [1, 2]], True), ([[0], [0, 1], [2]], False), ([[0, 1], [1, 2], [3]], False)):
        assert prove_by_cuts(problem, partitioned(sets, [], ONE)).for_schedules == apart
    for name, words in (("dgx-a100", "no schedule is"), ("random-balanced", "no pair of reduce trees and")):
        assert words in plan(all_reduce(preset(name)), ring=False).report.proof_in_words


# Whole trees


@pytest.mark.parametrize("seed", range(60))
def test_the_bound_on_whole_trees_is_proved(seed: int) -> None:
    problem, trees = seeded_problem(seed, most=7), 1 + seed % 3
    found = whole_trees_bound(problem, trees)
    least = smallest_inv_tree_rate(broadcast_view(problem), supply_of(problem), trees=trees)
    assert least is not None
    if not least:
        assert found is None
        return
    assert found is not None
    assert found.inv_rate == least / trees
    check_whole_trees(problem, found)
    with pytest.raises(CheckError, match="not excluded"):
        check_whole_trees(problem, replace(found, inv_rate=found.inv_rate * Fraction(1001, 1000)))


def asymmetric_star(up: list[Fraction], down: list[Fraction]) -> Topology:
    nodes = [*(Node(id=f"g{i}") for i in range(len(up))), Node(id="sw", kind=NodeKind.SWITCH)]
    links = [Link(src=f"g{i}", dst="sw", gb_per_s=rate, duplex=False) for i, rate in enumerate(up)]
    links += [Link(src="sw", dst=f"g{i}", gb_per_s=rate, duplex=False) for i, rate in enumerate(down)]
    return Topology.of("asymmetric star", nodes, links)


def least_with_whole_trees(problem: Problem, trees: int) -> Fraction:
    """The least U for which some whole numbers of trees on the links satisfy all conditions: try them all."""
    network, supply = broadcast_view(problem), supply_of(problem)
    for inv_tree_rate in sorted({m / b for b in network.capacity.values() for m in range(1, 40)}):
        room = {link: floor(inv_tree_rate * b) for link, b in network.capacity.items()}
        wanted = trees * sum(supply.values())
        for values in itertools.product(*(range(min(most, wanted) + 1) for most in room.values())):
            used = dict(zip(room, values, strict=True))
            entering = {
                w: (
                    sum(c for (_, v), c in used.items() if v == w),
                    sum(c for (u, _), c in used.items() if u == w),
                )
                for w in network.switches
            }
            if any(out > into for into, out in entering.values()):
                continue
            if all(
                sum(c for (u, v), c in used.items() if u not in s and v in s)
                >= wanted - trees * sum(supply.get(v, 0) for v in s)
                for s in sink_sides(network)
            ):
                return inv_tree_rate
    raise AssertionError


def test_potentials_prove_what_no_single_cut_proves_about_whole_trees() -> None:
    problem = Problem(topology=asymmetric_star([ONE] * 3, [4 * ONE] * 3), collective=Collective.ALL_GATHER)
    single = whole_trees_bound(problem, 1)
    assert single is not None
    assert single.inv_rate == 1
    assert least_with_whole_trees(problem, 1) == 2
    family = CutFamily(
        inv_rate=NONE,
        cuts=tuple(WeightedCut(nodes=(v,), broadcast=ONE) for v in range(3)),
        potentials=(NodePotential(node=3, broadcast=ONE),),
    )
    proof = WholeTrees(trees=1, inv_rate=2 * ONE, cases=(family,))
    check_whole_trees(problem, proof)
    with pytest.raises(CheckError, match="not excluded"):
        check_whole_trees(problem, replace(proof, inv_rate=Fraction(201, 100)))
    decided = LinkRange(link=0, most=0, below=1, above=2)
    check_whole_trees(problem, replace(proof, cases=(decided, family, family)))
    for wrong, why in (
        ((), "no case"),
        ((decided, family), "later cases"),
        ((replace(decided, below=2), family, family), "two cases of its own"),
        ((replace(decided, above=0), family, family), "later cases"),
        ((family, family), "no case leads to case 1"),
        ((replace(decided, link=6), family, family), "must be about a link"),
    ):
        with pytest.raises(CheckError, match=why):
            check_whole_trees(problem, replace(proof, cases=wrong))


@pytest.mark.parametrize("seed", range(12))
def test_no_cases_prove_more_than_is_true_of_whole_trees(seed: int) -> None:
    choose = random.Random(seed)
    rates = [Fraction(choose.randint(1, 3), choose.randint(1, 2)) for _ in range(6)]
    problem = Problem(topology=asymmetric_star(rates[:3], rates[3:]), collective=Collective.BROADCAST, root=0)
    least = least_with_whole_trees(problem, 2) / 2
    for _ in range(300):
        decided = LinkRange(link=choose.randrange(6), most=choose.randrange(3), below=1, above=2)
        families = [random_family(choose, problem) for _ in range(2)]
        cases = choose.choice([(families[0],), (decided, *families)])
        too_much = least * Fraction(choose.randint(101, 200), 100)
        with pytest.raises(CheckError):
            check_whole_trees(problem, WholeTrees(trees=2, inv_rate=too_much, cases=cases))
