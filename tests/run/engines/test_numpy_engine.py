"""The reference engine: every collective, type and operation against NumPy; every failure ends in an error."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import CheckError, InputError
from coppice.planners.planning import plan
from coppice.program.dialects.rank.lower import lower_for_run
from coppice.program.dialects.rank.program import RankProgram
from coppice.program.dialects.rank.verify import check_programs
from coppice.run.engines.datatype import DataType, ReduceOp, divide, elements_of, from_bfloat16, to_bfloat16
from coppice.run.engines.engine import Engine
from coppice.run.engines.interpreter import interpret
from coppice.run.engines.numpy import NumpyEngine, numpy_engines, run_ranks
from coppice.run.engines.shared_memory import shm_engines
from coppice.run.errors import Mismatch, PeerLost, TimedOut
from support.generated_calls import EVERY_PAIR, Call, any_call, calls_of
from support.rank_groups import by_engines, calls_in_processes
from support.run_cases import Case, case, star


def programs_of(
    collective: Collective, ranks: int, count: int, *, in_place: bool, piece: int | None = None
) -> list[RankProgram]:
    problem = Problem(
        topology=star(ranks), collective=collective, root=ranks // 2 if collective.rooted else None
    )
    body = plan(problem, ring=False).plan.body
    return lower_for_run(body, count, in_place=in_place, piece_elements=piece)


def runner(programs: list[RankProgram], data: Case, dtype: DataType) -> Callable[[NumpyEngine], None]:
    """What each rank does."""

    def work(engine: NumpyEngine) -> None:
        rank = engine.rank
        given, output = data.inputs[rank], data.outputs[rank]
        engine.run(programs[rank], given, output, dtype=dtype, op=ReduceOp.SUM, timeout_s=300)

    return work


@pytest.mark.parametrize("ranks", range(1, 9))
@pytest.mark.parametrize("collective", [each for each in Collective if each is not Collective.BARRIER])
@pytest.mark.spread(3)
def test_collectives_in_threads(collective: Collective, ranks: int) -> None:
    """All types in turn, odd sizes, in place and not."""
    types = list(DataType)
    for number, (count, in_place, piece) in enumerate(
        [(0, False, None), (1, True, None), (7, False, 2), (29, True, 3), (64, False, None)]
    ):
        programs = programs_of(collective, ranks, count, in_place=in_place, piece=piece)
        dtype = types[(5 * ranks + number) % len(types)]
        data = case(programs, dtype=dtype, seed=number)

        assert run_ranks(ranks, runner(programs, data, dtype)) == [None] * ranks
        data.check(programs)


@pytest.mark.parametrize("dtype", DataType)
def test_every_operation_of_every_type(dtype: DataType) -> None:
    for op in ReduceOp:
        for collective in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE):
            programs = programs_of(collective, 4, 11, in_place=False)
            data = case(programs, dtype=dtype, op=op if op.serves(dtype) else ReduceOp.SUM)
            if not op.serves(dtype):
                with pytest.raises(InputError, match="choose another operation"):
                    interpret(programs, data.inputs, data.outputs, dtype=dtype, op=op)
                continue
            interpret(programs, data.inputs, data.outputs, dtype=dtype, op=op, seed=3)
            data.check(programs)


def test_operations_mean_what_numpy_means() -> None:
    """Against NumPy itself, without the project's own arithmetic."""
    rng = np.random.default_rng(5)
    for name, function in (
        ("sum", np.sum),
        ("min", np.min),
        ("max", np.max),
        ("product", np.prod),
        ("avg", np.mean),
        ("band", np.bitwise_and.reduce),
        ("bor", np.bitwise_or.reduce),
        ("bxor", np.bitwise_xor.reduce),
    ):
        integers = name.startswith("b")
        rows = rng.integers(1, 100, (4, 13)) if integers else rng.random((4, 13))
        programs = programs_of(Collective.ALL_REDUCE, 4, 13, in_place=True)
        buffers = [row.copy() for row in rows]
        dtype = DataType.INT64 if integers else DataType.FLOAT64
        interpret(programs, [None] * 4, buffers, dtype=dtype, op=ReduceOp(name))
        for buffer in buffers:
            np.testing.assert_allclose(buffer, function(rows, axis=0), rtol=1e-14)
            np.testing.assert_array_equal(buffer, buffers[0])


def test_bfloat16_rounds_to_nearest_even() -> None:
    values = np.array(
        [1.0, 1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8 - 2**-20, 3.4e38, np.inf, 0.0], dtype=np.float32
    )
    found = from_bfloat16(to_bfloat16(values))
    assert found.tolist() == [1.0, 1.0, 1 + 2**-6, -1 - 2**-7, np.inf, np.inf, 0.0]
    assert np.isnan(from_bfloat16(to_bfloat16(np.array([np.nan], dtype=np.float32))))[0]
    odd_nan = np.array([0x7F800001], dtype=np.uint32).view(np.float32)
    assert np.isnan(from_bfloat16(to_bfloat16(odd_nan)))[0]


def test_averages_of_integers_are_cut_towards_zero() -> None:
    for dtype, values, wanted in (
        (DataType.INT8, [-7, 7, -128, 6], [-2, 2, -42, 2]),
        (DataType.UINT64, [2**64 - 1, 7, 0, 3], [(2**64 - 1) // 3, 2, 0, 1]),
    ):
        array = np.array(values, dtype=dtype.numpy_name)
        divide(dtype, array, 3)
        assert array.tolist() == wanted
    small = np.array([100], dtype=np.int8)
    divide(DataType.INT8, small, 300)  # more ranks than the type holds
    assert small.tolist() == [0]


def test_buffers_of_many_kinds() -> None:
    assert elements_of(memoryview(bytearray(8)), DataType.FLOAT32, 2, name="it", writable=True).tolist() == [
        0,
        0,
    ]
    assert elements_of(np.zeros((2, 3), dtype=np.int16), DataType.INT16, 5, name="it").shape == (5,)
    assert len(elements_of(None, DataType.INT8, 0, name="it")) == 0
    assert elements_of(np.zeros(3, dtype="V2"), DataType.BFLOAT16, 3, name="it").dtype == np.uint16
    for buffer, dtype, words in (
        (None, DataType.INT8, "found none"),
        (np.zeros(8)[::2], DataType.FLOAT64, "contiguous"),
        (b"12345678", DataType.INT8, "writable"),
        (np.zeros(3), DataType.FLOAT32, "found float64"),
        (np.zeros(3, dtype=np.float32), DataType.FLOAT32, "memory for 3"),
    ):
        with pytest.raises(InputError, match=words):
            elements_of(buffer, dtype, 4, name="the output", writable=True)


def test_broken_programs_do_not_hang_the_interpreter() -> None:
    programs = programs_of(Collective.ALL_REDUCE, 3, 9, in_place=True)
    data = case(programs)
    with pytest.raises(InputError, match="for every rank"):
        interpret(programs, data.inputs[:2], data.outputs)
    lost = programs_of(Collective.ALL_REDUCE, 3, 6, in_place=True)
    with pytest.raises(CheckError, match="lower the programs together"):
        interpret([programs[0], lost[1], lost[2]], data.inputs, data.outputs, dtype=DataType.INT64)


def test_engines_are_engines() -> None:
    engine = numpy_engines(1)[0]
    assert isinstance(engine, Engine)
    assert engine.exchange(b"x") == [b"x"]
    engine.close()
    engine.close()
    with pytest.raises(InputError, match="1 rank or more"):
        numpy_engines(0)


def test_exchange_keeps_the_order_of_ranks_and_rounds() -> None:
    def work(engine: NumpyEngine) -> list[list[bytes]]:
        return [engine.exchange(b"%d" % (10 * number + engine.rank) * engine.rank) for number in range(20)]

    for answers in run_ranks(4, work):
        assert answers == [[b"%d" % (10 * number + rank) * rank for rank in range(4)] for number in range(20)]


def survive(action: Any, *, victim: int, timeout_s: float = 600.0, ranks: int = 4) -> list[Any]:
    """What all ranks raise when ``victim`` does ``action`` in place of an all-reduce."""
    programs = programs_of(Collective.ALL_REDUCE, ranks, 12, in_place=True)

    def work(engine: NumpyEngine) -> None:
        if engine.rank == victim:
            action(engine)
            return
        data = np.zeros(12)
        engine.run(
            programs[engine.rank], None, data, dtype=DataType.FLOAT64, op=ReduceOp.SUM, timeout_s=timeout_s
        )

    return run_ranks(ranks, work)


def test_a_rank_that_raises_is_lost_to_all_others() -> None:
    def die(_: NumpyEngine) -> None:
        raise ZeroDivisionError

    begin = time.monotonic()
    found = survive(die, victim=2)
    assert time.monotonic() - begin < 300  # their timeout is 600 s
    assert isinstance(found[2], ZeroDivisionError)
    for rank in (0, 1, 3):
        assert isinstance(found[rank], PeerLost)
        assert "rank" in str(found[rank])


def test_a_rank_that_hangs_is_noticed_after_the_timeout() -> None:
    noticed = threading.Semaphore(0)
    programs = programs_of(Collective.ALL_REDUCE, 4, 12, in_place=True)

    def work(engine: NumpyEngine) -> None:
        if engine.rank == 1:
            for _ in range(3):
                noticed.acquire(timeout=120)
            return
        own, data = programs[engine.rank], np.zeros(12)
        try:
            engine.run(own, None, data, dtype=DataType.FLOAT64, op=ReduceOp.SUM, timeout_s=0.2)
        finally:
            noticed.release()

    found = run_ranks(4, work)
    assert any(isinstance(each, TimedOut) and "waited 0.2 s" in str(each) for each in found)
    assert all(isinstance(found[rank], (TimedOut, PeerLost)) for rank in (0, 2, 3))


def test_a_failure_is_told_to_the_others_at_once() -> None:
    """Also where the rank that failed goes on and does not close its engine."""
    programs = programs_of(Collective.ALL_REDUCE, 4, 12, in_place=True)
    told = threading.Semaphore(0)
    over = threading.Event()

    def work(engine: NumpyEngine) -> str:
        if engine.rank == 1:
            over.wait(300)
            return "silent"
        patience = 0.2 if engine.rank == 0 else 600.0
        try:
            data = np.zeros(12)
            engine.run(
                programs[engine.rank], None, data, dtype=DataType.FLOAT64, op=ReduceOp.SUM, timeout_s=patience
            )
        except (PeerLost, TimedOut) as error:
            told.release()
            if engine.rank == 0:
                for _ in range(3):
                    told.acquire(timeout=300)
                over.set()
            over.wait(300)
            return type(error).__name__
        return "done"

    begin = time.monotonic()
    assert run_ranks(4, work) == ["TimedOut", "silent", "PeerLost", "PeerLost"]
    assert time.monotonic() - begin < 300


def test_a_rank_that_runs_something_else_is_a_mismatch() -> None:
    other = programs_of(Collective.ALL_REDUCE, 4, 24, in_place=True)

    def differ(engine: NumpyEngine) -> None:
        data = np.zeros(24)
        engine.run(other[engine.rank], None, data, dtype=DataType.FLOAT64, op=ReduceOp.SUM, timeout_s=300)

    found = survive(differ, victim=0)
    assert any(isinstance(each, Mismatch) and "elements from rank" in str(each) for each in found)
    assert all(isinstance(each, (Mismatch, PeerLost)) for each in found)


def test_bad_buffers_are_refused_before_anything_is_sent() -> None:
    def wrong(engine: NumpyEngine) -> None:
        program = programs_of(Collective.ALL_REDUCE, 4, 12, in_place=True)[engine.rank]
        with pytest.raises(InputError, match="memory for 5"):
            engine.run(program, None, np.zeros(5), dtype=DataType.FLOAT64, op=ReduceOp.SUM, timeout_s=1)
        with pytest.raises(InputError, match="program of rank"):
            engine.run(
                programs_of(Collective.ALL_REDUCE, 3, 12, in_place=True)[0],
                None,
                np.zeros(12),
                dtype=DataType.FLOAT64,
                op=ReduceOp.SUM,
                timeout_s=1,
            )
        engine.run(program, None, np.zeros(12), dtype=DataType.FLOAT64, op=ReduceOp.SUM, timeout_s=300)

    assert survive(wrong, victim=3) == [None] * 4


def test_barriers_hold_everybody_back() -> None:
    programs = programs_of(Collective.BARRIER, 5, 0, in_place=True)
    arrived: list[int] = []

    def work(engine: NumpyEngine) -> int:
        time.sleep(0.02 * engine.rank)
        arrived.append(engine.rank)
        engine.run(programs[engine.rank], None, None, dtype=DataType.UINT8, op=ReduceOp.SUM, timeout_s=300)
        return len(arrived)

    assert run_ranks(5, work) == [5] * 5


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


@pytest.mark.parametrize("ranks", [1, 2, 3, *(pytest.param(n, marks=pytest.mark.slow) for n in range(4, 9))])
def test_one_group_for_many_calls(ranks: int) -> None:
    """Every collective with every type, one after the other over the same channels and slots."""
    all_right(shm_engines(ranks), calls_of(ranks, EVERY_PAIR), direct=True)


def processes_are_right(tmp_path: Path, ranks: int, calls: list[Call]) -> None:
    number = len(calls) + sum(call.direct for call in calls)
    assert calls_in_processes("shm", calls, ranks, tmp_path) == [f"{number} calls right\n"] * ranks


def test_processes_share_memory(tmp_path: Path) -> None:
    """Some calls; threads do all collectives with all types, and so do many calls of processes."""
    processes_are_right(tmp_path, 4, calls_of(4, EVERY_PAIR // 4, first=1000))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", range(1, 9))
def test_many_calls_of_processes(tmp_path: Path, ranks: int) -> None:
    processes_are_right(tmp_path, ranks, calls_of(ranks, 10 * EVERY_PAIR, first=2000))
