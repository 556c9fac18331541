"""The devices on GPUs, with stand-ins for streams and libraries: results, set-up, recording, time limits, names."""

from __future__ import annotations

import inspect
import logging
import re
import sys
import threading
import time
import weakref
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
from coppice.run.engines.put_signal.cuda import Watchdog
from coppice.run.engines.put_signal.engine import PutSignalEngine
from coppice.run.engines.put_signal.opening import put_signal_engine
from coppice.run.errors import PeerLost, RunError, TimedOut
from coppice.topology.presets import preset
from support.gpu_stand_ins import Event, NcclWorld, Stream, SymmetricHandle, SymmetricWorld, patch_cuda
from support.rank_groups import in_threads

RANKS = 3
PATIENCE_S = 120  # seconds, where something could deadlock


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
    store = torch.distributed.HashStore()

    def serve(rank: int) -> Any:
        engine = put_signal_engine(
            below[rank], devices=(name,), store=store, left_to="NCCL", timeout_s=PATIENCE_S
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
    with_library("nccl", monkeypatch, windows=None)
    none = on_gpus("nccl", str)
    assert all("expected a window of symmetric memory" in str(each) for each in none), none
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
            wait_until(lambda: device._watchdog._error is not None)
            with pytest.raises(kind) as error:
                group.carry_out(program, None, torch.ones(12), dtype=DataType.FLOAT32, op=ReduceOp.SUM)
            found.append(str(error.value))
        event.done = True  # what was aborted lets go; otherwise this process would be ended
        return found

    for words in on_gpus("nccl", work):
        assert words[0].startswith("all_reduce did not complete on NCCL within 0.05 s"), words
    wait_until(lambda: set(world.aborted) == set(range(RANKS)))


def test_the_backend_puts_tensors_of_gpus_where_their_library_does(
    cuda: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By default; what is asked for and not to be had is left to NCCL, and told by one rank."""
    del cuda
    from coppice.run.torch.backend_path import Options, open_backend_path

    def opened(supported: bool, engine: str) -> list[Any]:
        with_library("nccl", monkeypatch, supported=supported)
        stores = [torch.distributed.HashStore()] * RANKS
        below = numpy_engines(RANKS)

        def serve(rank: int) -> Any:
            path = open_backend_path(
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
            if path is None:
                return None
            values = torch.full((6,), rank + 1.0)
            path.run(Collective.ALL_REDUCE, None, values, count=6, dtype=DataType.FLOAT32)
            device = path.engine.device  # type: ignore[attr-defined]
            path.abort("a test")
            path.close()
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
    never_free = threading.Event()

    def let_go() -> None:
        reasons.append(str(dog._error))
        never_free.wait()  # NCCL's abort waits for what stands before it on a stream

    dog = Watchdog("NCCL", lambda: "", let_go, grace_s=0.05, end=said.append)
    over, never = Event(), Event(done=False)
    dog.watch("all_gather", over, 0.0)
    dog.watch("all_reduce", never, 0.05)
    wait_until(lambda: bool(said))
    assert reasons == [
        "all_reduce did not complete on NCCL within 0.05 s: see what the other ranks do, or allow more time."
    ]
    assert said == [f"{reasons[0]} NCCL still waits for it: this process ends."]
    with pytest.raises(TimedOut):
        dog.check()
    dog.close()
    never_free.set()


def test_an_event_that_cannot_be_asked_for_is_a_failure() -> None:
    """After an error of a GPU its events raise, and whoever watches them must say so and go on."""

    class Broken(Event):
        def query(self) -> bool:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    said: list[str] = []
    dog = Watchdog("NCCL", lambda: "", lambda: None, grace_s=0.05, end=said.append)
    dog.watch("all_reduce", Broken(), 1000)
    wait_until(lambda: dog._error is not None)
    with pytest.raises(RunError, match="found RuntimeError: CUDA error: an illegal memory access"):
        dog.check()
    never = Event(done=False)
    dog.watch("all_gather", never, 1000)
    wait_until(lambda: bool(said))
    dog.close()


def test_an_error_of_the_library_is_told_at_once() -> None:
    reasons: list[str] = []
    event = Event(done=False)

    def let_go() -> None:
        event.done = True  # communicators that are aborted let go
        reasons.append("let go")

    dog = Watchdog("NCCL", lambda: "an error of NCCL (6)", let_go, grace_s=PATIENCE_S, end=reasons.append)
    dog.watch("all_reduce", event, 1000)
    wait_until(lambda: bool(reasons) and not dog._watched)
    dog.close()
    assert reasons == ["let go"]
    with pytest.raises(RunError, match="found an error of NCCL"):
        dog.check()


def captured_call(engine: PutSignalEngine, cuda: Any, folder: Path) -> None:
    """A call that runs, and is then captured by all ranks."""
    group = Communicator(engine, preset("ring", gpus=RANKS), algorithm="forest", cache_dir=folder, pieces=1)
    program = group.prepare(Collective.ALL_REDUCE, 12, in_place=True)
    for capturing in (False, True):
        engine.exchange(b"")
        cuda.capturing = capturing
        engine.exchange(b"")
        group.carry_out(program, None, torch.ones(12), dtype=DataType.FLOAT32, op=ReduceOp.SUM)
    engine.exchange(b"")
    cuda.capturing = False
    engine.exchange(b"")


@pytest.mark.parametrize("name", ["nccl", "symmetric"])
def test_a_window_that_a_graph_uses_stays(
    cuda: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """A larger call takes a new window; the old one goes only where no call was captured since it came."""
    world = with_library(name, monkeypatch)

    def work(engine: PutSignalEngine) -> list[bool]:
        captured_call(engine, cuda, tmp_path)
        device: Any = engine.device
        first = weakref.ref(device.window)
        engine.try_out(PATIENCE_S, num_bytes=100_000)
        second = weakref.ref(device.window)
        assert second() is not first()
        engine.try_out(PATIENCE_S, num_bytes=300_000)
        if name == "nccl":
            gone = [any(buffer is each() for buffer in world.closed) for each in (first, second)]
        else:
            world.buffers.clear()
            engine.exchange(b"")
            gone = [each() is None for each in (first, second)]
        engine.exchange(b"")
        return gone

    assert on_gpus(name, work) == [[False, True]] * RANKS


def test_closing_under_a_graph_is_an_error(
    cuda: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """NCCL destroys no communicator while a graph holds calls of it."""
    world = with_library("nccl", monkeypatch)
    monkeypatch.setattr("coppice.run.engines.put_signal.cuda._DESTROY_S", 0.2)

    def work(engine: PutSignalEngine) -> str:
        captured_call(engine, cuda, tmp_path)
        engine.exchange(b"")
        world.stuck.clear()
        with pytest.raises(TimedOut) as error:
            engine.close()
        return str(error.value)

    wanted = (
        "expected NCCL to close within 0.2 s, found that it waits: delete the CUDA graphs that captured calls of this "
        "group before it is closed."
    )
    assert on_gpus("nccl", work) == [wanted] * RANKS
    world.stuck.set()


def test_memory_of_a_graph_outlives_the_group_of_symmetric_memory(
    cuda: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = with_library("symmetric", monkeypatch)

    def work(engine: PutSignalEngine) -> Any:
        captured_call(engine, cuda, tmp_path)
        device: Any = engine.device
        return weakref.ref(device.window)

    with caplog.at_level(logging.WARNING, logger="coppice"):
        windows = on_gpus("symmetric", work)
    world.buffers.clear()
    assert all(window() is not None for window in windows)
    told = [
        record.getMessage() for record in caplog.records if "until this process ends" in record.getMessage()
    ]
    assert len(told) == RANKS
    assert told[0].startswith("torch's symmetric memory keeps ")


def test_giving_up_returns_though_the_library_does_not(
    cuda: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """NCCL's abort does not return while a wait stands on the caller's stream; the caller hears of it and goes on."""
    del cuda
    world = with_library("nccl", monkeypatch)
    monkeypatch.setattr("coppice.run.engines.put_signal.cuda._LET_GO_S", 0.05)
    said: list[str] = []

    def work(engine: PutSignalEngine) -> bool:
        device: Any = engine.device
        device._watchdog._grace_s, device._watchdog._end = 0.05, said.append
        engine.exchange(b"")
        world.stuck.clear()
        never = Event(done=False)
        monkeypatch.setattr(Stream, "record_event", lambda *_: never)
        with pytest.raises(TimedOut):
            device.finish("all_reduce", 0.05)
        device.abort("all_reduce did not complete.")
        wait_until(lambda: len(said) == RANKS)
        engine.close()
        return True

    with caplog.at_level(logging.WARNING, logger="coppice"):
        assert on_gpus("nccl", work) == [True] * RANKS
    world.stuck.set()
    assert set(world.aborted) == set(range(RANKS))
    assert said == ["all_reduce did not complete. NCCL still waits for it: this process ends."] * RANKS
    assert any("has not been given up within" in record.getMessage() for record in caplog.records)


def test_ranks_of_symmetric_memory_are_a_group_of_torch(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the name that torch's rendezvous is given, in torch's own table, until the group is closed."""
    del cuda
    with_library("symmetric", monkeypatch)
    from torch._C._distributed_c10d import _resolve_process_group

    def work(engine: PutSignalEngine) -> str:
        device: Any = engine.device
        group = _resolve_process_group(device._group)
        assert (group.rank(), group.size()) == (engine.rank, RANKS)
        return str(device._group)

    for name in on_gpus("symmetric", work):
        with pytest.raises(RuntimeError, match="Could not resolve the process group"):
            _resolve_process_group(name)  # type: ignore[arg-type]


def test_what_nccl4py_does_not_tell_is_said(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    del cuda
    with_library("nccl", monkeypatch, tells=False)
    [old] = {str(each) for each in on_gpus("nccl", str)}
    assert old == (
        "expected nccl4py 0.4.1 or later, which tells the release of NCCL, found 0.3.1: `pip install -U nccl4py`."
    )
    with_library("nccl", monkeypatch, settings=("cta_policy",))
    assert on_gpus("nccl", lambda engine: engine.device.signals) == [1] * RANKS


def test_a_library_that_cannot_be_asked_is_tried(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bindings for a later NCCL than the one that is loaded may not ask whether it puts."""
    del cuda
    with_library("nccl", monkeypatch, supported=None)
    assert on_gpus("nccl", lambda engine: engine.device.name) == ["NCCL"] * RANKS


def test_a_device_that_stands_in_for_another_one_is_told(
    cuda: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    del cuda
    with_library("nccl", monkeypatch, supported=False)
    SymmetricWorld().patch(monkeypatch)
    below, store = numpy_engines(RANKS), torch.distributed.HashStore()

    def serve(rank: int) -> str:
        engine = put_signal_engine(below[rank], store=store, timeout_s=PATIENCE_S)
        engine.close()
        return engine.device.name

    with caplog.at_level(logging.WARNING, logger="coppice"):
        assert in_threads(RANKS, serve) == ["torch's symmetric memory"] * RANKS
    [told] = [record.getMessage() for record in caplog.records]
    assert told.startswith(
        "torch's symmetric memory puts and signals here. nccl: expected NCCL to put between these ranks"
    )


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, "it never comes"
        time.sleep(0.01)


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
    for name, stand_in in (
        ("empty_strided_p2p", SymmetricWorld.allocate),
        ("rendezvous", SymmetricWorld.rendezvous),
    ):
        declared = re.findall(r"(\w+): ", str(getattr(_SymmetricMemory, name).__doc__))
        assert declared == names(stand_in), name
    import torch.distributed._symmetric_memory as symmetric

    assert names(symmetric.get_backend) == ["device"]
    assert {"dtype", "device"} <= set(names(symmetric.empty))
    assert symmetric.get_signal_pad_size() >= 4 * 8 * 4 * 8  # bytes, for 8 lanes of 4 signals among 8 ranks
    assert names(torch.cuda.current_stream) == ["device"]
    assert names(torch.cuda.stream) == ["stream"]
    assert names(torch.cuda.is_current_stream_capturing) == []
