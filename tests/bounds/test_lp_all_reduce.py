"""The combined all-reduce: oracle values, conditions for packing, symmetry, disjoint sets."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice import _core
from coppice.bounds import all_reduce as module
from coppice.bounds.all_reduce import combined_all_reduce, is_two_phase_optimal, likely_cuts, two_phase_bound
from coppice.bounds.attainable import in_network_bound
from coppice.bounds.lp import cuts
from coppice.bounds.lp.cuts import CutProgram, TreePhase
from coppice.bounds.network import Network, cut_bound
from coppice.bounds.optimum import bound
from coppice.bounds.partition import free_roots, is_even_both_ways, partition_bound
from coppice.bounds.problem import Problem
from coppice.bounds.result import CombinedAllReduce
from coppice.collectives import Collective
from coppice.errors import InputError, UnreachableError
from coppice.planners.forest.planner import plan_forest
from coppice.schedule.plan import Plan
from coppice.schedule.verification.verify import verify
from coppice.topology import preset, resolve, scale_nodes
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.operations import remove_links, set_link_rate
from coppice.topology.symmetry import find_symmetry
from reference.oracle import ENTRIES, NAMES, oracle_topology
from reference.strategies import topologies
from support.shared_data import needs_shared

WITH_COPIES = [n for n in NAMES if ENTRIES[n]["expected"]["allreduce_lp_in_network_algbw"] is not None]

SWITCH_FREE = [n for n in NAMES if ENTRIES[n]["expected"]["allreduce_nash_williams"] is not None]


def all_reduce(topology: Topology) -> Problem:
    return Problem(topology=topology, collective=Collective.ALL_REDUCE)


def star(rates: list[int], *, able: bool = False) -> Topology:
    nodes = [Node(id=f"g{i}") for i in range(len(rates))]
    nodes.append(Node(id="sw", kind=NodeKind.SWITCH, multicast=able, aggregate=able))
    links = [Link(src=f"g{i}", dst="sw", gb_per_s=Fraction(rate)) for i, rate in enumerate(rates)]
    return Topology.of("star", nodes, links)


def check_packable(topology: Topology, found: CombinedAllReduce, spanning: set[int] = frozenset()) -> None:
    """Links are shared within their capacity, and in both phases the conditions of packing hold exactly."""
    rates = [*found.broadcast_capacity, *found.reduce_capacity, *found.root_rates.values()]
    scale = int(np.lcm.reduce([rate.denominator for rate in rates], dtype=object))
    for e in range(topology.num_links):
        assert found.broadcast_capacity[e] >= 0
        assert found.reduce_capacity[e] >= 0
        assert found.broadcast_capacity[e] + found.reduce_capacity[e] <= topology.gb_per_s(e)
    assert sum(found.root_rates.values()) == found.rate
    supply = np.zeros(topology.num_nodes, dtype=np.int64)
    for rank, rate in found.root_rates.items():
        supply[topology.rank_nodes[rank]] = int(rate * scale)
    for reduce in (False, True):
        tail, head = (topology.dst, topology.src) if reduce else (topology.src, topology.dst)
        able = topology.aggregate if reduce else topology.multicast
        spanned = (topology.rank >= 0) | np.isin(np.arange(topology.num_nodes), list(spanning)) & able
        chosen = found.reduce_capacity if reduce else found.broadcast_capacity
        capacity = np.array([int(rate * scale) for rate in chosen], dtype=np.int64)
        demand = int(supply.sum())
        cuts = _core.violated_cuts(topology.num_nodes, tail, head, capacity, supply, spanned, demand, 1)
        assert not cuts
        balance = np.zeros(topology.num_nodes, dtype=np.int64)
        np.add.at(balance, head, capacity)
        np.subtract.at(balance, tail, capacity)
        assert (balance[~spanned] >= 0).all()


@needs_shared
@pytest.mark.parametrize("shortcut", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_oracle(name, shortcut):
    topology = oracle_topology(name)
    found = combined_all_reduce(all_reduce(topology), shortcut=shortcut)
    assert found.exact
    assert found.rate is not None
    assert float(found.rate) == pytest.approx(ENTRIES[name]["expected"]["allreduce_lp_algbw"], abs=1e-6)
    check_packable(topology, found)


@needs_shared
@pytest.mark.parametrize("name", WITH_COPIES)
def test_in_network_oracle(name):
    topology = oracle_topology(name)
    switches = topology.rank < 0
    topology = replace(topology, multicast=switches, aggregate=switches.copy())
    found = in_network_bound(all_reduce(topology))
    expected = ENTRIES[name]["expected"]["allreduce_lp_in_network_algbw"]
    assert float(1 / found.inv_rate) == pytest.approx(expected, abs=1e-6)
    assert found.copying == found.adding == tuple(np.flatnonzero(switches))


@needs_shared
@pytest.mark.parametrize("name", SWITCH_FREE)
def test_nash_williams(name):
    expected = ENTRIES[name]["expected"]["allreduce_nash_williams"]
    assert combined_all_reduce(all_reduce(oracle_topology(name))).rate == Fraction(expected)


@needs_shared
@pytest.mark.parametrize(
    "name", ["a100x2", "mi250x2", "torus4x4", "dragonfly_3g_2r_2h", "fattree_4x4_2spine_full"]
)
def test_disjoint_sets_prove_two_phase(name):
    assert is_two_phase_optimal(all_reduce(oracle_topology(name)))


@needs_shared
@pytest.mark.parametrize("name", ["path5_hetero", "mixed_nic_speeds", "mesh3x3"])
def test_two_phase_is_not_optimal_where_the_oracle_has_more(name):
    problem = all_reduce(oracle_topology(name))
    assert not is_two_phase_optimal(problem)
    assert combined_all_reduce(problem).rate > Fraction(
        ENTRIES[name]["expected"]["rs_plus_ag_allreduce_algbw"]
    )


@given(topologies())
@settings(max_examples=80, deadline=None)
def test_disjoint_sets_never_promise_too_little(topology):
    problem = all_reduce(topology)
    try:
        found = combined_all_reduce(problem, shortcut=False)
    except UnreachableError:
        return
    assert found.exact
    check_packable(topology, found)
    partition = two_phase_bound(problem)
    assert partition is None or partition.rate >= found.rate
    times = [cut_bound(Network.of(problem, reduce=reduce)).inv_rate for reduce in (False, True)]
    if all(out <= into for out, into in through_switches(topology)):
        assert found.rate >= topology.num_ranks / sum(times)


def through_switches(topology: Topology) -> list[tuple[int, int]]:
    """Both orders of (out, in) at every switch: equal where both hold."""
    into, out = (np.zeros(topology.num_nodes, dtype=np.int64) for _ in range(2))
    np.add.at(into, topology.dst, topology.capacity)
    np.add.at(out, topology.src, topology.capacity)
    pairs = [(int(out[v]), int(into[v])) for v in np.flatnonzero(topology.rank < 0)]
    return pairs + [(b, a) for a, b in pairs]


@given(topologies())
@settings(max_examples=60, deadline=None)
def test_any_disjoint_sets_bound_the_rate(topology):
    try:
        found = combined_all_reduce(all_reduce(topology), shortcut=False)
    except UnreachableError:
        return
    parts = [[int(v)] for v in topology.rank_nodes]
    assert partition_bound(topology, parts).rate >= found.rate
    able = topology.rank < 0
    free = partition_bound(topology, parts, copying=able, adding=able).rate
    assert free >= partition_bound(topology, parts, copying=able).rate >= found.rate


def test_orbits_give_the_same_rate():
    topology = star([5] * 6)
    symmetry = find_symmetry(topology)
    assert symmetry.order == 6
    found = combined_all_reduce(all_reduce(topology), symmetry=symmetry, shortcut=False)
    assert found.exact
    assert found.rate == combined_all_reduce(all_reduce(topology)).rate == 3
    assert set(found.root_rates.values()) == {Fraction(1, 2)}
    check_packable(topology, found)


def test_orbits_of_unequal_links_are_refused():
    topology = star([5, 5, 4])
    wrong = replace(find_symmetry(topology), link_orbit=np.zeros(6, dtype=np.int32))
    with pytest.raises(InputError, match="same rate"):
        combined_all_reduce(all_reduce(topology), symmetry=wrong, shortcut=False)


def test_a_spanned_switch_serves_as_a_terminal():
    topology = star([300] * 8, able=True)
    plain = combined_all_reduce(all_reduce(topology))
    spanned = combined_all_reduce(all_reduce(topology), spanning={8})
    assert plain.rate == Fraction(1200, 7)
    assert spanned.rate == 300
    assert spanned.exact
    check_packable(topology, spanned, {8})
    assert in_network_bound(all_reduce(topology)).inv_rate == Fraction(1, 300)


def test_a_switch_that_only_copies_does_not_help_where_receiving_is_scarce():
    nodes = [*(Node(id=f"g{i}") for i in range(8)), Node(id="sw", kind=NodeKind.SWITCH, multicast=True)]
    topology = Topology.of(
        "star", nodes, [Link(src=f"g{i}", dst="sw", gb_per_s=Fraction(300)) for i in range(8)]
    )
    # each phase still delivers 7 units per unit of data over 8 x 300 GB/s downwards
    assert 1 / in_network_bound(all_reduce(topology)).inv_rate == Fraction(8 * 300, 2 * 7)


def test_nodes_that_cannot_be_spanned_are_refused():
    for v in (0, 8, 99):
        with pytest.raises(InputError, match=f"node {v}"):
            combined_all_reduce(all_reduce(star([3] * 8)), spanning={v})


def test_other_collectives_are_refused():
    with pytest.raises(InputError, match="all_gather"):
        combined_all_reduce(Problem(topology=star([1, 1]), collective=Collective.ALL_GATHER))


def test_one_rank_has_nothing_to_do():
    found = combined_all_reduce(all_reduce(star([3])))
    assert found.rate is None
    assert in_network_bound(all_reduce(star([3]))).inv_rate == 0


def test_without_time_the_bounds_are_still_proved():
    topology = star([3] * 16 + [1])
    found = combined_all_reduce(all_reduce(topology), shortcut=False, time_limit=0.0)
    assert not found.exact
    assert found.rate == Fraction(17, 32)
    assert found.upper is None or found.upper >= 1
    assert "not computed" in found.method


def test_a_small_network_takes_the_time_that_it_needs():
    found = combined_all_reduce(all_reduce(star([3, 3, 3, 1])), time_limit=0.0)
    assert found.exact
    assert found.rate == 1


def test_dual_of_the_cuts_is_reported():
    found = combined_all_reduce(all_reduce(star([3, 3, 3, 1])))
    assert found.proof is not None
    assert found.proof.cuts
    assert all(cut.broadcast + cut.reduce > 0 for cut in found.proof.cuts)
    assert found.proof.inv_rate * found.rate == 1


def injured(boxes: int) -> Topology:
    """DGX A100 boxes, each with a NIC of another rate."""
    topology = preset("dgx-a100", boxes=boxes)
    names = [f"box{b}/mlx5_{b % 8}" for b in range(boxes)]
    return scale_nodes(topology, {name: Fraction(boxes + b, 2 * boxes + 1) for b, name in enumerate(names)})


def program_of(topology: Topology, **options: object) -> CutProgram:
    ranks = topology.rank >= 0
    return CutProgram(
        topology=topology,
        phases=[TreePhase(reverse=reverse, spanned=ranks, balanced=~ranks) for reverse in (False, True)],
        group=topology.rank,
        weight=np.ones(topology.num_nodes, dtype=np.int64),
        **options,
    )


def test_rows_of_the_program_are_short():
    # a cut of one rank, or of all but one, names the links that it cuts and one root, not all the others
    topology = star([3] * 100)
    rows = program_of(topology)._program.rows
    assert sum(len(row.column) <= 3 for row in rows) >= 500
    assert sum(len(row.column) for row in rows) < 20 * topology.num_links


@given(topologies())
@settings(max_examples=30, deadline=None)
def test_guessed_cuts_and_an_interior_start_change_nothing(topology):
    problem = all_reduce(topology)
    try:
        plain = combined_all_reduce(problem, shortcut=False)
    except UnreachableError:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_WORTH_GUESSING", 1)
        patch.setattr(cuts, "_MANY_COLUMNS", 0)
        found = combined_all_reduce(problem, shortcut=False)
    assert found.exact
    assert found.rate == plain.rate
    check_packable(topology, found)


def test_hosts_and_overloaded_sets_are_guessed():
    guessed = likely_cuts(all_reduce(injured(4)))
    boxes = [set(np.flatnonzero(injured(4).host == host)) for host in range(4)]
    assert [set(nodes.tolist()) for nodes in guessed[:4]] == boxes
    assert len(guessed) > 4


def test_unequal_boxes_are_solved_in_a_few_rounds():
    topology = injured(6)
    problem = all_reduce(topology)
    program = program_of(topology, likely=likely_cuts(problem))
    outcome = program.solve()
    assert outcome.rates is not None
    assert outcome.rates.rate / topology.denominator == combined_all_reduce(problem).rate
    assert outcome.rounds < program_of(topology).solve().rounds


@given(topologies())
@settings(max_examples=30, deadline=None)
def test_a_dual_in_floats_proves_no_less_than_the_optimum(topology):
    try:
        two_phase_bound(all_reduce(topology))
    except UnreachableError:
        return
    program = program_of(topology)
    outcome = program.solve()
    upper, _ = program._repaired(program._program.float_multipliers())
    assert outcome.upper is not None
    assert upper is not None
    assert outcome.upper <= upper <= outcome.upper * Fraction(100_001, 100_000)


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
