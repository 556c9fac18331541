"""Linear programs behind bounds: exact vertices and duals of small ones, and what forests reach beyond them."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice import _core
from coppice.bounds.attainable import attainable_rate, in_network_bound
from coppice.bounds.lp.program import Constraint, LinearProgram, certified_multipliers
from coppice.bounds.lp.refinement import SquareSystem, from_binary, solve_exactly
from coppice.bounds.network import Network, cut_bound
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import CheckError, InputError, UnreachableError
from coppice.topology.model import Link, Node, NodeKind, Topology
from reference.strategies import topologies


def row(values: list[int], bound: int, *, equal: bool = False) -> Constraint:
    columns = [j for j, value in enumerate(values) if value]
    return Constraint(
        column=np.array(columns, dtype=np.int32),
        value=np.array([values[j] for j in columns], dtype=np.int64),
        bound=bound,
        equal=equal,
    )


def system_of(matrix: np.ndarray, right: list[int]) -> SquareSystem:
    rows, columns = np.nonzero(matrix)
    objects = np.empty(len(right), dtype=object)
    objects[:] = right
    return SquareSystem(row=rows, column=columns, value=matrix[rows, columns], right=objects)


@given(st.integers(1, 6), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_square_systems_are_solved_exactly(size, rng):
    matrix = np.array([[rng.randint(-9, 9) for _ in range(size)] for _ in range(size)], dtype=np.int64)
    if abs(np.linalg.det(matrix)) < 0.5:
        return
    right = [rng.randint(-(10**6), 10**6) for _ in range(size)]
    inverse = np.linalg.inv(matrix.astype(float))
    solution = solve_exactly(system_of(matrix, right), lambda b: inverse @ b)
    assert solution is not None
    for i in range(size):
        assert sum(int(matrix[i, j]) * solution[j] for j in range(size)) == right[i]


def test_large_denominators_need_and_get_more_rounds():
    primes = [9973, 9967, 9949, 9941, 9931, 9929]
    matrix = np.diag(primes) + np.diag([1] * 5, k=1)
    inverse = np.linalg.inv(matrix.astype(float))
    solution = solve_exactly(system_of(matrix, [1] * 6), lambda b: inverse @ b)
    assert solution is not None
    assert solution[0].denominator > 2**70
    assert solve_exactly(system_of(matrix, [1] * 6), lambda b: inverse @ b, max_bits=120) is None


def test_a_wrong_inverse_is_noticed():
    matrix = np.array([[2, 1], [1, 3]])
    assert solve_exactly(system_of(matrix, [1, 1]), lambda b: -b) is None


def test_from_binary_rounds_to_the_simplest_fraction():
    assert from_binary(round(Fraction(2**80) * 22 / 7), 80) == Fraction(22, 7)


def test_vertex_and_dual_agree_with_a_known_optimum():
    program = LinearProgram([3, 2, 4], [None, 5, None])
    program.add_rows([row([1, 1, 2], 4), row([2, 0, 3], 5), row([2, 1, 3], 7)])
    found = program.solve()
    assert found is not None
    assert found.objective == pytest.approx(10.5)
    exact = program.exact_vertex()
    assert exact is not None
    assert exact.objective == Fraction(21, 2)
    assert program.is_feasible(exact.values)
    assert program.dual_bound(exact.multipliers) == exact.objective


def test_equations_and_upper_bounds():
    program = LinearProgram([1, 1, 0], [3, 3, 3])
    program.add_rows([row([1, -1, 0], 0, equal=True), row([0, 3, 1], 7)])
    program.solve()
    exact = program.exact_vertex()
    assert exact is not None
    assert exact.objective == Fraction(14, 3)
    assert exact.values[0] == exact.values[1]


def test_rows_added_later_count():
    program = LinearProgram([1], [None])
    program.add_rows([row([2], 9)])
    assert program.solve().objective == pytest.approx(4.5)
    program.add_rows([row([7], 9)])
    assert program.solve().objective == pytest.approx(9 / 7)
    assert program.exact_vertex().objective == Fraction(9, 7)


def test_unbounded_programs_have_no_optimum():
    program = LinearProgram([1, 1], [None, None])
    program.add_rows([row([1, -1], 1)])
    assert program.solve() is None


def test_infeasible_values_and_useless_multipliers_prove_nothing():
    program = LinearProgram([1], [None])
    program.add_rows([row([2], 9)])
    assert not program.is_feasible([Fraction(5)])
    assert not program.is_feasible([Fraction(-1)])
    assert program.dual_bound([Fraction(1, 3)]) is None
    assert program.dual_bound([Fraction(-1)]) is None
    assert program.dual_bound([Fraction(1)]) == 9


def test_float_multipliers_become_a_proved_bound():
    # maximise x <= 2y, y <= 5 (a capacity row that pays for y)
    program = LinearProgram([1, 0], [None, None])
    program.add_rows([row([0, 1], 5), row([1, -2], 0)])
    for noise in (0.0, 1e-7, -1e-7):
        exact = certified_multipliers(program, np.array([2 + noise, 1 - noise]), payer=[None, 0])
        assert exact is not None
        bound = program.dual_bound(exact)
        assert bound is not None
        assert 10 <= bound < Fraction(10001, 1000)
    assert certified_multipliers(program, np.array([2.0, 0.0]), payer=[None, 0]) is None


def lopsided(*, up: int, down: int, ranks: int = 3, able: bool = False) -> Topology:
    nodes = [*(Node(id=f"g{i}") for i in range(ranks))]
    nodes.append(Node(id="sw", kind=NodeKind.SWITCH, multicast=able, aggregate=able))
    links = [Link(src=f"g{i}", dst="sw", gb_per_s=Fraction(up), duplex=False) for i in range(ranks)]
    links += [Link(src="sw", dst=f"g{i}", gb_per_s=Fraction(down), duplex=False) for i in range(ranks)]
    return Topology.of("star", nodes, links)


@pytest.mark.parametrize(
    ("collective", "up", "down", "expected"),
    [
        (Collective.ALL_GATHER, 1, 4, 2),
        (Collective.ALL_GATHER, 4, 1, 2),
        (Collective.REDUCE_SCATTER, 4, 1, 2),
        (Collective.REDUCE_SCATTER, 1, 4, 2),
    ],
)
def test_star(collective, up, down, expected):
    problem = Problem(topology=lopsided(up=up, down=down), collective=collective)
    assert attainable_rate(problem).inv_rate == expected


@pytest.mark.parametrize("collective", [Collective.BROADCAST, Collective.REDUCE])
def test_rooted(collective):
    up, down = (1, 4) if collective is Collective.BROADCAST else (4, 1)
    problem = Problem(topology=lopsided(up=up, down=down), collective=collective, root=1)
    found = attainable_rate(problem)
    assert found.inv_rate == 1
    check(problem, found.inv_rate, found.capacity)


def test_balanced_switches_take_the_cut_bound_at_once():
    problem = Problem(topology=lopsided(up=2, down=2), collective=Collective.ALL_GATHER)
    found = attainable_rate(problem, time_limit=0.0)
    assert found.inv_rate == cut_bound(Network.of(problem)).inv_rate == 1
    assert found.capacity == [2] * 6


def test_copying_restores_the_cut_bound():
    problem = Problem(topology=lopsided(up=1, down=4, able=True), collective=Collective.ALL_GATHER)
    assert attainable_rate(problem).inv_rate == 2
    assert in_network_bound(problem).inv_rate == cut_bound(Network.of(problem)).inv_rate == 1


def test_without_time_there_is_a_clear_failure():
    problem = Problem(topology=lopsided(up=1, down=4, ranks=16), collective=Collective.ALL_GATHER)
    with pytest.raises(CheckError, match="not proved"):
        attainable_rate(problem, time_limit=0.0)


def test_a_small_network_takes_the_time_that_it_needs():
    problem = Problem(topology=lopsided(up=1, down=4), collective=Collective.ALL_GATHER)
    assert attainable_rate(problem, time_limit=0.0).inv_rate == 2


@pytest.mark.parametrize("collective", [Collective.ALL_REDUCE, Collective.ALL_TO_ALL])
def test_other_collectives_are_refused(collective):
    with pytest.raises(InputError, match=str(collective)):
        attainable_rate(Problem(topology=lopsided(up=1, down=4), collective=collective))


def test_all_to_all_has_no_in_network_bound():
    with pytest.raises(InputError, match="all_to_all"):
        in_network_bound(Problem(topology=lopsided(up=1, down=4), collective=Collective.ALL_TO_ALL))


@given(topologies())
@settings(max_examples=80, deadline=None)
def test_capacities_can_be_packed_and_the_cut_bound_is_no_worse(topology):
    weights = tuple(1 + rank % 3 for rank in range(topology.num_ranks))
    for collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
        problem = Problem(topology=topology, collective=collective, weights=weights)
        try:
            found = attainable_rate(problem)
        except UnreachableError:
            return
        assert found.inv_rate >= cut_bound(Network.of(problem)).inv_rate
        if found.inv_rate:
            check(problem, found.inv_rate, found.capacity)


def check(problem: Problem, inv_rate: Fraction, capacity: list[Fraction]) -> None:
    """Within the links; balanced at switches unless that was free of charge; every cut holds exactly."""
    topology, network = problem.topology, Network.of(problem)
    reverse = problem.collective.reduces
    tail, head = (topology.dst, topology.src) if reverse else (topology.src, topology.dst)
    scale = int(np.lcm.reduce([f.denominator for f in [1 / inv_rate, *capacity]], dtype=object))
    units = np.array([int(f * scale) for f in capacity], dtype=np.int64)
    for e in range(topology.num_links):
        assert 0 <= capacity[e] <= topology.gb_per_s(e)
    supply = network.weight * int(scale / inv_rate)
    cuts = _core.violated_cuts(
        topology.num_nodes, tail, head, units, supply, network.terminal, int(supply.sum()), 1
    )
    assert not cuts
    balance = np.zeros(topology.num_nodes, dtype=np.int64)
    np.add.at(balance, head, units)
    np.subtract.at(balance, tail, units)
    assert (balance[~network.terminal] >= 0).all()
