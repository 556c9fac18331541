"""Receive buffers of one-sided messages: in place or staging, and the puts that need a flush.

A message that is to be added lands in scratch memory of its own, and the receiver adds it. A message that replaces what
the receiver has is written straight to where the value lives, if the sender knows that the receiver has finished with
what lies there; otherwise it lands in scratch memory as well, and is copied.

What a rank knows: all that it did itself, and all that a sender knew when it sent. A read by a proxy is over when the
receiver's having the data is known, or when the put is flushed.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby

from coppice.program.buffer_layout import BufferLayout
from coppice.program.lower import MessageTable
from coppice.program.memory import Buffer
from coppice.schedule.schedule import Op

_Slot = tuple[Buffer, int]
_Sent = tuple[int, int, int]
"""(run, what the sender knows of it, bit of the arrival)"""


@dataclass(slots=True)
class ReceivedMessage:
    """A message with source, receive buffer and destination."""

    src: int  # Sending rank
    dst: int  # Receiving rank
    adds: bool  # The receiver adds it to what it has
    count: int  # Chunks
    source: _Slot  # Slot that it is read from
    receive_buffer: _Slot  # Slot of the receiver that it is put to
    final: _Slot  # Slot of the receiver where the value belongs
    old: _Slot  # Slot of what the receiver has, where it is added
    port: bool  # It goes by a proxy
    flush: bool  # Its put must be flushed
    pending: bool  # It goes by a proxy, and its sender never learns that it was read
    round: int  # When it is sent
    sends_first: bool  # The sender's value is the one from the start, and is never overwritten
    ends_here: bool  # The receiver neither had it before nor passes it on
    color: int  # Group of values that are handled together


def received_messages(
    table: MessageTable, placement: BufferLayout, port: list[list[bool]]
) -> tuple[list[ReceivedMessage], list[int]]:
    """Messages by round, and the number of scratch slots of each rank.

    Args:
        port: Whether messages from one rank (row) to another (column) go by a proxy.
    """
    return _Ledger(table, placement, port).messages()


class _Ledger:
    def __init__(self, table: MessageTable, placement: BufferLayout, port: list[list[bool]]) -> None:
        self.table, self.placement, self.port = table, placement, port
        self.scratch: list[int] = table.scratch.tolist()
        self.bits: dict[int, int] = defaultdict(int)  # of each run, events so far
        self.knows: dict[tuple[int, int], int] = defaultdict(int)  # (run, rank)
        self.touched: dict[tuple[int, int, int], int] = defaultdict(int)  # (run, rank, buffer)
        self.arrivals: dict[tuple[int, int], int] = {}  # (run, bit of a receive): message of a proxy
        self.written: set[tuple[int, int]] = set()  # (run, rank)

    def messages(self) -> tuple[list[ReceivedMessage], list[int]]:
        """All messages, decided one after the other: in each round all are sent, then all are received."""
        table = self.table
        start_buffer, start_offset = self.placement.at_start(table.first)
        columns = (
            table.src, table.dst, table.color, table.op, table.count, table.src_buffer, table.src_offset,
            table.dst_buffer, table.dst_offset, start_buffer, start_offset, table.round,
        )  # fmt: skip
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        carried = [
            range(first, first + runs)
            for first, runs in zip(table.first.tolist(), table.runs.tolist(), strict=True)
        ]
        receives: dict[tuple[int, int], int] = defaultdict(int)
        sends: dict[tuple[int, int], int] = defaultdict(int)
        for (src, dst, _, op, *_), runs in zip(rows, carried, strict=True):
            for run in runs:
                receives[run, dst] += 1 if op == Op.COPY else 2
                sends[run, src] += 1
        made: list[ReceivedMessage] = []
        for row, runs in zip(rows, carried, strict=True):
            (
                src,
                dst,
                color,
                op,
                count,
                src_buffer,
                src_offset,
                dst_buffer,
                dst_offset,
                buffer,
                offset,
                when,
            ) = row
            made.append(
                ReceivedMessage(
                    src=src,
                    dst=dst,
                    adds=op == Op.REDUCE,
                    count=count,
                    source=(Buffer(src_buffer), src_offset),
                    receive_buffer=(Buffer(dst_buffer), dst_offset),
                    final=(Buffer(dst_buffer), dst_offset),
                    old=(Buffer(buffer), offset),
                    port=self.port[src][dst],
                    flush=False,
                    pending=False,
                    round=when,
                    sends_first=all((run, src) not in receives for run in runs),
                    ends_here=all(receives[run, dst] == 1 and (run, dst) not in sends for run in runs),
                    color=color,
                )
            )
        for _, members in groupby(range(len(rows)), key=lambda number: made[number].round):
            sent = [(made[number], self._send(number, made[number], carried[number])) for number in members]
            for message, known in sent:
                self._receive(message, made, known)
        for (run, bit), number in self.arrivals.items():
            made[number].pending |= not self.knows[run, made[number].src] & bit
        return made, self.scratch

    def _new_bit(self, run: int) -> int:
        self.bits[run] += 1
        return 1 << (self.bits[run] - 1)

    def _send(self, number: int, message: ReceivedMessage, runs: range) -> list[_Sent]:
        """What the sender knows of each run as it sends."""
        sent = []
        for run in runs:
            send, receive = self._new_bit(run), self._new_bit(run)
            buffer = int(message.source[0])
            if message.port:
                self.touched[run, message.src, buffer] |= receive
                self.arrivals[run, receive] = number
            else:
                self.touched[run, message.src, buffer] |= send
            self.knows[run, message.src] |= send
            sent.append((run, self.knows[run, message.src], receive))
        return sent

    def _receive(self, message: ReceivedMessage, made: list[ReceivedMessage], sent: list[_Sent]) -> None:
        dst, buffer = message.dst, int(message.final[0])
        direct = not message.adds and all(
            not self.touched[run, dst, buffer] & ~known for run, known, _ in sent
        )
        if message.adds and (sent[0][0], dst) in self.written:
            message.old = message.final
        if not direct:
            message.receive_buffer = (Buffer.SCRATCH, self.scratch[dst])
            self.scratch[dst] += message.count
        for run, known, receive in sent:
            self.knows[run, dst] |= known | receive
            if not direct:
                self._finish(run, made, self.touched[run, dst, buffer] & ~self.knows[run, dst])
            self.touched[run, dst, buffer] |= receive
            self.written.add((run, dst))

    def _finish(self, run: int, made: list[ReceivedMessage], bits: int) -> None:
        """Flush the puts whose reading is not known to be over."""
        while bits:
            bit = bits & -bits
            bits ^= bit
            made[self.arrivals[run, bit]].flush = True
