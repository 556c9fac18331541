"""Link utilisation over time, and a check that no link exceeds its capacity.

A link that serves one message at a time is wholly in use from when a message begins on it until its last byte is on it.
A link that messages share fairly is used by each at its rate. Either way a passage uses a share of the link for a span.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coppice.display import Brief
from coppice.errors import CheckError, InputError
from coppice.rows import ranges
from coppice.simulation.models import Sharing
from coppice.simulation.timeline import Timeline

_SLACK_US = 1e-6
"""Rounding of times: a thousandth of a nanosecond."""

_SLACK = 1e-6
"""Rounding of rates and bytes, relative."""


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Passages(Brief):
    """Transmissions of messages over links, ordered by link and then by time.

    With fair sharing a message has a passage for every rate that it had.
    """

    link: NDArray[np.int32]  # Link (int32)
    message: NDArray[np.int32]  # Message that passes (int32)
    begin_us: NDArray[np.float64]  # When it begins (float64)
    end_us: NDArray[np.float64]  # When it ends (float64)
    share: NDArray[np.float64]  # Share of the link's rate that it uses (float64)

    def of_link(self, link: int) -> slice:
        """Rows of one link."""
        return slice(*np.searchsorted(self.link, [link, link + 1]).tolist())


def passages(timeline: Timeline) -> Passages:
    """Transmissions of all messages over all links."""
    found = _shared(timeline) if timeline.model.sharing is Sharing.FAIR else _exclusive(timeline)
    order = np.lexsort((found.message, found.end_us, found.begin_us, found.link))
    return Passages(
        found.link[order],
        found.message[order],
        found.begin_us[order],
        found.end_us[order],
        found.share[order],
    )


def _exclusive(timeline: Timeline) -> Passages:
    """Passages over links that serve one message at a time."""
    hops = timeline.hops
    if hops is None:
        raise InputError(
            "expected the passages of messages over links, which were not kept: simulate with `keep_hops`."
        )
    message, link = _spread(timeline, np.arange(timeline.messages.count, dtype=np.int32))
    taken = timeline.num_bytes[message] / _rates(timeline)[link] / 1000
    return Passages(link, message, hops.begin_us, hops.begin_us + taken, np.ones(len(link)))


def _shared(timeline: Timeline) -> Passages:
    """Passages over links that are shared fairly: a message is on all links of its route at once."""
    rates, messages = timeline.rates, timeline.messages
    if rates is None:
        raise InputError("expected the rates of messages, which were not kept: simulate with `keep_rates`.")
    routes = messages.routes
    route_of_link = np.repeat(np.arange(len(routes.num_links)), routes.num_links)
    latency = np.bincount(
        route_of_link, weights=timeline.topology.latency_us[routes.links], minlength=len(routes.num_links)
    )
    order = np.lexsort((np.arange(len(rates.message)), rates.since_us, rates.message))
    message, since = rates.message[order], rates.since_us[order]
    until = timeline.arrived_us[message] - latency[messages.route[message]]
    again = message[1:] == message[:-1]
    until[:-1][again] = since[1:][again]
    row, link = _spread(timeline, message)
    share = rates.gb_per_s[order][row] / _rates(timeline)[link]
    return Passages(link, message[row], since[row], until[row], share)


def _spread(timeline: Timeline, message: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Place in ``message``, and link, for every link of the route of each of these messages."""
    routes = timeline.messages.routes
    route = timeline.messages.route[message]
    times = routes.num_links[route]
    row = np.repeat(np.arange(len(message), dtype=np.int32), times)
    return row, routes.links[ranges(routes.link_start[route], times)]


def _rates(timeline: Timeline) -> NDArray[np.float64]:
    """GB/s of every link."""
    return timeline.topology.capacity / timeline.topology.denominator


def busiest_links(timeline: Timeline, count: int) -> list[int]:
    """The ``count`` used links of the largest utilisation, the busiest first."""
    load = timeline.link_bytes / _rates(timeline)
    order = np.lexsort((np.arange(len(load)), -load))[:count]
    return [link for link in order.tolist() if load[link] > 0]


def link_utilisation(
    found: Passages, link: int, *, until_us: float, bins: int, from_us: float = 0.0
) -> NDArray[np.float64]:
    """Utilisation of a link in each of ``bins`` equal time intervals."""
    rows = found.of_link(link)
    edges = np.linspace(from_us, until_us, bins + 1)
    begin, end, share = found.begin_us[rows], found.end_us[rows], found.share[rows]
    if until_us <= from_us or not len(begin):
        return np.zeros(bins)
    # Before an edge lie what began before it, less what of that ends after it.
    done = np.array([float(share @ (np.clip(edge, begin, end) - begin)) for edge in edges.tolist()])
    return np.diff(done) / np.diff(edges)


def link_time_us(
    found: Passages, owner: NDArray[np.int64], owners: int, links: int, *, from_us: float, until_us: float
) -> NDArray[np.float64]:
    """Busy time of each link by owner of the messages within a time interval: one row per owner.

    A share of a link counts as that share of the time.
    """
    inside = np.minimum(found.end_us, until_us) - np.maximum(found.begin_us, from_us)
    place = owner[found.message] * links + found.link
    weights = np.maximum(inside, 0.0) * found.share
    used = np.bincount(place, weights=weights, minlength=owners * links)
    return np.asarray(used, dtype=np.float64).reshape(owners, links)


def check_conservation(timeline: Timeline) -> None:
    """Check that no link exceeds its rate, and that every byte crosses every link of its route.

    No passage may begin before its message has started or end after it has arrived, and first in, first out, none may
    begin on a link before its head has come from the one before.
    """
    found = passages(timeline)
    _check_rates(timeline, found)
    _check_bytes(timeline, found)
    early = np.flatnonzero(found.begin_us < timeline.start_us[found.message] - _SLACK_US)
    late = np.flatnonzero(found.end_us > timeline.arrived_us[found.message] + _SLACK_US)
    for row in np.concatenate([early, late]).tolist():
        message = int(found.message[row])
        name = timeline.topology.link_name(int(found.link[row]))
        raise CheckError(
            f"expected message {message} on {name} between its start and arrival "
            f"({timeline.start_us[message]:.6f} to {timeline.arrived_us[message]:.6f} us), found it from "
            f"{found.begin_us[row]:.6f} to {found.end_us[row]:.6f} us."
        )
    if timeline.model.sharing is Sharing.FIFO:
        _check_order(timeline, found)


def _check_rates(timeline: Timeline, found: Passages) -> None:
    """At no moment do the shares of a link add up to more than one."""
    for link in np.unique(found.link).tolist():
        rows = found.of_link(link)
        time = np.concatenate([found.begin_us[rows] + _SLACK_US, found.end_us[rows]])
        change = np.concatenate([found.share[rows], -found.share[rows]])
        lasting = np.tile(found.end_us[rows] - found.begin_us[rows] > _SLACK_US, 2)
        order = np.argsort(time[lasting], kind="stable")
        share = np.cumsum(change[lasting][order])
        if len(share) and share.max() > 1 + _SLACK:
            at = time[lasting][order][int(np.argmax(share))]
            name = timeline.topology.link_name(link)
            raise CheckError(
                f"expected at most the rate of {name} at any time, found {share.max():.6f} times that at {at:.6f} us."
            )


def _check_bytes(timeline: Timeline, found: Passages) -> None:
    """What passed a link is what the messages over it carry, and what the simulator counted."""
    links = timeline.topology.num_links
    rate = _rates(timeline)[found.link] * 1000
    passed = np.bincount(
        found.link, weights=found.share * (found.end_us - found.begin_us) * rate, minlength=links
    )
    message, link = _spread(timeline, np.arange(timeline.messages.count, dtype=np.int32))
    wanted = np.bincount(link, weights=timeline.num_bytes[message], minlength=links)
    for counted in (passed, timeline.link_bytes):
        wrong = np.flatnonzero(np.abs(counted - wanted) > 1 + _SLACK * wanted)
        if len(wrong):
            name = timeline.topology.link_name(int(wrong[0]))
            raise CheckError(
                f"expected {wanted[wrong[0]]:.0f} bytes over {name}, found {counted[wrong[0]]:.0f}."
            )


def _check_order(timeline: Timeline, found: Passages) -> None:
    """The head of a message goes on to the next link the latency after it came to this one, or later."""
    messages, routes = timeline.messages, timeline.messages.routes
    columns = (found.message, found.link, found.begin_us)
    begin_of = {(m, e): t for m, e, t in zip(*(c.tolist() for c in columns), strict=True)}
    latency = timeline.topology.latency_us.tolist()
    for message, route in enumerate(messages.route.tolist()):
        links = routes.links[routes.link_start[route] : routes.link_start[route + 1]].tolist()
        for before, link in pairwise(links):
            least = begin_of[message, before] + latency[before]
            if begin_of[message, link] < least - _SLACK_US:
                here, there = timeline.topology.link_name(link), timeline.topology.link_name(before)
                raise CheckError(
                    f"expected message {message} on {here} from {least:.6f} us, when its head comes "
                    f"from {there}, found it from {begin_of[message, link]:.6f} us."
                )
