"""What collectives achieved against what is achievable: by NCCL's own cost model, and by the cuts of the network."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coppice.bounds.attainable import in_network_optimum
from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.diagnosis.recorded.records import RunRecords
from coppice.errors import CoppiceError
from coppice.logs.records import LoggedCommunicator, collective_named, message_bytes
from coppice.topology.model import Topology
from coppice.topology.operations import subset

_BYTES = {
    **dict.fromkeys(("ncclInt8", "ncclUint8", "ncclFloat8e4m3", "ncclFloat8e5m2"), 1),
    **dict.fromkeys(("ncclFloat16", "ncclBfloat16"), 2),
    **dict.fromkeys(("ncclInt32", "ncclUint32", "ncclFloat32"), 4),
    **dict.fromkeys(("ncclInt64", "ncclUint64", "ncclFloat64"), 8),
}


@dataclass(frozen=True, kw_only=True)
class AchievedRate:
    """A collective of one size in one group: its time, and the least that models allow."""

    collective: Collective
    ranks: int | None
    nodes: int | None
    size_bytes: int
    calls: int
    time_us: float  # Median
    kernels: bool  # Times are of kernels, not of the host around the call
    algorithm: str | None
    library_us: float | None  # By the cost model of the library, None where nothing tells
    library_model: str  # Name of that model, empty for none
    least_us: float | None  # By the cuts of the network
    least_model: str
    file: str
    line: int

    @property
    def algbw_gb_per_s(self) -> float:
        """Size over time."""
        return self.size_bytes / self.time_us / 1000 if self.time_us else 0.0

    @property
    def busbw_gb_per_s(self) -> float | None:
        """As nccl-tests counts it; None where the ranks are not known."""
        if self.ranks is None:
            return None
        return self.algbw_gb_per_s * float(self.collective.busbw_factor(self.ranks))

    @property
    def share_of_optimum(self) -> float | None:
        """Least time by the cuts over the time."""
        return None if self.least_us is None or not self.time_us else self.least_us / self.time_us

    @property
    def share_of_model(self) -> float | None:
        """Time by the library's model over the time."""
        return None if self.library_us is None or not self.time_us else self.library_us / self.time_us

    @property
    def shape(self) -> tuple[Collective, int | None, int | None]:
        """What it has in common with other sizes of it."""
        return (self.collective, self.ranks, self.nodes)

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "collective": str(self.collective),
            "ranks": self.ranks,
            "node_count": self.nodes,
            "size_bytes": self.size_bytes,
            "call_count": self.calls,
            "time_us": self.time_us,
            "of_kernels": self.kernels,
            "algorithm": self.algorithm,
            "reached_algbw_gb_per_s": self.algbw_gb_per_s,
            "reached_busbw_gb_per_s": self.busbw_gb_per_s,
            "library_us": self.library_us,
            "library_model": self.library_model or None,
            "least_us": self.least_us,
            "bound_model": self.least_model or None,
            "share_of_optimum": self.share_of_optimum,
            "file": self.file,
            "line": self.line,
        }


@dataclass
class _Models:
    """Least times of calls, each network and shape once."""

    records: RunRecords
    inv_rates: dict[Any, tuple[float, str] | None] = field(default_factory=dict)
    networks: dict[tuple[int, int], Topology | None] = field(default_factory=dict)

    def network(self, ranks: int | None, nodes: int | None) -> Topology | None:
        """The part of the network that a group is on: all of it, or the first GPUs of the first hosts."""
        whole = self.records.topology
        if whole is None or ranks is None or ranks < 2:
            return None
        if ranks == whole.num_ranks:
            return whole
        key = (ranks, nodes or 0)
        if key not in self.networks:
            self.networks[key] = _part(whole, ranks, nodes)
        return self.networks[key]

    def least(
        self, collective: Collective, ranks: int | None, nodes: int | None, size: int
    ) -> tuple[float | None, str]:
        """Time by the cuts."""
        network = self.network(ranks, nodes)
        if network is None:
            return None, ""
        key = (collective, ranks, nodes)
        if key not in self.inv_rates:
            self.inv_rates[key] = _inv_rate(network, collective)
        found = self.inv_rates[key]
        return (None, "") if found is None else (found[0] * size / 1000, found[1])

    def library(
        self, collective: Collective, ranks: int | None, nodes: int | None, size: int
    ) -> tuple[float | None, str]:
        """Time by the model that the library printed, else by its own model for the network."""
        for log in self.records.logs:
            for each in log.communicators:
                if each.cells and each.ranks in (None, ranks) and each.nodes in (None, nodes):
                    time = _printed(each, collective, size)
                    if time is not None:
                        return time, f"NCCL's cost model ({log.file}:{each.line})"
        network = self.network(ranks, nodes)
        if network is None:
            return None, ""
        from coppice.selection import select

        try:
            picked = select("nccl", collective, size, topology=network)
        except CoppiceError:
            return None, ""
        cell = picked.cell
        if cell is None or cell.time_us is None:
            return None, ""
        return float(cell.time_us), f"NCCL {picked.version}'s cost model on {network.name}"


def _part(whole: Topology, ranks: int, nodes: int | None) -> Topology | None:
    host = whole.host[whole.rank_nodes]
    if nodes is None or nodes < 1 or ranks % nodes or (host < 0).any():
        return None
    each = ranks // nodes
    members = [[r for r in range(whole.num_ranks) if host[r] == h] for h in dict.fromkeys(host.tolist())]
    if len(members) < nodes or any(len(some) < each for some in members[:nodes]):
        return None
    return subset(whole, [rank for some in members[:nodes] for rank in some[:each]])


def _inv_rate(network: Topology, collective: Collective) -> tuple[float, str] | None:
    """Microseconds of a kilobyte, and the name of the bound."""
    problem = Problem(topology=network, collective=collective, root=0 if collective.rooted else None)
    try:
        found = bound_of(problem)
        name = f"cut bound of {network.name}"
        if network.aggregate.any() or network.multicast.any():
            helped = in_network_optimum(found)
            if helped.inv_rate < found.inv_rate:
                found, name = helped, f"bound of {network.name} with switches that copy and add"
    except CoppiceError:
        return None
    rate = float(found.algbw_gb_per_s)
    return (1 / rate, name) if rate else None


def _printed(communicator: LoggedCommunicator, collective: Collective, size: int) -> float | None:
    """Least time of the printed cost model."""
    times = [
        cell.latency_us + size / cell.gb_per_s / 1000
        for cell in communicator.cells
        if cell.collective is collective and cell.gb_per_s
    ]
    return min(times, default=None)


def achieved(records: RunRecords) -> tuple[AchievedRate, ...]:
    """All collectives of known sizes, by kind, group and size."""
    rows: dict[tuple[Any, ...], list[tuple[float, str | None, str, int]]] = {}
    for log in records.logs:
        for each in log.measurements:
            if each.time_us > 0 and each.size_bytes > 0:
                key = (each.collective, each.ranks, each.nodes, each.size_bytes, each.of_kernels)
                rows.setdefault(key, []).append((each.time_us, each.algorithm, each.file, each.line))
    for profiled in _profiled(records):
        rows.setdefault(profiled[0], []).append(profiled[1])
    models = _Models(records)
    found = []
    for (collective, ranks, nodes, size, kernels), members in rows.items():
        least, least_name = models.least(collective, ranks, nodes, size)
        library, library_name = models.library(collective, ranks, nodes, size)
        algorithms = {each[1] for each in members}
        found.append(
            AchievedRate(
                collective=collective,
                ranks=ranks,
                nodes=nodes,
                size_bytes=size,
                calls=len(members),
                time_us=statistics.median(each[0] for each in members),
                kernels=kernels,
                algorithm=algorithms.pop() if len(algorithms) == 1 else None,
                library_us=library,
                library_model=library_name,
                least_us=least,
                least_model=least_name,
                file=members[0][2],
                line=members[0][3],
            )
        )
    return tuple(sorted(found, key=lambda e: (str(e.collective), e.ranks or 0, e.nodes or 0, e.size_bytes)))


def _profiled(records: RunRecords) -> list[tuple[tuple[Any, ...], tuple[float, str | None, str, int]]]:
    """Collectives of the profiler: each as long as on its slowest rank."""
    groups: dict[tuple[str, int], list[Any]] = {}
    ranks: dict[str, set[int]] = {}
    for file, call in records.profiled:
        ranks.setdefault(call.communicator, set()).add(call.rank)
        if call.stop_us is not None:
            groups.setdefault((call.communicator, call.number), []).append((file, call))
    found = []
    for (communicator, _), members in groups.items():
        file, first = members[0]
        collective, width = collective_named(first.operation), _BYTES.get(first.type)
        if collective is None or width is None:
            continue
        count = len(ranks[communicator])
        size = message_bytes(collective, first.count * width, count)
        time = max(call.stop_us - call.start_us for _, call in members)
        if size and time > 0:
            row = (time, first.algorithm.lower() or None, file, 0)
            found.append(((collective, count, None, size, False), row))
    return found


def by_shape(rates: tuple[AchievedRate, ...]) -> Mapping[Any, list[AchievedRate]]:
    """Rates of one collective in groups of one shape, by size."""
    found: dict[Any, list[AchievedRate]] = {}
    for each in rates:
        found.setdefault(each.shape, []).append(each)
    return found
