"""The simulator: messages in, a timeline out."""

from __future__ import annotations

from typing import Any

import numpy as np

from coppice import _core
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.schedule.messages import Messages
from coppice.simulation.model import Model, Sharing
from coppice.simulation.timeline import Hops, Rates, Timeline

__all__ = ["run"]

_NS_PER_US = 1000.0


def run(
    messages: Messages,
    *,
    model: Model,
    collective: Collective,
    size_bytes: int,
    keep_hops: bool = True,
    keep_rates: bool = False,
) -> Timeline:
    """The timeline of messages that :func:`~coppice.schedule.messages.messages_of` made.

    Args:
        messages: What travels.
        model: What messages cost beside rates and latencies of links.
        collective: What the messages carry out, for the bus bandwidth.
        size_bytes: M in bytes, for the bandwidths.
        keep_hops: Record when each message begins on each of its links; without, it takes less memory and there is no
            critical path.
        keep_rates: Record every rate that a message gets, where links are shared fairly.

    Raises:
        InputError: If messages wait for each other in a circle.
    """
    topology, routes = messages.topology, messages.routes
    sender, receiver = topology.rank[routes.src], topology.rank[routes.dst]
    overhead_us = messages.overhead_us
    if overhead_us is None:
        overhead_us = np.where(sender >= 0, model.overhead_us, 0.0)
    found = _core.simulate_messages(
        messages.route,
        messages.num_bytes,
        messages.added_bytes if model.reduce_gb_per_s is not None else messages.added_bytes[:0],
        messages.wave,
        messages.job,
        messages.due_us * _NS_PER_US,
        messages.send_gate,
        messages.receive_gate,
        messages.chained,
        messages.after_start,
        messages.after,
        topology.capacity / topology.denominator,
        topology.latency_us * _NS_PER_US,
        routes.link_start,
        routes.links,
        overhead_us * _NS_PER_US,
        sender,
        receiver,
        topology.num_ranks,
        fair=model.sharing is Sharing.FAIR,
        store_and_forward=model.store_and_forward,
        send_engines=model.send_engines,
        receive_engines=model.receive_engines,
        add_rate=model.reduce_gb_per_s or 0.0,
        keep_hops=keep_hops,
        keep_rates=keep_rates,
    )
    if found["finished"] < messages.count:
        row = int(messages.first_row[np.flatnonzero(found["start"] < 0)[0]])
        msg = f"expected dependencies without circles, but transfer {row} waits for itself: verify the schedule."
        raise InputError(msg)
    for column in ("start", "arrived", "done", "hop_begin", "link_busy", "rate_since"):
        found[column] /= _NS_PER_US
    fair = model.sharing is Sharing.FAIR
    return Timeline(
        messages=messages,
        model=model,
        collective=collective,
        size_bytes=size_bytes,
        start_us=found["start"],
        arrived_us=found["arrived"],
        finish_us=found["done"],
        cause=found["cause"],
        reason=found["reason"],
        hops=_hops(messages, found, fair=fair) if keep_hops else None,
        limit=found["limit"] if fair else None,
        rates=Rates(message=found["rate_message"], since_us=found["rate_since"], gb_per_s=found["rate"])
        if fair and keep_rates
        else None,
        link_busy_us=found["link_busy"],
        link_bytes=found["link_bytes"],
    )


def _hops(messages: Messages, found: dict[str, Any], *, fair: bool) -> Hops:
    start = np.arange(messages.count + 1, dtype=np.int64)
    if not fair:
        np.cumsum(messages.routes.num_links[messages.route], out=start[1:])
    return Hops(start=start, begin_us=found["hop_begin"], behind=found["hop_behind"])
