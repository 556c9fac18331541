"""Chunk program: a collective written by hand, checked line by line while it is traced.

Every rank has an ``input``, an ``output`` and as much scratch memory under names of its own as it likes; each is an
array of slots of one chunk. A program takes a reference to what slots hold, copies it or adds to it, and gets a
reference to the result. Loops and functions are those of Python. Operations take place one after the other as far as
they touch the same slots, and at once otherwise.

While a program runs, every slot knows which chunk it holds with whose contributions. So a mistake is found at the line
that makes it: reading what nothing was written to, using a reference to what was overwritten, two writes that nothing
puts in order, adding what does not belong together, and in the end an output that is not what the collective promises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from coppice.arguments import checked
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.language.trace import MOST_SLOTS, HeldSlots, SlotTrace, caller, whole
from coppice.program.dialects.thread_blocks.operations.instructions import Hints, SlotOperation
from coppice.program.dialects.thread_blocks.operations.lower import SlotLayout
from coppice.text import plural
from coppice.topology.model import Topology

PROTOCOLS = ("Simple", "LL", "LL128")
"""Protocols of NCCL that a program may ask for."""

_MOST_RANKS = 4096
_MOST_CHANNEL = 31
_NO_HINTS = Hints()


class ChunkRef:
    """Reference to consecutive slots of a rank, made by :meth:`ChunkProgram.chunk` and by operations.

    Attributes:
        trace: The slots of the program that it belongs to.
        held: Which of them it stands for.
    """

    __slots__ = ("held", "trace")

    def __init__(self, trace: SlotTrace, held: HeldSlots) -> None:
        self.trace, self.held = trace, held

    def __repr__(self) -> str:
        return f"ChunkRef({self.held})"

    @property
    def rank(self) -> int:
        """Rank of the slots."""
        return self.held.rank

    @property
    def buffer(self) -> str:
        """Name of the buffer: ``input``, ``output``, or a scratch buffer."""
        return self.held.buffer

    @property
    def index(self) -> int:
        """First slot."""
        return self.held.index

    @property
    def size(self) -> int:
        """Number of slots (chunks)."""
        return self.held.size

    def copy(
        self,
        rank: int,
        buffer: str,
        index: int | None = None,
        *,
        channel: int | None = None,
        send_block: int | None = None,
        recv_block: int | None = None,
        send_step: int | None = None,
        recv_step: int | None = None,
    ) -> ChunkRef:
        """Copy the chunks to a rank (a message, or within a rank), overwriting the target.

        Nothing is done where it lies there already, since input and output share memory.

        Args:
            rank: Rank that gets it.
            buffer: ``input``, ``output`` or a name of scratch memory.
            index: First slot there; None is the same as here.
            channel: Channel of the message; None lets Coppice choose, as for all hints.
            send_block: Number of the sender's thread block that sends it.
            recv_block: Number of the receiver's thread block that receives it.
            send_step: Place of the send in its thread block: steps come in ascending order of these numbers. Either
                all operations of a thread block have one or none.
            recv_step: Place of the receive in its thread block.

        Returns:
            What is there now.

        Raises:
            CheckError: If this was overwritten since, or nothing orders this write and one before it.
            InputError: If there are no such slots.
        """
        hints = _hints(channel, send_block, recv_block, send_step, recv_step)
        return ChunkRef(self.trace, self.trace.copy(self.held, rank, buffer, index, hints))

    def reduce(
        self,
        other: ChunkRef,
        *,
        channel: int | None = None,
        send_block: int | None = None,
        recv_block: int | None = None,
        send_step: int | None = None,
        recv_step: int | None = None,
    ) -> ChunkRef:
        """Reduce another reference's chunks into these.

        Args:
            other: As many chunks, with contributions of other ranks; those of another rank are sent here.
            channel: Hint, as the others, of :meth:`copy`.
            send_block: Of the rank of ``other``.
            recv_block: Of this rank.
            send_step: Place of the send.
            recv_step: Place of the receive, or of the sum.

        Returns:
            The sum, where this was.

        Raises:
            CheckError: If either was overwritten since, they are different chunks, or a contribution is in both.
            InputError: If they are not equally many, or overlap.
        """
        hints = _hints(channel, send_block, recv_block, send_step, recv_step)
        return ChunkRef(self.trace, self.trace.reduce(self.held, self._own(other), hints))

    def split(self, parts: int) -> list[ChunkRef]:
        """Split into equal consecutive parts.

        Args:
            parts: How many; a divisor of :attr:`size`.

        Raises:
            InputError: If it does not divide.
        """
        count, where = whole(parts, "parts"), caller()
        if count < 1 or self.size % count:
            raise InputError(
                f"{where}: expected parts that divide {plural(self.size, 'chunk')}, found {parts}."
            )
        self.trace.fresh(self.held, where)
        size = self.size // count
        return [self._part(self.index + part * size, size, where) for part in range(count)]

    def group(self, other: ChunkRef) -> ChunkRef:
        """Join with an adjacent reference.

        Args:
            other: A reference to the same buffer of the same rank.

        Raises:
            InputError: If they are no neighbours.
        """
        first, second = sorted((self.held, self._own(other)), key=lambda each: each.index)
        where = caller()
        for each in (first, second):
            self.trace.fresh(each, where)
        neighbours = first.index + first.size == second.index
        if (first.rank, first.buffer) != (second.rank, second.buffer) or not neighbours:
            raise InputError(
                f"{where}: expected neighbours in one buffer to group, found {first} and {second}."
            )
        return self._part(first.index, first.size + second.size, where)

    def _part(self, index: int, size: int, where: str) -> ChunkRef:
        """Slots beside or within these."""
        return ChunkRef(self.trace, self.trace.held(self.rank, self.buffer, index, size, where))

    def _own(self, other: object) -> HeldSlots:
        """The slots of another reference of the same program."""
        if not isinstance(other, ChunkRef) or other.trace is not self.trace:
            raise InputError(f"{caller()}: expected a reference to chunks of this program, found {other!r}.")
        return other.held


class ChunkProgram:
    """A collective on some ranks, written by :meth:`chunk` and the methods of :class:`ChunkRef`.

    Args:
        collective: What it is to do; a name in any dialect.
        ranks: Number of ranks.
        chunks: Chunks of a block. A block is what one rank gives in an all-gather or gather, gets in a reduce-scatter
            or scatter, sends to one other rank in an all-to-all; otherwise it is the whole buffer.
        in_place: Input and output share memory; None means yes but for an all-to-all, which cannot.
        root: Root rank of broadcast, reduce, gather and scatter; 0 by default.
        name: Label; None is the collective.
        instances: Copies side by side, each on its part of every chunk, in the per-rank program.
        protocol: ``Simple``, ``LL`` or ``LL128``, in the per-rank program.
        topology: Network that it is meant for, or what :func:`coppice.load` takes; None is one switch with all ranks.
        demands: For an all-to-all of which not every rank sends to every other: ``demands[i][j]`` is 1 where rank i
            sends a block to rank j, else 0.

    Raises:
        InputError: If an argument has no meaning.

    Examples:
        Two ranks exchange their sums; source: MSCCLang/GC3 (arXiv 2201.11840), section 3, for programs over chunks.

        >>> program = ChunkProgram("all_reduce", ranks=2, chunks=2)
        >>> for rank in range(2):
        ...     sum_ = program.chunk(rank, "input", rank).reduce(program.chunk(1 - rank, "input", rank))
        ...     _ = sum_.copy(1 - rank, "input", rank)
        >>> program.check()
        >>> program
        ChunkProgram(all_reduce of 2 ranks: 2 chunks, 4 operations)
    """

    @checked
    def __init__(
        self,
        collective: Collective | str,
        *,
        ranks: int,
        chunks: int = 1,
        in_place: bool | None = None,
        root: int | None = None,
        name: str | None = None,
        instances: int = 1,
        protocol: str = "Simple",
        topology: Any = None,
        demands: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.collective = Collective.named(collective)
        self.where = caller()
        self.ranks, self.name = ranks, name or self.collective.value
        self.instances, self.protocol, self.topology = instances, protocol, topology
        self.in_place = self.collective is not Collective.ALL_TO_ALL if in_place is None else in_place
        self._check_arguments(chunks, root)
        self.root = (root or 0) if self.collective.rooted else -1
        self.demands = self._demands(demands)
        blocks = ranks if self.collective.sharded else 1
        self._layout = SlotLayout(
            self.collective, ranks, chunks * blocks, self.root, np.zeros(ranks, dtype=np.int64)
        )
        self._trace = SlotTrace(self._layout, in_place=self.in_place, demands=self.demands, where=self.where)

    def __repr__(self) -> str:
        sizes = f"{plural(self.num_chunks, 'chunk')}, {plural(len(self._trace), 'operation')}"
        return f"ChunkProgram({self.collective} of {plural(self.ranks, 'rank')}: {sizes})"

    @property
    def num_chunks(self) -> int:
        """Number of chunks of the data (of one rank's buffer for an all-to-all)."""
        return self._layout.num_chunks

    @property
    def num_operations(self) -> int:
        """Number of copies and reductions so far."""
        return len(self._trace)

    def chunk(self, rank: int, buffer: str, index: int, size: int = 1) -> ChunkRef:
        """Reference to the current content of slots.

        Args:
            rank: Rank that has them.
            buffer: ``input``, ``output``, or the name of scratch memory that was written to.
            index: First slot, from 0.
            size: Number of slots.

        Raises:
            CheckError: If nothing was written to one of them.
            InputError: If there are no such slots.
        """
        return ChunkRef(self._trace, self._trace.take(rank, buffer, index, size))

    def check(self) -> None:
        """Check all outputs against the collective.

        Raises:
            CheckError: If some slot is wrong; with the rank, the slot, what it holds, what it should, and the line.
        """
        self._trace.check()

    def layout(self) -> SlotLayout:
        """Sizes of all buffers, with scratch memory laid out."""
        return self._trace.layout()

    def operations(self) -> list[SlotOperation]:
        """All operations, in program order."""
        return self._trace.operations()

    def _check_arguments(self, chunks: int, root: int | None) -> None:
        if self.collective is Collective.BARRIER:
            raise InputError(
                f"{self.where}: expected a collective that moves data, found a barrier: write another one."
            )
        if not 1 <= self.ranks <= _MOST_RANKS or chunks < 1 or chunks * self.ranks**2 > MOST_SLOTS:
            raise InputError(
                f"{self.where}: expected 1 to {_MOST_RANKS} ranks and at most {MOST_SLOTS:,} slots in all, found "
                f"{self.ranks} ranks with blocks of {plural(chunks, 'chunk')}."
            )
        if self.in_place and self.collective is Collective.ALL_TO_ALL:
            raise InputError(f"{self.where}: an all-to-all cannot run in place: leave `in_place` out.")
        if self.instances < 1:
            raise InputError(f"{self.where}: expected 1 instance or more, found {self.instances}.")
        if self.protocol not in PROTOCOLS:
            raise InputError(
                f"{self.where}: expected `protocol` Simple, LL or LL128, found {self.protocol!r}."
            )
        if root is not None and not (self.collective.rooted and 0 <= root < self.ranks):
            words = f"a root from 0 to {self.ranks - 1}" if self.collective.rooted else "no root"
            raise InputError(f"{self.where}: expected {words} for {self.collective}, found {root}.")
        if isinstance(self.topology, Topology) and self.topology.num_ranks != self.ranks:
            raise InputError(
                f"{self.where}: expected a topology of {self.ranks} ranks, found {self.topology.num_ranks}."
            )

    def _demands(self, demands: Sequence[Sequence[int]] | None) -> tuple[tuple[int, ...], ...] | None:
        if demands is None:
            return None
        rows = tuple(tuple(row) for row in demands)
        square = len(rows) == self.ranks and all(len(row) == self.ranks for row in rows)
        if (
            self.collective is not Collective.ALL_TO_ALL
            or not square
            or {x for row in rows for x in row} not in ({1}, {0, 1})
        ):
            raise InputError(
                f"{self.where}: expected demands of an all-to-all, {self.ranks} rows of {self.ranks} numbers 0 or 1, "
                f"not all 0, found {plural(len(rows), 'row')} for {self.collective}."
            )
        return rows


def _hints(
    channel: int | None,
    send_block: int | None,
    recv_block: int | None,
    send_step: int | None,
    recv_step: int | None,
) -> Hints:
    if channel is send_block is recv_block is send_step is recv_step is None:
        return _NO_HINTS
    values = {
        "channel": channel,
        "send_block": send_block,
        "recv_block": recv_block,
        "send_step": send_step,
        "recv_step": recv_step,
    }
    found = {name: None if value is None else whole(value, name) for name, value in values.items()}
    for name, value in found.items():
        if value is not None and (value < 0 or (name == "channel" and value > _MOST_CHANNEL)):
            raise InputError(
                f"{caller()}: expected `{name}` of 0 or more{' up to 31' * (name == 'channel')}, found {value}."
            )
    return Hints(**found)
