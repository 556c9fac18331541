"""Simulate a plan or messages to a timeline; choose the fastest protocol and number of sub-chunks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import lcm
from os import PathLike
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coppice import _core
from coppice.arguments import checked
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.rows import offsets
from coppice.schedule.files.plan_file import body_of
from coppice.schedule.forest import Forest
from coppice.schedule.loads import grouped_sums
from coppice.schedule.lower import size_and_weight
from coppice.schedule.messages import Messages, messages_of_routed, routed_body
from coppice.schedule.plan import Plan
from coppice.schedule.schedule import Schedule
from coppice.simulation.channels import TransportProfile, transport_profiles, with_transport
from coppice.simulation.models import Model, Sharing, model_of
from coppice.simulation.timeline import MessageHops, Rates, Timeline
from coppice.text import size_of
from coppice.topology.model import Topology


@checked
def simulate(
    plan: Any,
    size_bytes: int | str,
    *,
    model: Model | str | PathLike[str] | None = None,
    pieces: int | Literal["best"] = "best",
) -> Timeline:
    """Simulate a schedule: start and arrival of every message.

    Args:
        plan: What is carried out; it should have been verified: a plan, what holds one, the name of a plan file, a
            schedule, or a forest. A forest is simulated as it is: switches at which its trees branch copy and add,
            without overhead and workers.
        size_bytes: M in bytes, 0 or more, also as text such as ``64M``.
        model: What messages cost beside rates and latencies of links: a model, its name, or a file with one; None is
            the default of :mod:`coppice.simulation.models`. Of its protocols the fastest is taken.
        pieces: Every chunk is cut into so many pieces that follow each other, as
            :func:`coppice.schedule.schedule.in_pieces` does; ``best`` takes the number that is fastest.

    Raises:
        InputError: If the body is malformed, the size or number of pieces out of range, or there is no such model.
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
        >>> simulate(chain.schedule(), 18000, model="alpha-beta", pieces=1).time_us
        14.0
        >>> simulate(chain.schedule(), 18000, model="alpha-beta", pieces=3).time_us
        12.0
    """
    count = None if pieces == "best" else pieces
    return fastest(body_of(plan), size_of(size_bytes), model=model_of(model), pieces=count)


_NS_PER_US = 1000.0


def run(
    messages: Messages,
    *,
    model: Model,  # What messages cost beside rates and latencies of links
    collective: Collective,  # What the messages carry out, for the bus bandwidth
    size_bytes: int,  # M in bytes, for the bandwidths
    profile: TransportProfile | None = None,  # Protocol and channels; None: all bytes on the wire are data
    pieces: int = 1,  # What chunks were cut into, for the record
    # Record when each message begins on each of its links; without, it takes less memory and there is no
    # critical path
    keep_hops: bool = True,
    keep_rates: bool = False,  # Record every rate that a message gets, where links are shared fairly
) -> Timeline:
    """Simulate messages made by :func:`~coppice.schedule.messages.messages_of`."""
    burst_us = _bursts_us(messages.topology, model)
    messages = with_transport(messages, TransportProfile() if profile is None else profile, model=model)
    topology, routes = messages.topology, messages.routes
    sender, receiver = topology.rank[routes.src], topology.rank[routes.dst]
    overhead_us = messages.overhead_us
    if overhead_us is None:
        overhead_us = np.where(sender >= 0, model.overhead_us, 0.0)
    busy = model.send_us or model.receive_us or model.copy_gb_per_s is not None
    if busy and not model.workers:  # any number of workers: what they do is a latency at either end
        overhead_us = overhead_us + np.where(sender >= 0, model.send_us, 0.0)
        overhead_us = overhead_us + np.where(receiver >= 0, model.receive_us, 0.0)
    added = messages.added_bytes
    traffic = SimpleNamespace(
        route=messages.route,
        bytes=messages.num_bytes,
        added=added if model.reduce_gb_per_s is not None else added[:0],
        wave=messages.wave,
        job=messages.job,
        due=messages.due_us * _NS_PER_US,
        send_gate=messages.send_gate,
        receive_gate=messages.receive_gate,
        chained=messages.chained,
        after_start=messages.after_start,
        after=messages.after,
    )
    fabric = SimpleNamespace(
        rate=topology.capacity / topology.denominator,
        latency=topology.latency_us * _NS_PER_US,
        burst=np.pad(burst_us, (0, topology.num_links - len(burst_us) if model.burst_bytes else 0))
        * _NS_PER_US,
        route_start=routes.link_start,
        route_links=routes.links,
        overhead=overhead_us * _NS_PER_US,
        sender=sender,
        receiver=receiver,
        num_gpus=topology.num_ranks,
        send_occupancy=np.full(len(sender), model.send_us * _NS_PER_US),
        receive_occupancy=np.full(len(sender), model.receive_us * _NS_PER_US),
        group=_worker_groups(topology, model) if busy and model.workers else np.zeros(0, dtype=np.int32),
    )
    fair = model.sharing is Sharing.FAIR
    options = SimpleNamespace(
        fair=fair,
        store_and_forward=model.store_and_forward,
        send_engines=model.send_engines,
        receive_engines=model.receive_engines,
        add_rate=model.reduce_gb_per_s or 0.0,
        buffered=model.buffered,
        workers=model.workers,
        copy_rate=model.copying_gb_per_s(size_bytes) or 0.0,
        keep_hops=keep_hops,
        keep_rates=keep_rates,
    )
    found = _core.simulate_messages(traffic, fabric, options)
    if found["finished"] < messages.count:
        row = int(messages.first_row[np.flatnonzero(found["start"] < 0)[0]])
        raise InputError(
            f"expected dependencies without circles, but transfer {row} waits for itself: verify the schedule."
        )
    for column in ("start", "arrived", "done", "hop_begin", "hop_end", "link_busy", "rate_since"):
        found[column] /= _NS_PER_US
    return Timeline(
        messages=messages,
        model=model,
        collective=collective,
        size_bytes=size_bytes,
        pieces=pieces,
        protocol=None if profile is None else profile.name,
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
    return MessageHops(
        start=offsets(hops),
        begin_us=found["hop_begin"],
        end_us=found["hop_end"] if len(found["hop_end"]) else None,
        behind=found["hop_behind"],
    )


def _bursts_us(topology: Topology, model: Model) -> NDArray[np.float64]:
    """Time in which the bucket of each link fills; empty where links have none."""
    if not model.burst_bytes:
        return np.zeros(0)
    return float(model.burst_bytes) * topology.denominator / topology.capacity / 1000


def _worker_groups(topology: Topology, model: Model) -> NDArray[np.int32]:
    """Whose workers each rank shares."""
    ranks = topology.num_ranks
    return np.zeros(ranks, dtype=np.int32) if model.shared_workers else np.arange(ranks, dtype=np.int32)


MOST_PIECES = 256
"""Pieces that a chunk is cut into at most."""

_WORTH = 0.002
"""Twice as many pieces are taken where they save this share of the time."""

_MOST_ROWS = 2**20
_FEW_PIECES = 16
"""Cutting makes at most ``_MOST_ROWS`` transfers, but up to ``_FEW_PIECES`` pieces of every chunk in any case."""


_FEW_ROWS, _MANY_ROWS, _ALIKE = 2**18, 2**22, 8
"""Where steps do not bind, every row travels on its own up to the first number of them, or up to the second one where
so many at most would share a message otherwise."""


def most_pieces(schedule: Schedule, size_bytes: int, *, model: Model, most: int = MOST_PIECES) -> int:
    """Largest useful number of sub-chunks per chunk.

    A schedule with steps is not cut: its steps are what goes on at a time.

    Args:
        schedule: Chunks and transfers; those of a forest once it is lowered.
        size_bytes: M in bytes.
        model: Whose least size of a piece counts.
    """
    if not schedule.num_transfers or int(schedule.step.min()) >= 0:
        return 1
    by_size = size_bytes // (model.least_piece_bytes * max(schedule.num_chunks, 1))
    return max(1, min(most, by_size, max(_FEW_PIECES, _MOST_ROWS // schedule.num_transfers)))


def fastest(
    body: Schedule | Forest,
    size_bytes: int,
    *,
    model: Model,
    pieces: int | None = None,
    most: int = MOST_PIECES,
    keep_hops: bool = True,
    enough_us: float = 0.0,
    below_us: float = math.inf,
) -> Timeline:
    """Timeline of a plan with the fastest of the model's protocols and the best number of sub-chunks.

    Where h messages follow each other at a cost of alpha each and the busiest link takes B, m pieces take about
    ``(m + h - 1) (alpha + B / m)``, least for ``m = sqrt((h - 1) B / alpha)``. From the power of two next to it the
    search goes to half or twice as many pieces while that is faster. A protocol is left out where its start and the
    busiest link alone take longer than what was found.

    Args:
        body: What is carried out; it should have been verified.
        size_bytes: M in bytes, 0 or more.
        model: What messages cost.
        pieces: Cut every chunk into so many pieces; None takes the fastest number.
        most: Most pieces to try.
        keep_hops: As :func:`run`.
        enough_us: The search ends with the first timeline that takes no longer, and leaves out what cannot.
        below_us: A time to undercut. Protocols and numbers of pieces that cannot are left out, so that a timeline that
            takes longer may not be the fastest one.

    Raises:
        InputError: If columns are malformed, or the size or number of pieces is out of range.
        UnreachableError: If a transfer names no path and there is none.
    """
    if most < 1:
        raise InputError(f"expected at least 1 piece at most, found {most}.")
    profiles = transport_profiles(model, body.topology)
    best: Timeline | None = None
    rows = routed_body(body)
    limit = most_pieces(rows.schedule, size_bytes, model=model, most=most)
    steps_bind = model.steps_bind or _too_many_messages(body)
    given = 1 if pieces is None else pieces
    whole = messages_of_routed(rows, size_bytes, pieces=given, steps_bind=steps_bind)
    cut = {given: whole}
    for profile in sorted(profiles, key=lambda each: least_in_profile_us(whole, each, model)):
        if best is not None and (
            best.time_us <= enough_us
            or least_in_profile_us(whole, profile, model) >= min(enough_us or best.time_us, below_us)
        ):
            continue

        def attempt(count: int, profile: TransportProfile = profile, *, hops: bool = False) -> Timeline:
            if count not in cut:
                cut[count] = messages_of_routed(rows, size_bytes, pieces=count, steps_bind=steps_bind)
            return run(
                cut[count],
                model=model,
                collective=body.collective,
                size_bytes=size_bytes,
                profile=profile,
                pieces=count,
                keep_hops=hops,
                keep_rates=hops and model.sharing is Sharing.FAIR,
            )

        # A second protocol is fastest in about as many pieces as the first one.
        found = attempt(given if best is None else best.pieces)
        if pieces is None and limit > 1 and found.time_us > enough_us:
            found = _best_pieces(
                found,
                attempt,
                limit,
                guessed=best is not None or below_us < math.inf,
                enough_us=enough_us,
                below_us=below_us,
            )
        if best is None or found.time_us < best.time_us:
            best = found
            chosen = attempt
    if best is None:
        raise InputError(f"expected a model with a protocol, found none in {model.name}.")
    return chosen(best.pieces, hops=True) if keep_hops else best


_EXACT = 2**50
"""Whole numbers below are exact in floating point, divided by a thousand and multiplied again too."""


def steady_inv_rate(plan: Plan, *, model: Model | None = None) -> Fraction | None:
    """Time per shard (ns per byte) in messages of unbounded size, exactly: what bytes alone take.

    A plan without steps is cut into ever more pieces, until its busiest link is busy all the time. A schedule with
    steps is not cut: what waits for another step leaves links idle whatever the size. It is simulated without
    latencies and costs, in a size of which every message takes a whole number of nanoseconds on every link, since sums
    and maxima of such are exact in floating point.

    Args:
        model: Says whether a rank waits for all of a step before it begins the next one; None is the default.

    Returns:
        The time; None where no such size has fewer than 2^50 bytes.

    Examples:
        In a hypercube of 8 links of a binomial tree are busy in one of its four phases each:

        >>> from coppice.planners.planning import plan
        >>> made = plan("hypercube", "broadcast", algorithm="binomial").plan
        >>> str(made.inv_rate), str(steady_inv_rate(made))
        ('1', '4')
    """
    chosen, body = model_of(model), plan.body
    if isinstance(body, Forest) or not body.num_transfers or int(body.step.min()) < 0:
        return plan.inv_rate
    topology = body.topology
    weights, shares = body.slot_weight, grouped_sums(body.chunk_slot, body.chunk_share, len(body.slot_weight))
    whole = (
        size_and_weight(body, 0)[1] * lcm(*filter(None, shares)) * lcm(*np.unique(topology.capacity).tolist())
    )
    if not whole:  # no slot has any bytes
        return plan.inv_rate
    if whole * max(1, len(weights)) >= _EXACT or topology.denominator >= _EXACT:
        return None
    # Rates in whole numbers: a byte takes as many times longer as the denominator says.
    plain = replace(topology, denominator=1, latency_us=np.zeros_like(topology.latency_us))
    free = Model(name=chosen.name, overhead_us=0.0, buffered=chosen.buffered)
    bind = chosen.steps_bind or _too_many_messages(body)
    messages = messages_of_routed(
        routed_body(replace(body, topology=plain)), whole, pieces=1, steps_bind=bind
    )
    found = run(messages, model=free, collective=body.collective, size_bytes=whole, keep_hops=False)
    nanoseconds = round(found.time_us * _NS_PER_US)
    if nanoseconds >= _EXACT:
        return None
    return Fraction(nanoseconds * topology.denominator, whole) * plan.problem.shards


def _too_many_messages(body: Schedule | Forest) -> bool:
    """Whether rows of one step have to travel together although a model lets each go on its own."""
    if isinstance(body, Forest) or body.num_transfers <= _FEW_ROWS or int(body.step.min()) < 0:
        return False
    if body.num_transfers > _MANY_ROWS:
        return True
    ends = np.stack([body.step, body.src, body.dst], axis=1)
    return len(np.unique(ends, axis=0)) * _ALIKE < body.num_transfers


def _best_pieces(
    first: Timeline,
    attempt: Callable[[int], Timeline],
    limit: int,
    *,
    guessed: bool,
    enough_us: float,
    below_us: float,
) -> Timeline:
    """The fastest number of pieces of the powers of two, found from a guess or from what one piece takes.

    Where a time is enough, or is to be undercut, the search ends where all further steps together do not get there
    (:func:`further_gain_us`). With a time to undercut it begins with the pieces of ``first``: what cannot get there
    shows in a few pieces, which are simulated sooner than many.
    """
    highest, middle, best = limit.bit_length() - 1, first.pieces.bit_length() - 1, first
    if not guessed:
        waiting = (chain_length(first) - 1) * float(first.link_busy_us.max(initial=0.0))
        cost = _message_us(first)
        guess = math.sqrt(waiting / cost) if cost else limit
        middle = min(round(math.log2(max(guess, 1))), highest)
        best = min((first, attempt(2**middle)), key=_worth) if middle else first
    below_gain_us = math.inf  # what the step to the middle from below it gained
    for direction in (-1, 1):
        if below_us < math.inf and best.pieces < 2**middle:
            break  # fewer pieces are faster, so more are slower
        exponent, gain_us, before_us = middle + direction, below_gain_us, math.inf
        while (0 if guessed else 1) <= exponent <= highest and best.time_us > enough_us:
            reached_us = best.time_us - further_gain_us(gain_us, before_us)
            if (enough_us and reached_us > enough_us) or reached_us > below_us:
                break
            found = attempt(2**exponent)
            if _worth(found) >= _worth(best):
                below_gain_us = found.time_us - best.time_us if exponent == middle - 1 else math.inf
                break
            before_us, gain_us = gain_us, best.time_us - found.time_us
            best, exponent = found, exponent + direction
    return best


def further_gain_us(gain_us: float, before_us: float) -> float:
    """Most that all further doublings or halvings of a number of pieces together gain, after two that gained so much.

    With m pieces a plan takes about ``a + b / m + c m``: a step gains half of what the one before it did, or less, and
    after two that gained g and h about ``5/2 h - g``. All further steps together gain half as much each, and a quarter
    of the last one for what is not of that form.

    Args:
        gain_us: What the last one gained; infinite: unknown.
        before_us: What the one before that gained; infinite: unknown.

    Examples:
        >>> further_gain_us(8.0, math.inf), further_gain_us(8.0, 16.0)
        (16.0, 10.0)
    """
    further_us = 2 * gain_us
    if before_us < math.inf:
        further_us = min(further_us, 2 * max(0.0, 2.5 * gain_us - before_us) + gain_us / 4)
    return further_us


def _worth(timeline: Timeline) -> float:
    """Time, with which twice as many pieces must save enough to be worth it."""
    return timeline.time_us * math.exp(math.log1p(_WORTH) * math.log2(timeline.pieces))


def chain_length(timeline: Timeline) -> int:
    """Length of the dependency chain that ends in the last message."""
    if not len(timeline.finish_us):
        return 0
    message, count = int(np.argmax(timeline.finish_us)), 0
    while message >= 0:
        message, count = int(timeline.cause[message]), count + 1
    return count


def _message_us(timeline: Timeline) -> float:
    """What a message costs on average beyond its bytes."""
    messages, model = timeline.messages, timeline.model
    routes = messages.routes
    route = np.repeat(np.arange(len(routes.src)), routes.num_links)
    latency = np.bincount(
        route, weights=timeline.topology.latency_us[routes.links], minlength=len(routes.src)
    )
    overhead = (
        np.full(len(routes.src), model.overhead_us) if messages.overhead_us is None else messages.overhead_us
    )
    return float((latency + overhead).mean()) + model.send_us + model.receive_us if len(latency) else 0.0


def least_in_profile_us(messages: Messages, profile: TransportProfile, model: Model) -> float:
    """Lower bound on the time with a transport profile: start latency, and the bytes of the busiest link."""
    start = model.launch_us + (0.0 if profile.protocol is None else profile.protocol.start_us)
    routes, topology = messages.routes, messages.topology
    carried = np.bincount(messages.route, weights=messages.num_bytes, minlength=len(routes.src))
    of_link = np.repeat(carried, routes.num_links)
    load = np.bincount(routes.links, weights=of_link, minlength=topology.num_links)
    wire_load = load * float(profile.expansion) / model.efficiency - model.burst_bytes
    least = float((wire_load * topology.denominator / topology.capacity).max(initial=0.0)) / 1000
    if profile.gpu_gb_per_s is not None:
        sent = np.bincount(routes.src, weights=carried, minlength=topology.num_nodes)[topology.rank_nodes]
        least = max(least, float(sent.max(initial=0.0)) / float(profile.gpu_gb_per_s) / 1000)
    return start + least
