"""A timeline as a trace file for Perfetto (ui.perfetto.dev) and chrome://tracing.

The file is JSON in the Trace Event Format: a process per host, a thread per GPU, a complete event ("X") per message on
the thread of its sender, from its start until it is done, with what it carries in ``args``. Messages of one sender that
overlap stand on further threads of that GPU. A process of its own shows the critical path, whose messages are joined
by flow arrows, and another one counts the use of the busiest links. Times are microseconds, as the format wants them.

The same timeline gives the same bytes. A trace of more messages than fit is thinned: the critical path stays, then the
longest messages; ``otherData`` says how many of how many are shown.
"""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError
from coppice.files import write_atomically
from coppice.simulation.critical import ends_of
from coppice.simulation.timeline import Reason, Stage, Timeline
from coppice.simulation.utilisation import busiest_links, link_utilisation, passages
from coppice.topology.model import Topology

__all__ = ["MAX_EVENTS", "trace_events", "write_trace"]

MAX_EVENTS = 500_000
"""Messages that a trace shows at most: about 100 MB, near what the viewers take."""

COUNTED_LINKS = 10
"""Links whose use is counted."""

COUNTER_BINS = 200
"""Spans of time in which it is counted."""

_CRITICAL, _LINKS, _HOSTS = 1, 2, 10
"""Process ids: of the critical path, of the links, of the first host."""

Event = dict[str, Any]


def write_trace(
    timeline: Timeline,
    path: str | os.PathLike[str],
    *,
    most: int = MAX_EVENTS,
    jobs: Sequence[tuple[str, int]] = (),
) -> int:
    """Write a trace; an interrupted write leaves the old file, or none.

    Args:
        timeline: What to show.
        path: File to write.
        most: Messages that are shown at most.
        jobs: Name and first message of each job, where there are several.

    Returns:
        Number of messages shown.

    Raises:
        InputError: If the file cannot be written, or passages over links were not kept.
    """
    shown = _shown(timeline, most)
    messages = timeline.messages
    about = {
        "topology": messages.topology.name,
        "collective": timeline.collective.value if not jobs else ", ".join(name for name, _ in jobs),
        "size_bytes": timeline.size_bytes,
        "time_us": _us(timeline.time_us),
        "messages": messages.count,
        "messages_shown": len(shown),
    }
    head = (
        '{"displayTimeUnit": "ns", "otherData": '
        + json.dumps(about, ensure_ascii=False)
        + ', "traceEvents": [\n'
    )
    write_atomically(path, _text(head, _events(timeline, shown, jobs)))
    return len(shown)


def trace_events(
    timeline: Timeline, *, most: int = MAX_EVENTS, jobs: Sequence[tuple[str, int]] = ()
) -> Iterator[Event]:
    """The events of a trace, one after the other.

    Args:
        timeline: What to show.
        most: Messages that are shown at most.
        jobs: Name and first message of each job, where there are several.

    Raises:
        InputError: If passages over links were not kept.
    """
    return _events(timeline, _shown(timeline, most), jobs)


def _text(head: str, events: Iterable[Event]) -> Iterator[bytes]:
    """The file, piece by piece: one event in a line."""
    yield head.encode()
    between = ""
    for event in events:
        yield (between + json.dumps(event, separators=(",", ":"), ensure_ascii=False)).encode()
        between = ",\n"
    yield b"\n]}\n"


def _events(timeline: Timeline, shown: NDArray[np.int64], jobs: Sequence[tuple[str, int]]) -> Iterator[Event]:
    topology = timeline.messages.topology
    lanes = _lanes(timeline, shown)
    yield from _names(topology, timeline, shown, lanes)
    yield from _slices(timeline, shown, lanes, jobs)
    yield from _critical(timeline, dict(zip(shown.tolist(), lanes.tolist(), strict=True)))
    yield from _counters(timeline)


def _shown(timeline: Timeline, most: int) -> NDArray[np.int64]:
    """Messages that are shown, in order of their starts."""
    if timeline.hops is None:
        msg = "expected the passages of messages over links, which were not kept: simulate with `keep_hops`."
        raise InputError(msg)
    count = timeline.messages.count
    chosen = np.arange(count)
    if count > most:
        length = timeline.finish_us - timeline.start_us
        length[sorted({stage.message for stage in timeline.critical_path()})] = np.inf
        chosen = np.lexsort((chosen, -length))[:most]
    return chosen[np.lexsort((chosen, timeline.start_us[chosen]))]


def _lanes(timeline: Timeline, shown: NDArray[np.int64]) -> NDArray[np.int64]:
    """Place of each message among those of its sender that overlap: the first one that is free."""
    lanes = np.zeros(len(shown), dtype=np.int64)
    free: dict[int, list[int]] = {}
    busy: dict[int, list[tuple[float, int]]] = {}
    used: dict[int, int] = {}
    columns = (timeline.messages.src[shown], timeline.start_us[shown], timeline.finish_us[shown])
    for row, (src, start, finish) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        running, idle = busy.setdefault(src, []), free.setdefault(src, [])
        while running and running[0][0] <= start:
            heapq.heappush(idle, heapq.heappop(running)[1])
        if idle:
            lane = heapq.heappop(idle)
        else:
            lane = used.get(src, 0)
            used[src] = lane + 1
        heapq.heappush(running, (finish, lane))
        lanes[row] = lane
    return lanes


def _process(topology: Topology, node: int) -> int:
    """Process of a node: its host's, or one for all nodes of no host."""
    host = int(topology.host[node])
    return _HOSTS + (host if host >= 0 else len(topology.hosts))


def _thread(node: int, lane: int) -> int:
    """Thread of the ``lane``-th of overlapping messages of a node."""
    return (node + 1) * 4096 + min(lane, 4095)


def _names(
    topology: Topology, timeline: Timeline, shown: NDArray[np.int64], lanes: NDArray[np.int64]
) -> Iterator[Event]:
    """Names and order of processes and threads."""
    yield _process_name(_CRITICAL, "critical path")
    yield _process_name(_LINKS, "links")
    pairs = np.unique(np.stack([timeline.messages.src[shown], lanes], axis=1), axis=0).tolist()
    seen: set[int] = set()
    for node, lane in pairs:
        process = _process(topology, node)
        if process not in seen:
            seen.add(process)
            host = int(topology.host[node])
            yield _process_name(process, topology.hosts[host] if host >= 0 else topology.name)
        name = topology.node_ids[node] + (f" ({lane + 1})" if lane else "")
        thread = _thread(node, lane)
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": name}}
        yield {
            "ph": "M",
            "name": "thread_sort_index",
            "pid": process,
            "tid": thread,
            "args": {"sort_index": thread},
        }


def _process_name(process: int, name: str) -> Event:
    return {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}


def _slices(
    timeline: Timeline,
    shown: NDArray[np.int64],
    lanes: NDArray[np.int64],
    jobs: Sequence[tuple[str, int]],
) -> Iterator[Event]:
    """A complete event for each message."""
    messages, topology = timeline.messages, timeline.messages.topology
    names = topology.node_ids
    src, dst = messages.src, messages.dst
    job_of = np.searchsorted([first for _, first in jobs], shown, side="right") - 1 if jobs else None
    for row, (message, lane) in enumerate(zip(shown.tolist(), lanes.tolist(), strict=True)):
        sender, adds = int(src[message]), bool(messages.added_bytes[message])
        args: Event = {
            "message": message,
            "bytes": int(messages.num_bytes[message]),
            "path": " -> ".join(names[v] for v in _nodes(timeline, message)),
            "transfers": int(messages.num_rows[message]),
            "first_transfer": int(messages.first_row[message]),
            "waited_for": _waited_for(timeline, message),
        }
        if job_of is not None:
            args["job"] = jobs[int(job_of[row])][0]
        yield {
            "ph": "X",
            "name": f"to {names[int(dst[message])]}",
            "cat": "reduce" if adds else "copy",
            **_span(float(timeline.start_us[message]), float(timeline.finish_us[message])),
            "pid": _process(topology, sender),
            "tid": _thread(sender, lane),
            "args": args,
        }


def _critical(timeline: Timeline, lane_of: dict[int, int]) -> Iterator[Event]:
    """The critical path as a thread of its own, and arrows between the messages on it."""
    topology = timeline.topology
    names = topology.node_ids
    before: Stage | None = None
    for number, stage in enumerate(timeline.critical_path()):
        message = stage.message
        sender, receiver = ends_of(timeline, message)
        args: Event = {"message": message, "waited_for": stage.reason.name.lower()}
        if stage.link >= 0:
            args["link"] = " -> ".join(names[v] for v in (topology.src[stage.link], topology.dst[stage.link]))
        yield {
            "ph": "X",
            "name": f"{names[sender]} -> {names[receiver]}",
            "cat": "critical",
            **_span(stage.begin_us, stage.end_us),
            "pid": _CRITICAL,
            "tid": 0,
            "args": args,
        }
        if before is not None and before.message in lane_of and message in lane_of:
            # An arrow holds on to the events that enclose its ends: the middle of one stage, the begin of the next.
            middle = (before.begin_us + before.end_us) / 2
            yield _arrow("s", number, middle, timeline, before.message, lane_of)
            yield {**_arrow("f", number, stage.begin_us, timeline, message, lane_of), "bp": "e"}
        before = stage


def _arrow(
    phase: str, number: int, at_us: float, timeline: Timeline, message: int, lane_of: dict[int, int]
) -> Event:
    topology, sender = timeline.topology, ends_of(timeline, message)[0]
    return {
        "ph": phase,
        "id": number,
        "name": "critical path",
        "cat": "critical",
        "ts": _us(at_us),
        "pid": _process(topology, sender),
        "tid": _thread(sender, lane_of[message]),
    }


def _counters(timeline: Timeline) -> Iterator[Event]:
    """Use of the busiest links over time, in percent."""
    topology, until = timeline.messages.topology, timeline.time_us
    found = passages(timeline)
    for link in busiest_links(timeline, COUNTED_LINKS):
        name = topology.link_name(link)
        shares = link_utilisation(found, link, until_us=until, bins=COUNTER_BINS).tolist()
        for place, share in enumerate([*shares, 0.0]):
            yield {
                "ph": "C",
                "name": name,
                "ts": _us(until * place / COUNTER_BINS),
                "pid": _LINKS,
                "tid": 0,
                "args": {"percent": round(100 * share, 3)},
            }


def _nodes(timeline: Timeline, message: int) -> list[int]:
    routes, route = timeline.messages.routes, int(timeline.messages.route[message])
    nodes: list[int] = routes.nodes[routes.node_start[route] : routes.node_start[route + 1]].tolist()
    return nodes


def _waited_for(timeline: Timeline, message: int) -> str:
    """What kept a message from starting earlier."""
    reason = Reason(int(timeline.reason[message])).name.lower()
    cause = int(timeline.cause[message])
    return reason if cause < 0 else f"{reason}: message {cause}"


def _span(begin_us: float, end_us: float) -> Event:
    """Begin and duration, such that what follows without a gap does so in the file, too."""
    return {"ts": _us(begin_us), "dur": _us(_us(end_us) - _us(begin_us))}


def _us(value: float) -> float:
    """Microseconds to a nanosecond, which is what viewers resolve."""
    return round(value, 3)
