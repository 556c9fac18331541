"""Every collective on topologies of all kinds, by the planner and the catalogue: engines compute what NumPy does."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.collectives import Collective
from coppice.run.check import check_programs
from coppice.run.datatype import DataType
from coppice.run.interpreter import interpret
from coppice.run.numpy_engine import numpy_engines
from coppice.run.shm_engine import shm_engines
from generated_calls import Call, any_call, calls_of

WORKER = Path(__file__).parents[1] / "generated_worker.py"
EVERY_PAIR = len(Collective) * len(DataType)
"""So many successive calls have every collective with every type."""


@st.composite
def generated(draw: st.DrawFn) -> Call:
    return any_call(lambda low, high: draw(st.integers(low, high)))


def in_threads(engines: Sequence[Any], work: Callable[[Any], str]) -> list[Any]:
    """What ``work`` returns or raises on every rank."""
    found: list[Any] = ["hangs"] * len(engines)

    def serve(engine: Any) -> None:
        try:
            found[engine.rank] = work(engine)
        except Exception as error:  # noqa: BLE001  (it is the result)
            found[engine.rank] = error
            engine.close()

    threads = [threading.Thread(target=serve, args=(engine,), daemon=True) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return found


def all_right(engines: Sequence[Any], calls: list[Call], *, direct: bool = False) -> None:
    """One group carries out all calls in turn, without a pause in between."""

    def work(engine: Any) -> str:
        for call in calls:
            if fault := call.run(engine) or (direct and call.direct and call.run_direct(engine)) or "":
                raise AssertionError(fault)
        return "right"

    assert in_threads(engines, work) == ["right"] * len(engines)


@settings(max_examples=60, deadline=None)
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


@pytest.mark.parametrize("ranks", range(1, 9))
def test_one_group_for_many_calls(ranks: int) -> None:
    """Every collective with every type, one after the other over the same channels and slots."""
    all_right(shm_engines(ranks), calls_of(ranks, EVERY_PAIR), direct=True)


def processes_are_right(tmp_path: Path, ranks: int, calls: list[Call]) -> None:
    (tmp_path / "calls").write_bytes(pickle.dumps(calls))
    command = [sys.executable, str(WORKER), "shm", str(tmp_path / "calls"), str(tmp_path)]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(ranks)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONPATH": str(WORKER.parent)},
        )
        for rank in range(ranks)
    ]
    try:
        told = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    number = len(calls) + sum(call.direct for call in calls)
    assert told == [f"{number} calls right\n"] * ranks


def test_processes_share_memory(tmp_path: Path) -> None:
    processes_are_right(tmp_path, 4, calls_of(4, EVERY_PAIR, first=1000))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", range(1, 9))
def test_many_calls_of_processes(tmp_path: Path, ranks: int) -> None:
    processes_are_right(tmp_path, ranks, calls_of(ranks, 10 * EVERY_PAIR, first=2000))
