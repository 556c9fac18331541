"""Timeline: when every message ran, why it waited, the load of every link, and the critical path."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.display import Brief, Shown, loaded
from coppice.errors import InputError
from coppice.schedule.messages import Messages
from coppice.simulation.models import Model, Sharing
from coppice.text import size_text, time_text
from coppice.topology.model import Topology

_TIE_US = 1e-8


class Reason(enum.IntEnum):
    """Why a message, or its hop over a link, did not start earlier."""

    NONE = 0
    """It could begin at once, or when it was due."""
    DEPENDENCY = 1
    """It waited for another message to arrive or to be added."""
    ENGINE = 2
    """It waited for an engine that another message held."""
    LINK = 3
    """It waited for a link that another message held."""
    ROUTE = 4
    """It waited for another message on its route to leave (fair sharing)."""


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class MessageHops(Brief):
    """Times of every message on each of its links; under fair sharing one hop for the whole route."""

    # MessageHops of message m are `start[m] .. start[m + 1] - 1`, in the order of its route (int64).
    start: NDArray[np.int64]
    # When it begins (float64). First in, first out, it holds the link until its end.
    begin_us: NDArray[np.float64]
    behind: NDArray[np.int32]  # Message that it queued behind, -1 where nothing was in the way (int32)
    # When the link has served it, where links let bursts through (float64); None: after its bytes / the rate
    end_us: NDArray[np.float64] | None = None


@dataclass(frozen=True, eq=False, kw_only=True, slots=True, repr=False)
class Rates(Brief):
    """Rates of every message over time, under fair sharing."""

    message: NDArray[np.int32]  # The message (int32)
    since_us: NDArray[np.float64]  # When it got the rate; it keeps it until its next one or its end (float64)
    gb_per_s: NDArray[np.float64]  # The rate (float64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """Segment of the critical path: one message between two moments."""

    message: int  # The message
    begin_us: float  # When its part begins
    end_us: float  # When its part ends, and the next one's begins
    reason: Reason  # Why it did not begin earlier; the stage before is what it waited for
    link: int  # The link that it waited for, -1 for other reasons


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Timeline(Shown):
    """Result of a simulation."""

    messages: Messages  # What ran: routes, bytes and rows of every message, in the order of the columns here
    model: Model  # What was assumed
    collective: Collective  # What the messages carried out
    size_bytes: int  # M in bytes
    pieces: int  # Pieces that every chunk was cut into
    protocol: str | None  # Protocol on the wire; None: all bytes on it are data
    start_us: NDArray[np.float64]  # When each message started (float64): dependencies met, engines taken
    arrived_us: NDArray[np.float64]  # When its last byte arrived
    finish_us: NDArray[np.float64]  # When it was done: arrived and, where it is added, added
    cause: NDArray[np.int32]  # Message that it waited for last, or -1 (int32)
    reason: NDArray[np.int8]  # A :class:`Reason` for its start (int8)
    hops: MessageHops | None  # Passage over each link, where kept
    # With fair sharing the link that decided the last rate of each message, -1 where it had no bytes (int32)
    limit: NDArray[np.int32] | None
    rates: Rates | None  # With fair sharing every rate of every message, where kept
    link_busy_us: NDArray[np.float64]  # Time for which each link was in use (float64)
    link_bytes: NDArray[np.float64]  # What each link carried (float64)

    def __repr__(self) -> str:
        rates = f"algbw {self.algbw_gb_per_s:.4g} GB/s, busbw {self.busbw_gb_per_s:.4g} GB/s"
        return f"<{self.collective} of {size_text(self.size_bytes)}: {time_text(self.time_us)}, {rates}>"

    def write_trace(self, path: str | os.PathLike[str]) -> int:
        """Write it as a trace that Perfetto and chrome://tracing open; returns how many messages it shows.

        Raises:
            InputError: If the file cannot be written.
        """
        shown: int = loaded("coppice.simulation.trace:write_trace")(self, path)
        return shown

    @property
    def topology(self) -> Topology:
        """Topology of the messages."""
        return self.messages.topology

    @property
    def src(self) -> NDArray[np.int32]:
        """Node that sends each message."""
        return self.messages.src

    @property
    def dst(self) -> NDArray[np.int32]:
        """Node that receives each message."""
        return self.messages.dst

    @property
    def num_bytes(self) -> NDArray[np.int64]:
        """Bytes of each message."""
        return self.messages.num_bytes

    @property
    def time_us(self) -> float:
        """Completion time; 0 without messages."""
        return float(self.finish_us.max(initial=0.0))

    @property
    def algbw_gb_per_s(self) -> float:
        """M / time; 0 where nothing takes time."""
        return self.size_bytes / self.time_us / 1000 if self.time_us else 0.0

    @property
    def busbw_gb_per_s(self) -> float:
        """Bus bandwidth, as nccl-tests reports it."""
        others = self.messages.sent_share
        factor = self.collective.busbw_factor(self.topology.num_ranks) if others is None else others
        return self.algbw_gb_per_s * float(factor)

    def utilisation(self, link: int) -> float:
        """Share of its capacity that ``link`` used over the whole time, 0 .. 1; more with a burst."""
        topology = self.topology
        rate = int(topology.capacity[link]) / topology.denominator
        return float(self.link_bytes[link]) / (rate * self.time_us * 1000) if self.time_us else 0.0

    @property
    def busiest_link(self) -> int:
        """Link that was busy the longest (the first of equals), -1 where none was used."""
        if not len(self.link_busy_us) or not self.link_busy_us.max():
            return -1
        return int(np.argmax(self.link_busy_us))

    def critical_path(self) -> list[Stage]:
        """Stages that make up the whole time, from first to last.

        A stage ends when the next one can begin: a message that waited for another to finish, to free an engine or to
        leave a link. So they follow each other without gaps (except before messages that were not yet due).

        Raises:
            InputError: If the passages over links were not kept.
        """
        hops = self._kept_hops()
        stages: list[Stage] = []
        message = int(np.argmax(self.finish_us)) if len(self.finish_us) else -1
        end, hop = self.time_us, self._binding_hop(message)
        while message >= 0:
            first = int(hops.start[message])
            queued = np.flatnonzero(hops.behind[first : first + hop] >= 0)
            if len(queued):
                place = int(queued[-1])
                begin, before = float(hops.begin_us[first + place]), int(hops.behind[first + place])
                if self.model.sharing is Sharing.FIFO:
                    reason, link = Reason.LINK, int(self._links(message)[place])
                    hop = int(np.flatnonzero(self._links(before) == link)[0]) + 1
                else:
                    reason, link, hop = Reason.ROUTE, -1, 1
            else:
                begin, before = float(self.start_us[message]), int(self.cause[message])
                reason, link = Reason(int(self.reason[message])), -1
                # What freed a worker, or left a buffering sender, may still have been under way.
                hop = min(self._binding_hop(before), self._hops_begun(before, begin)) if before >= 0 else 0
            stages.append(Stage(message=message, begin_us=begin, end_us=end, reason=reason, link=link))
            message, end = before, begin
        return stages[::-1]

    def _hops_begun(self, message: int, at_us: float) -> int:
        """Links that a message had begun to cross before a moment."""
        hops = self._kept_hops()
        return int((hops.begin_us[hops.start[message] : hops.start[message + 1]] < at_us).sum())

    def passages(self, link: int) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.float64]]:
        """Messages served by a link of the FIFO model in order, with start and end in us.

        Raises:
            InputError: If the passages over links were not kept, or links were shared fairly.
        """
        hops = self._kept_hops()
        if self.model.sharing is not Sharing.FIFO:
            raise InputError(
                "expected links that serve one message at a time, found fair sharing: look at the rates instead."
            )
        routes, route = self.messages.routes, self.messages.route
        at = np.flatnonzero(routes.links == link)
        place = np.full(len(routes.num_links), -1, dtype=np.int64)
        place[np.searchsorted(routes.link_start, at, side="right") - 1] = at
        message = np.flatnonzero(place[route] >= 0)
        hop = hops.start[message] + place[route[message]] - routes.link_start[route[message]]
        begin = hops.begin_us[hop]
        rate = int(self.topology.capacity[link]) / self.topology.denominator
        end = begin + self.num_bytes[message] / rate / 1000 if hops.end_us is None else hops.end_us[hop]
        order = np.lexsort((message, end, begin))
        return message[order].astype(np.int32), begin[order], end[order]

    def summary(self) -> dict[str, Any]:
        """The main figures by name, for reports: time, bandwidths, messages, bytes sent, the busiest link."""
        busiest = self.busiest_link
        name = self.topology.link_name(busiest)
        return {
            "time_us": self.time_us,
            "algbw_gb_per_s": self.algbw_gb_per_s,
            "busbw_gb_per_s": self.busbw_gb_per_s,
            "messages": self.messages.count,
            "busiest_link": name if busiest >= 0 else None,
            "busiest_link_utilisation": self.utilisation(busiest) if busiest >= 0 else 0.0,
        }

    def _kept_hops(self) -> MessageHops:
        if self.hops is None:
            raise InputError(
                "expected the passages of messages over links, which were not kept: simulate with `keep_hops`."
            )
        return self.hops

    def _binding_hop(self, message: int) -> int:
        """The hop that decides when the message arrives, counted from 1; earlier than that is waiting for its head.

        Behind a slow link a fast one has served the message long before its last byte comes.
        """
        if message < 0 or self.hops is None:
            return 0
        first, stop = int(self.hops.start[message]), int(self.hops.start[message + 1])
        if self.model.sharing is Sharing.FAIR or self.model.store_and_forward or stop == first:
            return stop - first
        links = self._links(message)
        rate = self.topology.capacity[links] / self.topology.denominator
        if self.hops.end_us is None:
            served = self.hops.begin_us[first:stop] + self.num_bytes[message] / rate / 1000
        else:
            served = self.hops.end_us[first:stop]
        latency = self.topology.latency_us[links]
        arrival = served + latency[::-1].cumsum()[::-1]
        late = np.flatnonzero(arrival >= arrival.max() - _TIE_US)
        return int(late[-1]) + 1

    def _links(self, message: int) -> NDArray[np.int32]:
        """Links of a message, in order."""
        routes, route = self.messages.routes, int(self.messages.route[message])
        return routes.links[routes.link_start[route] : routes.link_start[route + 1]]


_ABOUT = {
    Reason.NONE: "starts at once",
    Reason.DEPENDENCY: "waited for what came before it",
    Reason.ENGINE: "waited for an engine",
    Reason.LINK: "queued for a link",
    Reason.ROUTE: "waited for its route",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PathSegment:
    """Consecutive stages of the critical path with the same reason and link."""

    first: Stage  # The first of them
    last: Stage  # The last of them
    count: int  # How many they are
    before: Stage | None  # The stage before, which the first of them waited for, or None


def critical_segments(timeline: Timeline) -> list[PathSegment]:
    """Critical path with consecutive stages on one link merged."""
    segments: list[PathSegment] = []
    before: Stage | None = None
    for stage in timeline.critical_path():
        open_one = segments[-1] if segments else None
        if (
            open_one is not None
            and stage.reason in (Reason.LINK, Reason.ROUTE)
            and (stage.reason, stage.link) == (open_one.last.reason, open_one.last.link)
            and (stage.link >= 0 or _ends(timeline, stage) == _ends(timeline, open_one.last))
        ):
            count = open_one.count + 1
            segments[-1] = PathSegment(first=open_one.first, last=stage, count=count, before=open_one.before)
        else:
            segments.append(PathSegment(first=stage, last=stage, count=1, before=before))
        before = stage
    return segments


def time_by_reason(timeline: Timeline) -> dict[str, float]:
    """Microseconds of the critical path by why its stages did not begin earlier; ``start`` is before the first one."""
    spent: dict[str, float] = {}
    path = timeline.critical_path()
    if path and path[0].begin_us:
        spent["start"] = path[0].begin_us
    for stage in path:
        name = stage.reason.name.lower()
        spent[name] = spent.get(name, 0.0) + stage.end_us - stage.begin_us
    return spent


def critical_lines(timeline: Timeline, most: int = 12) -> list[str]:
    """Critical path as lines of text; the middle of a long one is omitted.

    Args:
        most: MemoryIntervals that are told at most.
    """
    segments = critical_segments(timeline)
    if len(segments) <= most:
        return [_line(timeline, segment) for segment in segments]
    head, tail = segments[: (most + 1) // 2], segments[len(segments) - most // 2 :]
    hidden = segments[len(head) : len(segments) - len(tail)]
    spent = hidden[-1].last.end_us - hidden[0].first.begin_us
    between = f"{'':>22}  ... {sum(each.count for each in hidden)} further messages, {spent:.2f} us ..."
    return [*(_line(timeline, each) for each in head), between, *(_line(timeline, each) for each in tail)]


def _line(timeline: Timeline, segment: PathSegment) -> str:
    first, last = segment.first, segment.last
    span = f"{first.begin_us:>9.2f} .. {last.end_us:>9.2f}"
    if segment.count > 1:
        where = (
            f"on {timeline.topology.link_name(first.link)}"
            if first.link >= 0
            else f"from {_ends(timeline, first)}"
        )
        return f"{span}  {segment.count} messages one after the other {where}"
    bytes_ = int(timeline.num_bytes[first.message])
    words = f"{_ends(timeline, first)}, {bytes_:,} bytes: {_ABOUT[first.reason]}"
    if first.reason is Reason.LINK:
        words = words.removesuffix("a link") + timeline.topology.link_name(first.link)
    if segment.before is not None and first.reason is not Reason.NONE:
        words += f" ({_ends(timeline, segment.before)})"
    return f"{span}  {words}"


def ends_of(timeline: Timeline, message: int) -> tuple[int, int]:
    """Sender and receiver of a message."""
    routes, route = timeline.messages.routes, int(timeline.messages.route[message])
    start, end = routes.node_start[route], routes.node_start[route + 1]
    return int(routes.nodes[start]), int(routes.nodes[end - 1])


def _ends(timeline: Timeline, stage: Stage) -> str:
    names = timeline.topology.node_ids
    src, dst = ends_of(timeline, stage.message)
    return f"{names[src]} -> {names[dst]}"
