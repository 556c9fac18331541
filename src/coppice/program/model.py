"""Model of an execution for all judges: accesses, program order, and synchronisation edges.

Every kind of program unrolls into it, in one way to run it: in place or not, with chunks cut in some way. Memory is
addresses (:mod:`coppice.program.memory`); an *access* reads or writes some of them. What an operation makes is a
*value*, slot by slot: what it has read, what another operation made (the message that it receives), or the sum of two
of these; writes say which value they write. *Points* and edges between them say in which order things always are
(:mod:`coppice.program.order`): an access comes before another one if the point at which it is over is the point at
which the other begins, or always comes before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.display import Brief

_Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class MemoryAccesses(Brief):
    """Reads and writes of addresses at equal distances."""

    actor: _Ints  # Operation that does it (int64)
    first: _Ints  # First address (int64)
    count: _Ints  # Addresses (int64)
    stride: _Ints  # From one address to the next (int64)
    write: NDArray[np.bool_]  # It is a write, otherwise a read (bool)
    # What a write writes, a row of values; -1 where it is the caller that may write, before a rank has begun or
    # after it has ended; of a read it means nothing (int64)
    value: _Ints
    # When, in an order in which the program can run: what is at one time reads before it writes (int64)
    time: _Ints
    begin: _Ints  # Point after which it begins (int64)
    end: _Ints  # Point before which it is over (int64)
    also: _Ints  # Another such point; the same where there is none (int64)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Values(Brief):
    """Values made by operations; operands are rows of accesses, and behind these, rows of values."""

    actor: _Ints  # Operation that makes it (int64)
    count: _Ints  # Slots (int64)
    one: _Ints  # What it is, or the first term of a sum (int64)
    other: _Ints  # The second term, -1 where it is no sum (int64)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Points(Brief):
    """Points of an execution, and happens-before edges."""

    chain: _Ints  # Chain of each point; those of a chain are in the order of their numbers (int64)
    earlier: _Ints  # Where each edge begins (int64)
    later: _Ints  # Where it ends (int64)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ProgramExecution(Brief):
    """Execution of a program, in place or not."""

    accesses: MemoryAccesses
    values: Values
    points: Points
