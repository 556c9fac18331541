"""Typed records of library and benchmark reports, the same for every format.

    LoggedMeasurement     a collective took this long
    LoggedDecision        the library chose this algorithm, protocol and number of channels for calls of this size
    LoggedCell            what the library's own cost model reckons with, for one algorithm and protocol
    LoggedCommunicator    ranks, nodes, channels, and the cost model of a communicator
    Log                   everything in one file

Algorithms and protocols are spelled as in tuner tables (``ring``, ``nvls_tree``; ``ll``, ``ll128``, ``simple``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from coppice.collectives import Collective
from coppice.export.nccl.graph import NcclGraph
from coppice.logs.rows import IterationSpread
from coppice.topology.model import Topology

FORCING = (
    *("NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_MIN_NCHANNELS"),
    *("NCCL_MAX_NCHANNELS", "NCCL_TUNER_CONFIG_FILE", "NCCLX_TUNER_CONFIG_FILE", "NCCL_GRAPH_FILE"),
    *("NCCL_RINGS", "RCCL_TREES"),
)
"""Variables under which a time is not that of the library's own choice."""


CLOCKS = ("kernel_gpu", "kernel_cpu", "collective_cpu")
"""What the inspector times with, the best first: kernels by the GPU, by the host, the whole call by the host."""

TUNED = {
    "AllReduce": Collective.ALL_REDUCE,
    "AllGather": Collective.ALL_GATHER,
    "ReduceScatter": Collective.REDUCE_SCATTER,
    "Broadcast": Collective.BROADCAST,
    "Reduce": Collective.REDUCE,
}
"""Collectives about which a tuner is asked, by their names in logs."""

_COUNTED_BY_BLOCK = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
_MOST_BESIDE = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedMeasurement:
    """Measured time of a collective."""

    collective: Collective  # What was run
    ranks: int | None  # Ranks of the communicator, None where nothing says so
    # Nodes that it spans (domains of NVLink where the library says so, else hosts), None likewise
    nodes: int | None
    size_bytes: int  # M (see :mod:`coppice.collectives`), the size column of nccl-tests
    time_us: float  # Time of a call; that of the slowest rank where several say
    least_us: float | None = None  # Time of the fastest rank, None where there is one figure only
    algorithm: str | None = None  # What carried it out, None where nothing says so
    protocol: str | None = None  # Likewise
    channels: int | None = None  # Likewise
    # The environment limited the library's choice (:data:`FORCING`); None where nothing tells
    forced: bool | None = None
    in_place: bool | None = None  # One buffer, or two; None where nothing says so
    wrong: int | None = None  # Number of wrong values, None where they were not checked
    type: str | None = None  # Type of an element, such as `float`; None where nothing says so
    # What timed it, as NCCL's inspector names it (:data:`CLOCKS`); None where nothing says so
    clock: str | None = None
    iterations: IterationSpread | None = None  # Times of single iterations, None where not reported
    file: str  # Where it was read
    line: int  # Line there, 0 in files without lines

    @property
    def of_kernels(self) -> bool:
        """Whether the time is of kernels only; host times include waiting and launching."""
        return self.clock not in CLOCKS[2:]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedDecision:
    """Library's choice for calls of a size."""

    collective: Collective | None  # The collective; None in logs before NCCL 2.24, which do not name it
    # Bytes as the log gives them: of one rank's count, a block of an all-gather or a reduce-scatter; M in
    # logs that do not name the collective
    rank_bytes: int
    ranks: int | None  # Ranks of the communicator, None where the log does not tell
    nodes: int | None  # Nodes, likewise
    algorithm: str  # What was chosen
    protocol: str  # Likewise
    channels: int | None  # Number of channels, None in old logs
    time_us: float | None  # Predicted time, only in old logs
    calls: int  # Number of calls
    line: int  # Line of the first

    @property
    def size_bytes(self) -> int | None:
        """M, or None where the ranks of a block-counted collective are unknown."""
        if self.collective is None:
            return self.rank_bytes
        if self.ranks is None and self.collective in _COUNTED_BY_BLOCK:
            return None
        return message_bytes(self.collective, self.rank_bytes, self.ranks or 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedCell:
    """Cell of the printed cost model: ``time_us = latency_us + bytes / (1000 * gb_per_s)``."""

    collective: Collective  # The collective
    algorithm: str  # An algorithm
    protocol: str  # A protocol
    latency_us: float  # Latency
    gb_per_s: float  # Algorithm bandwidth; 0 where the library does not use this combination
    line: int  # Line of the log


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedCommunicator:
    """A communicator found in a log."""

    ranks: int | None  # Number of ranks, None where only its table was printed
    nodes: int | None  # Number of nodes, likewise
    channels: int | None  # Number of channels for collectives, None where not said
    cells: tuple[LoggedCell, ...]  # Its cost model, empty where not printed
    line: int  # Line where it was first met


@dataclass(frozen=True, kw_only=True)
class Log:
    """All records of one file."""

    file: str  # Name of the file
    kind: str  # What kinds of text were found in it
    measurements: tuple[LoggedMeasurement, ...] = ()  # Times, in order
    decisions: tuple[LoggedDecision, ...] = ()  # Choices of the library, those of equal calls together
    communicators: tuple[LoggedCommunicator, ...] = ()  # Communicators, in order; equal ones once
    graphs: tuple[NcclGraph, ...] = ()  # Rings, trees and so on of a graph dump
    topology: Topology | None = None  # The machine of a topology dump
    version: str | None = None  # Version of the library, such as `2.27.7`
    # Tuner plugin that the library loaded; empty if it says that there is none; None if it says nothing
    tuner: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)  # Variables of NCCL and RCCL that were set
    # Calls that no tuner is asked about, by what they are, with their number
    beside: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()  # What could not be read, with lines

    @property
    def forced(self) -> bool:
        """Whether settings restrict the library's choice."""
        return any(name in self.settings for name in FORCING)

    def record(self) -> dict[str, Any]:
        """The log as JSON values; of the topology its identification only."""
        machine = None
        if self.topology is not None:
            found = self.topology
            machine = {"name": found.name, "ranks": found.num_ranks, "sha256": found.sha256}
        return {
            "file": self.file,
            "kind": self.kind,
            "library_version": self.version,
            "version": self.version,
            "tuner": self.tuner,
            "settings": dict(self.settings),
            "beside": dict(self.beside),
            "measurements": [asdict(each) | {"node_count": each.nodes} for each in self.measurements],
            "decisions": [
                asdict(each)
                | {"size_bytes": each.size_bytes, "node_count": each.nodes, "call_count": each.calls}
                for each in self.decisions
            ],
            "communicators": [
                asdict(each)
                | {
                    "node_count": each.nodes,
                    "cells": [asdict(cell) | {"rate_gb_per_s": cell.gb_per_s} for cell in each.cells],
                }
                for each in self.communicators
            ],
            "graphs": [
                {
                    "graph_id": graph.id,
                    "id": graph.id,
                    "kind": graph.kind,
                    "nchannels": graph.nchannels,
                    "speed_intra_gb_per_s": float(graph.speed_intra),
                    "speed_inter_gb_per_s": float(graph.speed_inter),
                    "type_intra": graph.type_intra,
                    "type_inter": graph.type_inter,
                    "channel_paths": _paths_of(graph),
                    "channels": _paths_of(graph),
                }
                for graph in self.graphs
            ],
            "machine": machine,
            "topology": machine,
            "warnings": list(self.warnings),
        }


_COLLECTIVES = {
    (name or "").removeprefix("nccl").lower(): collective
    for collective in Collective
    for name in (
        collective.dialects.nccl,
        (collective.dialects.nccl_tests or "").removesuffix("_perf").replace("_", ""),
    )
    if name
}
_OWN = {
    "tree": "tree",
    "ring": "ring",
    "collnetdirect": "collnet_direct",
    "collnetchain": "collnet_chain",
    "collnet": "collnet_direct",
    "nvls": "nvls",
    "nvlstree": "nvls_tree",
    "pat": "pat",
    "ll": "ll",
    "ll128": "ll128",
    "simple": "simple",
}


def message_bytes(collective: Collective, rank_bytes: int, ranks: int) -> int:
    """M of a call, by the bytes of one rank's count."""
    return rank_bytes * ranks if collective in _COUNTED_BY_BLOCK else rank_bytes


def count_untuned(beside: dict[str, int], what: str) -> None:
    """Count a call that bypasses tuners, up to a limit on kinds of calls."""
    if what in beside or len(beside) < _MOST_BESIDE:
        beside[what] = beside.get(what, 0) + 1


def collective_named(text: str) -> Collective | None:
    """Look up a collective by its name in NCCL, nccl-tests or on the command line.

    Examples:
        >>> [str(collective_named(name)) for name in ("AllReduce", "alltoall_perf", "allgather_test_perf", "SendRecv")]
        ['all_reduce', 'all_to_all', 'all_gather', 'None']
    """
    word = text.lower().removesuffix("_mpi").removesuffix("_perf").removesuffix("_test")
    word = word.replace("_", "").replace("-", "")
    return _COLLECTIVES.get({"bcast": "broadcast"}.get(word, word))


def own_name(text: str) -> str | None:
    """Algorithm or protocol as tuner tables spell it.

    Examples:
        >>> own_name("NVLSTree"), own_name("COLLNET_CHAIN"), own_name("LL128"), own_name("unknown")
        ('nvls_tree', 'collnet_chain', 'll128', None)
    """
    return _OWN.get(text.lower().replace("_", ""))


def _paths_of(graph: NcclGraph) -> list[dict[str, Any]]:
    """GPUs of each channel in order, and where it enters and leaves the machine."""
    paths = []
    for each in graph.channels:
        gpus = [gpu.dev for gpu in each.gpus]
        paths.append({"entry": each.entry, "gpu_list": gpus, "gpus": gpus, "exit": each.exit})
    return paths
