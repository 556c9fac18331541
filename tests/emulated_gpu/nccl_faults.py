"""What our engine does over NCCL when something is wrong: ``nccl_faults.py LIBRARY FAULT RANKS``, ranks as threads.

The last line is JSON, where the process comes that far. Device and engine are ours, unchanged, but for shorter times.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

import coppice.run.engines.put_signal.cuda as put_signal_cuda
from coppice.collectives import Collective
from coppice.export.put_signal.document import parse_put_signal
from coppice.program.dialects.put_signal.lower import lower_put_signal
from coppice.program.dialects.put_signal.program import PutSignalProgram
from coppice.program.dialects.put_signal.verify import verify_put_signal
from coppice.run.engines.datatype import DataType
from coppice.run.engines.numpy import numpy_engines
from coppice.run.engines.put_signal.engine import PutSignalEngine
from coppice.run.engines.put_signal.opening import put_signal_engine
from emulated_gpu import cuda_of_torch as cuda
from emulated_gpu import symmetric_memory
from emulated_gpu.nccl_core import Library
from support.put_signal_cases import forest, text_of, tree_of, wrong_program
from support.rank_groups import in_threads

_PATIENCE_S = 60.0
_STATED_S = 2.0
"""How long a run may take that never ends, and how long it may go on once it was given up."""
_TOO_LONG_S = 60.0

Serve = Callable[[PutSignalEngine], Any]


def on_ranks(ranks: int, serve: Serve, *, device: str = "nccl", close: bool = True) -> list[Any]:
    """What ``serve`` returns or raises on every rank."""
    below, store = numpy_engines(ranks), torch.distributed.HashStore()

    def work(rank: int) -> Any:
        cuda.call("cudaSetDevice", rank)
        with cuda.stream(cuda.Stream()), cuda.Issued():
            made = put_signal_engine(below[rank], devices=(device,), store=store, timeout_s=_PATIENCE_S)
            watchdog: Any = made.device._watchdog  # type: ignore[attr-defined]
            watchdog._grace_s = _STATED_S
            try:
                return serve(made)
            finally:
                if close:
                    made.close()

    return in_threads(ranks, work)


def all_reduce(ranks: int, *, pieces: int = 1) -> PutSignalProgram:
    return lower_put_signal(forest("ring", Collective.ALL_REDUCE, (("gpus", ranks),)), pieces=pieces)


def reduced(
    engine: PutSignalEngine,
    program: PutSignalProgram,
    values: torch.Tensor,
    *,
    timeout_s: float = _PATIENCE_S,
) -> torch.Tensor:
    """The sum of all ranks' values, once the stream comes to it."""
    output = torch.zeros_like(values)
    engine.run_program(
        program, values, output, count=len(values), dtype=DataType.FLOAT32, timeout_s=timeout_s
    )
    return output


def is_sum(found: torch.Tensor, ranks: int) -> bool:
    return bool((found == sum(range(1, ranks + 1))).all())


def for_ever(engine: PutSignalEngine, program: PutSignalProgram, *, alone: bool) -> str:
    """A run that never ends: this process has to be ended in the stated time."""
    if engine.rank == 0 or not alone:
        reduced(engine, program, torch.ones(6 * engine.ranks), timeout_s=_STATED_S)
    time.sleep(_TOO_LONG_S)
    return "this process goes on"


def alone(ranks: int) -> list[Any]:
    """Rank 0 makes a call that nobody else makes: NCCL's abort waits for the wait that stands on its stream."""
    return on_ranks(ranks, lambda engine: for_ever(engine, all_reduce(ranks), alone=True))


def one_wait_more(ranks: int) -> list[Any]:
    """A program with a wait too many, which our model says will hang, does."""
    tree = tree_of(all_reduce(ranks))
    last = [call for call in tree["calls"][0] if "wait" in call][-1]
    last["wait"].append(list(last["wait"][0]))
    program = parse_put_signal(text_of(tree), file="one wait more").program
    assert not verify_put_signal(program).ok
    return on_ranks(ranks, lambda engine: for_ever(engine, program, alone=False))


def overwritten(ranks: int) -> list[Any]:
    """Whether sums are right at the root: of a program that verifies, and of one that overwrites what was not read."""
    right = lower_put_signal(forest("ring", Collective.REDUCE, (("gpus", ranks),)), pieces=8)
    wrong = wrong_program()
    assert (wrong.num_ranks, wrong.root) == (ranks, right.root)
    assert [verify_put_signal(each).ok for each in (right, wrong)] == [True, False]

    def serve(engine: PutSignalEngine) -> list[bool]:
        found = []
        for program in (right, wrong):
            values = torch.arange(64_000.0) + engine.rank  # chunks of their own values
            output = torch.zeros_like(values)
            for _ in range(4):
                engine.run_program(program, values, output, count=len(values), dtype=DataType.FLOAT32)
                cuda.synchronize()
                engine.exchange(b"")
            found.append(bool(torch.equal(output, ranks * torch.arange(64_000.0) + sum(range(ranks)))))
        return found

    return [on_ranks(ranks, serve)[right.root]]


def outgrown(ranks: int, *, device: str = "nccl") -> list[Any]:
    """A window that a captured graph uses, outgrown by an eager call, and replays after it."""
    program = all_reduce(ranks)

    def serve(engine: PutSignalEngine) -> list[bool]:
        small, large = torch.empty(6 * ranks), torch.ones(200_000 * ranks)
        output, right = torch.zeros_like(small), []

        def run() -> None:
            engine.run_program(program, small, output, count=len(small), dtype=DataType.FLOAT32)

        small.fill_(float(engine.rank + 1))
        run()
        cuda.synchronize()
        engine.exchange(b"")
        graph = cuda.Graph(run)
        for _ in range(3):
            large.fill_(float(engine.rank + 1))
            found = reduced(engine, program, large)
            cuda.synchronize()
            right.append(is_sum(found, ranks))
            output.zero_()
            graph.replay()
            cuda.synchronize()
            right.append(is_sum(output, ranks))
            engine.exchange(b"")
            large = torch.ones(2 * len(large))
        graph.delete()
        return right

    return on_ranks(ranks, serve, device=device)


def symmetric(ranks: int) -> list[Any]:
    """The same in torch's symmetric memory, by the bookkeeping of torch itself."""
    symmetric_memory.install()
    return outgrown(ranks, device="symmetric")


def live_graph(ranks: int) -> list[Any]:
    """Closing while a graph lives ends in an error."""
    put_signal_cuda._DESTROY_S = _STATED_S
    program = all_reduce(ranks)
    graphs = []

    def serve(engine: PutSignalEngine) -> str:
        values = torch.ones(6 * ranks)
        output = torch.zeros_like(values)

        def run() -> None:
            engine.run_program(program, values, output, count=len(values), dtype=DataType.FLOAT32)

        run()
        cuda.synchronize()
        engine.exchange(b"")
        graphs.append(cuda.Graph(run))
        engine.exchange(b"")
        try:
            engine.close()
        except Exception as error:  # noqa: BLE001 (which is asked for)
            return f"{type(error).__name__}: {error}"
        return "closed"

    return on_ranks(ranks, serve, close=False)


def opened(ranks: int) -> list[Any]:
    """What opening says; the surroundings lack something that puts need."""
    return [str(each) for each in on_ranks(ranks, lambda engine: engine.device.name)]


def killed(ranks: int) -> list[Any]:
    """Ranks are processes, and rank 1 is killed in the middle of its calls."""
    from coppice.run.engines.torch.engine import TorchEngine

    rank = int(os.environ["RANK"])
    below = TorchEngine.from_environment(timeout_s=_PATIENCE_S)
    cuda.call("cudaSetDevice", rank)
    with cuda.stream(cuda.Stream()), cuda.Issued():
        engine = put_signal_engine(below, devices=("nccl",), timeout_s=_PATIENCE_S)
        watchdog: Any = engine.device._watchdog  # type: ignore[attr-defined]
        watchdog._grace_s = _STATED_S
        program, values = all_reduce(ranks), torch.full((6 * ranks,), rank + 1.0)
        found = reduced(engine, program, values)
        cuda.synchronize()
        assert is_sum(found, ranks)
        engine.exchange(b"")
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        reduced(engine, program, values, timeout_s=_STATED_S)
        time.sleep(_TOO_LONG_S)
    return ["this process goes on"]


_FAULTS: dict[str, Callable[[int], list[Any]]] = {
    each.__name__: each
    for each in (alone, one_wait_more, overwritten, outgrown, symmetric, live_graph, opened, killed)
}


if __name__ == "__main__":
    _, path, fault, number = sys.argv
    sys.modules["nccl.core"] = Library(path).module()
    put_signal_cuda.PLACE = "cpu"
    cuda.install(setattr)
    print(json.dumps(_FAULTS[fault](int(number)), default=repr), flush=True)
    os._exit(0)  # threads that NCCL holds would keep it
