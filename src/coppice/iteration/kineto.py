"""Read Kineto traces (PyTorch's profiler) of one rank as task graphs, and replay them.

What is taken from the trace: operations of the device with their streams, calls of the runtime that launched them
(equal ``correlation``), and steps (``ProfilerStep#N``). A thread of the host is a chain of its calls and of the time
between them; an operation runs after the call that launched it and after what is before it on its stream. A call that
synchronises ends when what it waited for is done. Where an operation began later than all that, it waited for one of
another stream that ended just then, if there is one; otherwise the wait is kept as it is. A thread that pauses while
another one makes calls is taken to wait for the last of these, as the threads of autograd and of the program do.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coppice.errors import InputError
from coppice.iteration.tasks import TaskGraphBuilder, TaskTimes, run_tasks
from coppice.iteration.totals import ELEMENT_BYTES, CollectiveTotal, collective_totals, standard_collective
from coppice.iteration.traces.profiler import ProfilerEvent, read_profiler_events
from coppice.text import plural, shortened

_COMMUNICATION = re.compile(
    r"nccl|rccl|c10d|oneccl|msccl|hccl|hcom_|nvshmem|multimem_|_shot_all_reduce|cross_device_reduce",
    re.IGNORECASE,
)
_SYNCHRONISES = re.compile(r"(Device|Stream|Event)Synchronize|^cudaMemcpy$|^hipMemcpy$")
_PAUSE_US = 100.0  # a thread that makes no call for so long may wait for another
_NEAR_US = 12.0  # an operation that waits for another stream begins so soon after it


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A replayed trace."""

    times: TaskTimes  # When tasks run

    @property
    def seconds(self) -> float:
        """Makespan."""
        return self.times.seconds


@dataclass(frozen=True, kw_only=True)
class KinetoCollective:
    """A collective in the trace."""

    begin: float  # When it begins, in microseconds
    end: float  # When it ends
    collective: str  # The collective
    group: str  # Its group
    ranks: int  # Ranks of the group; 0: the trace does not say
    size_bytes: int  # The larger one of what goes in and comes out; 0: the trace does not say


@dataclass(frozen=True, kw_only=True)
class ProfiledStep:
    """A profiler step (``ProfilerStep#N``): an interval of the CPU thread."""

    number: int  # Its number
    begin: float  # When it begins, in microseconds
    end: float  # When it ends


@dataclass(frozen=True, kw_only=True)
class MeasuredTrace:
    """Trace of one rank, in microseconds from its first event."""

    profiled: Sequence[ProfiledStep]  # The profiled steps
    # Operations of the device: begin, end, stream, whether they communicate, name, call or -1
    operations: Sequence[tuple[float, float, str, bool, str, int]]
    # Calls of the runtime: begin, end, thread, whether they synchronise, name
    calls: Sequence[tuple[float, float, str, bool, str]]
    messages: Sequence[KinetoCollective] = ()  # Collectives among the operations
    notes: Sequence[str] = ()  # What of the file was left out or changed, in words

    @property
    def steps(self) -> list[float]:
        """Durations of the profiled steps."""
        return [each.end - each.begin for each in self.profiled]

    def collectives(self) -> list[CollectiveTotal]:
        """Collectives by kind and group, the largest first."""
        return collective_totals(
            (each.collective, each.group, each.ranks, each.size_bytes) for each in self.messages
        )

    def step(self, number: int) -> MeasuredTrace:
        """Calls of one step with the operations that they launched, which may end later."""
        chosen = next((each for each in self.profiled if each.number == number), None)
        if chosen is None:
            there = shortened([each.number for each in self.profiled], 8)
            found = (
                f"steps {there}"
                if self.profiled
                else "no ProfilerStep: profile with a schedule and call step()"
            )
            raise InputError(f"expected step {number} in the trace, found {found}.")
        place: dict[int, int] = {}
        for call, (begin, _, _, _, _) in enumerate(self.calls):
            if chosen.begin <= begin < chosen.end:
                place[call] = len(place)
        kept = [
            (begin, end, stream, communicates, name, place.get(call, -1))
            for begin, end, stream, communicates, name, call in self.operations
            if call in place or (call < 0 and chosen.begin <= begin < chosen.end)
        ]
        if not kept:
            raise InputError(
                f"expected operations of a GPU in step {number}, found none: choose another step."
            )
        begins = {each[:2] for each in kept}
        return MeasuredTrace(
            profiled=[chosen],
            operations=kept,
            calls=[self.calls[call] for call in place],
            messages=[each for each in self.messages if (each.begin, each.end) in begins],
            notes=self.notes,
        )

    @property
    def span_us(self) -> float:
        """Duration of the trace."""
        ends = [each[1] for each in self.operations] + [each[1] for each in self.calls]
        return max(ends) - self.begin_us

    @property
    def begin_us(self) -> float:
        """Start of the first event."""
        return min([each[0] for each in self.operations] + [each[0] for each in self.calls])

    def busy_us(self) -> dict[str, float]:
        """Time of computation, communication, exposed communication, and idle time of the device."""
        compute = _union([each[:2] for each in self.operations if not each[3]])
        communication = _union([each[:2] for each in self.operations if each[3]])
        both = _union([each[:2] for each in self.operations])
        return {
            "compute": _length(compute),
            "communication": _length(communication),
            "exposed_communication": _length(both) - _length(compute),
            "idle": self.span_us - _length(both),
        }

    def replay(self, scale: Mapping[str, float] | None = None) -> Replay:
        """Simulate the trace, with times of operations scaled.

        Args:
            scale: Factors by kind: ``compute``, ``communication``, ``host``.
        """
        factors = {"compute": 1.0, "communication": 1.0, "host": 1.0}
        for kind, factor in (scale or {}).items():
            if kind not in factors or not factor > 0:
                raise InputError(f"expected factors above 0 of {', '.join(factors)}, found {kind}={factor}.")
            factors[kind] = factor
        return Replay(times=run_tasks(_graph(self, factors).build()))


def _union(spans: Sequence[tuple[float, ...]]) -> list[tuple[float, float]]:
    """Disjoint intervals with the same union."""
    found: list[tuple[float, float]] = []
    for begin, end in sorted((each[0], each[1]) for each in spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def _length(spans: Sequence[tuple[float, float]]) -> float:
    return sum(end - begin for begin, end in spans)


def _graph(trace: MeasuredTrace, factors: Mapping[str, float]) -> TaskGraphBuilder:
    """Task graph of a trace."""
    graph = TaskGraphBuilder()
    start = trace.begin_us
    launched = _host_tasks(graph, trace, start, factors["host"])
    order = sorted(range(len(trace.operations)), key=lambda k: trace.operations[k][0])
    by_end = sorted(range(len(trace.operations)), key=lambda k: trace.operations[k][1])
    ends = [trace.operations[k][1] for k in by_end]
    task_of: dict[int, int] = {}
    last: dict[str, int] = {}
    for k in order:
        begin, end, stream, communicates, name, call = trace.operations[k]
        after = [] if call < 0 else [launched[call][0]]
        ready = start if call < 0 else trace.calls[call][0]
        if stream in last:
            after.append(task_of[last[stream]])
            ready = max(ready, trace.operations[last[stream]][1])
        wait = begin - ready
        if wait > 0:
            # What ended just before this one began, on another stream.
            place = bisect_right(ends, begin + 0.5) - 1
            other = by_end[place] if place >= 0 else -1
            late = begin - ends[place] if place >= 0 else wait
            if other in task_of and trace.operations[other][2] != stream and late < min(wait, _NEAR_US):
                after.append(task_of[other])
                wait = max(0.0, late)
            if wait > 0:
                after = [graph.add("wait", "wait", -1, wait / 1e6, after=after)]
        kind = "communication" if communicates else "compute"
        task_of[k] = graph.add(
            name, kind, graph.stream(stream), (end - begin) * factors[kind] / 1e6, after=after
        )
        last[stream] = k
    for number, k in _awaited(trace).items():
        graph.await_tasks(launched[number][1], [task_of[k]])
    return graph


def _awaited(trace: MeasuredTrace) -> dict[int, int]:
    """For each synchronising call the operation that it waited for.

    A call that returned after the operation that it launched had ended waited for it, as copies to the host do. A call
    to synchronise waited for the last of those that ended before it returned.
    """
    found = {}
    for k, (_, end, _, _, _, call) in enumerate(trace.operations):
        if call >= 0 and end <= trace.calls[call][1]:
            found[call] = k
    done = sorted((operation[1], k) for k, operation in enumerate(trace.operations))
    for number, (begin, end, _, waits, _) in enumerate(trace.calls):
        place = bisect_right(done, (end, len(done))) - 1
        if waits and place >= 0 and done[place][0] > begin:
            found[number] = done[place][1]
    return found


def _host_tasks(
    graph: TaskGraphBuilder, trace: MeasuredTrace, start: float, factor: float
) -> dict[int, tuple[int, int]]:
    """Chains of calls of each thread; for each call its task and the task before it."""
    found: dict[int, tuple[int, int]] = {}
    threads: dict[str, list[int]] = defaultdict(list)
    for number, (_, _, thread, _, _) in enumerate(trace.calls):
        threads[thread].append(number)
    awaited = _awaited(trace)
    by_end = sorted((call[1], number) for number, call in enumerate(trace.calls))
    joins: list[tuple[int, int]] = []
    for thread, numbers in threads.items():
        stream = graph.stream(f"thread {thread}")
        at, previous = start, -1
        for number in sorted(numbers, key=lambda each: trace.calls[each][:2]):
            begin, end, _, _, name = trace.calls[number]
            gap, after = max(0.0, begin - at), [previous] if previous >= 0 else []
            if gap > _PAUSE_US and (other := _last_elsewhere(trace, by_end, thread, at, begin)) >= 0:
                gap = begin - trace.calls[other][1]
                joins.append((len(graph), other))
            before = graph.add("host", "host", stream, gap * factor / 1e6, after=after)
            ready = max(begin, at)
            if number in awaited:  # it takes what is left of it once the device is done
                ready = max(ready, trace.operations[awaited[number]][1])
            call = graph.add(name, "call", stream, max(0.0, end - ready) * factor / 1e6, after=[before])
            # The operation that a call launches may begin before the call returns, and a call may wait for it.
            found[number] = before, call
            previous = call
            at = max(at, end)
    for task, other in joins:
        graph.await_tasks(task, [found[other][1]])
    return found


def _last_elsewhere(
    trace: MeasuredTrace, by_end: Sequence[tuple[float, int]], thread: str, after: float, before: float
) -> int:
    """Call of another thread that ended last in an interval; -1: none."""
    place = bisect_right(by_end, (before, len(by_end))) - 1
    while place >= 0 and by_end[place][0] > after:
        if trace.calls[by_end[place][1]][2] != thread:
            return by_end[place][1]
        place -= 1
    return -1


def read_kineto(path: Path | str) -> MeasuredTrace:
    """Read a trace file, gzipped or not."""
    events = read_profiler_events(path)
    calls: list[tuple[float, float, str, bool, str]] = []
    number_of: dict[Any, int] = {}
    for each in events.runtime:
        number_of[each.told.get("correlation", -1)] = len(calls)
        calls.append((each.begin, each.end, each.thread, bool(_SYNCHRONISES.search(each.name)), each.name))
    streams = _streams(events.device)
    spans, overlaps = _in_turn(events.device, streams)
    operations = [
        (
            *span,
            stream,
            bool(_COMMUNICATION.search(each.name)),
            each.name[:80],
            number_of.get(each.told.get("correlation", -2), -1),
        )
        for each, stream, span in zip(events.device, streams, spans, strict=True)
    ]
    on_device = {each.thread for each in events.device}
    profiled = [
        ProfiledStep(number=int(each.name[13:]), begin=each.begin, end=each.end)
        for each in events.other
        if each.name.startswith("ProfilerStep#") and each.thread not in on_device and each.name[13:].isdigit()
    ]
    own = {id(each): span for each, span in zip(events.device, spans, strict=True)}
    messages = [
        _collective(each, own[id(each)]) for each in events.kernels if _COMMUNICATION.search(each.name)
    ]
    return MeasuredTrace(
        profiled=profiled,
        operations=operations,
        calls=calls,
        messages=messages,
        notes=(*events.notes, *overlaps),
    )


def _streams(operations: Sequence[ProfilerEvent]) -> list[str]:
    """Stream of each operation, with its device where there are several."""
    devices = [str(each.told.get("device", each.process)) for each in operations]
    several = len(set(devices)) > 1
    return [
        f"{f'device {device} ' if several else ''}stream {_stream(each)}"
        for each, device in zip(operations, devices, strict=True)
    ]


def _stream(each: ProfilerEvent) -> str:
    """Stream of an operation: its recorded one, or the name of its thread (``stream 7``)."""
    noted = each.told.get("stream")
    return str(noted) if noted is not None else each.thread.removeprefix("stream ")


def _in_turn(
    operations: Sequence[ProfilerEvent], streams: Sequence[str]
) -> tuple[list[tuple[float, float]], list[str]]:
    """Intervals of operations without overlap on each stream, and how much was cut for that.

    Clocks of a device, or kernels that begin before the one ahead of them has ended (programmatic launches), make
    events of a stream overlap. What is behind then counts from the end of what is ahead, so that a stream is busy for
    as long as anything on it was.
    """
    spans = [(each.begin, each.end) for each in operations]
    ended: dict[str, float] = {}
    cut = []
    for number in sorted(range(len(spans)), key=lambda each: spans[each]):
        begin, end = spans[number]
        before = ended.get(streams[number], begin)
        if before > begin:
            cut.append(min(before, end) - begin)
            begin, end = before, max(before, end)
            spans[number] = begin, end
        ended[streams[number]] = end
    if not cut:
        return spans, []
    words = (
        f"{plural(len(cut), 'operation')} began before what is ahead on the stream had ended, by {sum(cut):.6g} us in "
        "all: counted from its end"
    )
    return spans, [words]


def _collective(each: ProfilerEvent, span: tuple[float, float]) -> KinetoCollective:
    """Collective from its kernel's annotations; the profiler truncates long lists of ranks, so they are not read."""
    told = each.told
    elements = max(_count(told.get("In msg nelems")), _count(told.get("Out msg nelems")))
    name = str(told.get("Collective name", "") or each.name)
    return KinetoCollective(
        begin=span[0],
        end=span[1],
        collective=standard_collective(name) or "collective",
        group=str(told.get("Process Group Description", "") or told.get("Process Group Name", "")),
        ranks=_count(told.get("Group size")),
        size_bytes=elements * ELEMENT_BYTES.get(str(told.get("dtype", "")).lower(), 4),
    )


def _count(value: Any) -> int:
    """Integer that may be text, or missing."""
    return int(value) if isinstance(value, int | float) or str(value).isdigit() else 0
