"""What chunks hold on each path under a model: its links, and the channels and the workers of the ranks at its ends.

A message takes its ports one after the other: a worker of its sender, the channels of the sender, the links of its path
and a worker of its receiver. Each serves one message at a time, from when the head of the message comes there. That is
the model of searches that place chunks on links over time (cpp/tacos, which lets all ports begin at once, and
cpp/recreate), in whole units of time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coppice.comparison.sizes.path_costs import PathCosts
from coppice.rows import offsets
from coppice.schedule.schedule import hops_of
from coppice.simulation.channels import TransportProfile
from coppice.simulation.models import Model
from coppice.topology.model import Topology

_UNITS = 2.0**32


@dataclass(frozen=True, eq=False, kw_only=True)
class ChannelCosts:
    """Paths between ranks as channels with ports, for chunks of several sizes, in units of time."""

    src: NDArray[np.int32]  # Rank that each leaves
    dst: NDArray[np.int32]  # Rank that each enters
    port_start: NDArray[np.int64]  # Ports of channel k are `port[port_start[k] : port_start[k + 1]]`
    port: NDArray[np.int32]
    num_ports: int
    duration: NDArray[np.int64]  # Per size and channel: from the start to the arrival
    offset: NDArray[np.int64]  # Per size and entry of `port`: from the start until the port serves the chunk
    hold: NDArray[np.int64]  # Likewise: for how long it does
    start_us: float  # Before the first message: the launch, and the start of the protocol
    unit_us: float  # Microseconds of a unit of time

    @classmethod
    def of(
        cls,
        topology: Topology,
        path_start: NDArray[np.int64],
        path_nodes: NDArray[np.int32],
        chunk_bytes: NDArray[np.int64],
        *,
        size_bytes: int,
        profile: TransportProfile,
        model: Model,
    ) -> ChannelCosts:
        """Costs of chunks of so many bytes on the paths of a table, in a collective of so many bytes.

        Examples:
            >>> from coppice.simulation.models import model_of
            >>> from coppice.topology.presets import preset
            >>> star = preset("star", gpus=2, gb_per_s=8)  # GPUs are nodes 0 and 1, their switch is node 2
            >>> costs = ChannelCosts.of(
            ...     star, np.array([0, 3]), np.array([0, 2, 1], dtype=np.int32), np.array([16_000]),
            ...     size_bytes=16_000, profile=TransportProfile(), model=model_of("alpha-beta"))
            >>> costs.port.tolist(), (costs.hold * costs.unit_us).round(3).tolist()
            ([0, 3], [[2.0, 2.0]])
            >>> (costs.duration * costs.unit_us).round(3).tolist()
            [[3.0]]
        """
        path = PathCosts.of(topology, path_start, path_nodes, profile, model)
        paths, sizes = len(path_start) - 1, len(chunk_bytes)
        src, dst = (topology.rank[path_nodes[at]] for at in (path_start[:-1], path_start[1:] - 1))
        wire = path.wire_bytes(chunk_bytes)[:, None]
        hops = hops_of(topology, path_start, path_nodes)
        first_hop = offsets(np.bincount(hops.path, minlength=paths))
        latency_us = np.add.reduceat(topology.latency_us[hops.link], first_hop[:-1])
        overhead_us = path.fixed_us - latency_us
        handled_us = np.zeros((sizes, 1))
        if model.workers:
            overhead_us = overhead_us - model.send_us - model.receive_us
            copying = model.copying_gb_per_s(size_bytes)
            handled_us = handled_us + (0.0 if copying is None else chunk_bytes[:, None] / copying / 1000)

        # Ports in the order in which a message takes them, a column for each place on the way.
        places: list[_PortOnWay] = []
        ports = topology.num_links
        if profile.gpu_gb_per_s is not None:
            of_channels = ports + src
            ports += topology.num_ranks
        if model.workers:
            of_rank = 0 if model.shared_workers else 1
            own, theirs = ports + src * of_rank, ports + dst * of_rank
            ports += topology.num_ranks
            busy_us = model.send_us + handled_us
            places.append(_port_on_way(own, busy_us / model.workers, model.send_us, 0 * busy_us))
        if profile.gpu_gb_per_s is not None:
            held_us = wire / float(profile.gpu_gb_per_s * profile.expansion) / 1000
            places.append(_port_on_way(of_channels, held_us, 0.0, held_us))
        longest = int(np.diff(first_hop).max(initial=0))
        for hop in range(longest):
            there = first_hop[:-1] + hop < first_hop[1:]
            link = hops.link[np.where(there, first_hop[:-1] + hop, 0)]
            held_us = wire * topology.denominator / topology.capacity[link] / 1000
            places.append(
                _port_on_way(np.where(there, link, -1), held_us, topology.latency_us[link], held_us)
            )
        port = np.stack([np.broadcast_to(each.port, paths) for each in places], axis=1)
        taken = port >= 0
        hold, step, last = (
            np.stack([np.broadcast_to(column, (sizes, paths)) for column in columns], axis=2) * taken
            for columns in zip(*((each.hold_us, each.step_us, each.last_us) for each in places), strict=True)
        )
        offset = np.cumsum(step, axis=2) - step + (0.0 if model.buffered else overhead_us[:, None])
        lasts = offset + last + np.cumsum(step[:, :, ::-1], axis=2)[:, :, ::-1]
        duration = lasts.max(axis=2) + (overhead_us if model.buffered else 0.0)
        if model.workers:
            handled = np.broadcast_to(model.receive_us + handled_us, (sizes, paths))
            port, taken = (
                np.column_stack([port, theirs]),
                np.column_stack([taken, np.ones(paths, dtype=bool)]),
            )
            offset = np.concatenate([offset, duration[:, :, None]], axis=2)
            hold = np.concatenate([hold, handled[:, :, None] / model.workers], axis=2)
            duration = duration + handled
        unit_us = max(float(duration.max(initial=0.0)), 1e-9) / _UNITS

        def units(us: NDArray[np.float64], least: int) -> NDArray[np.int64]:
            return np.maximum(np.ceil(us / unit_us), least).astype(np.int64)

        return cls(
            src=src.astype(np.int32),
            dst=dst.astype(np.int32),
            port_start=offsets(taken.sum(axis=1)),
            port=port[taken].astype(np.int32),
            num_ports=ports,
            duration=units(duration, 1),
            offset=units(offset[:, taken], 0),
            hold=units(hold[:, taken], 1),
            start_us=model.launch_us + (0.0 if profile.protocol is None else profile.protocol.start_us),
            unit_us=unit_us,
        )

    def backwards(self) -> ChannelCosts:
        """The same channels for what goes from their ends to their beginnings, backwards in time."""
        channel = np.repeat(np.arange(len(self.src)), np.diff(self.port_start))
        offset = self.duration[:, channel] - self.offset - self.hold
        return replace(self, src=self.dst, dst=self.src, offset=np.maximum(offset, 0))


@dataclass(frozen=True, eq=False, kw_only=True)
class _PortOnWay:
    """A port on the way of each message; -1 where a way has none there."""

    port: NDArray[np.int64]
    hold_us: NDArray[np.float64]  # For which it serves a message
    step_us: NDArray[np.float64]  # From its begin until the next port may begin
    last_us: NDArray[np.float64]  # From its begin until it lets the last byte go


def _port_on_way(
    port: NDArray[np.integer],
    hold_us: NDArray[np.float64],
    step_us: float | NDArray[np.float64],
    last_us: NDArray[np.float64],
) -> _PortOnWay:
    return _PortOnWay(
        port=port.astype(np.int64), hold_us=hold_us, step_us=np.asarray(step_us), last_us=last_us
    )
