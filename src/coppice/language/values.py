"""What slots hold while a program is written down: symbolic values, who wrote them, and who has read them since.

A value is a chunk and the set of ranks whose contributions it has, as in :mod:`coppice.program.memory`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from coppice.collectives import Collective
from coppice.program.memory import NOTHING, MemoryLayout

_SHOWN = 6


@dataclass(slots=True)
class SlotState:
    """One slot of a buffer."""

    value: int = NOTHING  # What it holds
    version: int = 0  # How often it was written
    writer: int = -1  # Operation that wrote it last, or -1
    readers: list[int] = field(default_factory=list)  # Operations that have read it since
    where: str = ""  # Line that wrote it last, or ""


def value_in_words(value: int, layout: MemoryLayout) -> str:
    """A value as people say it."""
    if value == NOTHING:
        return "nothing"
    ranks, chunks = layout.num_ranks, layout.num_chunks
    chunk, members = value >> ranks, value & ((1 << ranks) - 1)
    if members.bit_count() > 1:
        return f"the sum of chunk {chunk} over {members_in_words(members)}"
    rank = members.bit_length() - 1
    if layout.collective is Collective.ALL_TO_ALL:
        chunk %= chunks
    elif layout.collective in (Collective.ALL_GATHER, Collective.GATHER):
        chunk -= rank * (chunks // ranks)
    return f"chunk {chunk} of the input of rank {rank}"


def members_in_words(members: int) -> str:
    """``ranks 0, 2-5``.

    >>> members_in_words(0b111101), members_in_words(0b10)
    ('ranks 0, 2-5', 'rank 1')
    """
    found = [rank for rank in range(members.bit_length()) if members >> rank & 1]
    parts = list(_runs(found))
    shown = ", ".join(parts[:_SHOWN]) + (f" and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else "")
    return f"rank{'s' if len(found) > 1 else ''} {shown}"


def _runs(ranks: list[int]) -> Iterator[str]:
    """Runs of neighbours."""
    first = ranks[0]
    for one, other in pairwise([*ranks, -1]):
        if other != one + 1:
            yield str(first) if first == one else f"{first}-{one}"
            first = other
