"""Mixed-integer programs: against trying everything, limits, starts, Ctrl-C."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.planners.synthesis.mip import program as module
from coppice.planners.synthesis.mip.program import MixedProgram, SearchLimits


def knapsack(seed: int) -> tuple[MixedProgram, list[int], list[list[int]], list[int]]:
    """Random values, weights in three sacks, and their room."""
    rng = random.Random(seed)
    values = [rng.randint(1, 20) for _ in range(8)]
    weights = [[rng.randint(0, 9) for _ in values] for _ in range(3)]
    rooms = [rng.randint(5, 30) for _ in weights]
    program = MixedProgram()
    columns = [program.column(cost=-float(value), upper=1.0, whole=True) for value in values]
    for row, room in zip(weights, rooms, strict=True):
        program.row({c: float(w) for c, w in zip(columns, row, strict=True) if w}, most=float(room))
    return program, values, weights, rooms


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_finds_what_trying_everything_finds(seed: int) -> None:
    program, values, weights, rooms = knapsack(seed)
    best = max(
        sum(v for v, x in zip(values, chosen, strict=True) if x)
        for chosen in itertools.product((0, 1), repeat=len(values))
        if all(
            sum(w for w, x in zip(row, chosen, strict=True) if x) <= room
            for row, room in zip(weights, rooms, strict=True)
        )
    )
    found = program.solve(SearchLimits())
    assert found.optimal
    assert not found.infeasible
    assert round(-found.objective) == best
    assert found.gap == pytest.approx(0, abs=1e-3)


def test_says_that_there_is_no_solution() -> None:
    program = MixedProgram()
    x = program.column(upper=1.0, whole=True)
    y = program.column(upper=1.0, whole=True)
    program.row({x: 2.0, y: 2.0}, least=1.0, most=1.0)
    found = program.solve(SearchLimits())
    assert found.infeasible
    assert found.values is None
    assert found.gap is None


def test_a_row_is_there_once() -> None:
    program = MixedProgram()
    x, y = program.column(), program.column()
    for terms in ({x: 1.0, y: 2.0}, {y: 2.0, x: 1.0}, {}):
        program.row(terms, most=3.0)
    assert program.num_rows == 1


def test_keeps_a_start_when_there_is_no_time() -> None:
    program, values, *_ = knapsack(1)
    found = program.solve(SearchLimits(seconds=0.0), start=dict.fromkeys(range(len(values)), 0.0))
    assert not found.optimal
    assert not found.interrupted


@pytest.mark.parametrize("known", [True, False])
def test_ctrl_c_gives_the_best_found(monkeypatch: pytest.MonkeyPatch, *, known: bool) -> None:
    program, values, *_ = knapsack(2)
    solve = module.run_interruptibly

    def interrupted(solver: Any) -> None:
        if known:
            solve(solver)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "run_interruptibly", interrupted)
    found = program.solve(SearchLimits())
    assert found.interrupted
    assert not found.optimal
    if known:
        assert found.values is not None
        assert -found.objective == pytest.approx(float(np.array(values) @ found.values.round()))
    else:
        assert found.values is None
