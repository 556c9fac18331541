"""Put/signal programs: host calls of every rank, as columns.

A program runs one collective on R ranks, with buffers and chunks as in :mod:`coppice.program.memory`: every buffer is
a window of the same communicators, and scratch memory is called *staging*. Every rank issues *calls*, one after the
other, each on a stream; a call has one or more operations:

    call        operations      what it is in NCCL
    transfer    PUT, SIGNAL     ``ncclPutSignal`` and ``ncclSignal`` between ``ncclGroupStart`` and ``ncclGroupEnd``
    wait        WAIT            one ``ncclWaitSignal`` with a descriptor for each
    local       COPY, SUM       kernels of the stream, one after the other

What is promised, and nothing else is:

* A stream carries out its calls one after the other. So does a communicator, of whatever streams: a transfer or wait
  begins when the communicator's call before it is over.
* A put reads its source between the begin and the end of its call. Its data land at any time between the begin and its
  signal, in any order; operations of one call are in no order, but signals of one context reach a peer in their order,
  each after the data of all puts before it.
* The end of a transfer says nothing about the peer: a put overwrites what is there.
* A destination counts the signals of each (communicator, source, context, signal). A wait for ``count`` signals is over
  when the count has reached the sum of all that the rank's waits before it and it itself were given. So waits consume
  *first arrivals*; nothing tells which put a signal belongs to.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.display import Brief
from coppice.program.memory import Buffer
from coppice.rows import rows_of_groups

_Ints = NDArray[np.int64]


class PutSignalAct(enum.IntEnum):
    """Kind of an operation."""

    PUT = 0
    """Writes the source into the target of the peer, and signals the peer."""
    SIGNAL = 1
    """Signals the peer."""
    WAIT = 2
    """Waits for ``count`` signals of the peer."""
    COPY = 3
    """The target becomes the source."""
    SUM = 4
    """The target becomes the source plus the addend; either may be the target itself."""


class PutSignalCall(enum.IntEnum):
    """Kind of a call."""

    TRANSFER = 0
    WAIT = 1
    LOCAL = 2


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PutSignalProgram(Brief):
    """Calls of one collective on ``num_ranks`` ranks."""

    collective: Collective  # What it implements
    num_ranks: int  # R
    num_chunks: int  # C, the number of equal chunks that M bytes are cut into
    root: int  # Root rank, or -1
    in_place: bool  # It may be run with input and output in the same memory
    out_of_place: bool  # It may be run with input and output apart
    staging: _Ints  # Slots of each rank's staging memory (int64)
    rank_start: _Ints  # Calls of rank r are rows `rank_start[r] : rank_start[r + 1]` (int64)
    call_start: _Ints  # Operations of call c are rows `call_start[c] : call_start[c + 1]` (int64)
    stream: _Ints  # Stream of each call (int64)
    communicator: _Ints  # Communicator of each call, -1 for local ones (int64)
    act: _Ints  # :class:`PutSignalAct` of each operation (int64)
    peer: _Ints  # Rank that is put to, signalled or waited for; -1 for local operations (int64)
    context: _Ints  # Context of it (int64)
    signal: _Ints  # Signal index in the context (int64)
    count: _Ints  # Chunks; of a WAIT the signals (int64)
    source_buffer: _Ints  # :class:`~coppice.program.memory.Buffer` that is read, or -1 (int64)
    source: _Ints  # Slot there (int64)
    addend_buffer: _Ints  # Buffer of the other operand of a SUM, or -1 (int64)
    addend: _Ints  # Slot there (int64)
    target_buffer: _Ints  # Buffer that is written, of the peer by a PUT, or -1 (int64)
    target: _Ints  # Slot there (int64)
    name: str = "program"  # Label

    @property
    def scratch_chunks(self) -> _Ints:
        """Slots of staging memory, under the name shared by all programs."""
        return self.staging

    @property
    def num_calls(self) -> int:
        """Calls of all ranks."""
        return len(self.stream)

    @property
    def num_operations(self) -> int:
        """Operations of all ranks."""
        return len(self.act)

    @property
    def num_streams(self) -> int:
        """Streams of a rank."""
        return int(self.stream.max(initial=-1)) + 1

    @property
    def num_communicators(self) -> int:
        """Number of communicators."""
        return int(self.communicator.max(initial=-1)) + 1

    @cached_property
    def call_rank(self) -> _Ints:
        """Rank of each call."""
        return np.repeat(np.arange(self.num_ranks), np.diff(self.rank_start))

    @cached_property
    def call_of(self) -> _Ints:
        """Call of each operation."""
        return np.repeat(np.arange(self.num_calls), np.diff(self.call_start))

    @cached_property
    def rank_of(self) -> _Ints:
        """Rank of each operation."""
        return self.call_rank[self.call_of]

    @cached_property
    def call_kind(self) -> _Ints:
        """:class:`PutSignalCall` of each call, by its first operation."""
        kinds = np.array(
            [
                PutSignalCall.TRANSFER,
                PutSignalCall.TRANSFER,
                PutSignalCall.WAIT,
                PutSignalCall.LOCAL,
                PutSignalCall.LOCAL,
            ]
        )
        return kinds[self.act[self.call_start[:-1]]].astype(np.int64)

    @property
    def messages(self) -> _Ints:
        """Puts and signals that each rank issues."""
        sends = (self.act == PutSignalAct.PUT) | (self.act == PutSignalAct.SIGNAL)
        return np.bincount(self.rank_of[sends], minlength=self.num_ranks)

    def operations_of(self, rank: int) -> _Ints:
        """Rows of the operations of a rank, in the order in which they are issued."""
        calls = np.arange(self.rank_start[rank], self.rank_start[rank + 1])
        return rows_of_groups(self.call_start, calls)[0]

    def place(self, operation: int) -> str:
        """Describe the place of an operation."""
        call = int(self.call_of[operation])
        rank = int(self.call_rank[call])
        inner = operation - int(self.call_start[call])
        act = PutSignalAct(int(self.act[operation])).name.lower()
        return f"rank {rank}, call {call - int(self.rank_start[rank])}, {act} {inner}"

    def slots(self, buffer: int, first: int, count: int) -> str:
        """Describe some slots."""
        names = {Buffer.INPUT: "input", Buffer.OUTPUT: "output", Buffer.SCRATCH: "staging"}
        return f"{names.get(Buffer(buffer), 'nothing')}[{first}:{first + count}]"
