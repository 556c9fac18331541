"""Export a timeline as a trace for Perfetto (ui.perfetto.dev) and chrome://tracing.

The file is JSON in the Trace Event Format: a process per host, a thread per GPU and link by which it sends, a complete
event ("X") per message on the thread of its sender, from its start until it is done, with what it carries in ``args``.
Messages of one sender and link that overlap stand on further threads of these. A process of its own shows the critical
path, whose messages are joined by flow arrows, and another one counts the use of the busiest links. Times are
microseconds, as the format wants them.

The same timeline gives the same bytes. A trace that would need too many threads is folded: messages that overlap and go
the same way, to add or to copy, become one event that counts them. A trace of more messages than fit is thinned: the
critical path stays, then the longest messages; ``otherData`` says how many of how many are shown.
"""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError
from coppice.files import write_atomically
from coppice.simulation.timeline import Reason, Stage, Timeline, ends_of
from coppice.simulation.utilisation import busiest_links, link_utilisation, passages
from coppice.topology.model import Topology

MAX_EVENTS = 500_000
"""Messages that a trace shows at most: about 100 MB, near what the viewers take."""

MAX_TRACKS = 4_096
"""Threads of messages from which on those that are alike are folded."""

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
    most: int = MAX_EVENTS,  # Messages that are shown at most
    tracks: int = MAX_TRACKS,  # Threads of messages from which on those that are alike are folded
    jobs: Sequence[tuple[str, int]] = (),  # Name and first message of each job, where there are several
) -> int:
    """Write a trace; an interrupted write leaves the old file, or none.

    Returns:
        Number of messages shown.
    """
    shown = _shown(timeline, most)
    bars = _bars(timeline, shown, tracks, jobs)
    messages = timeline.messages
    about = {
        "topology": messages.topology.name,
        "collective": timeline.collective.value if not jobs else ", ".join(name for name, _ in jobs),
        "size_bytes": timeline.size_bytes,
        "time_us": _us(timeline.time_us),
        "messages": messages.count,
        "messages_shown": len(shown),
        "events": len(bars.first),
    }
    head = (
        '{"displayTimeUnit": "ns", "otherData": '
        + json.dumps(about, ensure_ascii=False)
        + ', "traceEvents": [\n'
    )
    write_atomically(path, _text(head, _events(timeline, bars, jobs)))
    return len(shown)


def trace_events(
    timeline: Timeline,
    *,
    most: int = MAX_EVENTS,  # Messages that are shown at most
    tracks: int = MAX_TRACKS,  # Threads of messages from which on those that are alike are folded
    jobs: Sequence[tuple[str, int]] = (),  # Name and first message of each job, where there are several
) -> Iterator[Event]:
    """The events of a trace, one after the other."""
    return _events(timeline, _bars(timeline, _shown(timeline, most), tracks, jobs), jobs)


def _text(head: str, events: Iterable[Event]) -> Iterator[bytes]:
    """The file, piece by piece: one event in a line."""
    yield head.encode()
    between = ""
    for event in events:
        yield (between + json.dumps(event, separators=(",", ":"), ensure_ascii=False)).encode()
        between = ",\n"
    yield b"\n]}\n"


def _events(timeline: Timeline, bars: _Bars, jobs: Sequence[tuple[str, int]]) -> Iterator[Event]:
    yield from _names(timeline, bars)
    yield from _slices(timeline, bars, jobs)
    yield from _critical(timeline, bars)
    yield from _counters(timeline)


@dataclass(frozen=True, eq=False)
class _Bars:
    """What stands on the threads of senders: messages, or several that are alike, in order of their starts."""

    first: NDArray[np.int64]  # Message that begins each
    finish_us: NDArray[np.float64]  # When each ends
    members: list[NDArray[np.int64]]  # Messages of each, that of `first` among them
    thread: NDArray[np.int64]  # Its thread
    names: dict[int, tuple[str, int]]  # Name of each thread, and the node whose it is
    thread_of: dict[int, int]  # Thread of every message that is shown


def _bars(
    timeline: Timeline, shown: NDArray[np.int64], tracks: int, jobs: Sequence[tuple[str, int]]
) -> _Bars:
    """One for each message, on threads by sender and link; folded if these were too many."""
    src, out = timeline.messages.src[shown].astype(np.int64), _next_nodes(timeline, shown)
    start, finish = timeline.start_us[shown], timeline.finish_us[shown]
    alone = np.arange(len(shown))
    track = _tracks(src, out, start, finish)
    if len({*zip(src.tolist(), out.tolist(), track.tolist(), strict=True)}) > tracks:
        alone = _alike(timeline, shown, _jobs_of(shown, jobs))
        order = np.argsort(alone, kind="stable")  # the first of each is the one that starts first
        first = order[np.flatnonzero(np.diff(alone[order], prepend=-1))]
        members = np.split(shown[order], np.flatnonzero(np.diff(alone[order])) + 1)
        until = np.full(len(first), -np.inf)
        np.maximum.at(until, alone, finish)
        track = _tracks(src[first], out[first], start[first], until)
    else:
        first, members, until = alone, list(shown.reshape(-1, 1)), finish
    keys = list(zip(src[first].tolist(), out[first].tolist(), track.tolist(), strict=True))
    number = {key: place for place, key in enumerate(sorted(set(keys)), start=1)}
    thread = np.array([number[key] for key in keys], dtype=np.int64)
    ids = timeline.messages.topology.node_ids
    names = {
        place: (f"{ids[node]} ({ids[link]}{f', {track + 1}' if track else ''})", node)
        for (node, link, track), place in number.items()
    }
    thread_of = dict(zip(shown.tolist(), thread[alone].tolist(), strict=True))
    return _Bars(shown[first], until, members, thread, names, thread_of)


def _next_nodes(timeline: Timeline, shown: NDArray[np.int64]) -> NDArray[np.int64]:
    """To which node each message leaves its sender."""
    routes = timeline.messages.routes
    begin = routes.node_start[timeline.messages.route[shown]]
    found: NDArray[np.int64] = routes.nodes[begin + 1].astype(np.int64)
    return found


def _jobs_of(messages: NDArray[np.int64], jobs: Sequence[tuple[str, int]]) -> NDArray[np.int64]:
    """Place of each message's job; all 0 where there is only one."""
    if not jobs:
        return np.zeros_like(messages)
    found: NDArray[np.int64] = np.searchsorted([first for _, first in jobs], messages, side="right") - 1
    return found


def _alike(timeline: Timeline, shown: NDArray[np.int64], job: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of the event of each message: those of one job, path and kind that overlap share one.

    Numbers ascend with the starts of the events.
    """
    messages = timeline.messages
    kinds = 2 * job + (messages.added_bytes[shown] > 0)
    open_until: dict[tuple[int, int], tuple[float, int]] = {}
    event = np.empty(len(shown), dtype=np.int64)
    count = 0
    columns = (messages.route[shown], kinds, timeline.start_us[shown], timeline.finish_us[shown])
    for row, (route, kind, start, finish) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        until, number = open_until.get((route, kind), (-1.0, -1))
        if start >= until:
            number, count = count, count + 1
        event[row] = number
        open_until[route, kind] = (max(until, finish), number)
    return event


def _shown(timeline: Timeline, most: int) -> NDArray[np.int64]:
    """Messages that are shown, in order of their starts."""
    if timeline.hops is None:
        raise InputError(
            "expected the passages of messages over links, which were not kept: simulate with `keep_hops`."
        )
    count = timeline.messages.count
    chosen = np.arange(count)
    if count > most:
        length = timeline.finish_us - timeline.start_us
        length[sorted({stage.message for stage in timeline.critical_path()})] = np.inf
        chosen = np.lexsort((chosen, -length))[:most]
    return chosen[np.lexsort((chosen, timeline.start_us[chosen]))]


def _tracks(
    src: NDArray[np.int64], out: NDArray[np.int64], start: NDArray[np.float64], finish: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Place of each event among those of its sender and link that overlap: the first one that is free."""
    track_of = np.zeros(len(src), dtype=np.int64)
    free: dict[tuple[int, int], list[int]] = {}
    busy: dict[tuple[int, int], list[tuple[float, int]]] = {}
    used: dict[tuple[int, int], int] = {}
    columns = (src, out, start, finish)
    for row, (node, link, begin, end) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        key = (node, link)
        running, idle = busy.setdefault(key, []), free.setdefault(key, [])
        while running and running[0][0] <= begin:
            heapq.heappush(idle, heapq.heappop(running)[1])
        if idle:
            track = heapq.heappop(idle)
        else:
            track = used.get(key, 0)
            used[key] = track + 1
        heapq.heappush(running, (end, track))
        track_of[row] = track
    return track_of


def _process(topology: Topology, node: int) -> int:
    """Process of a node: its host's, or one for all nodes of no host."""
    host = int(topology.host[node])
    return _HOSTS + (host if host >= 0 else len(topology.hosts))


def _names(timeline: Timeline, bars: _Bars) -> Iterator[Event]:
    """Names and order of processes and threads."""
    topology = timeline.messages.topology
    yield _process_name(_CRITICAL, "critical path")
    yield _process_name(_LINKS, "links")
    seen: set[int] = set()
    for thread, (name, node) in sorted(bars.names.items()):
        process = _process(topology, node)
        if process not in seen:
            seen.add(process)
            host = int(topology.host[node])
            yield _process_name(process, topology.hosts[host] if host >= 0 else topology.name)
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


def _slices(timeline: Timeline, bars: _Bars, jobs: Sequence[tuple[str, int]]) -> Iterator[Event]:
    """A complete event for each message, or for several that are alike."""
    messages, topology = timeline.messages, timeline.messages.topology
    names = topology.node_ids
    src, dst = messages.src, messages.dst
    job_of = _jobs_of(bars.first, jobs).tolist()
    columns = (bars.first.tolist(), bars.finish_us.tolist(), bars.thread.tolist(), bars.members)
    for row, (message, finish, thread, members) in enumerate(zip(*columns, strict=True)):
        sender, adds = int(src[message]), bool(messages.added_bytes[message])
        args: Event = {
            "message": message,
            **({"messages": len(members)} if len(members) > 1 else {}),
            "bytes": int(messages.num_bytes[members].sum()),
            "path": " -> ".join(names[v] for v in _nodes(timeline, message)),
            "transfers": int(messages.num_rows[members].sum()),
            "first_transfer": int(messages.first_row[message]),
            "waited_for": _waited_for(timeline, message),
        }
        if jobs:
            args["job"] = jobs[job_of[row]][0]
        yield {
            "ph": "X",
            "name": f"to {names[int(dst[message])]}",
            "cat": "reduce" if adds else "copy",
            **_span(float(timeline.start_us[message]), finish),
            "pid": _process(topology, sender),
            "tid": thread,
            "args": args,
        }


def _critical(timeline: Timeline, bars: _Bars) -> Iterator[Event]:
    """The critical path as a thread of its own, and arrows between the messages on it."""
    topology = timeline.topology
    names, thread_of = topology.node_ids, bars.thread_of
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
        if before is not None and before.message in thread_of and message in thread_of:
            # An arrow holds on to the events that enclose its ends: the middle of one stage, the begin of the next.
            middle = (before.begin_us + before.end_us) / 2
            yield _arrow("s", number, middle, timeline, before.message, thread_of)
            yield {**_arrow("f", number, stage.begin_us, timeline, message, thread_of), "bp": "e"}
        before = stage


def _arrow(
    phase: str, number: int, at_us: float, timeline: Timeline, message: int, thread_of: dict[int, int]
) -> Event:
    topology, sender = timeline.topology, ends_of(timeline, message)[0]
    return {
        "ph": phase,
        "id": number,
        "name": "critical path",
        "cat": "critical",
        "ts": _us(at_us),
        "pid": _process(topology, sender),
        "tid": thread_of[message],
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
