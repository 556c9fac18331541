"""Traces of PyTorch's profiler: what is read, exact replay, and what a change of times does."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from coppice.errors import InputError
from coppice.iteration.kineto import read_kineto
from coppice.iteration.traces.kinds import kind_of, read_trace_bytes


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
        (b"{", "not JSON: cut off at line 1, column 2"),
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
    with pytest.raises(InputError, match=r"not JSON: cut off at line 1, column \d+; let the profiler finish"):
        read_kineto(path)


OLD = """{
"schemaVersion": 1,
"traceEvents": [
{ "ph": "X", "cat": "Operator", "name": "aten::copy_", "pid": 41, "tid": "41", "ts": 1609459200000000, "dur": 40 },
{ "ph": "X", "cat": "Runtime", "name": "cudaMemcpyAsync", "pid": 41, "tid": "87", "ts": 1609459200000010, "dur": 20,
  "args": { "correlation": 11 } },
{ "ph": "X", "cat": "Memcpy", "name": "Memcpy HtoD inf", "pid": 0, "tid": "stream 7", "ts": 1609459200000025, "dur": 0,
  "args": { "correlation": 11, "memory bandwidth (GB/s)": inf, "more": [-Infinity, NaN] } },
{ "ph": "X", "cat": "Runtime", "name": "cudaLaunchKernel", "pid": 41, "tid": "87", "ts": 1609459200000040, "dur": 9,
  "args": { "correlation": 12 } },
{ "ph": "X", "cat": "Kernel", "name": "volta_sgemm", "pid": 0, "tid": "stream 7", "ts": 1609459200000052, "dur": 310,
  "args": { "correlation": 12 } },
{ "ph": "i", "s": "g", "name": "Iteration Start", "pid": "Traces", "tid": "Trace", "ts": 1609459200000000 }
]}"""


def test_traces_of_2021_with_numbers_that_json_does_not_have(tmp_path: Path) -> None:
    """Categories with capitals, streams as names of threads, and ``inf``; a string with such a word is not touched."""
    path = tmp_path / "old.json"
    path.write_text(OLD)
    trace = read_kineto(path)
    assert [(each[1] - each[0], each[2], each[4]) for each in trace.operations] == [
        (0.0, "stream 7", "Memcpy HtoD inf"),
        (310.0, "stream 7", "volta_sgemm"),
    ]
    assert [each[5] for each in trace.operations] == [0, 1]
    assert trace.notes == (
        "not JSON: inf, which JSON has no number for, at line 8, column 59: 3 numbers like it read as missing",
    )


def test_what_is_no_json_is_told_with_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    for text, words in (
        (
            '{"traceEvents": [\n {"name": "a "quote" in it"}]}',
            r"not JSON: expected ',' or '\}' at line 2, column 15",
        ),
        ('{"traceEvents": [\n {"name": "a"},]}', r"not JSON: trailing comma in array at line 2, column 16"),
        ('{"traceEvents": [{"ts": inf, "dur": }]}', r"at line 1, column \d+; also not JSON: inf"),
        ('{"traceEvents": [], "traceEvents": []}', r"one list of events \(traceEvents\) .* found 2"),
        ('{"traceEvents": [{"ph": "X", "ts": "soon"}]}', r"\$\.traceEvents\[0\]\.ts"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=words):
            read_kineto(path)
    path.write_bytes(b'{"traceEvents": [\n{"name": "\xff"}]}')
    with pytest.raises(InputError, match="not JSON: not UTF-8 text at line 2, column 11"):
        read_kineto(path)
    whole = gzip.compress(json.dumps({"traceEvents": EVENTS}).encode())
    for packed in (whole[:-12], whole[:60] + b"\x00" * 30 + whole[90:]):
        path.write_bytes(packed)
        with pytest.raises(InputError, match=r"a whole gzip file .* copy it again"):
            read_kineto(path)


def test_a_stream_is_never_busy_for_longer_than_anything_runs_on_it(tmp_path: Path) -> None:
    """Two kernels overlap by 15 us, and one lies within another: the stream is busy for the time that they cover."""
    events = [
        call("hipLaunchKernel", 1010, 5, 1),
        call("hipLaunchKernel", 1040, 5, 2),
        kernel("Cijk_MT256x256", 1030, 320, 1),
        kernel("elementwise", 1335, 60, 2),
        kernel("within", 1340, 10, 3),
    ]
    trace = read_kineto(written(tmp_path / "trace.json", events))
    assert trace.busy_us()["compute"] == pytest.approx(365.0)
    assert sum(end - begin for begin, end, *_ in trace.operations) == pytest.approx(365.0)
    assert 1e6 * trace.replay().seconds == pytest.approx(385.0)
    assert trace.notes == (
        "2 operations began before what is ahead on the stream had ended, by 25 us in all: counted from its end",
    )


def test_times_as_text_are_times(tmp_path: Path) -> None:
    """They keep nanoseconds, which absolute times in 64-bit numbers would not."""
    before = read_kineto(written(tmp_path / "plain.json", EVENTS))
    told = [{**each, "ts": f"{1708420466101000 + int(each['ts'])}.125"} for each in EVENTS]
    found = read_kineto(written(tmp_path / "text.json", told))
    assert (found.operations, found.calls, found.profiled) == (
        before.operations,
        before.calls,
        before.profiled,
    )
    bare = (tmp_path / "text.json").read_text().replace('"ts": "', '"ts": ').replace('.125"', ".125")
    (tmp_path / "long.json").write_text(bare)
    assert read_kineto(tmp_path / "long.json").operations == before.operations


def test_events_that_are_not_as_they_should_be_are_told(tmp_path: Path) -> None:
    odd = [
        {**kernel("negative", 2000, -3, 9)},
        {key: value for key, value in kernel("timeless", 0, 5, 9).items() if key != "ts"},
        {key: value for key, value in kernel("endless", 2100, 5, 9).items() if key != "dur"},
        {**kernel("strange", 2200, 5, 9), "cat": "npu_kernel"},
        {**kernel("apart", 2300, 5, 9), "ph": "B"},
    ]
    trace = read_kineto(written(tmp_path / "trace.json", [*EVENTS, *odd]))
    assert len(trace.operations) == 6
    assert min(end - begin for begin, end, *_ in trace.operations) == 0.0
    assert [note.split(" (first")[0] for note in trace.notes] == [
        "1 event of a negative length (`dur`) count as 0 us long",
        "1 event without a time (`ts`) are left out",
        "1 event without a length (`dur`) count as 0 us long",
        "1 event that begin and end apart (ph B, E) are left out",
        "1 event of categories unknown here are left aside: npu_kernel (1)",
    ]


def test_nothing_on_a_device_several_devices_and_several_ranks(tmp_path: Path) -> None:
    operator = {**STEP, "cat": "cpu_op", "name": "aten::linear"}
    with pytest.raises(InputError, match=r"nothing ran on a device: profile with ProfilerActivity\.CUDA"):
        read_kineto(written(tmp_path / "cpu.json", [operator]))
    devices = [kernel("gemm", 1000, 50, number) for number in (0, 1)]
    for number, each in enumerate(devices):
        each["args"]["device"] = number
    trace = read_kineto(written(tmp_path / "devices.json", devices))
    assert [each[2] for each in trace.operations] == ["device 0 stream 7", "device 1 stream 7"]
    assert trace.notes == ()
    assert 1e6 * trace.replay().seconds == pytest.approx(50.0)
    ranks = [{**call("cudaLaunchKernel", 1000, 5, 1), "pid": pid} for pid in (10, 11)]
    with pytest.raises(InputError, match=r"launches of processes 10 and 11 .* trace of each rank by itself"):
        read_kineto(written(tmp_path / "ranks.json", [*ranks, kernel("gemm", 1010, 50, 1)]))


def test_exports_of_ascend_and_bare_lists_are_told_by_their_names(tmp_path: Path) -> None:
    path = tmp_path / "trace_view.json"
    named = {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "Ascend Hardware"}}
    for read in (read_kineto, lambda file: kind_of(file.read_bytes())):
        path.write_text(json.dumps([named, {**EVENTS[5], "cat": ""}]))
        with pytest.raises(InputError, match=r"bare list .* Ascend's profiler .* .coppice train estimate"):
            read(path)
        path.write_text(json.dumps(EVENTS))
        with pytest.raises(InputError, match=r"bare list of events: export it with .* export_chrome_trace"):
            read(path)


def test_a_zip_file_is_told_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.zip"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("trace.json", json.dumps({"traceEvents": EVENTS}))
    for read in (read_kineto, read_trace_bytes):
        with pytest.raises(InputError, match="found a zip file: unzip it, and name the trace inside"):
            read(path)


def test_keys_given_twice_are_told(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    text = json.dumps({"traceEvents": EVENTS})
    path.write_text(text)
    assert not any("more than once" in note for note in read_kineto(path).notes)
    path.write_text(
        text.replace('"dur": 300', '"dur": 200, "dur": 300').replace(
            '"stream": 20', '"stream": 7, "stream": 20'
        )
    )
    found = read_kineto(path)
    assert "keys that an object gives more than once: dur (1), stream (1): the last value of each counts" in (
        found.notes
    )
