"""What a plan file proves about forests with a given number of trees: by families of cuts, decisions, and phases."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.bounds.problem import Problem
from coppice.bounds.result import CutFamily, LinkRange
from coppice.bounds.tree_optimum import TreeOptimum
from coppice.collectives import Collective
from coppice.planners.planning import PlannedResult, plan
from coppice.schedule.files.plan_file import decode_plan, encode_plan
from coppice.schedule.verification.report import Report
from coppice.schedule.verification.verify import verify
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.presets import preset
from reference.exact_trees import least_inv_tree_rate, next_lower, whole_trees
from reference.expected import broadcast_view
from reference.fixed_trees import room
from reference.network import supply_of
from reference.strategies import CONNECTED_FAMILIES, problems

NO_PATH = ((1, 3), (2, 4), (0, 1), (5, 6), (2, 5), (4, 6), (0, 3))
"""A directed graph with two arcs out of and into each vertex, and no Hamiltonian path from vertex 0."""


def forwarding_once(following: tuple[tuple[int, ...], ...], *, turned: bool) -> Topology:
    """A GPU and a switch for each vertex: what goes on from a GPU goes through its switch, which has one way in."""
    count = len(following)
    nodes = [Node(id=f"g{v}") for v in range(count)]
    nodes += [Node(id=f"s{v}", kind=NodeKind.SWITCH) for v in range(count)]
    ends = [(f"g{v}", f"s{v}") for v in range(count)]
    ends += [(f"s{v}", f"g{w}") for v in range(count) for w in following[v]]
    links = [
        Link(src=b, dst=a, gb_per_s=Fraction(1), duplex=False)
        if turned
        else Link(src=a, dst=b, gb_per_s=Fraction(1), duplex=False)
        for a, b in ends
    ]
    return Topology.of("forwarding once", nodes, links)


def as_read(result: PlannedResult) -> Report:
    """What the verifier says of the file."""
    return verify(decode_plan(encode_plan(result.plan), name="plan.json"))


def least_inv_rate(problem: Problem, known: TreeOptimum) -> Fraction:
    """The least time per shard with so many trees, by brute force."""
    network, supply = broadcast_view(problem), supply_of(problem)
    reached = known.inv_rate * known.trees
    return least_inv_tree_rate(network, supply, trees=known.trees, reached=reached) / known.trees


def with_bound(result: PlannedResult, **changes: object) -> Report:
    """What the verifier says of the plan with another claim."""
    return verify(replace(result.plan, bound=replace(result.bound, **changes)))  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=[Collective.BROADCAST, Collective.REDUCE])
def decided(request: pytest.FixtureRequest) -> PlannedResult:
    """A plan whose proof has to decide about links: a tree would be a Hamiltonian path."""
    topology = forwarding_once(NO_PATH, turned=request.param is Collective.REDUCE)
    return plan(Problem(topology, request.param, root=0), trees=1, ring=False)


def test_decisions_about_links_are_stored_and_checked(decided: PlannedResult) -> None:
    paths = ((0, *rest) for rest in permutations(range(1, 7)))
    assert not any(all(b in NO_PATH[a] for a, b in pairwise(p)) for p in paths)
    whole = decided.bound.whole_trees
    assert whole is not None
    assert {type(case) for case in whole.cases} == {CutFamily, LinkRange}
    assert whole.inv_rate == decided.inv_rate == 2
    assert as_read(decided).proof_in_words.endswith("; optimal with 1 tree per root, proved")


def test_wrong_decisions_are_refused(decided: PlannedResult) -> None:
    whole = decided.bound.whole_trees
    assert whole is not None
    wrong = [replace(whole, inv_rate=whole.inv_rate * Fraction(1001, 1000))]
    for number, case in enumerate(whole.cases):
        before, after = whole.cases[:number], whole.cases[number + 1 :]
        wrong.append(replace(whole, cases=(*before, *after)))
        if isinstance(case, LinkRange):
            changed = [replace(case, most=case.most + 1), replace(case, below=case.above)]
        else:
            changed = [replace(case, cuts=case.cuts[1:]), replace(case, potentials=())]
        wrong += [replace(whole, cases=(*before, each, *after)) for each in changed]
    refused = [not with_bound(decided, whole_trees=each).ok for each in wrong]
    assert refused[0]
    assert sum(refused) > 0.9 * len(refused)
    for each, is_refused in zip(wrong, refused, strict=True):
        assert is_refused or each.inv_rate <= whole.inv_rate


@settings(max_examples=25)
@given(problem=problems(CONNECTED_FAMILIES, 6), trees=st.integers(1, 4))
def test_a_plan_that_was_solved_to_the_end_is_proved(problem: Problem, trees: int) -> None:
    result = plan(problem, trees=trees, ring=False)
    [known] = result.phases
    assert known.exact
    report = as_read(result)
    assert report.ok
    if not known.inv_rate:
        return
    assert report.whole_trees == trees
    assert report.inv_rate == report.whole_trees_inv_rate == least_inv_rate(problem, known)
    assert report.optimal or report.proof_in_words.endswith("per root, proved")
    assert f"optimal with {trees} tree" in report.proof_in_words or report.optimal


@settings(max_examples=15)
@given(problem=problems(CONNECTED_FAMILIES, 6), percent=st.sampled_from([1, 5, 20]))
def test_the_fewest_trees_are_proved(problem: Problem, percent: int) -> None:
    result = plan(problem, trees=f"auto:{percent}%", ring=False)
    [known] = result.phases
    report = as_read(result)
    assert report.ok
    if not known.inv_rate:
        return
    best = result.bound.attainable or result.bound.inv_rate
    assert report.inv_rate is not None
    assert report.inv_rate <= best * (1 + Fraction(percent, 100))
    if known.trees == 1 or known.trees > 100:
        return
    assert report.fewer_trees_inv_rate is not None
    assert report.fewer_trees_inv_rate > best * (1 + Fraction(percent, 100))
    if known.trees < 8:
        network, supply = broadcast_view(problem), supply_of(problem)
        for trees in range(1, known.trees):
            below = room(network, next_lower(network, report.fewer_trees_inv_rate * trees))
            assert whole_trees(network, supply, below, trees=trees) is None
    fewer = result.bound.fewer_trees
    some = with_bound(result, fewer_trees=fewer[1:])
    assert some.fewer_trees_inv_rate is None
    assert some.proof_in_words.endswith("; that fewer trees will not do is not proved")
    raised = replace(fewer[0], inv_rate=fewer[0].inv_rate * 1000)
    assert not with_bound(result, fewer_trees=(raised, *fewer[1:])).ok


@settings(max_examples=12)
@given(
    problem=problems(CONNECTED_FAMILIES, 5).filter(lambda p: p.collective is Collective.ALL_GATHER),
    trees=st.integers(1, 3),
)
def test_phases_of_an_all_reduce_are_proved(problem: Problem, trees: int) -> None:
    whole = Problem(problem.topology, Collective.ALL_REDUCE)
    result = plan(whole, trees=trees, ring=False)
    report = as_read(result)
    assert report.ok
    if report.whole_trees is None:
        assert not all(known.least for known in result.phases)
        return
    least = [least_inv_rate(*each) for each in zip(whole.phases, result.phases, strict=True)]
    assert report.whole_trees_inv_rate == sum(least) / problem.topology.num_ranks
    both = result.bound.phase_trees
    faster = tuple(replace(each, inv_rate=each.inv_rate * Fraction(1001, 1000)) for each in both)
    assert not with_bound(result, phase_trees=(faster[0], both[1])).ok
    assert not with_bound(result, phase_trees=(both[0], faster[1])).ok
    assert not with_bound(result, phase_trees=both[:1]).ok


def test_what_is_not_proved_of_two_phases_is_told() -> None:
    problem = Problem(preset("mi250", boxes=1), Collective.ALL_REDUCE)
    report = as_read(plan(problem, trees="auto:1%", ring=False))
    words = "optimal, proved: no schedule is faster; that fewer trees will not do is not proved"
    assert report.proof_in_words == words
    assert "fewer" not in as_read(plan(problem, ring=False)).proof_in_words


def test_what_is_too_long_to_store_is_not_claimed(
    decided: PlannedResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coppice.bounds.tree_optimum.MOST_ROWS", 1)
    again = plan(decided.problem, trees=1, ring=False)
    assert again.phases[0].exact
    words = as_read(again).proof_in_words
    assert words == "within 50% of optimal, proved; within 50% of optimal with 1 tree per root, proved"


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_a_bound_on_whole_trees_says_nothing_where_switches_help(collective: str) -> None:
    """With one tree per root of forests without help the best is twice what a switch that copies or adds takes."""
    nodes = [
        *(Node(id=name) for name in "abc"),
        Node(id="s", kind=NodeKind.SWITCH, multicast=True, aggregate=True),
    ]
    up, down = (1, 4) if collective == "all_gather" else (4, 1)
    links = [
        link
        for name in "abc"
        for link in (
            Link(src=name, dst="s", gb_per_s=Fraction(up), duplex=False),
            Link(src="s", dst=name, gb_per_s=Fraction(down), duplex=False),
        )
    ]
    problem = Problem(Topology.of("helped", nodes, links), collective)
    alone, helped = plan(problem, trees=1, ring=False), plan(problem, in_network=True, ring=False)
    assert helped.plan.inv_rate < alone.plan.inv_rate
    report = with_bound(helped, whole_trees=alone.bound.whole_trees)
    assert report.ok, report.failures
    assert report.whole_trees is None
    assert "says nothing about this one" in report.proof_in_words
    assert "per root" not in report.proof_in_words
    wrong = replace(alone.bound.whole_trees, inv_rate=100 * alone.bound.whole_trees.inv_rate)
    assert not with_bound(
        helped, whole_trees=wrong
    ).ok  # what it says of its own class must hold all the same


def test_bounds_on_whole_trees_that_belong_to_other_phases_are_refused() -> None:
    one = plan(Problem(preset("mi250", boxes=1), Collective.ALL_GATHER), trees=1, ring=False)
    twice = (one.bound.whole_trees, one.bound.whole_trees)
    assert not with_bound(one, phase_trees=twice).ok
    assert not with_bound(one, whole_trees=None, fewer_trees=twice).ok


def test_a_bound_on_another_number_of_trees_says_nothing() -> None:
    problem = Problem(preset("mi250", boxes=1), Collective.ALL_GATHER)
    one, two = (plan(problem, trees=trees, ring=False) for trees in (1, 2))
    report = with_bound(two, whole_trees=one.bound.whole_trees)
    assert report.ok
    assert report.whole_trees is None
    assert "per root" not in report.proof_in_words
    assert with_bound(one, whole_trees=two.bound.whole_trees).whole_trees == 2  # each tree twice
