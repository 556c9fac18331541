"""Assign messages to channels and thread blocks with at most one peer per direction and one channel each.

Messages that instructions join into a chain, each passed on as it arrives, need one channel all the way, and at every
rank on it one thread block that receives from the one side and sends to the other. Chains are placed one after the
other, each on the first channel where that can be had.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coppice.errors import CheckError
from coppice.program.dialects.thread_blocks.operations.instructions import InstructionGraph

MOST_CHANNELS = 32
"""Most channels of a runtime."""

_Connection = tuple[bool, int, int, int]
"""(it is the sending end, sender, receiver, channel)"""


class UnplacedChainError(CheckError):
    """No channel fits this send/receive chain; ``chain`` are its messages."""

    def __init__(self, message: str, chain: Sequence[int]) -> None:
        super().__init__(message)
        self.chain = tuple(chain)


@dataclass(frozen=True, slots=True)
class OpenBlock:
    """A thread block that may still get peers."""

    rank: int  # Its rank
    send: int = -1  # Peer that it sends to, or -1
    recv: int = -1  # Peer that it receives from, or -1
    channel: int = -1  # Channel, or -1 where it has no peer yet
    label: int | None = None  # What its author calls it, or None

    def with_(self, other: OpenBlock) -> OpenBlock | None:
        """Merge of two thread blocks, None where they conflict."""
        pairs = ((self.send, other.send), (self.recv, other.recv), (self.channel, other.channel))
        if any(min(pair) >= 0 and pair[0] != pair[1] for pair in pairs):
            return None
        if self.label is not None and other.label is not None and self.label != other.label:
            return None
        label = other.label if self.label is None else self.label
        send, recv, channel = (max(pair) for pair in pairs)
        return OpenBlock(self.rank, send, recv, channel, label)


class BlockTable:
    """Thread blocks by number, and the owners of connection ends.

    Everything is in dictionaries whose changes are noted, so that what was only tried can be taken back.
    """

    def __init__(self) -> None:
        self.blocks: dict[int, OpenBlock] = {}  # All thread blocks
        self.channel: dict[int, int] = {}  # Channel of each message
        self._ends: dict[_Connection, int] = {}
        self._ends_of: dict[int, tuple[_Connection, ...]] = {}
        self._labels: dict[tuple[int, int], int] = {}
        self._made = 0
        self._changes: list[tuple[dict[Any, Any], Any, Any]] = []

    def new(self, block: OpenBlock) -> int:
        """Add a thread block."""
        number, self._made = self._made, self._made + 1
        self._set(self.blocks, number, block)
        if block.label is not None:
            self._set(self._labels, (block.rank, block.label), number)
        return number

    def end(self, connection: _Connection) -> int:
        """Thread block of a connection end, created if missing."""
        found = self._ends.get(connection)
        if found is None:
            sends, src, dst, channel = connection
            made = (
                OpenBlock(src, send=dst, channel=channel)
                if sends
                else OpenBlock(dst, recv=src, channel=channel)
            )
            found = self.new(made)
            self._set(self._ends, connection, found)
            self._set(self._ends_of, found, (connection,))
        return found

    def labelled(self, rank: int, label: int) -> int:
        """Thread block of a label, created if missing."""
        found = self._labels.get((rank, label))
        return self.new(OpenBlock(rank, label=label)) if found is None else found

    def place(self, message: int, channel: int) -> None:
        """Assign a channel to a message."""
        self._set(self.channel, message, channel)

    def merge(self, one: int, other: int) -> bool:
        """Merge two thread blocks, if possible."""
        if one == other:
            return True
        both = self.blocks[one].with_(self.blocks[other])
        if both is None:
            return False
        moved = self._ends_of.get(other, ())
        for connection in moved:
            self._set(self._ends, connection, one)
        self._set(self._ends_of, one, self._ends_of.get(one, ()) + moved)
        self._set(self.blocks, one, both)
        self._set(self.blocks, other, None)
        if both.label is not None:
            self._set(self._labels, (both.rank, both.label), one)
        return True

    def keep(self) -> None:
        """Commit changes."""
        self._changes.clear()

    def take_back(self) -> None:
        """Roll back to the last :meth:`keep`."""
        for table, key, before in reversed(self._changes):
            if before is None:
                table.pop(key, None)
            else:
                table[key] = before
        self._changes.clear()

    def _set(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        """Change an entry; None takes it away."""
        self._changes.append((table, key, table.get(key)))
        if value is None:
            del table[key]
        else:
            table[key] = value


def chains_of(graph: InstructionGraph) -> list[list[int]]:
    """Chains of forwarded messages, each from its first message.

    Chains for which something is asked come first, as they are placed in this order.
    """
    following: dict[int, int] = {}
    for number in graph.present():
        each = graph.at(number)
        if each.received >= 0 and each.sent >= 0:
            following[each.received] = each.sent
    later = set(following.values())
    chains = []
    for message in range(len(graph.messages)):
        if message not in later:
            chain = [message]
            while chain[-1] in following:
                chain.append(following[chain[-1]])
            chains.append(chain)
    return sorted(chains, key=lambda chain: not any(_is_asked(graph, message) for message in chain))


def _is_asked(graph: InstructionGraph, number: int) -> bool:
    """Whether a message is to have a certain channel or thread block."""
    message = graph.messages[number]
    ends = graph.at(message.send), graph.at(message.recv)
    return message.channel is not None or any(end.block is not None for end in ends)


def connect(
    graph: InstructionGraph,
    chains: Sequence[Sequence[int]],  # Their chains, in the order in which they are placed
    *,
    refused: Mapping[int, set[int]],  # Channels that a chain (by its first message) may not take
    # Thread blocks that only receive and such that only send become one, at most one with another
    paired: bool,
) -> BlockTable:
    """Assign all chains."""
    table = BlockTable()
    for number in graph.present():
        each = graph.at(number)
        if each.block is not None:
            table.labelled(each.rank, each.block)
    table.keep()
    for chain in chains:
        asked = [channel for message in chain if (channel := graph.messages[message].channel) is not None]
        tried = asked[:1] or range(MOST_CHANNELS)
        for channel in tried:
            if channel in refused.get(chain[0], ()) and not asked:
                continue
            if _take(graph, chain, channel, table):
                table.keep()
                break
            table.take_back()
        else:
            raise UnplacedChainError(_refusal(graph, chain, asked), chain)
    if paired:
        _pair(table)
    return table


def _joins(
    graph: InstructionGraph, chain: Sequence[int], channel: int
) -> tuple[list[tuple[_Connection, int, int]], list[tuple[_Connection, _Connection]]]:
    """Ends of connections that belong to a label, and ends that belong to one thread block."""
    labelled, joined = [], []
    for place, number in enumerate(chain):
        message = graph.messages[number]
        send, recv = graph.at(message.send), graph.at(message.recv)
        out, into = (True, message.src, message.dst, channel), (False, message.src, message.dst, channel)
        labelled += [
            (end, each.rank, each.block)
            for end, each in ((out, send), (into, recv))
            if each.block is not None
        ]
        if place:
            before = graph.messages[chain[place - 1]]
            joined.append(((False, before.src, before.dst, channel), out))
    return labelled, joined


def _take(graph: InstructionGraph, chain: Sequence[int], channel: int, table: BlockTable) -> bool:
    """Place a chain; whether it could be placed, otherwise it has to be taken back."""
    labelled, joined = _joins(graph, chain, channel)
    for number in chain:
        message = graph.messages[number]
        table.place(number, channel)
        table.end((True, message.src, message.dst, channel))
        table.end((False, message.src, message.dst, channel))
    return all(
        table.merge(table.labelled(rank, label), table.end(end)) for end, rank, label in labelled
    ) and all(table.merge(table.end(one), table.end(other)) for one, other in joined)


def _pair(table: BlockTable) -> None:
    """Make thread blocks that have one direction and no label share one, by the same peer or in order."""
    free: dict[tuple[int, int], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for number, block in table.blocks.items():
        if block.label is None and min(block.send, block.recv) < 0 <= max(block.send, block.recv):
            free[block.rank, block.channel][block.send < 0].append(number)
    for senders, receivers in free.values():
        peers = {table.blocks[number].recv: number for number in receivers}
        left = []
        for number in senders:
            same = peers.pop(table.blocks[number].send, None)
            if same is None:
                left.append(number)
            else:
                table.merge(number, same)
        for one, other in zip(left, peers.values(), strict=False):
            table.merge(one, other)


def _refusal(graph: InstructionGraph, chain: Sequence[int], asked: Sequence[int]) -> str:
    """Why a chain cannot be placed."""
    message = graph.messages[chain[0]]
    send, recv = graph.at(message.send), graph.at(message.recv)
    where = f"{send.where}: " if send.where else ""
    if any(_is_asked(graph, number) for number in chain):
        blocks = " and ".join(
            f"thread block {each.block} of rank {each.rank}"
            for each in (send, recv)
            if each.block is not None
        )
        wanted = " and ".join(word for word in (blocks, f"channel {asked[0]}" if asked else "") if word)
        return (
            f"{where}the message from rank {message.src} to rank {message.dst} cannot have "
            f"{wanted or 'the thread blocks that are asked for'}: a thread block has one channel and one peer each "
            "way, and a channel from one rank to another belongs to one thread block at either end; ask for others."
        )
    return (
        f"{where}the message from rank {message.src} to rank {message.dst} finds no free channel: expected at most "
        f"{MOST_CHANNELS}; send less at a time, or without instances."
    )
