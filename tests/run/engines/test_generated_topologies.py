"""Every collective on topologies of all kinds, by the planner and the catalogue: engines compute what NumPy does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.run.engines.interpreter import interpret
from coppice.run.engines.numpy import numpy_engines
from coppice.run.engines.shared_memory.engine import shm_engines
from coppice.run.programs.check import check_programs
from support.generated_calls import EVERY_PAIR, Call, any_call, calls_of
from support.rank_groups import by_engines, calls_in_processes


@st.composite
def generated(draw: st.DrawFn) -> Call:
    return any_call(lambda low, high: draw(st.integers(low, high)))


def all_right(engines: Sequence[Any], calls: list[Call], *, direct: bool = False) -> None:
    """One group carries out all calls in turn, without a pause in between."""

    def work(engine: Any) -> str:
        for call in calls:
            if fault := call.run(engine) or (direct and call.direct and call.run_direct(engine)) or "":
                raise AssertionError(fault)
        return "right"

    assert by_engines(engines, work) == ["right"] * len(engines)


@settings(max_examples=25, deadline=None)
@given(generated(), st.integers(0, 100))
def test_programs_in_any_order(call: Call, seed: int) -> None:
    """The interpreter executes rows in random orders that keep to the needs alone."""
    if call.equal_demands:
        check_programs(call.programs, blocks=np.diff(call.edges).tolist())
    buffers = [call.buffers(rank) for rank in range(len(call.programs))]
    inputs, outputs = [given for given, _ in buffers], [output for _, output in buffers]
    interpret(call.programs, inputs, outputs, dtype=call.dtype, op=call.op, seed=seed)
    for rank, (given_, output) in enumerate(buffers):
        assert call.fault(rank, given_, output) == ""


@settings(max_examples=40, deadline=None)
@given(generated())
def test_reference_engine(call: Call) -> None:
    all_right(numpy_engines(len(call.programs)), [call])


@settings(max_examples=60, deadline=None)
@given(generated())
def test_shared_memory(call: Call) -> None:
    all_right(shm_engines(len(call.programs)), [call], direct=True)


@pytest.mark.parametrize(
    "ranks", [1, 2, 3, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 6, 7, 8)), 5]
)
def test_one_group_for_many_calls(ranks: int) -> None:
    """Every collective with every type, one after the other over the same channels and slots."""
    all_right(shm_engines(ranks), calls_of(ranks, EVERY_PAIR), direct=True)


def processes_are_right(tmp_path: Path, ranks: int, calls: list[Call]) -> None:
    number = len(calls) + sum(call.direct for call in calls)
    assert calls_in_processes("shm", calls, ranks, tmp_path) == [f"{number} calls right\n"] * ranks


def test_processes_share_memory(tmp_path: Path) -> None:
    processes_are_right(tmp_path, 4, calls_of(4, EVERY_PAIR, first=1000))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", range(1, 9))
def test_many_calls_of_processes(tmp_path: Path, ranks: int) -> None:
    processes_are_right(tmp_path, ranks, calls_of(ranks, 10 * EVERY_PAIR, first=2000))
