"""Rates that lie many powers of ten apart: a small network is always answered, and in whole numbers."""

from __future__ import annotations

import random

import numpy as np
import pytest

from coppice import _core
from coppice.bounds import Problem, bound
from coppice.bounds.lp.program import Constraint, LinearProgram
from coppice.bounds.lp.simplex import solve_in_integers
from coppice.bounds.max_flow import narrow_cuts
from coppice.collectives import Collective
from coppice.planners.forest.planner import plan_forest
from reference import exact_rates
from reference.expected import broadcast_view, expected_inv_rate
from reference.network import describe, network_of, supply_of
from reference.plans import judged_inv_rate
from reference.strategies import FAMILIES, UNBALANCED_FAMILIES, problem_on, seeded, uneven


def judge(problem: Problem) -> None:
    """The bound is the optimum, in fractions, and the plan has it."""
    found = bound(problem, time_limit=0.0)
    assert found.inv_rate == expected_inv_rate(problem), describe(problem)
    rate = exact_rates.attainable_rate(broadcast_view(problem), supply_of(problem))
    assert found.attainable == (1 / rate if rate else 0) or not found.inv_rate, describe(problem)
    assert judged_inv_rate(problem, plan_forest(problem)) == found.attainable, describe(problem)


def judge_all_reduce(seed: int, most: int) -> None:
    topology = uneven(seeded(seed, UNBALANCED_FAMILIES, most), seed)
    problem = Problem(topology, Collective.ALL_REDUCE)
    found = bound(problem, time_limit=0.0)
    assert found.attainable is not None
    assert found.attainable * exact_rates.all_reduce_rate(network_of(topology)) == 1, describe(topology)
    assert judged_inv_rate(problem, plan_forest(problem)) == found.attainable, describe(topology)


@pytest.mark.parametrize("block", range(3))
def test_attainable_optimum(block: int) -> None:
    for seed in range(block * 25, block * 25 + 25):
        topology = uneven(seeded(seed, UNBALANCED_FAMILIES, 5), seed)
        judge(problem_on(random.Random(f"problem {seed}").randint, topology))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_attainable_optimum_thoroughly(block: int) -> None:
    for seed in range(10**5 + block * 100, 10**5 + block * 100 + 100):
        topology = uneven(seeded(seed, UNBALANCED_FAMILIES, 6), seed)
        judge(problem_on(random.Random(f"problem {seed}").randint, topology))


def test_all_reduce() -> None:
    for seed in range(20):
        judge_all_reduce(seed, 4)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_all_reduce_thoroughly(block: int) -> None:
    for seed in range(10**5 + block * 40, 10**5 + block * 40 + 40):
        judge_all_reduce(seed, 5)


@pytest.mark.parametrize("seed", range(60))
def test_simplex_in_integers_agrees_with_floats(seed: int) -> None:
    draw = random.Random(seed)
    columns = draw.randint(1, 8)
    program = LinearProgram(
        [draw.randint(-2, 5) for _ in range(columns)],
        [draw.choice([None, draw.randint(0, 9)]) for _ in range(columns)],
    )
    rows = []
    for _ in range(draw.randint(1, 10)):
        chosen = sorted(draw.sample(range(columns), draw.randint(1, columns)))
        values = [draw.choice((-2, -1, 1, 1, 2, 3)) for _ in chosen]
        rows.append(
            Constraint(
                column=np.array(chosen, dtype=np.int32),
                value=np.array(values),
                bound=draw.choice((0, 0, draw.randint(0, 9))),
            )
        )
    program.add_rows(rows)
    exact, vertex = solve_in_integers(program), program.solve()
    assert (exact is None) == (vertex is None)
    if exact is not None and vertex is not None:
        assert program.is_feasible(exact.values)
        assert program.dual_bound(exact.multipliers) == exact.objective
        assert float(exact.objective) == pytest.approx(vertex.objective, abs=1e-6)


def test_simplex_in_integers_needs_0_as_a_solution() -> None:
    program = LinearProgram([1], [None])
    program.add_rows([Constraint(column=np.array([0], dtype=np.int32), value=np.array([-1]), bound=-1)])
    with pytest.raises(ValueError, match="b >= 0"):
        solve_in_integers(program)


def test_cuts_in_integers_of_any_size() -> None:
    for seed in range(150):
        topology = seeded(seed, FAMILIES, 9)
        draw = random.Random(seed)
        supply = np.where(topology.rank >= 0, topology.denominator * draw.randint(1, 6), 0).astype(np.int64)
        arguments = topology.num_nodes, topology.src, topology.dst
        native = _core.violated_cuts(
            *arguments, topology.capacity, supply, topology.rank >= 0, int(supply.sum()), topology.num_nodes
        )
        large = 2**70
        found = narrow_cuts(
            topology.num_nodes,
            topology.src.tolist(),
            topology.dst.tolist(),
            [c * large for c in topology.capacity.tolist()],
            [s * large for s in supply.tolist()],
            topology.rank_nodes.tolist(),
            int(supply.sum()) * large,
        )
        assert bool(found) == bool(native), describe(topology)
        capacity = network_of(topology).entering
        for nodes in found:
            inside = int(supply[nodes].sum())
            assert capacity(nodes) * topology.denominator + inside < int(supply.sum()), describe(topology)
