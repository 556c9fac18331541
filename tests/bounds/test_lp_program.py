"""Exact vertices and duals of small integer programs."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.bounds.lp.certified import certified_multipliers
from coppice.bounds.lp.program import Constraint, LinearProgram
from coppice.bounds.lp.refinement import SquareSystem, from_binary, solve_exactly


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
