"""All-to-all whose demands and rates are far apart: the optimum of an independent program in fractions, exactly."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest

from coppice.bounds.lp.program import Constraint, LinearProgram
from coppice.bounds.lp.refinement import SquareSystem, eliminated
from coppice.bounds.lp.rescaling import rescaled_vertex
from coppice.bounds.optimum import bound
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.planning import plan
from coppice.simulation.simulated import simulate_sizes
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.presets import preset
from reference.rational import concurrent_flow_rate

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
def test_the_unit_of_demands_changes_nothing(unit: int) -> None:
    """Equal demands are an all-to-all without demands, in whatever unit and with whatever stays at home."""
    topology = preset("dgx-a100", boxes=2)
    plain = bound(Problem(topology, Collective.ALL_TO_ALL))
    for diagonal in (0, unit, 7 * unit):
        demands = tuple(tuple(diagonal if i == j else unit for j in range(16)) for i in range(16))
        problem = Problem(topology, Collective.ALL_TO_ALL, demands=demands)
        found = bound(problem)
        assert found.algbw_gb_per_s == plain.algbw_gb_per_s == 50
        assert found.busbw_gb_per_s == plain.busbw_gb_per_s
        made = plan(problem, ring=False).plan
        assert made.algbw_gb_per_s == 50
        [run] = simulate_sizes(made, [2**26], pieces=4)
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
