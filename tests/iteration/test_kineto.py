"""Traces of PyTorch's profiler: what is read, exact replay, and what a change of times does."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from coppice.errors import InputError
from coppice.iteration.kineto import read_kineto


def call(name: str, begin: float, length: float, correlation: int, thread: int = 1) -> dict[str, Any]:
    args = {"correlation": correlation}
    return {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": name,
        "ts": begin,
        "dur": length,
        "tid": thread,
        "args": args,
    }


def kernel(name: str, begin: float, length: float, correlation: int, stream: int = 7) -> dict[str, Any]:
    args = {"correlation": correlation, "stream": stream}
    return {"ph": "X", "cat": "kernel", "name": name, "ts": begin, "dur": length, "tid": stream, "args": args}


STEP = {
    "ph": "X",
    "cat": "user_annotation",
    "name": "ProfilerStep#3",
    "ts": 1000.0,
    "dur": 900.0,
    "tid": 1,
    "args": {},
}
EVENTS = [
    STEP,
    call("cudaLaunchKernel", 1000, 10, 1),
    call("cudaLaunchKernel", 1020, 10, 2),
    call("cudaLaunchKernel", 1040, 10, 3),
    call("cudaMemcpyAsync", 1060, 840, 4),
    kernel("gemm", 1005, 300, 1),
    kernel("ncclDevKernel_AllReduce_Sum_f16_RING_LL", 1307, 400, 2, stream=20),
    kernel("adam", 1709, 100, 3),
    {**kernel("Memcpy DtoH", 1815, 50, 4), "cat": "gpu_memcpy"},
]


def written(path: Path, events: list[dict[str, Any]], *, packed: bool = False) -> Path:
    data = json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    return path


@pytest.mark.parametrize("packed", [False, True])
def test_where_the_time_goes(tmp_path: Path, packed: bool) -> None:
    trace = read_kineto(written(tmp_path / "trace.json", EVENTS, packed=packed))
    assert trace.steps == [900.0]
    assert trace.span_us == 900.0
    busy = trace.busy_us()
    assert busy == {"compute": 450.0, "communication": 400.0, "exposed_communication": 400.0, "idle": 50.0}


def test_a_replay_takes_as_long(tmp_path: Path) -> None:
    trace = read_kineto(written(tmp_path / "trace.json", EVENTS))
    assert 1e6 * trace.replay().seconds == pytest.approx(900.0, abs=0.01)


def test_faster_communication_shortens_what_waits_for_it(tmp_path: Path) -> None:
    trace = read_kineto(written(tmp_path / "trace.json", EVENTS))
    assert 1e6 * trace.replay({"communication": 0.5}).seconds == pytest.approx(700.0, abs=0.01)
    assert 1e6 * trace.replay({"communication": 2.0}).seconds == pytest.approx(1300.0, abs=0.01)
    assert 1e6 * trace.replay({"compute": 0.5}).seconds < 900


def test_threads_wait_for_each_other(tmp_path: Path) -> None:
    events = [
        call("cudaLaunchKernel", 0, 10, 1),
        call("cudaMemcpyAsync", 20, 480, 2, thread=2),
        call("cudaLaunchKernel", 510, 10, 3),
        kernel("gemm", 5, 400, 1),
        {**kernel("Memcpy DtoH", 410, 80, 2), "cat": "gpu_memcpy"},
        kernel("adam", 515, 100, 3),
    ]
    trace = read_kineto(written(tmp_path / "trace.json", events))
    assert 1e6 * trace.replay().seconds == pytest.approx(615.0, abs=0.01)
    assert 1e6 * trace.replay({"compute": 0.5}).seconds < 450


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[]", "with traceEvents"),
        (b"{", "found otherwise"),
        (b"\x1f\x8bnothing", "a whole gzip file"),
        (b'{"traceEvents": []}', "expected operations of a GPU"),
    ],
)
def test_files_that_are_no_trace(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_kineto(path)


def test_factors_that_cannot_be(tmp_path: Path) -> None:
    trace = read_kineto(written(tmp_path / "trace.json", EVENTS))
    with pytest.raises(InputError, match="found network=2"):
        trace.replay({"network": 2})
    with pytest.raises(InputError, match="found compute=0"):
        trace.replay({"compute": 0})


def test_one_step_of_several(tmp_path: Path) -> None:
    """What a step launched counts for it, also where it runs after the step; its collectives have sizes."""
    told = {
        "Collective name": "allreduce",
        "dtype": "BFloat16",
        "In msg nelems": 100,
        "Out msg nelems": 100,
        "Group size": 64,
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1, 2, ...]",
    }
    late = kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 1950, 100, 5, stream=20)
    late["args"].update(told)
    later = {**STEP, "name": "ProfilerStep#4", "ts": 1900.0, "dur": 300.0}
    events = [
        *EVENTS,
        later,
        call("cudaLaunchKernel", 1899, 5, 5),
        call("cudaLaunchKernel", 1905, 5, 6),
        kernel("gemm", 1920, 200, 6),
    ]
    trace = read_kineto(written(tmp_path / "trace.json", [*events, late]))
    first, second = trace.step(3), trace.step(4)
    assert [len(each.operations) for each in (trace, first, second)] == [6, 5, 1]
    assert [(total.collective, total.ranks, total.size_bytes) for total in first.collectives()] == [
        ("all_reduce", 64, 200),
        ("all_reduce", 0, 0),
    ]
    assert second.collectives() == []
    assert 1e6 * second.replay().seconds == pytest.approx(215.0, abs=0.01)
    with pytest.raises(InputError, match="expected step 9 in the trace, found steps 3, 4"):
        trace.step(9)


def test_a_trace_that_is_cut_off(tmp_path: Path) -> None:
    path = written(tmp_path / "trace.json", EVENTS)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InputError, match="cut off; let the profiler finish"):
        read_kineto(path)
