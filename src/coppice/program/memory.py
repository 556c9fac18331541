"""Addresses of a program's slots, their initial values, and the required final values.

A program runs one collective on R ranks. All M bytes of the collective (see :mod:`coppice.collectives`) are cut into
``num_chunks`` = C equal chunks, numbered in the order of the data; every buffer is an array of *slots* of one chunk:

    collective        input of rank r      output of rank r     slot k of the input / output holds, at the start / end
    all_gather        B = C / R            C                    chunk r B + k of the data / chunk k
    reduce_scatter    C                    B                    r's share of chunk k / the sum of chunk r B + k
    all_reduce        C                    C                    r's share of chunk k / the sum of chunk k
    broadcast         C (root)             C                    chunk k / chunk k
    reduce            C                    C (root)             r's share of chunk k / the sum of chunk k
    all_to_all        C                    C                    block k // B goes to that rank / came from that rank
    gather            B                    C (root)             as all_gather, at the root only
    scatter           C (root)             B                    chunk k / chunk r B + k

In place, input and output share memory: ``input[k]`` is ``output[r B + k]`` in all_gather and at the root of a gather,
``output[k]`` is ``input[r B + k]`` in reduce_scatter and at the root of a scatter, and ``input[k]`` is ``output[k]``
in all others. Scratch slots belong to the program.

Every slot of every rank has an address, a number; slots that share memory share it. A value is a chunk together with
the set of ranks whose contributions it has, as one integer, ``chunk << R | bits``; 0 stands for memory that holds
nothing that the collective knows. Chunk k of rank s in an all-to-all is ``s C + k``, elsewhere chunk k is chunk k of
the data.

Memory can be cut into *intervals* that every operation uses whole or not at all, so that the first slot stands for all.
Slots of an interval do the same, one beside the other, and what operations bring together lies at equal places of
intervals of equal length: what goes wrong with one slot goes wrong with the first. What memory holds, or must hold, is
cut where chunks or contributors do not follow each other.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.display import Brief
from coppice.rows import offsets, positions, ranges

NO_CHUNK = -1
"""Stands for the chunk of memory that nothing was written to."""

NOTHING = 0
"""The value of memory that nothing was written to."""

EVERYONE = -1
"""Stands for the contributions of all ranks together."""

_IN_BLOCKS = (Collective.ALL_GATHER, Collective.GATHER)
_OUT_BLOCKS = (Collective.REDUCE_SCATTER, Collective.SCATTER)

_Ints = NDArray[np.int64]
_Pair = tuple[_Ints, _Ints]


class Buffer(enum.IntEnum):
    """Buffer of a slot."""

    NONE = -1
    INPUT = 0
    OUTPUT = 1
    SCRATCH = 2


class MemoryLayout(Protocol):
    """Attributes of a program that determine addresses and values."""

    @property
    def collective(self) -> Collective:
        """Collective of the program."""

    @property
    def num_ranks(self) -> int:
        """R."""

    @property
    def num_chunks(self) -> int:
        """C."""

    @property
    def root(self) -> int:
        """Root rank, or -1."""

    @property
    def scratch_chunks(self) -> NDArray[Any]:
        """Slots of each rank's scratch memory."""


@dataclass(frozen=True, eq=False, repr=False)
class SlotContents(Brief):
    """Values of the slots of all ranks, as columns."""

    rank: _Ints  # Rank (int64)
    slot: _Ints  # Slot of its buffer (int64)
    address: _Ints  # Its address (int64)
    chunk: _Ints  # Chunk (int64)
    member: _Ints  # Who has contributed to it, a rank or EVERYONE (int64)


class JudgedMemory(Protocol):
    """Memory as the judge knows it."""

    @property
    def num_ranks(self) -> int:
        """R."""

    @property
    def words(self) -> int:
        """Number of addresses."""

    @property
    def given(self) -> SlotContents:
        """What inputs hold at the start."""

    @property
    def wanted(self) -> SlotContents:
        """What outputs must hold at the end."""


@dataclass(frozen=True, eq=False, repr=False)
class ProgramMemory(Brief):
    """Addresses of one program, in place or not."""

    # Address of slot 0 of each buffer (row, as :class:`Buffer`) of each rank (column) (int64)
    base: _Ints
    size: _Ints  # Number of slots of each buffer of each rank (int64)
    words: int  # Number of addresses
    layout: MemoryLayout  # What decides on the values

    @cached_property
    def start(self) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
        """(rank, first address, values) of the inputs."""
        return tuple(
            (rank, int(self.base[Buffer.INPUT, rank]), values)
            for rank in range(self.layout.num_ranks)
            if (values := self._values(*start_columns(self.layout, rank)))
        )

    @cached_property
    def end(self) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
        """(rank, first address, values) of the required outputs."""
        return tuple(
            (rank, int(self.base[Buffer.OUTPUT, rank]), values)
            for rank in range(self.layout.num_ranks)
            if (values := self._values(*end_columns(self.layout, rank)))
        )

    def initial(self) -> list[int]:
        """Initial value at every address."""
        words = [NOTHING] * self.words
        for _, first, values in self.start:
            words[first : first + len(values)] = values
        return words

    @property
    def num_ranks(self) -> int:
        """R."""
        return self.layout.num_ranks

    @cached_property
    def owner(self) -> _Ints:
        """Rank of each address; those of a rank follow each other."""
        owner = np.zeros(self.words, dtype=np.int64)
        owner[ranges(self.base.reshape(-1), self.size.reshape(-1))] = np.repeat(
            np.tile(np.arange(self.layout.num_ranks), len(self.base)), self.size.reshape(-1)
        )
        return owner

    @cached_property
    def given(self) -> SlotContents:
        """Initial values of inputs."""
        return self._columns(Buffer.INPUT, start_columns)

    @cached_property
    def wanted(self) -> SlotContents:
        """Required values of outputs."""
        return self._columns(Buffer.OUTPUT, end_columns)

    def _columns(self, buffer: Buffer, contents: Callable[[MemoryLayout, int], _Pair]) -> SlotContents:
        ranks = range(self.layout.num_ranks)
        found = [contents(self.layout, rank) for rank in ranks]
        count = np.array([len(chunk) for chunk, _ in found])
        return SlotContents(
            rank=np.repeat(ranks, count),
            slot=positions(count),
            address=ranges(self.base[buffer], count),
            chunk=np.concatenate([chunk for chunk, _ in found]),
            member=np.concatenate([member for _, member in found]),
        )

    def _values(self, chunks: _Ints, member: _Ints) -> tuple[int, ...]:
        """Chunks and their contributors as integers."""
        ranks = self.layout.num_ranks
        everyone = (1 << ranks) - 1
        return tuple(
            chunk << ranks | (everyone if one == EVERYONE else 1 << one)
            for chunk, one in zip(chunks.tolist(), member.tolist(), strict=True)
        )


def buffer_sizes(collective: Collective, ranks: int, chunks: int, root: int) -> _Ints:
    """Slots of the input (row 0) and the output (row 1) of every rank, as the collective defines them.

    Args:
        collective: Any but a barrier, which has no buffers.
        chunks: C; for the collectives of blocks a multiple of R.
        root: Root rank, or -1.

    Examples:
        >>> buffer_sizes(Collective.REDUCE, 3, 6, 1).tolist()
        [[6, 6, 6], [0, 6, 0]]
    """
    block = chunks // ranks
    at_root = np.where(np.arange(ranks) == root, chunks, 0)
    full, part = np.full(ranks, chunks), np.full(ranks, block)
    match collective:
        case Collective.ALL_GATHER:
            sizes = (part, full)
        case Collective.REDUCE_SCATTER:
            sizes = (full, part)
        case Collective.BROADCAST:
            sizes = (at_root, full)
        case Collective.REDUCE:
            sizes = (full, at_root)
        case Collective.GATHER:
            sizes = (part, at_root)
        case Collective.SCATTER:
            sizes = (at_root, part)
        case _:
            sizes = (full, full)
    return np.array(sizes, dtype=np.int64)


def all_sizes(program: MemoryLayout) -> _Ints:
    """Slots of the input, the output and the scratch memory (rows, as :class:`Buffer`) of every rank."""
    both = buffer_sizes(program.collective, program.num_ranks, program.num_chunks, program.root)
    return np.vstack([both, program.scratch_chunks]).astype(np.int64)


def memory_of(program: MemoryLayout, *, in_place: bool) -> ProgramMemory:
    """Addresses and values of a program, in place or not."""
    ranks, chunks, collective = program.num_ranks, program.num_chunks, program.collective
    size = all_sizes(program)
    own = np.arange(ranks, dtype=np.int64) * (chunks // ranks)
    if not in_place:
        lengths = size
    elif collective in _IN_BLOCKS:
        shared = size[Buffer.OUTPUT] > 0
        lengths = np.where([shared, [False] * ranks, [False] * ranks], 0, size)
    elif collective in _OUT_BLOCKS:
        shared = size[Buffer.INPUT] > 0
        lengths = np.where([[False] * ranks, shared, [False] * ranks], 0, size)
    else:
        size[:2] = size[:2].max(axis=0)
        lengths = size.copy()
        lengths[Buffer.OUTPUT] = 0
    start = offsets(lengths.T.reshape(-1))
    base = start[:-1].reshape(ranks, 3).T.copy()
    if in_place:
        if collective in _IN_BLOCKS:
            base[Buffer.INPUT] = np.where(shared, base[Buffer.OUTPUT] + own, base[Buffer.INPUT])
        elif collective in _OUT_BLOCKS:
            base[Buffer.OUTPUT] = np.where(shared, base[Buffer.INPUT] + own, base[Buffer.OUTPUT])
        else:
            base[Buffer.OUTPUT] = base[Buffer.INPUT]
    return ProgramMemory(base, size, int(start[-1]), program)


def start_columns(program: MemoryLayout, rank: int) -> _Pair:
    """(chunk, contributing rank) of each filled input slot of a rank."""
    return given_columns(program.collective, program.root, _equal_blocks(program), rank)


def end_columns(program: MemoryLayout, rank: int) -> _Pair:
    """(chunk, contributing rank or EVERYONE) of each required output slot of a rank."""
    return wanted_columns(program.collective, program.root, _equal_blocks(program), rank)


def _equal_blocks(program: MemoryLayout) -> _Ints:
    starts = np.arange(program.num_ranks + 1) * (program.num_chunks // program.num_ranks)
    starts[-1] = program.num_chunks
    return starts


def given_columns(collective: Collective, root: int, starts: _Ints, rank: int) -> _Pair:
    """What the input of a rank holds, as :func:`start_columns`.

    Args:
        root: Root rank, or -1.
        starts: First chunk of every rank's block, and C.
    """
    chunks = int(starts[-1])
    match collective:
        case Collective.ALL_GATHER | Collective.GATHER:
            first, length = int(starts[rank]), int(starts[rank + 1] - starts[rank])
        case Collective.ALL_TO_ALL:
            first, length = rank * chunks, chunks
        case Collective.BROADCAST | Collective.SCATTER:
            first, length = 0, chunks if rank == root else 0
        case _:
            first, length = 0, chunks
    return first + np.arange(length), np.full(length, rank)


def wanted_columns(collective: Collective, root: int, starts: _Ints, rank: int) -> _Pair:
    """What the output of a rank must hold, as :func:`end_columns`; arguments as for :func:`given_columns`."""
    chunks, ranks = int(starts[-1]), len(starts) - 1
    whole, own = np.arange(chunks), np.arange(starts[rank], starts[rank + 1])
    match collective:
        case Collective.ALL_GATHER:
            return whole, _owners(starts)
        case Collective.GATHER:
            return (whole, _owners(starts)) if rank == root else (whole[:0], whole[:0])
        case Collective.REDUCE_SCATTER:
            return own, np.full(len(own), EVERYONE)
        case Collective.SCATTER:
            return own, np.full(len(own), root)
        case Collective.REDUCE:
            held = whole[: chunks if rank == root else 0]
            return held, np.full(len(held), EVERYONE)
        case Collective.BROADCAST:
            return whole, np.full(chunks, root)
        case Collective.ALL_TO_ALL:
            source = np.repeat(np.arange(ranks), len(own))
            return source * chunks + np.tile(own, ranks), source
        case _:
            return whole, np.full(chunks, EVERYONE)


def _owners(starts: _Ints) -> _Ints:
    """Rank whose block each chunk is of."""
    return np.repeat(np.arange(len(starts) - 1), np.diff(starts))


def heads_of(address: _Ints, chunk: _Ints, member: _Ints) -> _Ints:
    """Rows of slots that do not go on with the chunk and the contributor of the row before."""
    new = np.ones(len(address), dtype=np.bool_)
    new[1:] = (np.diff(address) != 1) | (np.diff(chunk) != 1) | (np.diff(member) != 0)
    return np.flatnonzero(new)


def aligned_cuts(cuts: _Ints, one: _Ints, other: _Ints, count: _Ints) -> _Ints:
    """Cuts, and as many more as it takes for pairs of ranges of equal length to be cut at equal places.

    Args:
        cuts: Addresses at which intervals begin, ascending, and the end of memory.
        one: First address of one range of each pair.
        other: First address of the other.
        count: Addresses of each.

    Examples:
        >>> column = lambda *values: np.array(values)
        >>> aligned_cuts(column(0, 3, 10, 20), column(0), column(10), column(10)).tolist()
        [0, 3, 10, 13, 20]
    """
    begin, shift = np.concatenate([one, other]), np.concatenate([other - one, one - other])
    end = begin + np.concatenate([count, count])
    recent, fresh = cuts[:0], cuts
    # A round for each copy of a copy, tens of thousands at worst: each looks at new cuts alone.
    while len(fresh):
        first = np.searchsorted(fresh, begin)
        number = np.searchsorted(fresh, end) - first
        found = np.unique(fresh[ranges(first, number)] + np.repeat(shift, number))
        fresh = _without(_without(found, cuts), recent)
        recent = _merged(recent, fresh)
        if len(recent) > len(cuts) // 32:  # seldom, since merging moves all that are there
            cuts, recent = _merged(cuts, recent), recent[:0]
    return _merged(cuts, recent)


def _merged(cuts: _Ints, more: _Ints) -> _Ints:
    """Ascending cuts, and others that are not among them."""
    return np.insert(cuts, np.searchsorted(cuts, more), more)


def _without(found: _Ints, cuts: _Ints) -> _Ints:
    """What was found, less the cuts that are known."""
    unknown: _Ints = found[np.searchsorted(cuts, found) == np.searchsorted(cuts, found, side="right")]
    return unknown
