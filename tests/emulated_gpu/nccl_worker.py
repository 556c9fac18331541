"""Runs one test of NCCL on the emulated runtime, ranks as threads: ``nccl_worker.py LIBRARY TEST RANKS``.

It prints one line of JSON. The process is given the emulated libraries, the box and the seed by its environment.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch

import coppice.run.engines.put_signal.cuda as put_signal_cuda
from coppice.collectives import Collective
from coppice.run.communicator.communicator import Communicator
from coppice.run.engines.datatype import DataType, ReduceOp
from coppice.run.engines.numpy import numpy_engines
from coppice.run.engines.put_signal.engine import PutSignalEngine
from coppice.run.engines.put_signal.opening import put_signal_engine
from coppice.topology.presets import preset
from emulated_gpu import cuda_of_torch as cuda
from emulated_gpu import real_nccl4py
from emulated_gpu.nccl_core import Library
from support.rank_groups import in_threads

_BYTES = 100_000
_PATIENCE_S = 60.0


def puts(library: Library, ranks: int) -> dict[str, Any]:
    """Windows, puts around a ring, signals back, waits: eagerly, and as replays of a captured graph."""
    module: Any = library.module()
    name = module.get_unique_id()

    def serve(rank: int) -> int:
        cuda.call("cudaSetDevice", rank)
        group = module.Communicator.init(ranks, rank, name)
        window = module.torch.empty(2 * _BYTES, dtype=torch.uint8)
        registered = group.register_window(window, module.WindowFlag.COLL_SYMMETRIC)
        assert registered is not None
        stream = cuda.Stream()
        after, before = (rank + 1) % ranks, (rank - 1) % ranks
        graph = None
        right = 0

        def exchange() -> None:
            group.put_signal(window[:_BYTES], after, registered, _BYTES, stream=stream.cuda_stream)
            group.wait_signal([module.WaitSignalDesc(peer=before)], stream=stream.cuda_stream)

        with cuda.stream(stream), cuda.Issued():
            for turn in range(8):
                window[:_BYTES].fill_((7 * rank + turn) % 251)
                if turn < 4:
                    exchange()
                else:
                    graph = graph or cuda.Graph(exchange)
                    graph.replay()
                found = window[_BYTES:].clone()  # waits for the stream
                right += bool((found == (7 * before + turn) % 251).all())
                # Nobody puts again before what came was read; graphs of NCCL see to that by themselves.
                group.signal(before, stream=stream.cuda_stream)
                group.wait_signal([module.WaitSignalDesc(peer=after)], stream=stream.cuda_stream)
                stream.synchronize()
        if graph is not None:
            graph.delete()
        registered.close()
        group.destroy()
        return right

    return {"right": in_threads(ranks, serve), "of": 8}


def gathers(library: Library, ranks: int) -> dict[str, Any]:
    """An all-gather between windows, which copy engines carry out where no SM may (NCCL_CTA_POLICY=2)."""
    module: Any = library.module()
    name = module.get_unique_id()

    def serve(rank: int) -> list[int]:
        cuda.call("cudaSetDevice", rank)
        group = module.Communicator.init(ranks, rank, name)
        own = module.torch.empty(_BYTES, dtype=torch.uint8)
        all_of_them = module.torch.empty(ranks * _BYTES, dtype=torch.uint8)
        windows = [
            group.register_window(each, module.WindowFlag.COLL_SYMMETRIC) for each in (own, all_of_them)
        ]
        stream = cuda.Stream()
        with cuda.stream(stream), cuda.Issued():
            own.fill_(rank + 1)
            group.all_gather(own, all_of_them, stream=stream.cuda_stream)
            found = all_of_them.view(ranks, _BYTES).clone()
        for each in windows:
            each.close()
        group.destroy()
        return [int(row[0]) if len(row.unique()) == 1 else -1 for row in found]

    return {"found": in_threads(ranks, serve)}


def engine(library: Library, ranks: int) -> dict[str, Any]:
    """Our put/signal engine, unchanged, over NCCL: collectives eagerly and captured, with values of all ranks."""
    sys.modules["nccl.core"] = library.module()
    return _collectives(ranks)


def nccl4py(library: Library, ranks: int) -> dict[str, Any]:
    """The same over nccl4py itself, or what our engine says of its release."""
    del library
    return {"release": real_nccl4py.install()} | _collectives(ranks)


def _collectives(ranks: int) -> dict[str, Any]:
    put_signal_cuda.PLACE = "cpu"
    cuda.install(setattr)
    below, store = numpy_engines(ranks), torch.distributed.HashStore()
    topology = preset("ring", gpus=ranks)
    cache = tempfile.mkdtemp()

    def on(made: PutSignalEngine) -> dict[str, bool]:
        group = Communicator(made, topology, algorithm="forest", cache_dir=Path(cache), pieces=2)
        rank, right = made.rank, {}
        stream = cuda.Stream()
        with cuda.stream(stream), cuda.Issued():
            for count in (3 * ranks, 20_000 * ranks):  # the window grows
                values = torch.arange(count, dtype=torch.float32) + rank
                program = group.prepare(Collective.ALL_REDUCE, count, in_place=True)
                group.carry_out(program, None, values, dtype=DataType.FLOAT32, op=ReduceOp.SUM)
                stream.synchronize()
                wanted = ranks * torch.arange(count) + sum(range(ranks))
                right[f"all_reduce {count}"] = bool(torch.equal(values, wanted.float()))
            gathered = group.all_gather(np.array([rank, 2 * rank]))
            right["all_gather"] = gathered.tolist() == [x for each in range(ranks) for x in (each, 2 * each)]
            static = torch.zeros(6 * ranks)
            program = group.prepare(Collective.ALL_REDUCE, len(static), in_place=True)

            def reduce() -> None:
                group.carry_out(program, None, static, dtype=DataType.FLOAT32, op=ReduceOp.SUM)

            reduce()  # the window and the communicators are there
            stream.synchronize()
            made.exchange(b"")
            graph = cuda.Graph(reduce)
            for turn in range(5):
                static.fill_(float(turn + rank))
                graph.replay()
                stream.synchronize()
                wanted = torch.full_like(static, float(ranks * turn + sum(range(ranks))))
                right[f"replay {turn}"] = bool(torch.equal(static, wanted))
                made.exchange(b"")
            graph.delete()
        return right

    def serve(rank: int) -> dict[str, bool]:
        cuda.call("cudaSetDevice", rank)
        with cuda.Issued():
            made = put_signal_engine(
                below[rank], devices=("nccl",), store=store, left_to="NCCL", timeout_s=_PATIENCE_S
            )
        try:
            assert made.device.name == "NCCL"
            return on(made)
        finally:
            with cuda.Issued():
                made.close()

    return {"right": in_threads(ranks, serve)}


def reduces(library: Library, ranks: int) -> dict[str, Any]:
    """All-reduces whose kernels do nothing: what the library and its plug-ins decide is in its log."""
    module: Any = library.module()
    name = module.get_unique_id()

    def serve(rank: int) -> bool:
        cuda.call("cudaSetDevice", rank)
        group = module.Communicator.init(ranks, rank, name)
        values = module.torch.empty(1 << 16, dtype=torch.float32)
        stream = cuda.Stream()
        group.all_reduce(values, values, stream=stream.cuda_stream)
        stream.synchronize()
        group.destroy()
        return True

    return {"found": in_threads(ranks, serve)}


_TESTS: dict[str, Callable[[Library, int], dict[str, Any]]] = {
    each.__name__: each for each in (puts, gathers, engine, nccl4py, reduces)
}


if __name__ == "__main__":
    _, path, test, number = sys.argv
    print(json.dumps(_TESTS[test](Library(path), int(number)), default=str), flush=True)
