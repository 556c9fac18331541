"""The exported script: it runs where there is no Coppice, and its engines tell libraries what the program says."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import coppice
from cli.conftest import Run, run
from coppice.errors import InputError
from coppice.schedule.files.plan_file import write_plan
from coppice.topology.presets import preset

__all__ = ["run"]

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "all_to_all")
ASKED = """
import runpy, sys
sys.argv.pop(0)
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    print("coppice" in sys.modules)
"""


@pytest.fixture
def bare(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a script in an interpreter that has NumPy and nothing else."""
    packages = Path(np.__file__).parent
    for found in packages.parent.glob("numpy*"):
        (tmp_path / found.name).symlink_to(found)

    def run(*arguments: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-S", "-P", "-c", ASKED, *map(str, arguments)],
            env={"PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


def test_two_boxes_run_without_coppice(
    tmp_path: Path, run: Run, bare: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    plan, script = tmp_path / "plan.json", tmp_path / "plan.py"
    write_plan(coppice.plan(preset("dgx-a100", boxes=2), "all_reduce").plan, plan)
    assert run("export", plan, "--to", "python", "--option", "pieces=4", "-o", script).code == 0
    done = bare(script, "--elements", 3)
    assert done.stdout.splitlines() == [
        "all_reduce on 16 ranks, out of place: 1 run(s) equal NumPy's",
        "all_reduce on 16 ranks, in place: 1 run(s) equal NumPy's",
        "False",
    ], done.stderr


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_runs(
    collective: str, tmp_path: Path, bare: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    script = tmp_path / "plan.py"
    made = coppice.plan(preset("ring", gpus=4), collective)
    coppice.export(made, "python", script, pieces=2, communicators=2)
    done = bare(script, "--runs", 3)
    assert done.stdout.count("3 run(s) equal NumPy's") == 1 + (collective != "all_to_all"), done.stderr
    assert "False" in done.stdout


def test_a_wrong_program_is_found(
    tmp_path: Path, bare: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    script = tmp_path / "plan.py"
    coppice.export(coppice.plan(preset("ring", gpus=4), "all_reduce"), "python", script)
    text = script.read_text().replace('if word == "sum" else', 'if word == "none" else')
    script.write_text(text)
    assert "the output of rank 0 is wrong" in bare(script).stderr
    script.write_text(text.replace("self.counters[(*key, signal)] += 1", "pass"))
    done = bare(script, "--timeout", 0.2)
    assert "1 signal(s) of rank" in done.stderr
    assert "did not come" in done.stderr


def test_what_a_script_cannot_do_is_said_in_a_sentence(
    tmp_path: Path, bare: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    script = tmp_path / "plan.py"
    coppice.export(coppice.plan(preset("star", gpus=3), "all_to_all"), "python", script)
    for arguments, words in (
        (("--runs", 0), "argument --runs: expected a number above 0, found 0"),
        (("--elements", -1), "argument --elements: expected a number above 0, found -1"),
        (("--timeout", 0), "argument --timeout: expected a number above 0, found 0.0"),
        (("--in-place",), "argument --in-place: this all_to_all is only for output apart from input"),
        (
            ("--engine", "nccl"),
            "expected the variables of torchrun, found no RANK: `torchrun ... FILE --engine nccl`",
        ),
    ):
        done = bare(script, *arguments)
        assert words in done.stderr
        assert "Traceback" not in done.stderr
        assert "equal" not in done.stdout


def test_ctrl_c_ends_a_script_without_a_traceback(tmp_path: Path) -> None:
    script = tmp_path / "plan.py"
    coppice.export(coppice.plan(preset("ring", gpus=4), "all_reduce"), "python", script)
    running = subprocess.Popen(
        [sys.executable, script, "--runs", "100000"],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while len(list(Path(f"/proc/{running.pid}/task").iterdir())) < 5:  # the ranks and the network
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    said = running.communicate(timeout=300)[1]
    assert running.returncode == 130
    assert said == ""


def test_options_are_those_of_the_program() -> None:
    made = coppice.plan(preset("ring", gpus=4), "all_reduce")
    with pytest.raises(InputError, match="expected `pieces` from 1 to 1024"):
        coppice.export(made, "python", pieces=0)


class _World:
    """Counters and windows of all ranks, for the stand-ins of libraries below."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.counters: dict[Any, int] = defaultdict(int)
        self.windows: dict[Any, Any] = {}
        self.registers = True

    def count(self, *key: Any) -> None:
        with self.changed:
            self.counters[key] += 1
            self.changed.notify_all()

    def take(self, key: Any, least: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.counters[key] >= least, 300), key


class _Communicator:
    """What a script uses of nccl4py's communicators, with their argument names."""

    def __init__(self, world: _World, line: int, rank: int) -> None:
        self.world, self.line, self.rank = world, line, rank
        self.taken: dict[Any, int] = defaultdict(int)
        self.registered = 0

    def register_window(self, buffer: Any, flags: int) -> Any:
        assert flags == 1
        self.registered += 1
        handle = 100 * self.line + self.registered if self.world.registers else 0
        self.world.windows[handle, self.rank] = buffer
        return SimpleNamespace(
            handle=handle
        )  # from nccl4py 0.4.1 on there is one also where NCCL made no window

    def signal(self, peer: int, signal_index: int = 0, context: int = 0, *, stream: Any) -> None:
        assert stream is None
        self.world.count(self.line, self.rank, peer, signal_index, context)

    def put_signal(
        self, local: Any, peer: int, window: Any, offset: int, signal_index: int, context: int, *, stream: Any
    ) -> None:
        assert stream is None
        target = self.world.windows[window.handle, peer].view(-1)
        assert offset + len(local) <= len(target)
        target[offset : offset + len(local)].copy_(local)
        self.world.count(self.line, self.rank, peer, signal_index, context)

    def wait_signal(self, wanted: list[Any], *, stream: Any) -> None:
        assert stream is None
        for each in wanted:
            key = (self.line, each.peer, self.rank, each.signal_index, each.context)
            self.taken[key] += each.op_count
            self.world.take(key, self.taken[key])


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("exported_script", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run_all(script: Any, program: Any, engine_of: Callable[[int], Any]) -> list[bool]:
    """Two runs on all ranks, as threads; whether every output is right."""
    right: list[bool] = []
    barrier = threading.Barrier(program["ranks"], timeout=300)

    def work(rank: int) -> None:
        try:
            engine = engine_of(rank)
            barrier.wait()
            for seed in (3, 4):
                engine.fill(seed)
                barrier.wait()
                script.run_rank(program, rank, engine)
                right.append(engine.right(seed))
        except BaseException:
            barrier.abort()
            raise

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(program["ranks"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return right


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("collective", ["all_gather", "all_reduce"])
def test_calls_of_nccl4py(collective: str, tmp_path: Path, *, in_place: bool) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    path = tmp_path / "plan.py"
    coppice.export(
        coppice.plan(preset("ring", gpus=4), collective), "python", path, pieces=4, communicators=2, signals=2
    )
    script, world = _loaded(path), _World()
    program = script.program_of(script.PROGRAM)

    def library() -> Any:
        lines = iter(range(9))

        def init(ranks: int, rank: int, name: bytes, config: Any) -> _Communicator:
            assert (ranks, name, config) == (4, b"name", {"num_rma_sig": 2})
            return _Communicator(world, next(lines), rank)

        return SimpleNamespace(
            NCCLConfig=dict,
            get_unique_id=lambda: SimpleNamespace(as_bytes=b"name"),
            UniqueId=SimpleNamespace(from_bytes=lambda data: data),
            Communicator=SimpleNamespace(init=init),
            WindowFlag=SimpleNamespace(COLL_SYMMETRIC=1),
            WaitSignalDesc=lambda peer, op_count=1, signal_index=0, context=0: SimpleNamespace(
                peer=peer, op_count=op_count, signal_index=signal_index, context=context
            ),
            group=nullcontext,
            torch=SimpleNamespace(empty=lambda *size, dtype: torch.empty(*size, dtype=dtype)),
        )

    def engine_of(rank: int) -> Any:
        return script.OverNccl(
            program,
            rank,
            library(),
            lambda value: value or b"name",
            in_place=in_place,
            elements=5,
            device="cpu",
        )

    assert _run_all(script, program, engine_of) == [True] * 8
    world.registers = False
    with pytest.raises(RuntimeError, match="NCCL registers no symmetric windows here: see NCCL_CUMEM_ENABLE"):
        engine_of(0)


class _Library:
    """NCCL's functions with their arguments in the order of nccl.h, on memory of this process."""

    def __init__(self, world: _World) -> None:
        self.world, self.rank = world, -1
        self.taken: dict[Any, int] = defaultdict(int)
        self.windows = 0
        self.ncclGroupStart = self.ncclGroupEnd = lambda: 0

    def ncclGetUniqueId(self, name: Any) -> int:  # noqa: N802
        name._obj.internal[0] = 7
        return 0

    def ncclCommInitRank(self, comm: Any, ranks: int, name: Any, rank: int) -> int:  # noqa: N802
        assert (ranks, name.internal[0]) == (4, 7)
        comm._obj.value = self.rank = rank
        return 0

    def ncclCommWindowRegister(self, comm: Any, memory: Any, size: Any, window: Any, flags: int) -> int:  # noqa: N802
        assert (comm.value or 0, flags) == (self.rank, 1)
        self.windows += 1
        self.world.windows[self.windows, self.rank] = (memory.value, size.value)
        window._obj.value = self.windows if self.world.registers else 0
        return 0

    def ncclSignal(self, peer: int, index: int, context: int, flags: int, comm: Any, stream: Any) -> int:  # noqa: N802
        assert (flags, comm.value or 0, stream.value) == (0, self.rank, None)
        self.world.count(self.rank, peer, index, context)
        return 0

    def ncclPutSignal(  # noqa: N802
        self, local: Any, count: Any, kind: int, peer: int, window: Any, offset: Any, *rest: Any
    ) -> int:
        memory, size = self.world.windows[window.value, peer]
        assert kind == 7
        assert offset.value + 4 * count.value <= size
        ctypes.memmove(memory + offset.value, local.value, 4 * count.value)
        return self.ncclSignal(peer, *rest)

    def ncclWaitSignal(self, number: int, wanted: Any, comm: Any, stream: Any) -> int:  # noqa: N802
        assert (comm.value or 0, stream.value) == (self.rank, None)
        for each in wanted[:number]:
            key = (each.peer, self.rank, each.signal, each.context)
            self.taken[key] += each.count
            self.world.take(key, self.taken[key])
        return 0


def test_calls_of_nccl_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    path = tmp_path / "plan.py"
    coppice.export(coppice.plan(preset("ring", gpus=4), "reduce_scatter"), "python", path, pieces=2)
    script, world = _loaded(path), _World()
    program = script.program_of(script.PROGRAM)
    monkeypatch.setattr(script.ctypes, "CDLL", lambda name: {"libnccl.so.2": _Library(world)}[name])
    named = script.SharedLibrary("libnccl.so.2", torch).get_unique_id()

    def engine_of(rank: int) -> Any:
        nccl = script.SharedLibrary("libnccl.so.2", torch)
        nccl.torch = SimpleNamespace(empty=lambda *size, dtype: torch.empty(*size, dtype=dtype))
        rest = {"in_place": True, "elements": 5, "device": "cpu"}
        return script.OverNccl(program, rank, nccl, lambda value: value or bytes(named), **rest)

    assert _run_all(script, program, engine_of) == [True] * 8
    with pytest.raises(RuntimeError, match="take the engine nccl4py"):
        script.SharedLibrary("libnccl.so.2", torch).NCCLConfig(num_rma_sig=2)


def test_calls_of_torchs_symmetric_memory(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    path = tmp_path / "plan.py"
    coppice.export(coppice.plan(preset("ring", gpus=4), "all_reduce"), "python", path, pieces=2)
    script, world = _loaded(path), _World()
    program = script.program_of(script.PROGRAM)

    class Symmetric:
        def __init__(self, rank: int) -> None:
            self.rank, self.made = rank, 0
            self.taken: dict[int, int] = defaultdict(int)

        def empty(self, size: int, *, dtype: Any, device: str) -> Any:
            return torch.empty(size, dtype=dtype, device=device)

        def rendezvous(self, tensor: Any, group: str) -> int:
            assert group == "all"
            self.made += 1
            world.windows[self.made, self.rank] = tensor
            return self.made

        def put_signal(self, source: Any, handle: int, peer: int) -> None:
            world.windows[handle, peer][: len(source)].copy_(source)
            world.count(self.rank, peer)

        def wait_signal(self, handle: int, peer: int) -> None:
            assert (handle, self.rank) in world.windows
            self.taken[peer] += 1
            world.take((peer, self.rank), self.taken[peer])

    def engine_of(rank: int) -> Any:
        return script.OverTorch(
            program, rank, Symmetric(rank), "all", in_place=False, elements=5, device="cpu"
        )

    assert _run_all(script, program, engine_of) == [True] * 8
    coppice.export(coppice.plan(preset("ring", gpus=4), "all_reduce"), "python", path, communicators=2)
    script = _loaded(path)
    program = script.program_of(script.PROGRAM)
    with pytest.raises(RuntimeError, match="one communicator, signal and context"):
        engine_of(0)
