"""One-sided programs: operations of every thread block on remote memory and signals.

A program runs one collective on R ranks, with buffers and chunks as in :mod:`coppice.program.memory`.
There are no messages: a thread block *puts* data into the memory of another rank, or reads from there, and nothing
but a *signal* tells the other rank. A *channel* joins two ranks; each end can signal, and the i-th wait at one end
lasts until the i-th signal of the other end. Within a rank, thread blocks are put in order by barriers and counting
semaphores.

A thread block has many threads, and they are not in step. Operations on data are carried out by all threads, each for
its part; signals, waits and semaphores by one thread for each channel; only a *join* makes threads wait for each other.
So a copy after a wait without a join in between may begin before the wait is over.

A *port* channel does not copy by threads: a thread hands the order to a proxy, which carries out the orders of a
channel one after the other, later. What it has read and written by then is known only by what the receiver answers, or
by a put that flushes. Data written as *packets* carry a flag with each element, so that a reader waits for them without
signals.

A program is only a description: it can hold a wrong one, and :mod:`coppice.program.dialects.puts.verify` judges it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.program.memory import Buffer


class Act(enum.IntEnum):
    """Kind of an operation in terms of order and memory."""

    JOIN = 0
    """All threads of the thread block wait for each other."""
    BARRIER = 1
    """Several thread blocks of a rank wait for each other."""
    SIGNAL = 2
    """Tells the other ends of channels."""
    WAIT = 3
    """Waits for the other ends of channels."""
    ACQUIRE = 4
    """Takes one from semaphores, waiting while there is none."""
    RELEASE = 5
    """Adds one to semaphores."""
    MOVE = 6
    """Every target becomes its own source."""
    SUM = 7
    """Every target becomes the sum of all sources."""
    LOOP = 8
    """Repeats operations for one piece of their data after the other."""
    IDLE = 9
    """Does nothing."""

    @property
    def on_data(self) -> bool:
        """Whether it reads or writes memory."""
        return self in (Act.MOVE, Act.SUM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Consecutive slots of a buffer of one rank, or, through a switch, of several ranks."""

    ranks: tuple[int, ...]  # Whose memory. Several ranks are read as their sum and written alike.
    buffer: Buffer  # Which buffer
    index: int  # First slot
    size: int  # Number of slots
    packets: bool = False  # They hold packets: data with flags


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation of a thread block."""

    act: Act  # What it is
    name: str  # What its runtime calls it
    sources: tuple[Slots, ...] = ()  # What it reads, in order
    targets: tuple[Slots, ...] = ()  # What it writes, in order
    # Rows of the program's channels: that it signals or waits for, or, for moves by port, that each of its
    # moves takes
    channels: tuple[int, ...] = ()
    port: bool = False  # A move by proxies
    signals: bool = False  # A move by port that signals after each of its parts
    flushes: bool = False  # A move by port that waits until its parts are done
    relaxed: bool = False  # A signal or wait that orders execution, but not the visibility of data
    # (which, of how many) equal parts of the slots it handles; other thread blocks handle the others
    share: tuple[int, int] = (0, 1)
    ids: tuple[int, ...] = ()  # Its barrier, or its semaphores
    parties: int = 0  # Thread blocks that a barrier waits for
    piece_bytes: int = 0  # Bytes of a piece of a loop
    pieces_of: int = 0  # Chunks that a loop walks through
    body: tuple[Operation, ...] = ()  # What a loop repeats
    defect: str = ""  # Why the runtime does not do what the operation says, a clause; empty where it does


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelEnd:
    """One end of a channel."""

    rank: int  # Whose end this is
    peer: int  # The rank at the other end
    port: bool  # It works by a proxy
    peer_channel: int  # Row of the other end; -1 where the other rank has none


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A thread block."""

    rank: int  # Its rank
    operations: tuple[Operation, ...]  # What it does, in order


@dataclass(frozen=True, eq=False, kw_only=True)
class OneSidedProgram:
    """Thread blocks of one collective on ``num_ranks`` ranks."""

    collective: Collective  # What it implements
    num_ranks: int  # R
    num_chunks: int  # C, the number of equal chunks that M bytes are cut into
    in_place: bool  # Input and output are the same memory
    scratch: tuple[int, ...]  # Slots of each rank's scratch memory
    blocks: tuple[Block, ...]  # Thread blocks, by rank; the id of one is its place among those of its rank
    # Ends of channels; those of a rank to the same peer and of the same kind are in order
    channels: tuple[ChannelEnd, ...]
    semaphores: tuple[tuple[int, ...], ...]  # What each rank's semaphores hold at the start
    name: str = "program"  # Label
    protocol: str = "Simple"  # `Simple`, or `LL` where scratch memory has room for packets
    alignment: int = 16  # Chunks are multiples of this many bytes
    threads: int = 1024  # Threads of a thread block
    # Scratch memory has this many bytes at each rank, and loops go round in it; None where it grows with the
    # message
    scratch_bytes: int | None = None
    two_scratch: bool = False  # There are two scratch memories, used in turns from one run to the next
    # Smallest message that it is meant for, in bytes of the buffer that `runtime sizes` are told in
    min_bytes: int = 0
    max_bytes: int | None = field(default=None)  # Largest, inclusive; None means no limit

    @property
    def root(self) -> int:
        """-1, as no rooted collective is one-sided."""
        return -1

    @property
    def scratch_chunks(self) -> NDArray[np.int64]:
        """Slots of scratch memory as an array."""
        return np.array(self.scratch, dtype=np.int64)

    @cached_property
    def block_ids(self) -> tuple[int, ...]:
        """Id of each thread block at its rank."""
        count = [0] * self.num_ranks
        ids = []
        for block in self.blocks:
            ids.append(count[block.rank])
            count[block.rank] += 1
        return tuple(ids)

    @property
    def most_blocks(self) -> int:
        """Largest number of thread blocks of a rank."""
        return max(self.block_ids, default=-1) + 1

    @property
    def num_operations(self) -> int:
        """Operations of all thread blocks, without loop repetitions."""
        return sum(1 for _ in self.operations())

    @property
    def most_operations(self) -> int:
        """Largest number of operations of a thread block, without loop repetitions."""
        return max((sum(1 + len(op.body) for op in block.operations) for block in self.blocks), default=0)

    @property
    def uses_packets(self) -> bool:
        """Whether an operation reads or writes packets."""
        return any(slots.packets for _, op in self.operations() for slots in (*op.sources, *op.targets))

    def operations(self) -> Iterator[tuple[int, Operation]]:
        """(row of the thread block, operation), loops before what they repeat."""
        for row, block in enumerate(self.blocks):
            for op in block.operations:
                yield row, op
                for inner in op.body:
                    yield row, inner

    def place(self, row: int, position: int, inner: int = -1) -> str:
        """Describe the place of an operation.

        Args:
            inner: Its place in the loop that is there, or -1.
        """
        block = self.blocks[row]
        op = block.operations[position]
        where = f"rank {block.rank}, thread block {self.block_ids[row]}, operation {position}"
        if inner >= 0:
            return f"{where}.{inner} ({op.body[inner].name})"
        return f"{where} ({op.name})"
