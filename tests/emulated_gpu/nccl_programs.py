"""Random put/signal programs of our engine over NCCL, eager and captured: ``LIBRARY RANKS FIRST NUMBER``.

Programs ``FIRST`` to ``FIRST + NUMBER - 1`` are plans of generated topologies, lowered with drawn pieces, communicators
and staging memory. Each runs twice eagerly, and where it may be captured three times as a graph, every time with values
of its own; results are compared with NumPy's, bit for bit. The last line is JSON: what was run, and what went wrong.
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch

import coppice.run.engines.put_signal.cuda as put_signal_cuda
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.program.dialects.put_signal.lower import lower_put_signal
from coppice.program.dialects.put_signal.order import is_graph_safe
from coppice.program.dialects.put_signal.program import PutSignalProgram
from coppice.program.dialects.put_signal.verify import verify_put_signal
from coppice.run.engines.datatype import DataType, ReduceOp
from coppice.run.engines.numpy import numpy_engines
from coppice.run.engines.put_signal.engine import PutSignalEngine
from coppice.run.engines.put_signal.nccl import NcclDevice
from coppice.run.engines.torch.tensors import combining
from emulated_gpu import cuda_of_torch as cuda
from emulated_gpu.nccl_core import Library
from support.generated_calls import Call, any_call
from support.rank_groups import in_threads

_PATIENCE_S = 240.0
_WINDOW_BYTES = 1 << 22
_EAGER, _REPLAYS = 2, 3
_MOST_COMMUNICATORS = 2
_STAGING = (Fraction(1, 4), Fraction(0))
_COLLECTIVES = (
    Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER,
    Collective.ALL_REDUCE,
    Collective.BROADCAST,
    Collective.REDUCE,
    Collective.ALL_TO_ALL,
    Collective.GATHER,
    Collective.SCATTER,
)


@dataclass(frozen=True, kw_only=True)
class DrawnProgram:
    """A program, and the call that it carries out."""

    words: str
    call: Call
    program: PutSignalProgram


def drawn(number: int, ranks: int) -> DrawnProgram:
    """The program with this number.

    Raises:
        AssertionError: If it does not verify.
    """
    choose = random.Random(f"put/signal {ranks} {number}").randint
    while True:
        call = any_call(choose, ranks=ranks, collective=_COLLECTIVES[number % len(_COLLECTIVES)], even=True)
        pieces, communicators = choose(1, 4), choose(1, _MOST_COMMUNICATORS)
        staging, graphs = _STAGING[choose(0, 1)], choose(0, 3) > 0
        try:
            if call.programs[0].collective.reduces:
                combining(call.op, call.dtype)  # what torch adds up
            program = lower_put_signal(
                call.body, pieces=pieces, communicators=communicators, staging=staging, graphs=graphs
            )
        except InputError:
            continue
        report = verify_put_signal(program)
        assert report.ok, (call.words, report.failures)
        words = f"{number}: {call.words}, {pieces} pieces, {communicators} communicators, staging {staging}"
        return DrawnProgram(words=f"{words}, graphs {graphs}", call=call, program=program)


class Buffer:
    """Memory of the device, as one buffer of calls."""

    def __init__(self, stored: Any, dtype: DataType) -> None:
        self._like, self._address, room = stored, ctypes.c_void_p(), max(stored.nbytes, 1)
        cuda.call("cudaMalloc", ctypes.byref(self._address), ctypes.c_size_t(room))
        self._bytes = cuda.tensor_at(self._address.value or 0, room, torch.uint8)[: stored.nbytes]
        self.tensor = self._bytes.view(getattr(torch, dtype.value))

    def write(self, stored: Any) -> None:
        """Fill it, in the order of the current stream."""
        self._bytes.copy_(torch.tensor(stored.view(np.uint8)))

    def read(self) -> Any:
        """Its elements after what the current stream does, as buffers of calls hold them."""
        return self._bytes.clone().numpy().view(self._like.dtype)

    def free(self) -> None:
        """Let go of it."""
        cuda.call("cudaFree", self._address)


def run(drawn: DrawnProgram, engine: PutSignalEngine) -> tuple[list[str], bool]:
    """What is wrong with this rank's results, and whether the program was captured as well."""
    call, program, rank = drawn.call, drawn.program, engine.rank
    before, after = call.buffers(rank)
    assert before is not None
    given, output = Buffer(before, call.dtype), Buffer(after, call.dtype)
    captured = is_graph_safe(program)
    faults = []

    def carry_out() -> None:
        engine.run_program(
            program,
            given.tensor,
            output.tensor,
            count=call.programs[rank].count,
            dtype=call.dtype,
            op=call.op if program.collective.reduces else ReduceOp.SUM,
            timeout_s=_PATIENCE_S,
        )

    def turn(number: int, act: Callable[[], None], how: str) -> None:
        now = replace(call, seed=call.seed + 1000 * number)
        values, empty = now.buffers(rank)
        assert values is not None
        given.write(values)
        output.write(empty)
        act()
        wrong = now.fault(rank, given.read(), output.read())
        if wrong:
            faults.append(f"{drawn.words}, {how} {number}: {wrong}")

    for number in range(_EAGER):
        turn(number, carry_out, "eagerly")
    if captured:
        graph = cuda.Graph(carry_out)
        for number in range(_REPLAYS):
            turn(_EAGER + number, graph.replay, "as replay")
        graph.delete()
    given.free()
    output.free()
    return faults, captured


def programs(library: Library, ranks: int, first: int, number: int) -> dict[str, Any]:
    """Run so many programs on one engine a rank."""
    sys.modules["nccl.core"] = library.module()
    put_signal_cuda.PLACE = "cpu"
    cuda.install(setattr)
    below = numpy_engines(ranks)
    made = [drawn(each, ranks) for each in range(first, first + number)]

    def serve(rank: int) -> tuple[list[str], int]:
        cuda.call("cudaSetDevice", rank)
        stream, faults, captured = cuda.Stream(), [], 0
        with cuda.stream(stream), cuda.Issued():
            device = NcclDevice(rank, ranks, below[rank].exchange)
            engine = PutSignalEngine(device, below[rank])
            try:
                engine.try_out(_PATIENCE_S, num_bytes=_WINDOW_BYTES, communicators=_MOST_COMMUNICATORS)
                for each in made:
                    try:
                        wrong, also = run(each, engine)
                    except BaseException as error:
                        sys.stderr.write(f"rank {rank}: {each.words}: {error!r}, {error.__cause__!r}\n")
                        raise
                    faults += wrong
                    captured += also
            finally:
                engine.close()
        return faults, captured

    found = in_threads(ranks, serve, patience_s=_PATIENCE_S)
    if any(not isinstance(each, tuple) for each in found):
        return {"faults": [repr(each) for each in found], "programs": 0, "captured": 0}
    faults = [fault for each in found for fault in each[0]]
    return {"faults": faults, "programs": number, "captured": found[0][1], "version": library.version}


if __name__ == "__main__":
    _, path, *numbers = sys.argv
    print(json.dumps(programs(Library(path), *map(int, numbers))), flush=True)
