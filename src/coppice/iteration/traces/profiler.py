"""Events of PyTorch's profiler of any release: kind and interval of each.

Since 2020 names of categories, threads and numbers have changed, and files break in known ways: numbers that JSON does
not have (``inf``), times as text, events without a time, several processes in one file. What can be read is read, and
what is left out or changed is told in a note; what cannot be told apart is refused.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from coppice.decoding import JSON_FAULTS, decodable, json_fault
from coppice.errors import InputError
from coppice.iteration.traces.kinds import bare_list, read_trace_bytes
from coppice.text import plural, shortened

_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"})
_RUNTIME = frozenset(
    f"{maker}_{part}"
    for maker in ("cuda", "hip", "xpu", "mtia", "privateuse1")
    for part in ("runtime", "driver")
) | {"runtime"}
_OTHER = frozenset(
    {
        *("operator", "cpu_op", "user_annotation", "gpu_user_annotation", "python_function", "overhead"),
        *("cpu_instant_event", "external_correlation", "cuda_sync", "cuda_profiler_range", "collective_comm"),
        *(
            *("fwdbwd", "ac2g", "async_cpu_to_gpu", "trace", "async", "forward_backward", "python"),
            *("hip_sync", ""),
        ),
    }
)
_NO_NUMBER = re.compile(rb'"(?:[^"\\]|\\.)*"|[+-]?\b(?:inf(?:inity)?|nan)\b', re.IGNORECASE)
_EVENT_LISTS = re.compile(rb'"traceEvents"\s*:')


class _Event(msgspec.Struct):
    """Fields of an event."""

    ph: str = ""
    cat: str = ""
    name: Any = ""
    ts: Decimal | None = None
    dur: Decimal | None = None
    pid: int | float | str | None = 0
    tid: int | float | str | None = 0
    args: dict[str, Any] | None = None


class _TraceFile(msgspec.Struct, rename={"events": "traceEvents"}):
    """Fields of the file."""

    events: list[_Event]


@dataclass(frozen=True, kw_only=True)
class ProfilerEvent:
    """Event with a duration."""

    name: str  # Its name
    begin: float  # When it begins, in microseconds from the first event
    end: float  # When it ends
    process: str  # Its process, or the device
    thread: str  # Its thread, or the stream
    told: dict[str, Any] = field(default_factory=dict)  # What it notes (`args`)


@dataclass(frozen=True, kw_only=True)
class ProfilerEvents:
    """Events of one rank."""

    device: Sequence[ProfilerEvent]  # What ran on the device: kernels, copies
    runtime: Sequence[ProfilerEvent]  # Calls of the runtime that launched it
    other: Sequence[ProfilerEvent]  # Everything else: operators, annotations
    kernels: Sequence[ProfilerEvent]  # Those of `device` that are no copies
    notes: Sequence[str] = ()  # What was left out or changed, in words


def read_profiler_events(path: Path | str) -> ProfilerEvents:
    """Read events of a file, gzipped or not."""
    data = read_trace_bytes(path)
    notes: list[str] = []
    events = _decoded(data, path, notes)
    first = min(
        (each.ts for each in events if each.ts is not None and each.ts.is_finite()), default=Decimal(0)
    )
    kinds: dict[str, list[ProfilerEvent]] = {"device": [], "runtime": [], "other": []}
    kernels: list[ProfilerEvent] = []
    faults, foreign = _Faults(), Counter[str]()
    for number, each in enumerate(events):
        category = each.cat.lower()
        kind = "device" if category in _DEVICE else "runtime" if category in _RUNTIME else "other"
        if each.ph != "X":
            if kind != "other" and each.ph in "BE" and each.ph:
                faults.add("that begin and end apart (ph B, E) are left out", number, each.name)
            continue
        if kind == "other" and category not in _OTHER:
            foreign[each.cat] += 1
        if each.ts is None or not each.ts.is_finite():
            faults.add("without a time (`ts`) are left out", number, each.name)
            continue
        length = each.dur
        if length is None or not length.is_finite():
            if kind != "other":
                faults.add("without a length (`dur`) count as 0 us long", number, each.name)
            length = Decimal(0)
        elif length < 0:
            faults.add("of a negative length (`dur`) count as 0 us long", number, each.name)
            length = Decimal(0)
        begin = each.ts - first
        event = ProfilerEvent(
            name=str(each.name),
            begin=float(begin),
            end=float(begin + length),
            process=str(each.pid),
            thread=str(each.tid),
            told=each.args or {},
        )
        kinds[kind].append(event)
        if category == "kernel":
            kernels.append(event)
    notes += faults.words()
    if foreign:
        names = shortened([f"{name} ({count})" for name, count in foreign.most_common()], 4)
        notes.append(f"{plural(foreign.total(), 'event')} of categories unknown here are left aside: {names}")
    if not kinds["device"]:
        raise InputError(_nothing_ran(path, kinds["runtime"], kinds["other"], notes))
    _require_one_rank(path, kinds["runtime"])
    return ProfilerEvents(**kinds, kernels=kernels, notes=notes)


class _Faults:
    """Malformed events: how many, and where the first is."""

    def __init__(self) -> None:
        self._count: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def add(self, what: str, number: int, name: Any) -> None:
        """Count a malformed event."""
        self._count[what] += 1
        self._first.setdefault(what, f"$.traceEvents[{number}], {str(name)[:40]}")

    def words(self) -> list[str]:
        """A note for each kind of fault."""
        return [
            f"{plural(count, 'event')} {what} (first: {self._first[what]})"
            for what, count in self._count.items()
        ]


def _without_such_numbers(data: bytes, instead: bytes) -> tuple[int, bytes]:
    """Count numbers outside of JSON (NaN, infinity) in a text, and replace them."""
    count = 0

    def replaced(match: re.Match[bytes]) -> bytes:
        nonlocal count
        if match[0].startswith(b'"'):
            return match[0]
        count += 1
        return instead.ljust(len(match[0]))

    repaired = _NO_NUMBER.sub(replaced, data)
    return count, repaired


def _decoded(data: bytes, path: Path | str, notes: list[str]) -> list[_Event]:
    """Decode events, with numbers outside of JSON read as missing."""
    text = data
    try:
        events = msgspec.json.decode(data, type=decodable(_TraceFile)).events
    except JSON_FAULTS as error:
        fault = json_fault(error, data)
        if "JSON has no number for" not in fault:
            raise InputError(_no_trace(path, data, fault)) from None
        count, repaired = _without_such_numbers(data, b"null")
        try:
            events = msgspec.json.decode(repaired, type=decodable(_TraceFile)).events
        except JSON_FAULTS as other:
            what = json_fault(other, repaired)
            try:  # with what is as long, so that places are those of the file
                msgspec.json.decode(_without_such_numbers(data, b"0")[1], type=decodable(_TraceFile))
            except JSON_FAULTS as placed:
                what = json_fault(placed, data)
            raise InputError(_no_trace(path, data, f"{what}; also {fault}")) from None
        notes.append(f"{fault}: {plural(count, 'number')} like it read as missing")
        text = repaired
    lists = len(_EVENT_LISTS.findall(data))
    if lists > 1:
        raise InputError(
            f"expected one list of events (traceEvents) in {path}, found {lists}: keep one of them."
        )
    twice = _keys_given_twice(text)
    if twice:
        names = shortened([f"{name} ({count})" for name, count in twice.most_common()], 4)
        notes.append(f"keys that an object gives more than once: {names}: the last value of each counts")
    return events


def _keys_given_twice(text: bytes) -> Counter[str]:
    """Keys repeated in one object, with the number of such objects."""
    twice = Counter[str]()

    def look(pairs: list[tuple[str, Any]]) -> None:  # keeps nothing: traces are large
        count = Counter(key for key, _ in pairs) if len({key for key, _ in pairs}) < len(pairs) else {}
        twice.update(key for key, times in count.items() if times > 1)

    json.JSONDecoder(
        object_pairs_hook=look, parse_float=str, parse_int=str, parse_constant=str, strict=False
    ).decode(text.decode(errors="replace"))
    return twice


def _no_trace(path: Path | str, data: bytes, fault: str) -> str:
    """Error about a file that is no trace, with the next step."""
    if "cut off" in fault:
        return (
            f"expected a whole trace in {path}, found {fault}; let the profiler finish before the program ends, or "
            "copy the file again."
        )
    if data.lstrip()[:1] == b"[":
        return (
            f"expected a trace of PyTorch's profiler in {path} (with traceEvents), found {bare_list(data)}."
        )
    remedy = (
        "export the trace again, or mend the file there" if "not JSON" in fault else "mend the value there"
    )
    return f"expected a trace of PyTorch's profiler in {path} (with traceEvents), found otherwise: {fault}: {remedy}."


def _nothing_ran(
    path: Path | str, runtime: Sequence[ProfilerEvent], other: Sequence[ProfilerEvent], notes: Sequence[str]
) -> str:
    """Error about a trace without device operations, with what it has."""
    found = [
        words
        for count, words in ((len(other), "of the CPU alone"), (len(runtime), "of the runtime"))
        if count
    ]
    there = " and ".join(found)
    told = f" ({'; '.join(notes)})" if notes else ""
    what = f"found events {there}, nothing ran on a device{told}" if found else f"found none{told}"
    return f"expected operations of a GPU in {path}, {what}: profile with ProfilerActivity.CUDA."


def _require_one_rank(path: Path | str, runtime: Sequence[ProfilerEvent]) -> None:
    """Check that correlation numbers are those of one process."""
    process_of: dict[Any, str] = {}
    for each in runtime:
        number = each.told.get("correlation")
        if number is None:
            continue
        other = process_of.setdefault(number, each.process)
        if other != each.process:
            raise InputError(
                f"expected the trace of one rank in {path}, found launches of processes {other} and {each.process} "
                f"under the same number ({number}): import the trace of each rank by itself."
            )
