"""Addresses of a one-sided program at the granularity of sub-chunks.

A chunk is cut into equal *words*. Thread blocks that share an operation take whole words, and a loop walks through so
many of them at a time. Where scratch memory has a fixed size, each of its slots is a ring of words, in which a loop
goes round. Packets take twice their size: packet k of the scratch memory lies where data 2 k and 2 k + 1 would.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.program.dialects.puts.program import Act, OneSidedProgram, Operation, Slots
from coppice.program.memory import Buffer, ProgramMemory, memory_of

_MOST_PIECES = 192
_Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SlotSubChunks:
    """One division of a program's chunks into sub-chunks."""

    program: OneSidedProgram  # The program
    per_chunk: int  # SlotSubChunks of a chunk
    piece: int  # Bytes of a word of a loop, 0 where there are no loops
    # SlotSubChunks of a slot of scratch memory in which loops go round; 0 where slots are as large as chunks
    ring: int
    in_place: bool  # Input and output are the same memory

    @property
    def collective(self) -> Collective:
        """Of the program."""
        return self.program.collective

    @property
    def num_ranks(self) -> int:
        """Of the program."""
        return self.program.num_ranks

    @property
    def num_chunks(self) -> int:
        """SlotSubChunks of M bytes."""
        return self.program.num_chunks * self.per_chunk

    @property
    def root(self) -> int:
        """No root."""
        return -1

    @property
    def scratch_chunks(self) -> _Ints:
        """SlotSubChunks of each rank's scratch memory."""
        wide = 2 if self.program.uses_packets else 1
        return self.program.scratch_chunks * (self.ring or self.per_chunk) * wide

    @cached_property
    def memory(self) -> ProgramMemory:
        """Addresses and values of all words."""
        return memory_of(self, in_place=self.in_place)

    def rounds(self, loop: Operation) -> int:
        """Number of repetitions of a loop."""
        step = loop.piece_bytes // self.piece
        return -(-loop.pieces_of * self.per_chunk // step)

    def part(self, op: Operation, slots: Slots, loop: Operation | None, iteration: int) -> tuple[int, int]:
        """(first, number) of the sub-chunks of ``slots`` that an operation handles.

        Args:
            loop: The loop that it is in.
            iteration: How often that has been carried out before.
        """
        total = slots.size * self.per_chunk
        which, of = op.share
        first, end = total * which // of, total * (which + 1) // of
        if loop is None:
            return first, end - first
        step = loop.piece_bytes // self.piece
        begin = iteration * step
        return first + begin, max(0, min(end - first - begin, step))

    def addresses(self, slots: Slots, rank: int, first: int, count: int) -> _Ints:
        """Addresses of sub-chunks; -1 for those beyond the end of their buffer.

        Args:
            first: First word, from the first slot.
        """
        memory = self.memory
        size = int(memory.size[slots.buffer, rank])
        if slots.buffer is Buffer.SCRATCH and self.ring:
            first = slots.index * self.ring + first % self.ring
        else:
            first += slots.index * self.per_chunk
        if slots.packets:
            first, count = 2 * first, 2 * count
        base = int(memory.base[slots.buffer, rank])
        if first >= 0 and first + count <= size:
            return np.arange(base + first, base + first + count, dtype=np.int64)
        words = np.arange(first, first + count, dtype=np.int64)
        return np.where((words >= 0) & (words < size), words + base, -1)


def sub_chunkings(program: OneSidedProgram, *, finest: bool = False) -> Iterator[SlotSubChunks]:
    """Divisions of chunks that represent all message sizes.

    Without loops there is one. With loops: chunks of one piece, of three, and, where scratch memory has a fixed size,
    of more than it holds.
    """
    even = 1
    loops = []
    for _, op in program.operations():
        if op.act is Act.LOOP:
            loops.append(op)
        for slots in (*op.sources, *op.targets):
            even = lcm(even, op.share[1] // gcd(op.share[1], slots.size))
    if even > _MOST_PIECES:
        raise InputError(
            f"expected operations shared by few thread blocks, found a need for {even} parts of every chunk."
        )
    if not loops:
        yield SlotSubChunks(program, even, 0, 0, program.in_place)
        return
    piece = gcd(*(loop.piece_bytes for loop in loops))
    longest = max(loop.piece_bytes // piece for loop in loops)
    if longest > _MOST_PIECES:
        raise InputError(
            f"expected loops by pieces of similar sizes, found one by {longest} times the common {piece} bytes."
        )
    yield SlotSubChunks(program, _multiple(longest, even), piece, 0, program.in_place)
    if finest:
        return
    yield SlotSubChunks(program, _multiple(3 * longest, even), piece, 0, program.in_place)
    if program.scratch_bytes is not None and max(program.scratch, default=0):
        ring = program.scratch_bytes // max(program.scratch) // piece
        chunk = _multiple(ring + 2 * longest, even)
        low_enough = program.max_bytes is None or chunk * piece * program.num_chunks <= program.max_bytes
        if ring and low_enough and chunk <= _MOST_PIECES:
            yield SlotSubChunks(program, chunk, piece, ring, program.in_place)


def _multiple(least: int, of: int) -> int:
    return -(-least // of) * of
