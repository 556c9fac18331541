"""Several groups that carry out a collective at once: those that share links are simulated together.

Groups fall into sets that share links. Of sets that are alike, message by message and link by link, one is simulated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.iteration.costs.group import CollectiveCost
from coppice.schedule.forest import Forest
from coppice.schedule.messages import Messages, messages_of
from coppice.schedule.schedule import Schedule
from coppice.simulation.channels import transport_profiles
from coppice.simulation.joining import joined
from coppice.simulation.model import Model
from coppice.simulation.simulator import fastest, run
from coppice.simulation.timeline import Timeline
from coppice.topology.model import NodeKind, Topology

MOST_MESSAGES = 2**18
"""Chunks are cut into as many pieces at most as keep a simulation to so many messages."""

_KINDS = ("NVLink", "NIC", "fabric")


def simulated_together(
    bodies: Sequence[Schedule | Forest], topology: Topology, size_bytes: int, model: Model
) -> CollectiveCost:
    """What a collective of several groups takes, all beginning at the same time.

    Args:
        bodies: What each group carries out, on the cluster or parts of it that keep the names of its nodes.
    """
    plain = [messages_of(body, size_bytes, steps_bind=model.steps_bind) for body in bodies]
    found = CollectiveCost(0.0)
    for numbers in _distinct_sets(plain, topology):
        timeline = _set_of_groups([bodies[n] for n in numbers], topology, size_bytes, model)
        # What a model adds to a topology, such as channels of GPUs, comes after its links.
        on = plain[numbers[0]].topology if len(numbers) == 1 else topology
        found = max(found, _cost(timeline, on), key=lambda each: each.seconds)
    return found


def link_kinds(topology: Topology) -> NDArray[np.int64]:
    """Of each link the number of its kind: 0 inside a box, 1 out of or into one or at a NIC, 2 between switches.

    Where nodes belong to no box, links of GPUs are those of NICs.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> np.bincount(link_kinds(preset("dgx-a100", boxes=2))).tolist()
        [32, 64]
    """
    ends = topology.src, topology.dst
    hosts = [topology.host[end] for end in ends]
    nic = (topology.kind[ends[0]] == NodeKind.NIC) | (topology.kind[ends[1]] == NodeKind.NIC)
    gpu = (topology.kind[ends[0]] == NodeKind.GPU) | (topology.kind[ends[1]] == NodeKind.GPU)
    outside = (hosts[0] < 0) & (hosts[1] < 0)
    within = (hosts[0] == hosts[1]) & ~outside & ~nic
    found: NDArray[np.int64] = np.where(within, 0, np.where(outside & ~nic & ~gpu, 2, 1))
    return found


def _cost(timeline: Timeline, topology: Topology) -> CollectiveCost:
    """The time, with the links of the topology that are busy longest."""
    if not timeline.time_us:
        return CollectiveCost(0.0)
    kinds = link_kinds(topology)
    share = timeline.link_busy_us[: topology.num_links] / timeline.time_us
    loads = {
        name: min(1.0, float(share[kinds == number].max()))
        for number, name in enumerate(_KINDS)
        if (share[kinds == number] > 0).any()
    }
    link = max(loads, key=lambda name: loads[name], default="")
    return CollectiveCost(timeline.time_us / 1e6, link, loads)


def _set_of_groups(
    bodies: Sequence[Schedule | Forest], topology: Topology, size_bytes: int, model: Model
) -> Timeline:
    """Groups that share links: in the pieces that suit one of them alone, with the fastest protocol for all."""
    count = messages_of(bodies[0], size_bytes, steps_bind=model.steps_bind).count * len(bodies)
    most = max(1, MOST_MESSAGES // max(1, count))
    alone = fastest(bodies[0], size_bytes, model=model, keep_hops=False, most=most)
    if len(bodies) == 1:
        return alone
    parts = [
        messages_of(body, size_bytes, pieces=alone.pieces, steps_bind=model.steps_bind) for body in bodies
    ]
    everything = joined(parts, start_us=[0.0] * len(parts), topology=topology).messages
    return min(
        (
            run(
                everything,
                model=model,
                collective=bodies[0].collective,
                size_bytes=size_bytes,
                profile=profile,
                pieces=alone.pieces,
                keep_hops=False,
            )
            for profile in transport_profiles(model, topology)
        ),
        key=lambda timeline: timeline.time_us,
    )


def _distinct_sets(parts: Sequence[Messages], topology: Topology) -> list[list[int]]:
    """Numbers of groups by the links that they share, without sets that are like one before."""
    links = [_links_in(part, topology) for part in parts]
    owner = np.full(topology.num_links, -1, dtype=np.int64)
    leader = list(range(len(parts)))

    def leading(number: int) -> int:
        while leader[number] != number:
            number = leader[number]
        return number

    for number, used in enumerate(links):
        every = np.unique(used)
        for other in np.unique(owner[every]).tolist():
            if other >= 0:
                first, second = sorted((leading(other), leading(number)))
                leader[second] = first
        owner[every] = number
    sets: dict[int, list[int]] = {}
    for number in range(len(parts)):
        sets.setdefault(leading(number), []).append(number)
    found: dict[bytes, list[int]] = {}
    for numbers in sets.values():
        key = _signature([parts[n] for n in numbers], [links[n] for n in numbers], topology)
        found.setdefault(key, numbers)
    return list(found.values())


def _links_in(part: Messages, topology: Topology) -> NDArray[np.int64]:
    """Links of the cluster that the routes of a group use, in order."""
    own = part.topology
    if own is topology:
        return part.routes.links.astype(np.int64)
    node = np.array([topology.node_index[name] for name in own.node_ids], dtype=np.int64)
    pairs = node[own.src] * topology.num_nodes + node[own.dst]
    known = topology.src.astype(np.int64) * topology.num_nodes + topology.dst
    order = np.argsort(known)
    place = order[np.searchsorted(known[order], pairs)]
    found: NDArray[np.int64] = place[part.routes.links]
    return found


def _signature(parts: Sequence[Messages], links: Sequence[NDArray[np.int64]], topology: Topology) -> bytes:
    """What two sets of groups have in common exactly if they are simulated alike."""
    digest = hashlib.sha256()
    used = np.concatenate(links)
    _, first, number = np.unique(used, return_index=True, return_inverse=True)
    renamed = np.argsort(np.argsort(first))[number.reshape(-1)]
    for own in (renamed, topology.capacity[used], topology.latency_us[used]):
        digest.update(np.ascontiguousarray(own).tobytes())
    for part in parts:
        columns: tuple[NDArray[Any], ...] = (
            part.route,
            part.num_bytes,
            part.added_bytes,
            part.wave,
            part.send_gate,
            part.receive_gate,
            part.chained,
            part.after_start,
            part.after,
            part.routes.link_start,
        )
        for column in columns:
            digest.update(len(column).to_bytes(8, "little") + np.ascontiguousarray(column).tobytes())
    return digest.digest()
