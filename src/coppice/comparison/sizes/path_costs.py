"""What a message costs on each path under a model with one protocol: its rate, and what comes on top."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.rows import offsets
from coppice.schedule.schedule import hops_of
from coppice.simulation.channels import TransportProfile
from coppice.simulation.models import Model
from coppice.topology.model import Topology


@dataclass(frozen=True, eq=False, kw_only=True)
class PathCosts:
    """Costs of a message on each path of a table."""

    profile: TransportProfile
    model: Model
    gb_per_s: NDArray[
        np.float64
    ]  # Of the slowest link, or of the channels of the sender, for bytes on the wire
    fixed_us: NDArray[np.float64]  # Latencies of the links, and what messages cost at either end

    @classmethod
    def of(
        cls,
        topology: Topology,
        path_start: NDArray[np.int64],
        path_nodes: NDArray[np.int32],
        profile: TransportProfile,
        model: Model,
    ) -> PathCosts:
        """Costs on the paths of a table, as a schedule has it.

        Examples:
            >>> from coppice.simulation.models import model_of
            >>> from coppice.topology.presets import preset
            >>> star = preset("star", gpus=2, gb_per_s=8)  # GPUs are nodes 0 and 1, their switch is node 2
            >>> start, nodes = np.array([0, 3]), np.array([0, 2, 1], dtype=np.int32)
            >>> costs = PathCosts.of(star, start, nodes, TransportProfile(), model_of("alpha-beta"))
            >>> costs.on_path_us(np.array([0]), np.array([16_000])).tolist()
            [3.0]
        """
        hops = hops_of(topology, path_start, path_nodes)
        first = offsets(np.diff(path_start) - 1)[:-1]
        rate = np.minimum.reduceat(topology.capacity[hops.link] / topology.denominator, first)
        latency = np.add.reduceat(topology.latency_us[hops.link], first)
        if profile.gpu_gb_per_s is not None:
            rate = np.minimum(rate, float(profile.gpu_gb_per_s * profile.expansion))
        cost = np.full(len(rate), model.overhead_us + model.send_us + model.receive_us)
        protocol = profile.protocol
        if protocol is not None:
            src, dst = (topology.host[path_nodes[at]] for at in (path_start[:-1], path_start[1:] - 1))
            boxed = (src == dst) & (src >= 0)
            cost = np.maximum(np.where(boxed, protocol.box_us, protocol.network_us) - latency, 0.0)
        return cls(profile=profile, model=model, gb_per_s=rate, fixed_us=latency + cost)

    def wire_bytes(self, num_bytes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Bytes that links are busy with for messages of so many bytes."""
        protocol = self.profile.protocol
        wire = num_bytes if protocol is None else protocol.wire_bytes_of(num_bytes)
        return np.asarray(wire / self.model.efficiency)

    def on_path_us(self, path: NDArray[np.integer], num_bytes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Microseconds of each message on its path if nothing else is under way."""
        return np.asarray(self.wire_bytes(num_bytes) / self.gb_per_s[path] / 1000 + self.fixed_us[path])
