"""Trace file of tasks for Perfetto (ui.perfetto.dev) and chrome://tracing: devices and their streams."""

from __future__ import annotations

import json
import os
import re
from typing import Any

from coppice.files import write_atomically
from coppice.iteration.tasks import TaskTimes


def device_number(stream: str) -> int:
    """Device, or rank, of a stream: the first number of its name; -1: none.

    Examples:
        >>> device_number("link 3 to 4"), device_number("compute")
        (3, -1)
    """
    found = re.search(r"\d+", stream)
    return int(found[0]) if found else -1


def write_task_trace(times: TaskTimes, path: str | os.PathLike[str]) -> int:
    """Write a trace in the Trace Event Format: a complete event ("X") for each task, in microseconds.

    Streams of a device, or rank, are threads of a process; those without a number are of process 0.
    Tasks without a stream, which are barriers and delays, are left out. The same times give the same bytes.

    Returns:
        Number of tasks in it.
    """
    graph = times.graph
    process = [device_number(name) + 1 for name in graph.streams]
    word = "rank" if any(name.startswith("rank ") for name in graph.streams) else "device"
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": each, "tid": 0, "args": {"name": f"{word} {each - 1}"}}
        for each in sorted(set(process))
        if each
    ]
    events += [
        {"ph": "M", "name": "thread_name", "pid": process[stream], "tid": stream, "args": {"name": name}}
        for stream, name in enumerate(graph.streams)
    ]
    shown = 0
    for task, stream in enumerate(graph.stream.tolist()):
        if stream < 0:
            continue
        shown += 1
        events.append(
            {
                "ph": "X",
                "name": graph.names[task],
                "cat": graph.kind_names[graph.kinds[task]],
                "pid": process[stream],
                "tid": stream,
                "ts": round(1e6 * float(times.start[task]), 3),
                "dur": round(1e6 * float(times.finish[task] - times.start[task]), 3),
            }
        )
    write_atomically(path, json.dumps({"traceEvents": events}, separators=(",", ":")).encode())
    return shown
