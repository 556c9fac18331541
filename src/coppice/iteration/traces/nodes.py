"""Execution trace of one rank, independent of its format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from coppice.iteration.totals import CollectiveTotal, collective_totals


class TraceWork(StrEnum):
    """Kind of work of a node."""

    COMPUTE = "compute"
    HOST = "host"
    COLLECTIVE = "collective"
    SEND = "send"
    RECEIVE = "receive"


@dataclass(frozen=True, kw_only=True)
class TraceNode:
    """Node of a trace."""

    id: int  # Its number in its file
    name: str  # Its name
    work: TraceWork  # What it does
    after: tuple[int, ...] = ()  # Numbers of the nodes that it waits for
    seconds: float = 0.0  # How long it took; 0: the trace does not say
    stream: str = "compute"  # Where it runs, such as `thread 1`
    collective: str = ""  # The collective
    size_bytes: int = 0  # Bytes of a collective, or of a message
    group: str = ""  # Name of its group
    ranks: int = 0  # Ranks of the group; 0: the trace does not say
    peer: int = -1  # The other rank of a message; -1: none
    tag: int = 0  # Tag of a message


@dataclass(frozen=True, kw_only=True)
class ExecutionTrace:
    """Trace of one rank."""

    file: str  # Name of its file
    kind: str  # `Chakra` or `PyTorch`
    rank: int  # The rank
    nodes: Sequence[TraceNode]  # Nodes in the order of the file

    def collectives(self) -> list[CollectiveTotal]:
        """Collectives and messages by kind and group, the most bytes first."""
        return collective_totals(self.collective_rows())

    def collective_rows(self) -> list[tuple[str, str, int, int]]:
        """Kind, group, ranks of the group, and bytes of each collective and message."""
        return [
            (each.collective or each.work.value, each.group, each.ranks, each.size_bytes)
            for each in self.nodes
            if each.work in (TraceWork.COLLECTIVE, TraceWork.SEND, TraceWork.RECEIVE)
        ]
