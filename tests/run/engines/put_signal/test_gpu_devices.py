"""The devices on GPUs, with stand-ins for streams and libraries: results, set-up, recording, time limits, names."""

from __future__ import annotations

import inspect
import logging
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed (TORCH=0)")

import torch

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.run.communicator.communicator import Communicator
from coppice.run.engines.datatype import DataType, ReduceOp
from coppice.run.engines.numpy import numpy_engines
from coppice.run.engines.put_signal.engine import PutSignalEngine
from coppice.run.engines.put_signal.opening import put_signal_engine
from coppice.run.engines.put_signal.watch import Watchdog
from coppice.run.errors import PeerLost, RunError, TimedOut
from coppice.topology.presets import preset
from support.gpu_stand_ins import Event, NcclWorld, Stream, SymmetricHandle, SymmetricWorld, patch_cuda
from support.rank_groups import in_threads

RANKS = 3


@pytest.fixture(name="cuda")
def fixture_cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    if torch.cuda.is_available():
        pytest.skip("a GPU is there")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.delenv("COPPICE_PUT_SIGNAL", raising=False)
    state = patch_cuda(monkeypatch)
    monkeypatch.setattr(
        "coppice.run.engines.put_signal.cuda.PLACE", "cpu"
    )  # tensors of CPUs stand for those of GPUs
    return state


def with_library(name: str, patch: pytest.MonkeyPatch, **options: Any) -> Any:
    if name == "nccl":
        world = NcclWorld(**options)
        patch.setitem(sys.modules, "nccl.core", world.module)
        return world
    symmetric = SymmetricWorld()
    symmetric.patch(patch)
    return symmetric


def on_gpus(name: str, work: Callable[[PutSignalEngine], Any]) -> list[Any]:
    below = numpy_engines(RANKS)

    def serve(rank: int) -> Any:
        engine = put_signal_engine(
            below[rank], devices=(name,), store="a store", left_to="NCCL", timeout_s=30
        )
        try:
            return work(engine)
        finally:
            engine.close()

    return in_threads(RANKS, serve)


@pytest.mark.parametrize("name", ["nccl", "symmetric"])
def test_results_on_tensors_and_on_arrays(
    cuda: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """One reduction and one move, of each type that torch adds up; the window grows on the way."""
    assert not cuda.capturing
    with_library(name, monkeypatch)

    def work(engine: PutSignalEngine) -> list[Any]:
        group = Communicator(
            engine, preset("ring", gpus=RANKS), algorithm="forest", cache_dir=tmp_path, pieces=1
        )
        found: list[Any] = []
        for dtype, count in (("float32", 12), ("bfloat16", 12), ("bool", 6), ("int64", 3000)):
            kind = DataType(dtype)
            values = torch.full((count,), engine.rank + 1).to(getattr(torch, dtype))
            program = group.prepare(Collective.ALL_REDUCE, count, dtype=kind, in_place=True)
            group.carry_out(program, None, values, dtype=kind, op=ReduceOp.SUM)
            found.append(values.float().unique().tolist())
        mean = torch.full((6,), float(engine.rank))
        program = group.prepare(Collective.ALL_REDUCE, 6, op="avg", in_place=False)
        output = torch.zeros(6)
        group.carry_out(program, mean, output, dtype=DataType.FLOAT32, op=ReduceOp.AVG)
        found.append(output.tolist())
        array = group.all_gather(np.array([engine.rank, 7]))
        device: Any = engine.device
        found_bytes = [device.new_window(asked) for asked in (1, 10**9 + 1, 2**30 - 1)]
        assert [found_bytes[0], *(each % 4096 for each in found_bytes)] == [0] * 4
        assert all(10**9 < each <= 2**30 * 9 // 8 for each in found_bytes[1:])
        memory = engine.device_memory
        assert memory is not None
        there = memory.to_device(array)
        memory.upload(array + 1, there)
        memory.settle()
        memory.download(there, array)
        return [*found, array.tolist()]

    wanted = [[6.0], [6.0], [1.0], [6.0], [1.0] * 6, [1, 8, 2, 8, 3, 8]]
    assert on_gpus(name, work) == [wanted] * RANKS


def test_unsigned_sums_are_left_to_the_library(
    cuda: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    del cuda
    with_library("nccl", monkeypatch)
    with caplog.at_level(logging.WARNING, logger="coppice"):
        found = on_gpus("nccl", lambda engine: engine.device.refusal(ReduceOp.SUM, DataType.UINT32))
    assert found == ["expected a type that torch adds up, found uint32: choose another one."] * RANKS


def test_calls_are_recorded_from_2_30_3_on(
    cuda: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing is made, and nobody waits, while they are."""
    for version in ((2, 30, 3), (2, 29, 7)):
        cuda.capturing = False
        world = with_library("nccl", monkeypatch, version=version)
        barrier: list[Any] = []

        def work(engine: PutSignalEngine, world: NcclWorld = world, meetings: list[Any] = barrier) -> Any:
            group = Communicator(
                engine, preset("ring", gpus=RANKS), algorithm="forest", cache_dir=tmp_path, pieces=1
            )
            program = group.prepare(Collective.ALL_REDUCE, 12, in_place=True)
            values = torch.ones(12)
            group.carry_out(program, None, values, dtype=DataType.FLOAT32, op=ReduceOp.SUM)
            engine.exchange(b"")
            cuda.capturing = True
            engine.exchange(b"")
            before = world.made
            engine.device.finish = meetings.append  # type: ignore[method-assign,assignment]
            try:
                group.carry_out(program, None, values, dtype=DataType.FLOAT32, op=ReduceOp.SUM)
            except InputError as error:
                return str(error)
            finally:
                engine.exchange(b"")
                cuda.capturing = False
                del engine.device.finish
            assert (world.made, meetings) == (before, [])
            return values.tolist()

        wanted = (
            [9.0] * 12
            if version == (2, 30, 3)
            else "expected a library whose calls can be recorded, found NCCL: NCCL 2.30.3 is the first."
        )
        assert on_gpus("nccl", work) == [wanted] * RANKS


def test_reasons_of_a_library_that_does_not_put(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    del cuda
    with_library("nccl", monkeypatch, supported=False)
    unsupported = on_gpus("nccl", str)
    assert all("hostRmaSupport is false" in str(each) for each in unsupported), unsupported
    with_library("nccl", monkeypatch, windows=False)
    without = on_gpus("nccl", str)
    assert all("expected a window of symmetric memory" in str(each) for each in without), without
    with_library("nccl", monkeypatch, version=(2, 28, 9))
    old = on_gpus("nccl", str)
    assert all(
        isinstance(each, InputError) and "expected NCCL 2.29.2 or later" in str(each) for each in old
    ), old
    import torch.distributed._symmetric_memory as symmetric

    monkeypatch.setattr(symmetric, "get_backend", lambda _: "NVSHMEM")
    [other] = {str(each) for each in on_gpus("symmetric", str)}
    assert (
        other
        == 'expected symmetric memory of the back end CUDA, found NVSHMEM: call `set_backend("CUDA")` first.'
    )


def test_a_run_that_takes_too_long_makes_the_next_one_raise(
    cuda: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its event never comes: the communicators are aborted, and the group stays broken."""
    del cuda
    world = with_library("nccl", monkeypatch)

    def work(engine: PutSignalEngine) -> list[str]:
        group = Communicator(engine, preset("ring", gpus=RANKS), algorithm="ring", pieces=1)
        program = group.prepare(Collective.ALL_REDUCE, 12, in_place=True)
        device: Any = engine.device
        event = Event(done=False)
        device._watchdog.watch("all_reduce", event, 0.05)
        found = []
        for kind in (TimedOut, PeerLost):
            end = time.monotonic() + 20
            while device._watchdog._error is None and time.monotonic() < end:
                time.sleep(0.01)
            with pytest.raises(kind) as error:
                group.carry_out(program, None, torch.ones(12), dtype=DataType.FLOAT32, op=ReduceOp.SUM)
            found.append(str(error.value))
        event.done = True  # what was aborted lets go; otherwise this process would be ended
        return found

    for words in on_gpus("nccl", work):
        assert words[0].startswith("all_reduce did not complete on NCCL within 0.05 s"), words
    assert set(world.aborted) == set(range(RANKS))


def test_the_backend_puts_tensors_of_gpus_where_their_library_does(
    cuda: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By default; what is asked for and not to be had is left to NCCL, and told by one rank."""
    del cuda
    from coppice.run.torch.lane import Options, open_lane

    def opened(supported: bool, engine: str) -> list[Any]:
        with_library("nccl", monkeypatch, supported=supported)
        stores = [torch.distributed.HashStore()] * RANKS
        below = numpy_engines(RANKS)

        def serve(rank: int) -> Any:
            lane = open_lane(
                stores[rank],
                below[rank].exchange,
                rank,
                range(RANKS),
                Options(engine=engine, threshold_bytes=0, cache_dir=str(tmp_path)),
                world=RANKS,
                device="cuda",
                timeout=lambda: 30.0,
                native=lambda _: None,
            )
            if lane is None:
                return None
            values = torch.full((6,), rank + 1.0)
            lane.run(Collective.ALL_REDUCE, None, values, count=6, dtype=DataType.FLOAT32)
            device = lane.engine.device  # type: ignore[attr-defined]
            lane.abort("a test")
            lane.close()
            return device.name, values.tolist()

        return in_threads(RANKS, serve)

    monkeypatch.setenv("COPPICE_PUT_SIGNAL", "nccl")
    assert opened(True, "auto") == [("NCCL", [6.0] * 6)] * RANKS
    with caplog.at_level(logging.WARNING, logger="coppice"):
        assert opened(False, "put-signal") == [None] * RANKS
    told = [record.getMessage() for record in caplog.records if "none is put" in record.getMessage()]
    assert len(told) == 1
    assert told[0].startswith(
        "NCCL carries out all collectives, none is put: expected NCCL to put between these ranks"
    )


def test_a_work_keeps_its_tensors_until_a_stream_waits_for_it(cuda: Any) -> None:
    """Their memory could be given to somebody else while the GPU still reads it."""
    del cuda
    import gc
    import weakref

    from coppice.run.torch.work import Task

    tensor = torch.ones(3)
    alive = weakref.ref(tensor)
    task = Task("all_reduce", None, partial(tensor.add_, 1), device=torch.device("cuda", 0))
    del tensor
    task.carry_out(Stream())
    gc.collect()
    assert task.is_completed()
    assert alive() is not None
    assert task.wait()
    gc.collect()
    assert alive() is None


def test_a_process_that_cannot_be_called_back_is_ended() -> None:
    said: list[str] = []
    reasons: list[str] = []
    dog = Watchdog("NCCL", lambda: "", reasons.append, grace_s=0.05, end=said.append)
    over, never = Event(), Event(done=False)
    dog.watch("all_gather", over, 0.0)
    dog.watch("all_reduce", never, 0.05)
    end = time.monotonic() + 20
    while not said and time.monotonic() < end:
        time.sleep(0.01)
    assert reasons == [
        "all_reduce did not complete on NCCL within 0.05 s: see what the other ranks do, or allow more time."
    ]
    assert said == [f"{reasons[0]} NCCL still waits for it: this process ends."]
    with pytest.raises(TimedOut):
        dog.check()
    dog.close()


def test_an_error_of_the_library_is_told_at_once() -> None:
    reasons: list[str] = []
    event = Event(done=False)

    def give_up(reason: str) -> None:
        reasons.append(reason)
        event.done = True  # communicators that are aborted let go

    dog = Watchdog("NCCL", lambda: "an error of NCCL (6)", give_up, grace_s=0.05, end=reasons.append)
    dog.watch("all_reduce", event, 1000)
    end = time.monotonic() + 20
    while not reasons and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(0.2)
    dog.close()
    assert len(reasons) == 1
    with pytest.raises(RunError, match="found an error of NCCL"):
        dog.check()


def names(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def test_stand_ins_have_the_parameters_of_torch() -> None:
    """What the devices call is there in this torch, by these names and in this order."""
    if not torch.__version__.startswith("2.13"):
        pytest.skip("written for torch 2.13")
    from torch._C._distributed_c10d import _SymmetricMemory

    for name in ("wait_event", "wait_stream", "record_event"):
        assert names(getattr(Stream, name)) == names(getattr(torch.cuda.Stream, name)), name
    assert names(Event.query) == names(torch.cuda.Event.query)
    for name in ("get_buffer", "put_signal", "wait_signal"):
        declared = re.findall(r"(\w+): ", str(getattr(_SymmetricMemory, name).__doc__))
        assert [each for each in declared if each != "self"] == names(getattr(SymmetricHandle, name)), name
    assert (
        str(_SymmetricMemory.set_group_info.__doc__).count("arg")
        == len(names(SymmetricWorld.set_group_info))
        == 4
    )
    import torch.distributed._symmetric_memory as symmetric

    assert names(symmetric.rendezvous) == names(SymmetricWorld.rendezvous)
    assert names(symmetric.get_backend) == ["device"]
    assert {"dtype", "device"} <= set(names(symmetric.empty))
    assert symmetric.get_signal_pad_size() >= 4 * 8 * 4 * 8  # bytes, for 8 lanes of 4 signals among 8 ranks
    assert names(torch.cuda.current_stream) == ["device"]
    assert names(torch.cuda.stream) == ["stream"]
    assert names(torch.cuda.is_current_stream_capturing) == []
