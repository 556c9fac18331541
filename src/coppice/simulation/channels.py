"""Transport profiles: NCCL protocols and channel limits applied to messages.

A *channel* is what a GPU runtime gives a block of threads on the GPU: it copies at a limited rate. Every message is
striped over all channels of its sender, as NCCL does it, so that C channels of rate r carry at most C r out of a GPU
however wide its links are. They are one more link, which no other GPU uses, before the first one of every route.

The figures are data with their sources, in ``data/protocols.json``: those with which NCCL predicts its own times. A
protocol is *nominal* where nothing of this is counted; what remains when it is counted is called *achievable*.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from importlib.resources import files
from math import lcm

import msgspec
import numpy as np
from numpy.typing import NDArray

from coppice.decoding import decodable
from coppice.errors import InputError
from coppice.rows import offsets
from coppice.schedule.messages import Messages, Routes
from coppice.simulation.models import Model
from coppice.topology.generation import generation_of
from coppice.topology.model import NodeKind, Topology

MOST_CHANNELS = 64
"""Channels that NCCL has at most (MAXCHANNELS of release 2.25 and later)."""


@dataclass(frozen=True, kw_only=True)
class TransportProfile:
    """How messages travel: the protocol, and how much data a GPU can send."""

    # The protocol, or None where all bytes on the wire are data and messages cost what the model says
    protocol: Protocol | None = None
    # Data that a GPU can send, whatever its links: channels times their rate, or the protocol's own limit;
    # None for no limit
    gpu_gb_per_s: Fraction | None = None
    name: str | None = None  # Name of the protocol

    @property
    def expansion(self) -> Fraction:
        """Bytes on the wire for a byte of data, in long messages."""
        found = self.protocol
        return Fraction(1) if found is None else Fraction(found.wire_bytes, found.data_bytes)


def transport_profiles(model: Model, topology: Topology) -> tuple[TransportProfile, ...]:
    """Transport profiles that a model chooses from on a topology: one per protocol, or a plain one."""
    return tuple(
        transport_profile(
            topology,
            protocol_name=name,
            channels=model.channels,
            channel_gb_per_s=model.channel_gb_per_s,
            generation=model.generation,
        )
        for name in model.protocols or (None,)
    )


def transport_profile(
    topology: Topology,
    *,
    protocol_name: str | None = None,  # Name of a protocol; None counts none of its costs
    channels: int | None = None,  # Channels of a GPU, 1 .. 64; None is as many as it takes.
    # Data that one channel carries; None takes the figure of the protocol (of `simple`, where none is named)
    # for the generation of the GPUs
    channel_gb_per_s: float | None = None,
    # Generation of the GPUs; None takes what the topology tells, where it matters
    generation: str | None = None,
) -> TransportProfile:
    """The transport profile of a protocol on the GPUs of a topology.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> transport_profile(preset("dgx-h100"), protocol_name="ll128", channels=8).gpu_gb_per_s
        Fraction(1468, 5)
    """
    found = None if protocol_name is None else protocol(protocol_name)
    if channels is not None and not 1 <= channels <= MOST_CHANNELS:
        raise InputError(f"expected 1 .. {MOST_CHANNELS} channels, found {channels}.")
    if channel_gb_per_s is not None and (channels is None or not channel_gb_per_s > 0):
        found_text = f"{channel_gb_per_s} GB/s and {'no number' if channels is None else channels}"
        raise InputError(
            f"expected a rate of channels above 0 GB/s and a number of channels, found {found_text}: give both."
        )
    limits: list[Fraction] = []
    if channels is not None:
        limits.append(channels * _channel_rate(topology, found, channel_gb_per_s, generation))
    known = _known_generation(topology, generation)
    if found is not None and known is not None:
        own = found.gpu_limit(known, num_boxes(topology))
        limits += [Fraction(str(own))] if own is not None else []
    return TransportProfile(
        protocol=found,
        gpu_gb_per_s=min(limits, default=None),
        name=None if protocol_name is None else protocol_name.lower(),
    )


def _channel_rate(
    topology: Topology, found: Protocol | None, given: float | None, generation: str | None
) -> Fraction:
    if given is not None:
        return Fraction(str(given))
    boxes, name = num_boxes(topology), generation_of(topology, generation)
    for each in (found, protocol("simple")):
        limit = None if each is None else each.channel_limit(name, boxes)
        if limit is not None:
            return Fraction(str(limit))
    raise InputError(
        f"expected a known rate of a channel on GPUs of generation {name}: give it (`channel_rate`)."
    )


def with_transport(messages: Messages, profile: TransportProfile, *, model: Model) -> Messages:
    """Messages with the line sizes, latencies and channel limits of a transport profile.

    A protocol rounds every message up to whole lines, sets what a message costs by whether it leaves its box, and
    delays everything by its start. Latencies of links are part of its figures: they count once, the larger of both.

    Args:
        profile: Protocol and channels.
    """
    if profile.gpu_gb_per_s is not None and profile.gpu_gb_per_s < _widest_gpu(messages.topology):
        if model.store_and_forward:
            raise InputError(
                "expected cut-through switches with limited channels, found store-and-forward: choose one, or "
                "`model=alpha-beta`."
            )
        messages = _through_channels(
            messages, profile.gpu_gb_per_s * profile.expansion / Fraction(str(model.efficiency))
        )
    found = profile.protocol
    start_us = model.launch_us + (0.0 if found is None else found.start_us)
    if start_us:
        due = messages.due_us if len(messages.due_us) else np.zeros(messages.count)
        messages = replace(messages, due_us=due + start_us)
    if found is not None:
        messages = replace(
            messages,
            num_bytes=found.wire_bytes_of(messages.num_bytes),
            overhead_us=_overheads(messages, found, model),
        )
    if model.efficiency < 1:
        messages = replace(
            messages, num_bytes=np.ceil(messages.num_bytes / model.efficiency).astype(np.int64)
        )
    return messages


def _widest_gpu(topology: Topology) -> Fraction:
    """GB/s of all links together out of the GPU that has most."""
    out = np.bincount(topology.src, weights=topology.capacity, minlength=topology.num_nodes)[
        topology.rank_nodes
    ]
    return Fraction(int(out.max(initial=0)), topology.denominator)


def _overheads(messages: Messages, found: Protocol, model: Model) -> NDArray[np.float64]:
    """What a message costs on each route beyond its links' latencies and its workers' time; nothing from a switch."""
    routes, topology = messages.routes, messages.topology
    src, dst = routes.src, routes.dst
    host = topology.host
    boxed = (host[src] == host[dst]) & (host[src] >= 0)
    route = np.repeat(np.arange(len(src)), routes.num_links)
    latency = np.bincount(route, weights=topology.latency_us[routes.links], minlength=len(src))
    cost = np.where(boxed, found.box_us, found.network_us) - model.send_us - model.receive_us
    return np.where(topology.rank[src] >= 0, np.maximum(cost - latency, 0.0), 0.0)


def _through_channels(messages: Messages, gb_per_s: Fraction) -> Messages:
    """The messages with the channels of their sender as one more link at the begin of each route.

    The link of a GPU leads from a node of its own to the GPU, so that the topology stays one. Node sequences of routes
    do not show it. Messages that a switch sends have none.
    """
    topology, routes = messages.topology, messages.routes
    src = routes.src
    sending = topology.rank[src] >= 0
    cluster = _with_channels(topology, gb_per_s)
    length = routes.num_links + sending
    link_start = offsets(length)
    links = np.empty(int(link_start[-1]), dtype=np.int32)
    at_begin = np.zeros(len(links), dtype=np.bool_)
    at_begin[link_start[:-1][sending]] = True
    # The channels' links come after all others, in order of the ranks.
    links[at_begin] = topology.num_links + topology.rank[src[sending]]
    links[~at_begin] = routes.links
    return replace(
        messages,
        topology=cluster,
        routes=Routes(node_start=routes.node_start, nodes=routes.nodes, link_start=link_start, links=links),
    )


def _with_channels(topology: Topology, gb_per_s: Fraction) -> Topology:
    """The topology with a node for the channels of every rank, linked to its GPU."""
    ranks, nodes = topology.num_ranks, topology.num_nodes
    denominator = lcm(topology.denominator, gb_per_s.denominator)
    scale = denominator // topology.denominator
    limit = gb_per_s.numerator * (denominator // gb_per_s.denominator)
    gpus = topology.rank_nodes
    names = tuple(f"{topology.node_ids[v]} channels" for v in gpus.tolist())
    none = np.zeros(ranks, dtype=np.bool_)
    return replace(
        topology,
        node_ids=topology.node_ids + names,
        kind=np.concatenate([topology.kind, np.full(ranks, NodeKind.SWITCH, dtype=np.int8)]),
        host=np.concatenate([topology.host, topology.host[gpus]]),
        rank=np.concatenate([topology.rank, np.full(ranks, -1, dtype=np.int32)]),
        multicast=np.concatenate([topology.multicast, none]),
        aggregate=np.concatenate([topology.aggregate, none]),
        src=np.concatenate([topology.src, nodes + np.arange(ranks, dtype=np.int32)]),
        dst=np.concatenate([topology.dst, gpus]),
        capacity=np.concatenate([topology.capacity * scale, np.full(ranks, limit, dtype=np.int64)]),
        denominator=denominator,
        latency_us=np.concatenate([topology.latency_us, np.zeros(ranks)]),
        arch=(),
        cpu=(),
        slot=(),
    )


class Protocol(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A transport protocol of NCCL: its line sizes, latencies and limits."""

    about: str  # What it is, in words
    data_bytes: int  # Bytes of data in a line
    wire_bytes: int  # Bytes that this line takes on the wire
    start_us: float  # Cost of starting a collective, once
    box_us: float  # Latency of a message between GPUs of one box, its links included
    network_us: float  # Latency of a message between boxes, its links included
    # Data that one channel of a GPU carries, by generation of GPU: in 1 box, 2 boxes, more
    channel_gb_per_s: dict[str, tuple[float, float, float]]
    # Data that all channels of a GPU carry together, likewise
    gpu_gb_per_s: dict[str, tuple[float, float, float]]
    sources: dict[str, str]  # Where each figure stands

    @property
    def efficiency(self) -> float:
        """Share of data in the bytes on the wire."""
        return self.data_bytes / self.wire_bytes

    def wire_bytes_of(self, size_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes on the wire for so many bytes of data: whole lines.

        Examples:
            >>> protocol("ll128").wire_bytes_of(np.array([0, 1, 120, 121])).tolist()
            [0, 128, 128, 256]
        """
        lines = -(-size_bytes // self.data_bytes)
        return np.asarray(lines * self.wire_bytes, dtype=np.int64)

    def channel_limit(self, generation: str, boxes: int) -> float | None:
        """Data rate of one channel in GB/s, or None where no limit is known."""
        return _at_scale(self.channel_gb_per_s.get(generation), boxes)

    def gpu_limit(self, generation: str, boxes: int) -> float | None:
        """Data rate of all channels of a GPU together in GB/s, or None where no limit is known."""
        return _at_scale(self.gpu_gb_per_s.get(generation), boxes)


@dataclass(frozen=True)
class _Table:
    """The data file."""

    source: str
    scales: list[str]
    protocols: dict[str, Protocol]


def protocols() -> dict[str, Protocol]:
    """All protocols by name.

    >>> {name: each.efficiency for name, each in protocols().items()}
    {'simple': 1.0, 'll': 0.5, 'll128': 0.9375}
    """
    return dict(_table().protocols)


def protocol(name: str) -> Protocol:
    """Look up a protocol by name, case-insensitively."""
    found = _table().protocols.get(name.lower())
    if found is None:
        raise InputError(f"expected a protocol of {', '.join(_table().protocols)}, found {name!r}.")
    return found


def _known_generation(topology: Topology, name: str | None) -> str | None:
    """The generation that is named, or told by the topology; None where neither does."""
    try:
        return generation_of(topology, name)
    except InputError:
        if name is not None:
            raise
        return None


def num_boxes(topology: Topology) -> int:
    """Number of boxes of the ranks; GPUs without a host count as boxes of their own."""
    host = topology.host[topology.rank_nodes]
    return len(np.unique(host[host >= 0])) + int((host < 0).sum())


def _at_scale(row: tuple[float, float, float] | None, boxes: int) -> float | None:
    return None if row is None else row[min(boxes, 3) - 1]


@cache
def _table() -> _Table:
    data = files("coppice.simulation").joinpath("data/protocols.json").read_bytes()
    return msgspec.json.decode(data, type=decodable(_Table))
