"""The engine over gloo: right results for every collective, type and count; errors on every rank. Ranks are threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed (TORCH=0)")
import torch

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.planning import plan
from coppice.program.dialects.rank.lower import lower_for_run
from coppice.program.dialects.rank.program import RankProgram
from coppice.run.bench.measuring import Native
from coppice.run.communicator.communicator import Communicator
from coppice.run.engines.datatype import DataType, ReduceOp
from coppice.run.engines.engine import Engine, GroupingEngine
from coppice.run.engines.torch.engine import TorchEngine
from coppice.run.engines.torch.tensors import run_steps
from coppice.run.errors import Mismatch, PeerLost, RunError, TimedOut
from coppice.topology.presets import preset
from support.generated_calls import EVERY_PAIR, calls_of
from support.rank_groups import calls_in_processes, in_threads
from support.run_cases import Case, case

MOVES = [each for each in Collective if each is not Collective.BARRIER]


def together(ranks: int, work: Callable[[TorchEngine], Any], *, timeout_s: float = 300.0) -> list[Any]:
    """What ``work`` returns or raises on every rank of a new group."""
    store = torch.distributed.HashStore()

    def serve(rank: int) -> Any:
        engine = TorchEngine(store, rank, ranks, exchange_timeout_s=timeout_s)
        try:
            engine.exchange(b"")  # nobody leaves before all have come
            return work(engine)
        finally:
            engine.close()

    return in_threads(ranks, serve)


def programs_of(
    collective: Collective, ranks: int, count: int, *, in_place: bool, piece: int | None, ring: bool
) -> list[RankProgram]:
    topology = preset("ring" if ring and ranks > 2 else "star", gpus=ranks)
    root = ranks // 2 if collective.rooted else None
    body = plan(Problem(topology=topology, collective=collective, root=root), ring=False)
    return lower_for_run(body.plan.body, count, in_place=in_place, piece_elements=piece)


CASES = [(0, False, None), (1, True, None), (7, False, 2), (61, True, 3), (301, False, 5)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
@pytest.mark.spread(2)
def test_every_collective_in_turn(ranks: int) -> None:
    """Types in turn, odd sizes, in place and not, whole chunks and many pieces."""
    types = list(DataType)
    runs: list[tuple[list[RankProgram], Case, DataType]] = []
    for place, collective in enumerate(MOVES):
        for number, (count, in_place, piece) in enumerate(CASES):
            ring = number % 2 == 0
            programs = programs_of(collective, ranks, count, in_place=in_place, piece=piece, ring=ring)
            dtype = types[(5 * ranks + place + number) % len(types)]
            runs.append((programs, case(programs, dtype=dtype, seed=number), dtype))

    def work(engine: TorchEngine) -> None:
        rank = engine.rank
        for programs, data, dtype in runs:
            given, output = data.inputs[rank], data.outputs[rank]
            engine.run(programs[rank], given, output, dtype=dtype, op=ReduceOp.SUM, timeout_s=300)

    assert together(ranks, work) == [None] * ranks
    for programs, data, _ in runs:
        data.check(programs)


class Peers:
    """What a group of torch has that :func:`run_steps` uses, over gloo."""

    def __init__(self, store: Any, rank: int, ranks: int) -> None:
        from datetime import timedelta

        self.gloo = torch.distributed.ProcessGroupGloo(store, rank, ranks, timedelta(seconds=30))
        self.send, self.recv = self.gloo.send, self.gloo.recv


TENSOR_TYPES = [each for each in DataType if each not in (DataType.UINT16, DataType.UINT32, DataType.UINT64)]


def test_programs_on_tensors_step_by_step() -> None:
    """What GPUs carry out, here on tensors of the CPU; types and operations in turn."""
    ops = (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MAX, ReduceOp.PRODUCT, ReduceOp.BAND)
    ranks, store = 4, torch.distributed.HashStore()
    runs = []
    for place, collective in enumerate(MOVES):
        for number, (count, in_place, piece) in enumerate(CASES):
            programs = programs_of(
                collective, ranks, count, in_place=in_place, piece=piece, ring=number % 2 == 0
            )
            dtype = TENSOR_TYPES[(place + number) % len(TENSOR_TYPES)]
            op = ops[(2 * place + number) % len(ops)]
            chosen = op if op.serves(dtype) else ReduceOp.SUM
            runs.append((programs, case(programs, dtype=dtype, op=chosen, seed=number), dtype, chosen))

    def tensor(memory: Any, dtype: DataType) -> Any:
        if memory is None or not memory.size:
            return torch.empty(0, dtype=getattr(torch, dtype.value))
        return torch.from_numpy(memory.view(np.uint8)).view(getattr(torch, dtype.value))

    def work(rank: int) -> None:
        group = Peers(store, rank, ranks)
        for programs, data, dtype, chosen in runs:
            given, output = tensor(data.inputs[rank], dtype), tensor(data.outputs[rank], dtype)
            run_steps(group, programs[rank], given, output, dtype=dtype, op=chosen, device="cpu")

    assert in_threads(ranks, work) == [None] * ranks
    for programs, data, _, _ in runs:
        data.check(programs)


def test_tensors_that_do_not_fit_are_refused() -> None:
    program = programs_of(Collective.ALL_REDUCE, 2, 8, in_place=True, piece=None, ring=False)[0]
    for wrong in (torch.ones(7), torch.ones(8, dtype=torch.float64), torch.ones(16)[::2], None):
        with pytest.raises(
            InputError, match="expected 8 contiguous elements of float32 on cpu in the output"
        ):
            run_steps(None, program, None, wrong, dtype=DataType.FLOAT32, op=ReduceOp.SUM, device="cpu")
    with pytest.raises(InputError, match="expected a type that torch adds up, found uint32"):
        run_steps(None, program, None, torch.ones(8), dtype=DataType.UINT32, op=ReduceOp.SUM, device="cpu")


def test_a_gpu_is_asked_for_where_there_is_none() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(InputError, match="expected a GPU"):
        TorchEngine(torch.distributed.HashStore(), 0, 1, device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_one_gpu() -> None:
    engine = TorchEngine(torch.distributed.HashStore(), 0, 1, device="cuda")
    data = torch.arange(5.0, device="cuda")
    program = programs_of(Collective.ALL_REDUCE, 1, 5, in_place=True, piece=None, ring=False)[0]
    engine.run(program, None, data, dtype=DataType.FLOAT32, op=ReduceOp.SUM, timeout_s=300)
    assert data.tolist() == [0, 1, 2, 3, 4]
    engine.close()


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_exchange_of_any_length(ranks: int) -> None:
    def work(engine: TorchEngine) -> Any:
        for length in (0, 1, 504, 505, 20_000):
            mine = bytes([engine.rank + 1]) * (length + (7 * engine.rank if length else 0))
            found = engine.exchange(mine)
            assert found == [bytes([r + 1]) * (length + (7 * r if length else 0)) for r in range(ranks)]
        return engine.exchange(b"x" * 600 if engine.rank == ranks - 1 else b"")[-1]

    assert together(ranks, work) == [b"x" * 600] * ranks


def test_groups_are_apart() -> None:
    """Two groups at once, one of them in another order, and a group of a group."""

    def work(engine: TorchEngine) -> Any:
        members = [3, 0] if engine.rank in (0, 3) else [1, 2, 4]
        group = engine.subset(members)
        assert isinstance(group, GroupingEngine)
        inner = group.subset([group.rank])
        data = np.full(5, engine.rank, dtype=np.int64)
        communicator = Communicator(group, preset("star", gpus=len(members)), pieces=1)
        return communicator.all_gather(data[:1]).tolist(), inner.exchange(b"%d" % engine.rank)

    first, second = [3, 0], [1, 2, 4]
    wanted = [first, second, second, first, second]
    assert together(5, work) == [(each, [b"%d" % rank]) for rank, each in enumerate(wanted)]


def test_wrong_groups_are_refused() -> None:
    def work(engine: TorchEngine) -> None:
        for members in ([1 - engine.rank], [0, 0, 1], [0, 1, 2]):
            with pytest.raises(InputError, match="expected a list of distinct ranks below 2"):
                engine.subset(members)

    assert together(2, work) == [None, None]
    with pytest.raises(InputError, match="expected a rank of 0 to 1"):
        TorchEngine(torch.distributed.HashStore(), 2, 2)
    with pytest.raises(InputError, match="expected the device cpu or cuda"):
        TorchEngine(torch.distributed.HashStore(), 0, 1, device="tpu")


def test_collectives_of_gloo_itself() -> None:
    runs = []
    for number, collective in enumerate(MOVES):
        for in_place in (False, True):
            dtype = (DataType.FLOAT32, DataType.INT64)[number % 2]
            programs = programs_of(collective, 3, 99, in_place=in_place, piece=None, ring=False)
            runs.append((programs, case(programs, dtype=dtype, seed=number), dtype))

    def work(engine: TorchEngine) -> None:
        assert isinstance(engine, Engine)
        assert isinstance(engine, Native)
        for programs, data, dtype in runs:
            program, rank = programs[engine.rank], engine.rank
            given = None if program.in_place else data.inputs[rank]
            engine.native(
                program.collective, given, data.outputs[rank], dtype=dtype, op=ReduceOp.SUM, root=program.root
            )

    assert together(3, work) == [None] * 3
    for programs, data, _ in runs:
        data.check(programs)


def test_native_refuses_what_gloo_does_not_know() -> None:
    def work(engine: TorchEngine) -> None:
        data = np.ones(4, dtype=np.uint16)
        with pytest.raises(InputError, match="expected a type that gloo knows"):
            engine.native(Collective.ALL_REDUCE, None, data, dtype=DataType.UINT16, op=ReduceOp.SUM, root=-1)

    assert together(2, work) == [None, None]


def reducing(engine: TorchEngine, data: Any, *, timeout_s: float = 300.0) -> Communicator:
    group = Communicator(engine, preset("star", gpus=engine.ranks), pieces=1, timeout_s=timeout_s)
    group.all_reduce(data)
    return group


def test_a_rank_that_closes_is_lost() -> None:
    def work(engine: TorchEngine) -> None:
        data = np.ones(100)
        group = reducing(engine, data)
        if engine.rank == 1:
            return
        group.all_reduce(data)

    found = together(3, work)
    assert found[1] is None
    for rank in (0, 2):
        assert isinstance(found[rank], PeerLost), found[rank]


def test_a_rank_that_hangs_is_waited_for_no_longer_than_allowed() -> None:
    noticed = threading.Semaphore(0)

    def work(engine: TorchEngine) -> None:
        data = np.ones(100)
        group = reducing(engine, data)
        if engine.rank == 1:
            for _ in range(2):
                noticed.acquire(timeout=120)
        try:
            group.timeout_s = 1.0
            group.all_reduce(data)
        finally:
            noticed.release()
            with pytest.raises(PeerLost, match="broke earlier"):
                engine.exchange(b"")

    found = together(3, work)
    assert all(isinstance(each, RunError) for each in found), found
    assert any(isinstance(each, TimedOut) for each in found)
    assert all("all_reduce" in str(each) for each in found)


def test_a_rank_that_raises_is_named_by_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(engine: TorchEngine) -> None:
        data = np.ones(100)
        group = reducing(engine, data)
        if engine.rank == 1:
            monkeypatch.setattr(engine, "_kept_for", None)
        group.all_reduce(data)

    found = together(3, work)
    assert isinstance(found[1], TypeError)
    for rank in (0, 2):
        assert isinstance(found[rank], PeerLost)
    assert any(
        "The first to give up was rank 1 in all_reduce of 100 float64" in str(found[rank]) for rank in (0, 2)
    )


def test_unequal_sizes_are_found_before_anything_is_sent() -> None:
    """Gloo itself ends the process when two ends of a message differ in length."""

    def work(engine: TorchEngine) -> None:
        reducing(engine, np.ones(100 + (engine.rank == 1)))

    for error in together(3, work):
        assert isinstance(error, Mismatch)
        assert "expected count 100 as on rank 0, found 101 on rank 1" in str(error)


def test_an_old_call_beside_another_old_one_ends_in_a_timeout() -> None:
    """Neither takes messages of the other, whose lengths differ."""

    def work(engine: TorchEngine) -> None:
        short, long = np.ones(100), np.ones(200)
        group = reducing(engine, short, timeout_s=1.0)
        group.all_reduce(long)
        group.all_reduce(short if engine.rank else long)

    found = together(3, work)
    assert all(isinstance(error, RunError) for error in found), found
    assert isinstance(found[0], Mismatch)
    assert "rank 0 waited in all_reduce of 200 float64, and rank 1 in all_reduce of 100 float64" in str(
        found[0]
    )


def test_a_group_that_breaks_breaks_everywhere_at_once() -> None:
    """Ranks that wait for a rank that waits for the lost one need not wait for their own timeouts."""

    def work(engine: TorchEngine) -> float:
        data = np.ones(100)
        group = Communicator(engine, preset("ring", gpus=6), pieces=1, timeout_s=600)
        group.all_reduce(data)
        if engine.rank == 1:
            engine.close()
            return 0.0
        begin = time.monotonic()
        with pytest.raises(PeerLost):
            group.all_reduce(data)
        return time.monotonic() - begin

    assert max(together(6, work)) < 300


def test_a_program_of_another_rank_is_refused() -> None:
    programs = programs_of(Collective.ALL_REDUCE, 2, 8, in_place=True, piece=None, ring=False)

    def work(engine: TorchEngine) -> None:
        engine.exchange(b"")  # neither leaves before the other has come
        with pytest.raises(InputError, match=f"expected a program of rank {engine.rank} of 2"):
            engine.run(
                programs[1 - engine.rank],
                None,
                np.ones(8),
                dtype=DataType.FLOAT64,
                op=ReduceOp.SUM,
                timeout_s=5,
            )
        engine.close()
        with pytest.raises(InputError, match="is closed"):
            engine.exchange(b"")
        engine.close()

    assert together(2, work) == [None, None]


def test_a_rank_that_never_comes() -> None:
    begin = time.monotonic()
    with pytest.raises(PeerLost, match="rank 0 did not find the other 1 ranks"):
        TorchEngine(torch.distributed.HashStore(), 0, 2, exchange_timeout_s=0.5)
    assert time.monotonic() - begin < 120


def test_environment_without_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(InputError, match="found no RANK: start with `torchrun`"):
        TorchEngine.from_environment(timeout_s=1)


def test_read_only_input_is_sent_as_it_is() -> None:
    """Torch warns of memory that is not writable, and warnings are errors here."""

    def work(engine: TorchEngine) -> Any:
        group = Communicator(engine, preset("star", gpus=2), pieces=1)
        return group.all_gather(np.frombuffer(bytes([engine.rank]) * 3, dtype=np.uint8)).tolist()

    assert together(2, work) == [[0, 0, 0, 1, 1, 1]] * 2


@pytest.mark.parametrize(
    "ranks", [1, 2, 3, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (5, 8))]
)
def test_every_collective_with_every_type(ranks: int) -> None:
    calls, store = calls_of(ranks, EVERY_PAIR, first=5000), torch.distributed.HashStore()

    def work(rank: int) -> str:
        engine = TorchEngine(store, rank, ranks, exchange_timeout_s=60)
        try:
            return next((fault for call in calls if (fault := call.run(engine))), "right")
        finally:
            engine.close()

    assert in_threads(ranks, work) == ["right"] * ranks


@pytest.mark.slow
@pytest.mark.parametrize("ranks", range(1, 9))
def test_many_calls_of_processes(tmp_path: Path, ranks: int) -> None:
    calls = calls_of(ranks, 3 * EVERY_PAIR, first=6000)
    assert calls_in_processes("torch", calls, ranks, tmp_path) == [f"{len(calls)} calls right\n"] * ranks
