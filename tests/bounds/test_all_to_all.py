"""All-to-all: concurrent flow, its two proofs, the routed schedule, and demands and rates that are far apart."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.bounds import bound
from coppice.bounds.all_to_all import concurrent_flow as module
from coppice.bounds.all_to_all.concurrent_flow import (
    AllToAllBound,
    concurrent_flow,
    demand_matrix,
    trivial_symmetry,
)
from coppice.bounds.all_to_all.distances import distances, integer_lengths, length_bound, proving_cut
from coppice.bounds.all_to_all.routes import link_loads, routes_of_flow
from coppice.bounds.describe import describe_cut
from coppice.bounds.lp.program import Constraint, LinearProgram
from coppice.bounds.lp.refinement import SquareSystem, eliminated
from coppice.bounds.lp.rescaling import rescaled_vertex
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError, UnreachableError
from coppice.planners.flow import plan_all_to_all, routed_schedule
from coppice.planners.planning import plan
from coppice.schedule.verification.transfers import verify_schedule
from coppice.schedule.verification.verify import cut_inv_rate
from coppice.simulation.simulated import simulate_sizes
from coppice.topology import preset, remove_links, resolve, scale_nodes
from coppice.topology.model import Link, Node, NodeKind, Topology
from reference.oracle import ENTRIES, NAMES, oracle_topology
from reference.rational import concurrent_flow_rate
from reference.strategies import topologies
from support.shared_data import needs_shared


def all_to_all(topology: Topology, demands: tuple[tuple[int, ...], ...] | None = None) -> Problem:
    return Problem(topology=topology, collective=Collective.ALL_TO_ALL, demands=demands)


def line(ranks: int, rate: int = 1) -> Topology:
    links = [Link(src=f"g{i}", dst=f"g{i + 1}", gb_per_s=Fraction(rate)) for i in range(ranks - 1)]
    return Topology.of("line", [Node(id=f"g{i}") for i in range(ranks)], links)


def grid(rows: int, columns: int) -> Topology:
    links = []
    for i in range(rows):
        for j in range(columns):
            links.append(Link(src=f"{i},{j}", dst=f"{(i + 1) % rows},{j}", gb_per_s=Fraction(1)))
            links.append(Link(src=f"{i},{j}", dst=f"{i},{(j + 1) % columns}", gb_per_s=Fraction(1)))
    return Topology.of("grid", [Node(id=f"{i},{j}") for i in range(rows) for j in range(columns)], links)


def counted(problem: Problem, length: Sequence[int]) -> Fraction:
    """What lengths prove, per unit of demand."""
    demand, unit = demand_matrix(problem)
    return length_bound(problem.topology, demand, length) * unit


def check(found: AllToAllBound) -> None:
    """The lengths prove the bound, and the schedule does what it must in the time that was said."""
    problem = found.problem
    assert counted(problem, found.length) == found.inv_rate
    assert found.reached >= found.inv_rate
    schedule = routed_schedule(found)
    report = verify_schedule(schedule, demands=problem.demands, claimed=found.reached)
    assert report.ok, report.failures
    assert report.inv_rate == found.reached


@needs_shared
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.spread(3)
def test_oracle(name, symmetric):
    topology = oracle_topology(name)
    found = concurrent_flow(all_to_all(topology), symmetry=None if symmetric else trivial_symmetry(topology))
    assert found.exact
    expected = ENTRIES[name]["expected"]["alltoall_max_concurrent_flow"]
    if expected is not None:
        assert float(1 / found.inv_rate) == pytest.approx(expected, abs=1e-6)
    check(found)


@pytest.mark.parametrize(("rows", "columns", "expected"), [(4, 4, 8), (4, 6, 18), (8, 8, 64)])
def test_torus(rows, columns, expected):
    # the middle cut: rows x columns^2 / 4 pairs each way over 2 rows links
    found = concurrent_flow(all_to_all(grid(rows, columns)))
    assert found.exact
    assert found.inv_rate == expected
    assert len(found.routes) < rows * columns
    check(found)


@pytest.mark.parametrize("boxes", [2, 4, 8])
def test_boxes(boxes):
    # every box sends 8 x 8 (boxes - 1) blocks over 8 NICs of 25 GB/s
    found = concurrent_flow(all_to_all(preset("dgx-a100", boxes=boxes)))
    assert found.exact
    assert found.inv_rate == Fraction(8 * 8 * (boxes - 1), 200)
    check(found)


def test_links_shared_by_many_images_count_each_of_them():
    # six GPUs in a ring, even and odd ones on a hub each; the link between the hubs serves all nine pairs
    nodes = [*(Node(id=f"g{i}") for i in range(6)), *(Node(id=f"h{i}", kind=NodeKind.SWITCH) for i in (0, 1))]
    links = [Link(src=f"g{i}", dst=f"g{(i + 1) % 6}", gb_per_s=Fraction(1)) for i in range(6)]
    links += [Link(src=f"g{i}", dst=f"h{i % 2}", gb_per_s=Fraction(3)) for i in range(6)]
    links.append(Link(src="h0", dst="h1", gb_per_s=Fraction(2)))
    topology = Topology.of("hubs", nodes, links)
    found = concurrent_flow(all_to_all(topology))
    assert found.symmetry.order == 6
    assert found.exact
    assert (
        found.inv_rate == concurrent_flow(all_to_all(topology), symmetry=trivial_symmetry(topology)).inv_rate
    )
    check(found)


@pytest.mark.slow
def test_a_thousand_ranks():
    for topology, expected in (
        (preset("dgx-a100", boxes=128), Fraction(8 * 8 * 127, 200)),
        (grid(32, 32), Fraction(32**3, 8)),
    ):
        found = concurrent_flow(all_to_all(topology))
        assert found.exact
        assert found.inv_rate == expected


@given(topologies(), st.data())
@settings(max_examples=60, deadline=None)
def test_random_demands(topology, data):
    ranks = topology.num_ranks
    row = st.lists(st.integers(0, 9), min_size=ranks, max_size=ranks).map(tuple)
    demands = data.draw(st.lists(row, min_size=ranks, max_size=ranks).map(tuple))
    if not any(map(any, demands)):
        return
    try:
        found = concurrent_flow(all_to_all(topology, demands))
    except UnreachableError:
        return
    assert found.exact
    if found.inv_rate:
        check(found)


@pytest.mark.parametrize("pairs", [0, 2**20])
@given(topology=topologies())
@settings(max_examples=30, deadline=None)
def test_routing_without_linear_programs_has_an_honest_gap(pairs, topology):
    problem = all_to_all(topology)
    try:
        best = concurrent_flow(problem)
    except UnreachableError:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_COLUMNS", 0)
        patch.setattr(module, "_PAIRS", pairs)
        found = concurrent_flow(problem, time_limit=0.2)
    assert found.inv_rate <= best.inv_rate <= found.reached
    check(found)


@given(topologies(), st.data())
@settings(max_examples=30, deadline=None)
def test_paths_carry_any_demands(topology, data):
    ranks = topology.num_ranks
    row = st.lists(st.integers(0, 9), min_size=ranks, max_size=ranks).map(tuple)
    demands = data.draw(st.lists(row, min_size=ranks, max_size=ranks).map(tuple))
    problem = all_to_all(topology, demands)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_COLUMNS", 0)
        try:
            found = concurrent_flow(problem, time_limit=0.1) if any(map(any, demands)) else None
        except UnreachableError:
            return
    if found is not None and found.inv_rate:
        check(found)


UNEQUAL = {
    "torus with lost links": remove_links(grid(6, 8), [("0,0", "0,1"), ("3,3", "4,3"), ("5,6", "5,7")]),
    "boxes with slow NICs": scale_nodes(
        preset("dgx-a100", boxes=6), {f"box{b}/mlx5_{b}": Fraction(3 + b, 9) for b in range(6)}
    ),
}


@pytest.mark.parametrize("name", UNEQUAL)
def test_the_gap_is_below_one_percent_without_symmetry(name, monkeypatch):
    monkeypatch.setattr(module, "_COLUMNS", 0)
    found = concurrent_flow(all_to_all(UNEQUAL[name]))
    assert found.gap < Fraction(1, 100)
    assert "paths" in found.method
    check(found)


def test_the_gap_is_small_on_a_torus(monkeypatch):
    monkeypatch.setattr(module, "_COLUMNS", 0)
    found = concurrent_flow(all_to_all(grid(4, 4)), time_limit=5.0)
    assert found.inv_rate <= 8 <= found.reached
    assert found.gap < Fraction(1, 100)


def test_lengths_of_a_cut_prove_the_cut_bound():
    topology = line(4, rate=2)
    demand = np.ones((4, 4), dtype=np.int64)
    middle = [int({int(a), int(b)} == {1, 2}) for a, b in zip(topology.src, topology.dst, strict=True)]
    assert length_bound(topology, demand, middle) == Fraction(2 * 4, 2 * 2)
    with pytest.raises(InputError, match="lengths"):
        length_bound(topology, demand, [0] * topology.num_links)
    with pytest.raises(InputError, match="lengths"):
        length_bound(topology, demand, [-1] * topology.num_links)


def test_distances_and_float_lengths():
    topology = line(5)
    reach = distances(topology, topology.rank_nodes, np.full(topology.num_links, 3, dtype=np.int64))
    assert reach.tolist() == [[3 * abs(i - j) for j in range(5)] for i in range(5)]
    assert integer_lengths(np.array([0.0, 0.5, 1.0])) == [0, 2**57, 2**58]
    assert integer_lengths(np.zeros(2)) == [1, 1]


def test_a_flow_with_a_cycle_gives_simple_paths():
    topology = grid(3, 3)
    demand = np.zeros(9, dtype=np.int64)
    demand[1] = 2
    flow = [Fraction(0)] * topology.num_links
    cycle = [(0, 1), (0, 2), (2, 1), (3, 4), (4, 5), (5, 3)]
    for a, b in cycle:
        flow[topology.link_index[a, b]] += 1
    routes = routes_of_flow(topology, 0, flow, demand)
    assert sorted(route.nodes for route in routes) == [(0, 1), (0, 2, 1)]
    assert [route.share for route in routes] == [1, 1]
    loads = link_loads(topology, routes, demand)
    assert loads[topology.link_index[0, 1]] == 1
    assert sum(loads) == 3


def test_relays_forward_without_owning_data():
    nodes = [Node(id="a", rank=0), Node(id="r"), Node(id="b", rank=1)]
    links = [Link(src="a", dst="r", gb_per_s=Fraction(2)), Link(src="r", dst="b", gb_per_s=Fraction(2))]
    schedule = plan_all_to_all(all_to_all(Topology.of("relay", nodes, links)))
    assert schedule.num_transfers == 2
    assert verify_schedule(schedule).inv_rate == Fraction(1, 2)


def test_chunks_and_transfers_of_a_line():
    schedule = plan_all_to_all(all_to_all(line(3)))
    assert schedule.chunk_slot.tolist() == [1, 2, 3, 5, 6, 7]
    assert schedule.num_transfers == 8
    assert (np.diff(schedule.chunk_slot) >= 0).all()


def test_one_rank_and_empty_demands():
    found = concurrent_flow(all_to_all(Topology.of("one", [Node(id="a")], [])))
    assert (found.inv_rate, found.reached, found.gap, found.exact) == (0, 0, 0, True)
    assert routed_schedule(found).num_transfers == 0
    local = concurrent_flow(all_to_all(line(2), ((5, 0), (0, 5))))
    assert local.inv_rate == 0


def test_refusals():
    split = Topology.of("split", [Node(id="a"), Node(id="b")], [])
    with pytest.raises(UnreachableError, match="from a to b"):
        concurrent_flow(all_to_all(split))
    with pytest.raises(InputError, match="round them"):
        concurrent_flow(all_to_all(line(2), ((0, 2**62), (1, 0))))
    with pytest.raises(InputError, match="all_gather"):
        concurrent_flow(Problem(topology=line(2), collective=Collective.ALL_GATHER))
    nodes = [*(Node(id=f"g{i}") for i in range(2100)), Node(id="sw", kind=NodeKind.SWITCH)]
    big = Topology.of("big", nodes, [Link(src=f"g{i}", dst="sw", gb_per_s=Fraction(1)) for i in range(2100)])
    with pytest.raises(InputError, match="4,194,304 transfers"):
        plan_all_to_all(all_to_all(big))


def test_a_bound_without_routes_has_no_schedule():
    found = concurrent_flow(all_to_all(line(3)))
    with pytest.raises(InputError, match="far more"):
        routed_schedule(replace(found, routes={}))


@pytest.mark.parametrize(
    ("preset", "boxes", "words"),
    [
        ("dgx-a100", 2, "8 NICs of 25 GB/s: 64 shards over 200 GB/s"),
        ("mi250", 2, "16 links of 16 GB/s to network: 256 shards over 256 GB/s"),
        ("dgx-1v", 1, "2 links of 50 GB/s and 2 links of 25 GB/s: 16 shards over 150 GB/s"),
    ],
)
def test_one_bottleneck_is_found_and_proves_the_bound(preset: str, boxes: int | None, words: str) -> None:
    problem = Problem(topology=resolve(preset, boxes=boxes), collective=Collective.ALL_TO_ALL)
    found = bound(problem)
    assert cut_inv_rate(problem, found.cut) == found.inv_rate
    assert words in describe_cut(found)


def test_no_cut_is_invented() -> None:
    """On a hypercube each link has the same length, and no single bisection is at fault."""
    problem = Problem(topology=resolve("hypercube"), collective=Collective.ALL_TO_ALL)
    found = bound(problem)
    assert found.cut == () or cut_inv_rate(problem, found.cut) == found.inv_rate
    lengths = [1] * problem.topology.num_links
    assert proving_cut(problem, lengths, Fraction(1, 10**6)) == ()


def test_demands_are_counted() -> None:
    topology = resolve("ring", options={"gpus": "4"})
    demands = tuple(tuple(int((i, j) == (0, 2)) for j in range(4)) for i in range(4))
    found = bound(Problem(topology=topology, collective=Collective.ALL_TO_ALL, demands=demands))
    assert found.inv_rate == Fraction(1, 2)
    assert cut_inv_rate(found.problem, found.cut) == Fraction(1, 2)


Demands = tuple[tuple[int, ...], ...]


def network(seed: int) -> tuple[Topology, Demands]:
    """Up to five GPUs and two switches, rates and demands over up to seventeen powers of ten."""
    rng = random.Random(seed)
    gpus = rng.randint(2, 5)
    names = [f"g{i}" for i in range(gpus)] + [f"s{i}" for i in range(rng.randint(0, 2))]
    low, high = rng.choice([(-8, 6), (-3, 3), (0, 0), (-8, -4)])

    def rate() -> Fraction:
        return Fraction(rng.randint(1, 999)) * Fraction(10) ** rng.randint(low, high)

    order = rng.sample(names, len(names))
    links = {}
    both = rng.random() < 0.5
    for a, b in zip(order, [*order[1:], order[0]], strict=True):
        links[a, b] = rate()
        if both:
            links[b, a] = rate()
    for _ in range(rng.randint(0, 5)):
        a, b = rng.sample(names, 2)
        links[a, b] = rate()
    low, high = rng.choice([(-8, 9), (-3, 3), (0, 0), (0, 9)])
    demands = [
        [
            rng.randint(1, 9) * 10 ** (rng.randint(low, high) + 8) if i != j and rng.random() < 0.7 else 0
            for j in range(gpus)
        ]
        for i in range(gpus)
    ]
    demands[0][1] += not any(map(any, demands))
    nodes = [Node(id=name, kind=NodeKind.GPU if name[0] == "g" else NodeKind.SWITCH) for name in names]
    wires = [Link(src=a, dst=b, gb_per_s=rate, duplex=False) for (a, b), rate in links.items()]
    return Topology.of(f"network {seed}", nodes, wires), tuple(map(tuple, demands))


def optimum(topology: Topology, demands: Demands) -> Fraction:
    """Time per unit of demand, by a program over all paths."""
    links = {
        (a, b): topology.gb_per_s(e)
        for e, (a, b) in enumerate(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    }
    nodes = topology.rank_nodes.tolist()
    wanted = {
        (nodes[i], nodes[j]): Fraction(size)
        for i, row in enumerate(demands)
        for j, size in enumerate(row)
        if size and i != j
    }
    return 1 / concurrent_flow_rate(links, wanted)


@pytest.mark.parametrize("first", range(0, 60, 10))
@pytest.mark.spread(2)
def test_demands_and_rates_of_any_size_have_their_exact_optimum(first: int) -> None:
    """The bound is that of the independent program; the plan reaches it as nearly as whole shares allow."""
    for seed in range(first, first + 10):
        topology, demands = network(seed)
        made = plan(Problem(topology, Collective.ALL_TO_ALL, demands=demands), ring=False)
        assert made.bound.inv_rate == optimum(topology, demands), seed
        assert made.report.ok, seed
        assert made.report.bound_proved, seed
        assert 0 <= (made.report.gap or 0) < Fraction(1, 10**9), seed


def test_a_single_large_demand_takes_both_ways_round_a_ring() -> None:
    demands = tuple(tuple(10**9 if (i, j) == (7, 1) else 0 for j in range(8)) for i in range(8))
    made = plan(Problem(preset("ring", gpus=8), Collective.ALL_TO_ALL, demands=demands), ring=False)
    assert made.bound.inv_rate == made.report.inv_rate == 5 * 10**8
    assert made.report.optimal


def test_rates_far_apart() -> None:
    nodes = [Node(id="g0"), Node(id="g1"), Node(id="s0", kind=NodeKind.SWITCH)]
    links = [
        Link(src="g0", dst="s0", gb_per_s=Fraction(1, 10**6)),
        Link(src="s0", dst="g1", gb_per_s=Fraction(10**6)),
    ]
    made = plan(Problem(Topology.of("two", nodes, links), Collective.ALL_TO_ALL), ring=False)
    assert made.report.optimal
    assert made.report.inv_rate == 10**6


@pytest.mark.slow
def test_larger_networks_prove_their_vertices() -> None:
    """Beyond what is small, rounds for what tolerances leave over find bases that prove themselves."""
    for seed in range(6):
        rng = random.Random(seed)
        names = [f"g{i}" for i in range(16)]
        links = {
            pair: Fraction(rng.randint(1, 999)) * Fraction(10) ** rng.randint(-8, 4)
            for i in range(16)
            for pair in ((names[i], names[i - 1]), (names[i - 1], names[i]), tuple(rng.sample(names, 2)))
        }
        wires = [Link(src=a, dst=b, gb_per_s=rate, duplex=False) for (a, b), rate in links.items()]
        topology = Topology.of("sixteen", [Node(id=name) for name in names], wires)
        demands = tuple(
            tuple(0 if i == j else rng.randint(1, 9) * 10 ** rng.randint(0, 12) for j in range(16))
            for i in range(16)
        )
        found = bound(Problem(topology, Collective.ALL_TO_ALL, demands=demands))
        assert found.attainable is not None
        assert found.inv_rate <= found.attainable <= found.inv_rate * (1 + Fraction(1, 10**9)), seed


@pytest.mark.parametrize("unit", [1, 8, 1000, 10**9])
def test_bandwidths_of_demands(unit: int) -> None:
    """Algbw is the sum of the demands over ranks and time, whatever the unit; busbw leaves out what stays at home."""
    topology = preset("dgx-a100", boxes=2)
    plain = bound(Problem(topology, Collective.ALL_TO_ALL))
    for own in (0, 1, 7):
        demands = tuple(tuple(unit * (own if i == j else 1) for j in range(16)) for i in range(16))
        problem = Problem(topology, Collective.ALL_TO_ALL, demands=demands)
        found = bound(problem)
        seconds = found.inv_rate  # of the whole matrix in bytes
        assert found.algbw_gb_per_s == Fraction(16 * unit * (15 + own), 16) / seconds
        assert found.algbw_gb_per_s == Fraction(50 * (15 + own), 16)
        assert found.busbw_gb_per_s == plain.busbw_gb_per_s == Fraction(750, 16)
        made = plan(problem, ring=False).plan
        assert made.algbw_gb_per_s == found.algbw_gb_per_s
        [run] = simulate_sizes(made, [2**26], pieces=4)
        assert run.busbw_gb_per_s == pytest.approx(run.algbw_gb_per_s * 15 / (15 + own))
        assert 0.5 < run.share_of_least <= 1


def test_skewed_demands_reach_the_same_rate_in_any_unit() -> None:
    topology = preset("dgx-1v")
    rng = random.Random(7)
    demands = [[0 if i == j else rng.randint(0, 9) for j in range(8)] for i in range(8)]
    rates = set()
    for unit in (1, 3, 10**6):
        scaled = tuple(tuple(unit * size for size in row) for row in demands)
        made = plan(Problem(topology, Collective.ALL_TO_ALL, demands=scaled), ring=False)
        [run] = simulate_sizes(made.plan, [2**24], pieces=4)
        rates.add((made.bound.algbw_gb_per_s, made.plan.algbw_gb_per_s, run.timeline.time_us))
    assert len(rates) == 1


def test_elimination_solves_what_floats_cannot() -> None:
    system = SquareSystem(
        row=np.array([0, 0, 1, 1]),
        column=np.array([0, 1, 0, 1]),
        value=np.array([10**17, 10**17 - 1, 10**17 + 1, 10**17]),
        right=np.array([1, 0], dtype=object),
    )
    assert eliminated(system) == [10**17, -(10**17) - 1]
    singular = SquareSystem(
        row=np.array([0, 0, 1, 1]),
        column=np.array([0, 1, 0, 1]),
        value=np.array([1, 2, 2, 4]),
        right=np.array([1, 2], dtype=object),
    )
    assert eliminated(singular) is None


def test_rounds_for_what_is_left_over_find_the_basis() -> None:
    """Below every tolerance the first column is worth more; floats alone do not see the second row."""
    program = LinearProgram([10**12, 10**12 - 1], [None, None])
    both = np.array([0, 1], dtype=np.int32)
    program.add_rows(
        [
            Constraint(column=both, value=np.array([1, 1]), bound=10**12),
            Constraint(column=both[:1], value=np.array([10**12]), bound=1),
        ]
    )
    assert program.solve() is not None
    vertex = rescaled_vertex(program)
    assert vertex is not None
    assert vertex.values == [Fraction(1, 10**12), 10**12 - Fraction(1, 10**12)]
