"""Initial and required final memory of a put/signal program, as 64-bit words.

Every rank contributes some 64-bit words to every chunk, hashes of rank, chunk and seed; sums are modulo 2^64. So a slot
that holds another multiset of contributions than it should is found out but for one chance in some 2^60.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.program.memory import EVERYONE, MemoryLayout, end_columns, start_columns

_Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class PutSignalContents:
    """Words of slots by contributing rank."""

    layout: MemoryLayout  # What decides on the values
    elements: int = 1  # Words of a slot
    seed: int = 0  # What all words are drawn from

    def noise(self, addresses: _Ints) -> _Ints:
        """Words of unwritten memory, a row per address."""
        return self._words(addresses, np.full(len(addresses), self.layout.num_ranks))

    def filled(self, rank: int, slots: _Ints | None = None) -> _Ints:
        """Words of a rank's input, a row per slot."""
        chunks, member = start_columns(self.layout, rank)
        return self._contributed(*_some(chunks, member, slots))

    def wanted(self, rank: int, slots: _Ints | None = None) -> _Ints:
        """Words required in a rank's output, by NumPy alone; arguments as for :meth:`filled`."""
        chunks, member = _some(*end_columns(self.layout, rank), slots)
        if not len(member) or int(member[0]) != EVERYONE:
            return self._contributed(chunks, member)
        total = np.zeros((len(chunks), self.elements), dtype=np.int64)
        for one in range(self.layout.num_ranks):
            total += self._contributed(chunks, np.full(len(chunks), one))
        return total

    def _contributed(self, chunks: _Ints, member: _Ints) -> _Ints:
        """Chunks of an all-to-all are numbered through all ranks; each is what its source contributes."""
        if self.layout.collective is Collective.ALL_TO_ALL:
            chunks = chunks % self.layout.num_chunks
        return self._words(chunks, member)

    def _words(self, place: _Ints, member: _Ints) -> _Ints:
        """Hashes of (seed, member, place, element), two rounds of splitmix64."""
        start = np.full(len(member), self.seed % 2**64, dtype=np.uint64)
        row = _mixed(_mixed(start, member), place)
        return _mixed(row[:, None], np.arange(self.elements)).view(np.int64)


def _some(chunks: _Ints, member: _Ints, slots: _Ints | None) -> tuple[_Ints, _Ints]:
    return (chunks, member) if slots is None else (chunks[slots], member[slots])


def _mixed(state: NDArray[np.uint64], value: _Ints) -> NDArray[np.uint64]:
    """The next states of chained splitmix64 that take in values."""
    state = state + np.asarray(value, dtype=np.uint64)
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(state ^ (state >> np.uint64(31)))
