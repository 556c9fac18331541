"""What an execution trace of one rank holds, whatever wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from coppice.iteration.totals import CollectiveTotal, collective_totals

__all__ = ["ExecutionTrace", "TraceNode", "TraceWork"]


class TraceWork(StrEnum):
    """What a node does."""

    COMPUTE = "compute"
    HOST = "host"
    COLLECTIVE = "collective"
    SEND = "send"
    RECEIVE = "receive"


@dataclass(frozen=True, kw_only=True)
class TraceNode:
    """A node.

    Attributes:
        id: Its number in its file.
        name: Its name.
        work: What it does.
        after: Numbers of the nodes that it waits for.
        seconds: How long it took; 0: the trace does not say.
        stream: Where it runs, such as ``thread 1``.
        collective: The collective.
        size_bytes: Bytes of a collective, or of a message.
        group: Name of its group.
        ranks: Ranks of the group; 0: the trace does not say.
        peer: The other rank of a message; -1: none.
        tag: Tag of a message.
    """

    id: int
    name: str
    work: TraceWork
    after: tuple[int, ...] = ()
    seconds: float = 0.0
    stream: str = "compute"
    collective: str = ""
    size_bytes: int = 0
    group: str = ""
    ranks: int = 0
    peer: int = -1
    tag: int = 0


@dataclass(frozen=True, kw_only=True)
class ExecutionTrace:
    """The trace of a rank.

    Attributes:
        file: Name of its file.
        kind: ``Chakra`` or ``PyTorch``.
        rank: The rank.
        nodes: Nodes in the order of the file.
    """

    file: str
    kind: str
    rank: int
    nodes: Sequence[TraceNode]

    def collectives(self) -> list[CollectiveTotal]:
        """Collectives and messages by kind and group, those of most bytes first."""
        return collective_totals(self.collective_rows())

    def collective_rows(self) -> list[tuple[str, str, int, int]]:
        """Kind, group, ranks of the group, and bytes of each collective and message."""
        return [
            (each.collective or each.work.value, each.group, each.ranks, each.size_bytes)
            for each in self.nodes
            if each.work in (TraceWork.COLLECTIVE, TraceWork.SEND, TraceWork.RECEIVE)
        ]
