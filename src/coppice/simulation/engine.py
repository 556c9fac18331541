"""Run messages through the simulator's core: what they cost under a model, and the timeline that comes of it."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice import _core
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.rows import offsets
from coppice.schedule.messages import Messages
from coppice.simulation.channels import TransportProfile, with_transport
from coppice.simulation.models import Model, Sharing
from coppice.simulation.timeline import MessageHops, Rates, Timeline
from coppice.topology.model import Topology

NS_PER_US = 1000.0


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
    give_up_us: float = math.inf,  # Simulate no further: what takes longer takes for ever
) -> Timeline:
    """Simulate messages made by :func:`~coppice.schedule.messages.messages_of`."""
    burst_us = _bursts_us(messages.topology, model)
    messages = with_transport(messages, TransportProfile() if profile is None else profile, model=model)
    topology, routes = messages.topology, messages.routes
    sender, receiver, links = topology.rank[routes.src], topology.rank[routes.dst], routes.links
    if messages.alike is not None:
        links = messages.alike.links(links)
        sender, receiver = messages.alike.rank[sender], messages.alike.rank[receiver]
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
        due=messages.due_us * NS_PER_US,
        send_gate=messages.send_gate,
        receive_gate=messages.receive_gate,
        chained=messages.chained,
        after_start=messages.after_start,
        after=messages.after,
    )
    fabric = SimpleNamespace(
        rate=topology.capacity / topology.denominator,
        latency=topology.latency_us * NS_PER_US,
        burst=np.pad(burst_us, (0, topology.num_links - len(burst_us) if model.burst_bytes else 0))
        * NS_PER_US,
        route_start=routes.link_start,
        route_links=links,
        overhead=overhead_us * NS_PER_US,
        sender=sender,
        receiver=receiver,
        num_gpus=topology.num_ranks,
        send_occupancy=np.full(len(sender), model.send_us * NS_PER_US),
        receive_occupancy=np.full(len(sender), model.receive_us * NS_PER_US),
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
        give_up=give_up_us * NS_PER_US,
    )
    found = _core.simulate_messages(traffic, fabric, options)
    if found["finished"] < messages.count:
        row = int(messages.first_row[np.flatnonzero(found["start"] < 0)[0]])
        raise InputError(
            f"expected dependencies without circles, but transfer {row} waits for itself: verify the schedule."
        )
    for column in ("start", "arrived", "done", "hop_begin", "hop_end", "link_busy", "rate_since"):
        found[column] /= NS_PER_US
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
