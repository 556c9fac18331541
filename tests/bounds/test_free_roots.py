"""All-reduces with the roots that disjoint sets ask for: the linear program's optimum without the program."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coppice.bounds.all_reduce import combined_all_reduce, two_phase_bound
from coppice.bounds.optimum import bound
from coppice.bounds.partition import free_roots, is_even_both_ways, partition_bound
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.forest.planner import plan_forest
from coppice.schedule.plan import Plan
from coppice.schedule.verification.verify import verify
from coppice.topology import preset, resolve
from coppice.topology.model import Link, Node, Topology
from coppice.topology.operations import remove_links, scale_nodes, set_link_rate


def all_reduce(topology: Topology) -> Problem:
    return Problem(topology=topology, collective=Collective.ALL_REDUCE)


def slow_nic(boxes: int) -> Topology:
    return scale_nodes(resolve("dgx-a100", boxes=boxes), {"box1/nic3": "50%"})


def reached(topology: Topology) -> Fraction:
    """The rate of the plan, which must be the bound and hold."""
    problem = all_reduce(topology)
    found = bound(problem)
    forest = plan_forest(problem, optimum=found)
    report = verify(Plan(problem=problem, inv_rate=found.inv_rate, forest=forest, bound=found))
    assert report.ok, report.failures
    assert report.inv_rate == found.inv_rate == found.attainable
    return 1 / found.inv_rate


class TestOneSlowNic:
    def test_the_slow_box_roots_more(self) -> None:
        """Boxes take in 200 GB/s, the slow one 187.5: with N boxes X = (100 (N - 1) + 93.75) / (N - 1)."""
        for boxes in (3, 4):
            assert reached(slow_nic(boxes)) == (100 * (boxes - 1) + Fraction(375, 4)) / (boxes - 1)

    def test_by_sets_and_not_by_the_program(self) -> None:
        found = combined_all_reduce(all_reduce(slow_nic(4)))
        assert "disjoint sets" in found.method
        assert found.exact
        assert found.broadcast_capacity == found.reduce_capacity
        by_program = combined_all_reduce(all_reduce(slow_nic(4)), shortcut=False)
        assert by_program.rate == found.rate


def ladder(rates: list[int]) -> Topology:
    """A ring of GPUs with a chord across, all links at rates of their own, the same both ways."""
    names = [f"g{i}" for i in range(6)]
    pairs = [*zip(names, names[1:] + names[:1], strict=True), (names[0], names[3])]
    links = [
        Link(src=a, dst=b, gb_per_s=Fraction(rate)) for (a, b), rate in zip(pairs, rates, strict=True) if rate
    ]
    return Topology.of("ladder", [Node(id=name) for name in names], links)


@given(rates=st.lists(st.integers(1, 9), min_size=7, max_size=7))
def test_as_good_as_the_linear_program(rates: list[int]) -> None:
    """Whatever the sets claim to reach is the optimum of the program, and their limit is never below it."""
    topology = ladder(rates)
    best = combined_all_reduce(all_reduce(topology), shortcut=False).rate
    start = two_phase_bound(all_reduce(topology))
    assert start is not None
    assert best is not None
    parts, at_roots = free_roots(topology, start.parts, lambda sets: partition_bound(topology, sets).rate)
    limit = partition_bound(topology, parts).rate
    assert best <= limit <= start.rate
    if at_roots is not None:
        assert sum(at_roots.values()) == limit == best
    assert reached(topology) == best


def test_violated_sets_take_the_place_of_what_they_hold() -> None:
    """The narrow end of a line limits it, which neither its hosts nor all its ranks together do."""
    topology = ladder([1, 9, 9, 9, 9, 1, 9])
    parts, at_roots = free_roots(
        topology, [[0, 1, 2], [3, 4, 5]], lambda sets: partition_bound(topology, sets).rate
    )
    assert at_roots is None or sum(at_roots.values()) == partition_bound(topology, parts).rate


@pytest.mark.parametrize("box", ["dgx-a100", "dgx-h100", "mi300x"])
def test_one_way_losses_are_not_even(box: str) -> None:
    whole = resolve(box, boxes=2)
    link = int((whole.capacity == whole.capacity.min()).nonzero()[0][0])
    ends = whole.node_ids[whole.src[link]], whole.node_ids[whole.dst[link]]
    assert is_even_both_ways(whole)
    assert is_even_both_ways(set_link_rate(whole, *ends, "50%"))
    assert is_even_both_ways(remove_links(whole, [ends]))
    assert not is_even_both_ways(set_link_rate(whole, *ends, "50%", one_way=True))


def test_roots_of_a_single_link() -> None:
    """Two GPUs send each other half of what passes, whoever roots it."""
    pair = preset("path", gpus=2)
    assert reached(pair) == pair.gb_per_s(0)
