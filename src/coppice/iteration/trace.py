"""Tasks as a trace file for Perfetto (ui.perfetto.dev) and chrome://tracing: a thread for each stream."""

from __future__ import annotations

import json
import os

from coppice.files import write_atomically
from coppice.iteration.running import TaskTimes

__all__ = ["write_task_trace"]


def write_task_trace(times: TaskTimes, path: str | os.PathLike[str]) -> int:
    """Write a trace in the Trace Event Format: a complete event ("X") for each task, in microseconds.

    Tasks without a stream, which are barriers and delays, are left out. The same times give the same bytes.

    Args:
        times: When tasks run.
        path: The file.

    Returns:
        Number of tasks in it.
    """
    graph = times.graph
    events = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": stream, "args": {"name": name}}
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
                "pid": 1,
                "tid": stream,
                "ts": round(1e6 * float(times.start[task]), 3),
                "dur": round(1e6 * float(times.finish[task] - times.start[task]), 3),
            }
        )
    write_atomically(path, json.dumps({"traceEvents": events}, separators=(",", ":")).encode())
    return shown
