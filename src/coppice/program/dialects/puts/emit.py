"""Emit the thread-block operations for put messages.

A thread block first tells the senders of what it will receive that it has begun, and hears the same from its receivers.
Then it goes from round to round: put all, join, signal; wait, join, add and copy. A put by a proxy signals by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from coppice.program.buffer_layout import BufferLayout
from coppice.program.dialects.puts.program import Act, Block, ChannelEnd, OneSidedProgram, Operation, Slots
from coppice.program.dialects.puts.receive_buffers import ReceivedMessage
from coppice.program.memory import Buffer

MOST_TOGETHER = 8
"""Channels, or puts, of one operation."""

MOST_SOURCES = 9
"""Sources of one addition."""

_Name = tuple[int, int]
"""(rank, color) of a thread block."""
_T = TypeVar("_T")


def emit_program(
    messages: Sequence[ReceivedMessage], scratch: Sequence[int], placement: BufferLayout, **attributes: Any
) -> OneSidedProgram:
    """Emit the program of some messages.

    Args:
        messages: In the order of their rounds.
        scratch: Slots of scratch memory of each rank.
        placement: Where values lie.
        **attributes: Further attributes of the program.
    """
    channels = _Channels(messages, placement.ranks)
    emitters: dict[_Name, _BlockEmitter] = {}
    for message in messages:
        sender = emitters.setdefault((message.src, message.color), _BlockEmitter(message.src, channels))
        receiver = emitters.setdefault((message.dst, message.color), _BlockEmitter(message.dst, channels))
        sender.sends[message.round].append(message)
        receiver.receives[message.round].append(message)
    copies = _own_copies(messages, placement)
    for rank in range(placement.ranks):
        mine = [name for name in emitters if name[0] == rank]
        name = min(mine, key=lambda name: (emitters[name].load, name), default=(rank, 0))
        emitters.setdefault(name, _BlockEmitter(rank, channels)).copies = copies.get(rank, [])
    return OneSidedProgram(
        collective=placement.collective,
        num_ranks=placement.ranks,
        num_chunks=placement.units.num_chunks,
        in_place=placement.in_place,
        scratch=tuple(scratch),
        blocks=tuple(
            Block(rank=name[0], operations=tuple(emitters[name].operations())) for name in sorted(emitters)
        ),
        channels=channels.ends,
        semaphores=((),) * placement.ranks,
        **attributes,
    )


class _Channels:
    """One channel for every two thread blocks that send each other anything."""

    def __init__(self, messages: Sequence[ReceivedMessage], ranks: int) -> None:
        used = sorted(
            {(min(m.src, m.dst), max(m.src, m.dst), m.color, m.port) for m in messages},
            key=lambda key: (key[3], *key[:3]),
        )
        lines: list[list[tuple[int, int, int, bool]]] = [[] for _ in range(ranks)]
        for key in used:
            lines[key[0]].append(key)
            lines[key[1]].append(key)
        self._row: dict[tuple[int, int, int], int] = {}  # (rank, peer, color)
        ends: list[tuple[int, int, int, bool]] = []
        for rank, line in enumerate(lines):
            for low, high, color, port in line:
                peer = high if rank == low else low
                self._row[rank, peer, color] = len(ends)
                ends.append((rank, peer, color, port))
        self.ends = tuple(
            ChannelEnd(rank=rank, peer=peer, port=port, peer_channel=self._row[peer, rank, color])
            for rank, peer, color, port in ends
        )

    def row(self, rank: int, peer: int, color: int) -> int:
        """The end of the channel of two thread blocks at ``rank``."""
        return self._row[rank, peer, color]


class _BlockEmitter:
    """Writes one thread block."""

    def __init__(self, rank: int, channels: _Channels) -> None:
        self.rank, self._channels = rank, channels
        self.sends: dict[int, list[ReceivedMessage]] = defaultdict(list)  # by round
        self.receives: dict[int, list[ReceivedMessage]] = defaultdict(list)
        self.copies: list[tuple[int, int, int]] = []  # first input slot, first output slot, count
        self._last: dict[int, int] = {}  # last round of each channel
        self._pending: set[int] = set()  # channels that must be flushed in the end
        self._made: list[Operation] = []
        self._diverged = False  # threads are not in step since the last join
        self._waited: set[int] = set()  # channels waited for since then

    @property
    def load(self) -> int:
        """Messages that it sends and receives."""
        return sum(map(len, self.sends.values())) + sum(map(len, self.receives.values()))

    def operations(self) -> list[Operation]:
        """All operations."""
        for messages in self.sends.values():
            for message in messages:
                channel = self._channel(message, message.dst)
                self._last[channel] = max(self._last.get(channel, -1), message.round)
                if message.pending:
                    self._pending.add(channel)
        self._begin()
        for source, target, count in self.copies:
            self._data("copy", [self._here((Buffer.INPUT, source), count)], (Buffer.OUTPUT, target))
        for turn in sorted({*self.sends, *self.receives}):
            if turn in self.sends:
                self._send(self.sends[turn])
            if turn in self.receives:
                self._receive(self.receives[turn])
        if not self._made:
            self._made.append(Operation(act=Act.JOIN, name="nop"))
        return self._made

    def _begin(self) -> None:
        """Tell senders that this rank has begun, and wait for receivers."""
        into = [self._channel(message, message.src) for each in self.receives.values() for message in each]
        out = [self._channel(message, message.dst) for each in self.sends.values() for message in each]
        self._tell(Act.SIGNAL, into, relaxed=True)
        self._tell(Act.WAIT, out, relaxed=True)

    def _channel(self, message: ReceivedMessage, peer: int) -> int:
        return self._channels.row(self.rank, peer, message.color)

    def _tell(self, act: Act, channels: Iterable[int], *, relaxed: bool = False) -> None:
        """Signal or wait, once for each channel."""
        ends = self._channels.ends
        for port in (False, True):
            for batch in _batches(
                [row for row in dict.fromkeys(channels) if ends[row].port is port], MOST_TOGETHER
            ):
                weak = relaxed and not port
                name = ("rlx" if weak else "") + act.name.lower()
                self._made.append(Operation(act=act, name=name, channels=tuple(batch), relaxed=weak))
                if act is Act.WAIT:
                    self._waited.update(batch)
                self._diverged = True

    def _join(self) -> None:
        if self._diverged:
            self._made.append(Operation(act=Act.JOIN, name="nop"))
            self._diverged = False
            self._waited = set()

    def _here(self, slot: tuple[Buffer, int], count: int) -> Slots:
        return Slots(ranks=(self.rank,), buffer=slot[0], index=slot[1], size=count)

    def _data(self, name: str, sources: list[Slots], target: tuple[Buffer, int]) -> None:
        act = Act.MOVE if name == "copy" else Act.SUM
        into = self._here(target, sources[0].size)
        self._made.append(Operation(act=act, name=name, sources=tuple(sources), targets=(into,)))
        self._diverged = True

    def _send(self, messages: list[ReceivedMessage]) -> None:
        """Put all messages of a round, and signal each channel once."""
        self._join()
        by_threads = [message for message in messages if not message.port]
        alike: dict[Buffer, list[ReceivedMessage]] = defaultdict(list)
        for message in by_threads:
            alike[message.source[0]].append(message)
        for group in alike.values():
            for batch in _batches(group, MOST_TOGETHER):
                self._put("put", batch)
        self._send_by_port([message for message in messages if message.port])
        if by_threads:
            self._join()
            self._tell(Act.SIGNAL, [self._channel(message, message.dst) for message in by_threads])

    def _send_by_port(self, messages: list[ReceivedMessage]) -> None:
        """Puts by proxies: the last one of each channel signals."""
        lines: dict[int, list[ReceivedMessage]] = defaultdict(list)
        for message in messages:
            lines[self._channel(message, message.dst)].append(message)
        turn = 0
        while left := [line[turn] for line in lines.values() if len(line) > turn]:
            if turn:
                self._join()  # orders of one channel are given one after the other
            kinds: dict[str, list[ReceivedMessage]] = defaultdict(list)
            for message in left:
                channel = self._channel(message, message.dst)
                end = channel in self._pending and self._last[channel] == message.round
                flush = end or any(each.flush for each in lines[channel])
                last = len(lines[channel]) == turn + 1
                kinds["put" if not last else "pwsf" if flush else "pws"].append(message)
            for name, group in kinds.items():
                for batch in _batches(group, MOST_TOGETHER):
                    self._put(name, batch)
            turn += 1

    def _put(self, name: str, messages: Sequence[ReceivedMessage]) -> None:
        port = messages[0].port
        self._made.append(
            Operation(
                act=Act.MOVE,
                name=name,
                sources=tuple(self._here(message.source, message.count) for message in messages),
                targets=tuple(
                    Slots(
                        ranks=(message.dst,),
                        buffer=message.receive_buffer[0],
                        index=message.receive_buffer[1],
                        size=message.count,
                    )
                    for message in messages
                ),
                channels=tuple(self._channel(message, message.dst) for message in messages) if port else (),
                port=port,
                signals=name in ("pws", "pwsf"),
                flushes=name == "pwsf",
            )
        )
        self._diverged = True

    def _receive(self, messages: list[ReceivedMessage]) -> None:
        """Wait for all messages of a round, then add or copy what did not land where it belongs."""
        channels = [self._channel(message, message.src) for message in messages]
        if self._waited.intersection(channels):
            self._join()  # or another thread might take the earlier signal
        self._tell(Act.WAIT, channels)
        if all(message.receive_buffer == message.final for message in messages):
            return
        waves: list[list[tuple[str, list[Slots], tuple[Buffer, int]]]] = []
        for batch in _together(messages):
            final, count = batch[0].final, batch[0].count
            terms = (
                [batch[0].old, *(message.receive_buffer for message in batch)]
                if batch[0].adds
                else [batch[0].receive_buffer]
            )
            sources = [self._here(term, count) for term in terms]
            wave = next(
                (
                    place + 1
                    for place in reversed(range(len(waves)))
                    if any(_overlap(final, count, target, into[0].size) for _, into, target in waves[place])
                ),
                0,
            )
            if wave == len(waves):
                waves.append([])
            waves[wave].append(("re" if batch[0].adds else "copy", sources, final))
        for each in waves:
            self._join()
            for name, sources, target in each:
                self._data(name, sources, target)


def _together(messages: Sequence[ReceivedMessage]) -> Iterator[Sequence[ReceivedMessage]]:
    """Messages that one operation adds or copies; those that landed where they belong are left out."""
    sums: dict[tuple[tuple[Buffer, int], int], list[ReceivedMessage]] = defaultdict(list)
    for message in messages:
        if message.adds:
            sums[message.final, message.count].append(message)
        elif message.receive_buffer != message.final:
            yield [message]
    for group in sums.values():
        yield from _batches(group, MOST_SOURCES - 1)


def _overlap(one: tuple[Buffer, int], length: int, other: tuple[Buffer, int], other_length: int) -> bool:
    return one[0] is other[0] and one[1] < other[1] + other_length and other[1] < one[1] + length


def _batches(members: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    for start in range(0, len(members), size):
        yield members[start : start + size]


def _own_copies(
    messages: Sequence[ReceivedMessage], placement: BufferLayout
) -> dict[int, list[tuple[int, int, int]]]:
    """(first input slot, first output slot, count) of what each rank copies for itself."""
    received = [
        (message.dst, message.final[1], message.count)
        for message in messages
        if message.final[0] is Buffer.OUTPUT
    ]
    copies: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for rank, *copy in placement.own_copies(*np.array(received, dtype=np.int64).reshape(-1, 3).T):
        copies[rank].append((copy[0], copy[1], copy[2]))
    return copies
