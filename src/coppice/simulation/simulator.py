"""The simulator: from a plan and a size, or from messages, to a timeline; and how many pieces make a plan fastest."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from coppice import _core
from coppice.arguments import checked
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.rows import offsets
from coppice.schedule.files.plan_file import body_of
from coppice.schedule.forest import Forest
from coppice.schedule.messages import Messages, messages_of
from coppice.schedule.schedule import Schedule
from coppice.simulation.model import DEFAULT_MODEL, Model, Sharing
from coppice.simulation.timeline import MessageHops, Rates, Timeline
from coppice.text import size_of

__all__ = ["best_pieces", "run", "simulate"]


@checked
def simulate(
    plan: Any,
    size_bytes: int | str,
    *,
    model: Model = DEFAULT_MODEL,
    pieces: int | Literal["best"] = 1,
) -> Timeline:
    """When every message of a schedule starts and arrives.

    Args:
        plan: What is carried out; it should have been verified: a plan, what holds one, the name of a plan file, a
            schedule, or a forest. A forest is simulated as it is: switches at which its trees branch copy and add,
            without overhead and engines.
        size_bytes: M in bytes, 0 or more, also as text such as ``64M``.
        model: What messages cost beside rates and latencies of links.
        pieces: Every chunk is cut into so many pieces that follow each other, as
            :func:`coppice.schedule.schedule.in_pieces` does; ``best`` takes the number that is fastest.

    Raises:
        InputError: If the body is malformed, or the size or number of pieces out of range.
        UnreachableError: If a transfer names no path and there is none.

    Examples:
        A chain of two hops, 18,000 bytes at 3 GB/s and 1 us a message, in one piece and in three:

        >>> from coppice.collectives import Collective
        >>> from coppice.planners.algorithms.algorithm import AlgorithmCase
        >>> from coppice.planners.algorithms.parts.moves import Moves, whole
        >>> from coppice.topology.presets import preset
        >>> case = AlgorithmCase(topology=preset("ring", gpus=3, gb_per_s=3), collective=Collective.BROADCAST, root=0)
        >>> chain = Moves(case, whole(case))
        >>> chain.add([0, 1], [0, 1], [1, 2], 0)
        >>> simulate(chain.schedule(), 18000).time_us
        14.0
        >>> simulate(chain.schedule(), 18000, pieces=3).time_us
        12.0
    """
    body, size = body_of(plan), size_of(size_bytes)
    if pieces == "best":
        return best_pieces(body, size, model=model)[1]
    return run(
        messages_of(body, size, pieces=pieces), model=model, collective=body.collective, size_bytes=size
    )


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


def _hops(messages: Messages, found: dict[str, Any], *, fair: bool) -> MessageHops:
    hops = np.ones(messages.count, dtype=np.int64) if fair else messages.routes.num_links[messages.route]
    return MessageHops(start=offsets(hops), begin_us=found["hop_begin"], behind=found["hop_behind"])


_PATIENCE = 2


def best_pieces(
    body: Schedule | Forest, size_bytes: int, *, model: Model = DEFAULT_MODEL, most: int = 256
) -> tuple[int, Timeline]:
    """The number of pieces with the least time, and its timeline.

    Tries 1, 2, 4, ... up to ``most`` until the time has grown twice in a row, and then the numbers half-way to the
    neighbours of the best one. The least of several best ones is taken.

    Args:
        body: What is carried out.
        size_bytes: M in bytes.
        model: What messages cost.
        most: Most pieces to try, 1 or more.

    Raises:
        InputError: As :func:`simulate`, or if ``most`` is less than 1.
    """
    if most < 1:
        msg = f"expected at least 1 piece at most, found {most}."
        raise InputError(msg)
    tried: dict[int, float] = {}

    def attempt(pieces: int) -> tuple[float, int, Timeline]:
        timeline = run(
            messages_of(body, size_bytes, pieces=pieces),
            model=model,
            collective=body.collective,
            size_bytes=size_bytes,
        )
        tried[pieces] = timeline.time_us
        return timeline.time_us, pieces, timeline

    best = attempt(1)
    pieces, worse = 2, 0
    while pieces <= most and worse < _PATIENCE:
        best = min(best, attempt(pieces), key=lambda found: found[:2])
        worse = worse + 1 if tried[pieces] >= tried[pieces // 2] else 0
        pieces *= 2
    middle = best[1]
    for between in (middle * 3 // 4, middle * 3 // 2):
        if between not in tried and 1 <= between <= most:
            best = min(best, attempt(between), key=lambda found: found[:2])
    return best[1], best[2]
