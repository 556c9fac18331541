"""The engine of shared memory against the right results: programs, direct collectives, exchanges, groups, bad input."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.planning import plan
from coppice.program.dialects.rank.lower import lower_for_run
from coppice.run.engines.datatype import DataType, ReduceOp, combine
from coppice.run.engines.engine import Engine
from coppice.run.engines.interpreter import interpret
from coppice.run.engines.shared_memory import ShmEngine, directory_exchange, shm_engines, store_exchange
from coppice.run.errors import Mismatch, PeerLost
from coppice.topology.presets import preset
from support.rank_groups import by_engines, in_threads
from support.run_cases import catalogue_bodies
from support.shm_cases import Case, random_case


def on_all(ranks: int, work: Callable[[ShmEngine], Any]) -> list[Any]:
    """What ``work`` gives, or raises, on every rank of a new group."""
    return by_engines(shm_engines(ranks), work)


def same_as_reference(
    body: Any, count: int, *, in_place: bool, piece: int | None, dtype: DataType, op: ReduceOp
) -> None:
    """Programs of all ranks end with the very bits that the interpreter finds."""
    programs = lower_for_run(body, count, in_place=in_place, piece_elements=piece)
    rng = np.random.default_rng(count)
    kind = np.dtype(dtype.numpy_name)

    def fill(elements: int) -> np.ndarray[Any, Any]:
        if dtype is DataType.BFLOAT16:
            return (rng.standard_normal(elements).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return (rng.standard_normal(elements) * 3).astype(kind)

    inputs = [fill(program.input_elements) for program in programs]
    outputs = [fill(program.output_elements) for program in programs]
    found = [output.copy() for output in outputs]
    interpret(programs, inputs, outputs, dtype=dtype, op=op)

    def work(engine: ShmEngine) -> None:
        rank = engine.rank
        engine.run(programs[rank], inputs[rank], found[rank], dtype=dtype, op=op, timeout_s=60)

    assert on_all(len(programs), work) == [None] * len(programs)
    for right, output in zip(outputs, found, strict=True):
        np.testing.assert_array_equal(right.view(np.uint8), output.view(np.uint8))


@pytest.mark.parametrize("ranks", [2, 5, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (3, 8))])
def test_programs_of_every_algorithm(ranks: int) -> None:
    for _, _, body in catalogue_bodies(ranks):
        same_as_reference(
            body, 5 * ranks + 3, in_place=False, piece=None, dtype=DataType.INT32, op=ReduceOp.SUM
        )
        same_as_reference(body, 11 * ranks, in_place=True, piece=2, dtype=DataType.FLOAT32, op=ReduceOp.SUM)


@pytest.mark.parametrize("dtype", DataType)
def test_programs_of_every_type_and_operation(dtype: DataType) -> None:
    body = plan(Problem(topology=preset("ring", gpus=4), collective=Collective.ALL_REDUCE)).plan.body
    for op in ReduceOp:
        if op.serves(dtype):
            same_as_reference(body, 1009, in_place=True, piece=100, dtype=dtype, op=op)


def test_messages_longer_than_their_ring() -> None:
    body = plan(Problem(topology=preset("ring", gpus=4), collective=Collective.ALL_REDUCE)).plan.body
    same_as_reference(body, 2_000_003, in_place=False, piece=None, dtype=DataType.FLOAT32, op=ReduceOp.SUM)


@pytest.mark.parametrize("ranks", range(1, 9))
def test_random_direct_collectives(ranks: int) -> None:
    rng = np.random.default_rng(ranks)
    cases = [random_case(rng, ranks, seed=seed) for seed in range(120)]
    answers = on_all(ranks, lambda engine: [case.direct(engine) for case in cases])
    assert answers == [[True] * len(cases)] * ranks


@settings(max_examples=25, deadline=None)
@given(
    ranks=st.integers(1, 8),
    collective=st.sampled_from(Collective),
    count=st.one_of(st.sampled_from([0, 1, 7, 65537]), st.integers(0, 300_000)),
    dtype=st.sampled_from([DataType.INT8, DataType.FLOAT32, DataType.INT64]),
    in_place=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_direct_collectives_of_any_size(
    ranks: int, collective: Collective, count: int, dtype: DataType, *, in_place: bool, seed: int
) -> None:
    case = Case(
        collective=collective,
        ranks=ranks,
        count=0 if collective is Collective.BARRIER else count,
        dtype=dtype,
        op=ReduceOp.SUM,
        root=seed % ranks if collective.rooted else -1,
        in_place=in_place,
        seed=seed,
    )
    assert on_all(ranks, case.direct) == [True] * ranks


def test_sums_have_the_same_bits_on_all_ranks_and_paths() -> None:
    data = np.random.default_rng(1).standard_normal((5, 40_000)).astype(np.float32)
    right = data[0].copy()
    for row in data[1:]:
        combine(ReduceOp.SUM, DataType.FLOAT32, right, row, right)

    def work(engine: ShmEngine) -> list[bool]:
        same = []
        for count in (100, 1000, 40_000):  # by one wait and by two, by few rounds and by many
            out = np.zeros(count, dtype=np.float32)
            engine.run_direct(
                Collective.ALL_REDUCE,
                data[engine.rank][:count],
                out,
                count=count,
                dtype=DataType.FLOAT32,
                timeout_s=60,
            )
            same.append(out.tobytes() == right[:count].tobytes())
        return same

    assert on_all(5, work) == [[True] * 3] * 5


def test_exchange_takes_any_lengths() -> None:
    words = [b"", b"one", bytes(3_000_000), b"x" * 17]
    for answer in on_all(4, lambda engine: engine.exchange(words[engine.rank])):
        assert answer == words


def test_groups_work_side_by_side() -> None:
    def work(engine: ShmEngine) -> list[bytes]:
        members = [3, 1] if engine.rank % 2 else [0, 2]
        group = engine.subset(members)
        mine = group.exchange(b"%d" % engine.rank)
        return mine + engine.exchange(b"all")

    odd, even = [b"3", b"1"] + [b"all"] * 4, [b"0", b"2"] + [b"all"] * 4
    assert on_all(4, work) == [even, odd, even, odd]


def test_it_is_an_engine() -> None:
    [engine] = shm_engines(1)
    assert isinstance(engine, Engine)
    assert engine.prefers_direct(Collective.ALL_REDUCE, 4)
    engine.close()
    engine.close()
    with pytest.raises(InputError, match="is closed"):
        engine.exchange(b"")


def test_programs_of_different_collectives_are_a_mismatch() -> None:
    body = plan(Problem(topology=preset("ring", gpus=2), collective=Collective.ALL_REDUCE)).plan.body
    short, long = (lower_for_run(body, count, in_place=True) for count in (10, 11))

    def work(engine: ShmEngine) -> None:
        program = (long if engine.rank else short)[engine.rank]
        engine.run(program, None, np.zeros(11), dtype=DataType.FLOAT64, op=ReduceOp.SUM, timeout_s=60)

    for error in on_all(2, work):
        assert isinstance(error, Mismatch | PeerLost)


def test_blocks_that_ranks_cut_differently_are_a_mismatch() -> None:
    """Blocks of equal sum and equal longest length, in another order on one rank."""

    def work(engine: ShmEngine) -> None:
        bounds = [0, 3, 4, 6] if engine.rank == 2 else [0, 2, 3, 6]
        given, output = np.zeros(bounds[engine.rank + 1] - bounds[engine.rank]), np.zeros(6)
        engine.run_direct(
            Collective.ALL_GATHER,
            given,
            output,
            count=6,
            dtype=DataType.FLOAT64,
            op=ReduceOp.SUM,
            root=-1,
            bounds=bounds,
            timeout_s=60,
        )

    errors = on_all(3, work)
    assert all(isinstance(error, Mismatch | PeerLost) for error in errors), errors
    assert any(isinstance(error, Mismatch) for error in errors)


def test_bad_input_sends_nothing() -> None:
    engine = shm_engines(2)[0]
    data = np.zeros(10, dtype=np.float32)

    def direct(given: Any, output: Any, **options: Any) -> None:
        whole: dict[str, Any] = {"count": 10, "dtype": DataType.FLOAT32, "timeout_s": 1.0} | options
        engine.run_direct(Collective.REDUCE, given, output, **({"root": 0} | whole))

    with pytest.raises(InputError, match="found memory for 10: give a longer"):
        direct(data, data, count=11)
    with pytest.raises(InputError, match="expected elements of float64"):
        direct(data, data, dtype=DataType.FLOAT64)
    with pytest.raises(InputError, match="writable"):
        direct(data, np.frombuffer(bytes(40), dtype=np.float32))
    with pytest.raises(InputError, match="expected a root of 0 to 1 for reduce, found 2"):
        direct(data, data, root=2)
    with pytest.raises(InputError, match="expected 3 ascending bounds from 0 to 10"):
        direct(data, data, bounds=[0, 11, 10])
    with pytest.raises(InputError, match="integers or bool for bxor"):
        direct(data, data, op=ReduceOp.BXOR)
    with pytest.raises(InputError, match="count of 0 or more"):
        direct(data, data, count=-1)
    with pytest.raises(InputError, match="at a multiple of 4 bytes"):
        direct(np.zeros(41, dtype=np.uint8)[1:], data)
    body = plan(Problem(topology=preset("ring", gpus=2), collective=Collective.ALL_REDUCE)).plan.body
    program = lower_for_run(body, 10, in_place=True)[1]
    with pytest.raises(InputError, match="expected a program of rank 0 of 2, found one of rank 1 of 2"):
        engine.run(program, None, data, dtype=DataType.FLOAT32, op=ReduceOp.SUM, timeout_s=1)
    with pytest.raises(InputError, match="1 rank or more"):
        shm_engines(0)
    with pytest.raises(InputError, match="with rank 0 in it once"):
        engine.subset([1])


class Store:
    """A store as torch has them, for threads."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key: str) -> bytes:
        with self.changed:
            self.changed.wait_for(lambda: key in self.values, 60)
            return self.values[key]


def test_ranks_that_do_not_fit_together_are_told_so(tmp_path: Any) -> None:
    """Another number of ranks, another version, the same rank twice: an error on every rank."""
    store = Store()

    def connect(rank: int, ranks: int, place: int, change: Callable[[bytes], bytes] = bytes) -> Any:
        meet = store_exchange(store, place, 2, prefix=f"{change}{ranks}")
        try:
            return ShmEngine.connect(rank, ranks, lambda data: meet(change(data)))
        except (Mismatch, InputError) as error:
            return error

    def both(*calls: Callable[[], Any]) -> list[Any]:
        return in_threads(2, lambda place: calls[place]())

    engines = both(lambda: connect(0, 2, 0), lambda: connect(1, 2, 1))
    assert [engine.exchange for engine in engines]
    for engine in engines:
        engine.close()
    store.values.clear()
    for error in both(lambda: connect(0, 2, 0), lambda: connect(0, 2, 1)):
        assert isinstance(error, Mismatch)
        assert "expected rank 1 at place 1 of the exchange, found rank 0" in str(error)
    store.values.clear()
    newer = lambda data: data.replace(b'"layout":1', b'"layout":2')  # noqa: E731
    for error in both(lambda: connect(0, 2, 0, newer), lambda: connect(1, 2, 1, newer)):
        assert "expected layout 1 on rank 0" in str(error)
    assert isinstance(connect(2, 2, 0), InputError)
    assert directory_exchange(tmp_path / "new", 0, 1)(b"alone") == [b"alone"]
