"""Export a plan at one size as Chakra execution traces, one file per rank.

A file holds a header and then nodes, each with its length before it: sends, receipts, and computations for additions.
The schema is that of MLCommons Chakra; attributes have the types that both generations of its C++ reader take. Routes
are not part of a trace: who replays it sends every message over a network of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError
from coppice.export.chakra import wire
from coppice.export.chakra.graph import MessageRows, TraceGraph, TraceNodeKind, graph_of, rows_of
from coppice.export.formats import ChakraOptions, Exported
from coppice.schedule.forest import Forest
from coppice.schedule.lower import lower
from coppice.schedule.messages import Messages, messages_of
from coppice.schedule.plan import Plan
from coppice.schedule.schedule import Schedule, in_pieces, routed
from coppice.text import plural

SCHEMA_VERSION = "0.0.4"
"""Version of the schema that the header names."""

_COMP, _COMM_SEND, _COMM_RECV = 4, 5, 6
"""Types of nodes."""

_ID, _NAME, _TYPE, _DATA_DEPS, _DURATION, _ATTR = 1, 2, 3, 5, 7, 10
"""Fields of a node."""

_ON_GPU = wire.within(_ATTR, wire.bool_value("is_cpu_op", value=False))


@dataclass(frozen=True, eq=False, kw_only=True)
class ChakraTrace:
    """Chakra trace of a plan, encoded as it is written."""

    schedule: Schedule  # What is carried out, cut into pieces
    messages: Messages  # Its messages
    rows: MessageRows  # What each of them carries
    graph: TraceGraph  # Nodes of all ranks
    size_bytes: int  # M in bytes
    pieces: int  # Pieces of every chunk
    reduce_gb_per_s: float | None  # Rate at which a GPU adds, or None
    element_bytes: int  # Bytes of an element

    @property
    def num_ranks(self) -> int:
        """Number of files."""
        return self.schedule.topology.num_ranks

    @property
    def num_nodes(self) -> int:
        """Nodes of all ranks, without the idle nodes of ranks that have none."""
        return len(self.graph.kind)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user."""
        notes = [
            "Routes are not part of a trace: the simulator that replays it sends messages over its own network.",
            "As a workload ASTRA-sim lets a GPU make one send at a time; as a custom collective, all that are ready.",
        ]
        empty = int((self.messages.num_bytes == 0).sum())
        if empty:
            notes.append(f"{empty} messages without bytes carry 1 byte, since simulators refuse 0.")
        adding = self.graph.item[self.graph.kind == TraceNodeKind.ADD]
        if self.reduce_gb_per_s is not None and len(adding):
            exact = self.messages.added_bytes[adding] / (1e3 * self.reduce_gb_per_s)
            lost = float(np.abs(np.rint(exact) - exact).max())
            notes.append(f"Durations are whole microseconds: additions are up to {lost:.3g} us off.")
        return tuple(notes)

    @cached_property
    def _ends(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Sending and receiving rank of each message."""
        rank = self.schedule.topology.rank
        return rank[self.messages.src], rank[self.messages.dst]

    def file(self, rank: int) -> Iterator[bytes]:
        """Encode the file of a rank in pieces."""
        yield wire.delimited(self._header(rank))
        graph = self.graph
        begin, end = int(graph.start[rank]), int(graph.start[rank + 1])
        if begin == end:
            # Readers refuse a file in which nothing can begin.
            yield wire.delimited(_node(1, "idle", _COMP, (), _ON_GPU))
        nodes = slice(begin, end)
        columns = (
            graph.kind[nodes],
            graph.item[nodes],
            graph.wait_start[nodes],
            graph.wait_count[nodes],
        )
        for number, (kind, item, first, count) in enumerate(
            zip(*(each.tolist() for each in columns), strict=True), 1
        ):
            waits = graph.pool[first : first + count].tolist()
            if kind == TraceNodeKind.JOIN:
                yield wire.delimited(_node(number, f"join {item}", _COMP, waits, _ON_GPU))
            elif kind == TraceNodeKind.ADD:
                yield wire.delimited(self._addition(number, item, waits))
            else:
                if kind == TraceNodeKind.SEND and item in graph.further:
                    waits = sorted({*waits, *graph.further[item]})
                yield wire.delimited(
                    self._communication(number, item, waits, sends=kind == TraceNodeKind.SEND)
                )

    def exported(self, *, name: str = "trace") -> Exported:
        """All files, ``NAME.RANK.et``, as a folder.

        Args:
            name: How their names begin; simulators are given the directory with this name.
        """
        if not name or Path(name).name != name:
            raise InputError(
                f"expected a plain name for the files, found {name!r}: a directory is named apart from it."
            )
        return Exported(
            files={f"{name}.{rank}.et": partial(self.file, rank) for rank in range(self.num_ranks)},
            notes=self.notes,
            suffix=".et",
            summary=f"{plural(self.num_ranks, 'trace')} with {self.num_nodes:,} nodes",
        )

    def write(self, directory: str | os.PathLike[str], *, name: str = "trace") -> list[Path]:
        """Write all files, creating the directory.

        Returns:
            The files, rank by rank.
        """
        return self.exported(name=name).write(directory)

    def _header(self, rank: int) -> bytes:
        from coppice.version import __version__

        topology = self.schedule.topology
        attributes = (
            wire.string_value("producer", f"coppice {__version__}"),
            wire.string_value("collective", self.schedule.collective.dialects.chakra),
            wire.int64_value("size_bytes", self.size_bytes),
            wire.int32_value("rank", rank),
            wire.int32_value("ranks", self.num_ranks),
            wire.int32_value("pieces", self.pieces),
            wire.string_value("topology", topology.name),
            wire.string_value("topology_sha256", topology.sha256),
        )
        return wire.text(1, SCHEMA_VERSION) + b"".join(wire.within(2, each) for each in attributes)

    def _communication(self, number: int, message: int, waits: list[int], *, sends: bool) -> bytes:
        src, dst = self._ends[0].item(message), self._ends[1].item(message)
        rows = slice(self.rows.start.item(message), self.rows.start.item(message + 1))
        content = b"".join(
            (
                _ON_GPU,
                _comm_size(max(1, self.messages.num_bytes.item(message))),
                _comm_end("comm_src", src),
                _comm_end("comm_dst", dst),
                wire.within(_ATTR, wire.int32_value("comm_tag", message)),
                wire.within(_ATTR, wire.int32_list("chunks", self.rows.chunk[rows].tolist())),
            )
        )
        name = f"send {message} to {dst}" if sends else f"receive {message} from {src}"
        return _node(number, name, _COMM_SEND if sends else _COMM_RECV, waits, content)

    def _addition(self, number: int, message: int, waits: list[int]) -> bytes:
        added = self.messages.added_bytes.item(message)
        rows = slice(self.rows.start.item(message), self.rows.start.item(message + 1))
        attributes = (
            wire.int64_value("num_ops", -(-added // self.element_bytes)),
            wire.uint64_value("tensor_size", added),
            wire.int32_list("chunks", self.rows.chunk[rows][self.rows.adds[rows]].tolist()),
        )
        rate = self.reduce_gb_per_s
        micros = 0 if rate is None else round(added / (1e3 * rate))
        content = _ON_GPU + b"".join(wire.within(_ATTR, each) for each in attributes)
        return _node(number, f"add {message}", _COMP, waits, content, micros=micros)


def export_chakra(plan: Plan, options: ChakraOptions) -> Exported:
    """Export a plan at one size as Chakra traces."""
    if options.size is None:
        raise InputError("a Chakra trace is of one message size: give it (`size=64M`).")
    return chakra_trace(plan.body, size_bytes=options.size).exported(name=options.name or "trace")


def chakra_trace(
    body: Schedule | Forest,  # What is carried out; it should have been verified
    *,
    size_bytes: int,  # M in bytes, 0 or more
    pieces: int = 1,  # Every chunk is cut into so many pieces that follow each other
    # Rate at which a GPU adds what it receives, in GB/s; None: adding takes no time
    reduce_gb_per_s: float | None = None,
    element_bytes: int = 4,  # Bytes of an element, 1 or more: what an addition counts as operations
) -> ChakraTrace:
    """Build the trace of a schedule or forest at a size.

    Examples:
        >>> from coppice.collectives import Collective
        >>> from coppice.planners.algorithms.algorithm import AlgorithmCase
        >>> from coppice.planners.algorithms.parts.moves import Moves, whole
        >>> from coppice.topology.presets import preset
        >>> case = AlgorithmCase(topology=preset("ring", gpus=3), collective=Collective.BROADCAST, root=0)
        >>> chain = Moves(case, whole(case))
        >>> chain.add([0, 1], [0, 1], [1, 2], 0)
        >>> trace = chakra_trace(chain.schedule(), size_bytes=1000)
        >>> trace.num_ranks, trace.num_nodes
        (3, 4)
    """
    if element_bytes < 1 or (reduce_gb_per_s is not None and not 0 < reduce_gb_per_s < float("inf")):
        raise InputError(
            f"expected elements of 1 byte or more and a rate above 0 GB/s, found {element_bytes} bytes and "
            f"{reduce_gb_per_s} GB/s."
        )
    if isinstance(body, Forest):
        if body.branches_at_switches:
            raise InputError(
                "a trace holds sends and receipts of ranks, found a forest in which switches copy or add: plan "
                "without `in_network`."
            )
        body = lower(body)
    messages = messages_of(body, size_bytes, pieces=pieces)
    schedule = in_pieces(routed(body), pieces)
    rows = rows_of(messages, schedule)
    return ChakraTrace(
        schedule=schedule,
        messages=messages,
        rows=rows,
        graph=graph_of(messages, rows),
        size_bytes=size_bytes,
        pieces=pieces,
        reduce_gb_per_s=reduce_gb_per_s,
        element_bytes=element_bytes,
    )


@lru_cache(maxsize=4096)
def _comm_size(size: int) -> bytes:
    return wire.within(_ATTR, wire.int64_value("comm_size", size))


@lru_cache(maxsize=4096)
def _comm_end(name: str, rank: int) -> bytes:
    return wire.within(_ATTR, wire.int32_value(name, rank))


def _node(
    number: int, name: str, kind: int, waits: list[int] | tuple[()], content: bytes, *, micros: int = 0
) -> bytes:
    """A node whose attributes are ``content``."""
    return b"".join(
        (
            wire.number(_ID, number),
            wire.text(_NAME, name),
            wire.number(_TYPE, kind),
            wire.packed(_DATA_DEPS, waits),
            wire.number(_DURATION, micros) if micros else b"",
            content,
        )
    )
