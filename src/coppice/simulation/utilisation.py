"""What links do over time, and the check that none ever does more than it can.

A link that serves one message at a time is in use from when a message begins on it until its last byte is on it. So
the share of the time for which it is in use is the share of its capacity that is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coppice.errors import CheckError, InputError
from coppice.simulation.timeline import Timeline

__all__ = ["Passages", "check_conservation", "link_time_us", "link_utilisation", "passages"]

_SLACK_US = 1e-6
"""Rounding of times: a thousandth of a nanosecond."""


@dataclass(frozen=True, eq=False, slots=True)
class Passages:
    """Passages of messages over links, ordered by link and then by time.

    Attributes:
        link: Link (int32).
        message: Message that passes (int32).
        begin_us: When its first byte is put on the link (float64).
        end_us: When its last byte is (float64).
    """

    link: NDArray[np.int32]
    message: NDArray[np.int32]
    begin_us: NDArray[np.float64]
    end_us: NDArray[np.float64]

    def of_link(self, link: int) -> slice:
        """Rows of one link."""
        return slice(*np.searchsorted(self.link, [link, link + 1]).tolist())


def passages(timeline: Timeline) -> Passages:
    """Every passage of a message over a link.

    Raises:
        InputError: If they were not kept.
    """
    hops, messages = timeline.hops, timeline.messages
    if hops is None:
        msg = "expected the passages of messages over links, which were not kept: simulate with `keep_hops`."
        raise InputError(msg)
    routes, topology = messages.routes, messages.topology
    message = np.repeat(np.arange(messages.count, dtype=np.int32), np.diff(hops.start))
    place = np.arange(len(message)) - hops.start[message] + routes.link_start[messages.route[message]]
    link = routes.links[place]
    rate = topology.capacity / topology.denominator
    taken = messages.num_bytes[message] / rate[link] / 1000
    order = np.lexsort((message, hops.begin_us, link))
    begin = hops.begin_us[order]
    return Passages(link[order], message[order], begin, begin + taken[order])


def link_utilisation(
    found: Passages, link: int, *, until_us: float, bins: int, from_us: float = 0.0
) -> NDArray[np.float64]:
    """Share of its capacity that a link uses in each of ``bins`` equal spans of time.

    Args:
        found: All passages.
        link: The link.
        until_us: End of the last span.
        bins: Number of spans.
        from_us: Begin of the first span.
    """
    rows = found.of_link(link)
    edges = np.linspace(from_us, until_us, bins + 1)
    if until_us <= from_us:
        return np.zeros(bins)
    begin, end = found.begin_us[rows], found.end_us[rows]
    # Time in use before each edge; passages do not overlap, so their durations add up.
    done = np.concatenate([[0.0], np.cumsum(end - begin)])
    index = np.searchsorted(begin, edges, side="right")
    last = np.maximum(index - 1, 0)
    partial = np.where(index > 0, np.minimum(edges, end[last]) - begin[last], 0.0) if len(begin) else 0.0
    used = done[last] + partial
    return np.diff(used) / np.diff(edges)


def link_time_us(
    found: Passages, owner: NDArray[np.int64], owners: int, links: int, *, from_us: float, until_us: float
) -> NDArray[np.float64]:
    """Time for which the messages of each owner use each link within a span of time: one row for each owner.

    Args:
        found: All passages.
        owner: Owner of each message.
        owners: Number of owners.
        links: Number of links.
        from_us: Begin of the span.
        until_us: Its end.
    """
    inside = np.minimum(found.end_us, until_us) - np.maximum(found.begin_us, from_us)
    place = owner[found.message] * links + found.link
    used = np.bincount(place, weights=np.maximum(inside, 0.0), minlength=owners * links)
    return np.asarray(used, dtype=np.float64).reshape(owners, links)


def check_conservation(timeline: Timeline) -> None:
    """Check that no link ever carries more than its rate, and that every byte passes every link of its route.

    Messages that follow each other on a link must not overlap, none may begin before it has started or end after it
    has arrived, and none may end on a link before it ends on the one before.

    Raises:
        CheckError: With the link, the messages and the times, if it does not hold.
        InputError: If the passages were not kept.
    """
    found = passages(timeline)
    _check_exclusive(timeline, found)
    messages, routes = timeline.messages, timeline.messages.routes
    carried = np.bincount(
        found.link, weights=messages.num_bytes[found.message], minlength=messages.topology.num_links
    )
    wrong = np.flatnonzero(np.abs(carried - timeline.link_bytes) > 0.5)
    if len(wrong):
        link = int(wrong[0])
        name = _name(timeline, link)
        msg = f"expected {carried[link]:.0f} bytes on {name}, found that it carried {timeline.link_bytes[link]:.0f}."
        raise CheckError(msg)
    early = np.flatnonzero(found.begin_us < timeline.start_us[found.message] - _SLACK_US)
    late = np.flatnonzero(found.end_us > timeline.arrived_us[found.message] + _SLACK_US)
    for row in np.concatenate([early, late]).tolist():
        message = int(found.message[row])
        msg = (
            f"expected message {message} on {_name(timeline, int(found.link[row]))} between its start and arrival "
            f"({timeline.start_us[message]:.6f} to {timeline.arrived_us[message]:.6f} us), found it from "
            f"{found.begin_us[row]:.6f} to {found.end_us[row]:.6f} us."
        )
        raise CheckError(msg)
    end_of = {
        (m, e): t
        for m, e, t in zip(found.message.tolist(), found.link.tolist(), found.end_us.tolist(), strict=True)
    }
    for message, route in enumerate(messages.route.tolist()):
        links = routes.links[routes.link_start[route] : routes.link_start[route + 1]].tolist()
        for before, link in pairwise(links):
            if end_of[message, link] < end_of[message, before] - _SLACK_US:
                msg = (
                    f"expected message {message} to end on {_name(timeline, before)} before it does on "
                    f"{_name(timeline, link)}, found {end_of[message, before]:.6f} and {end_of[message, link]:.6f} us."
                )
                raise CheckError(msg)


def _check_exclusive(timeline: Timeline, found: Passages) -> None:
    overlap = np.flatnonzero(
        (found.link[1:] == found.link[:-1]) & (found.begin_us[1:] < found.end_us[:-1] - _SLACK_US)
    )
    if len(overlap):
        row = int(overlap[0])
        first, second = int(found.message[row]), int(found.message[row + 1])
        msg = (
            f"expected one message at a time on {_name(timeline, int(found.link[row]))}, found message {second} from "
            f"{found.begin_us[row + 1]:.6f} us while message {first} lasts until {found.end_us[row]:.6f} us."
        )
        raise CheckError(msg)


def _name(timeline: Timeline, link: int) -> str:
    topology = timeline.messages.topology
    return f"{topology.node_ids[topology.src[link]]} -> {topology.node_ids[topology.dst[link]]}"
