"""Slot operations: a copy or sum within a rank or between two, with scheduling hints."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """Scheduling hints of an operation; None leaves the choice to the lowering."""

    channel: int | None = None  # Channel of its message
    send_block: int | None = None  # Label of the thread block of the sender that sends it
    # Label of the thread block of the receiver (for work within a rank, of that rank)
    recv_block: int | None = None
    # Place of the send in its thread block: its steps come in ascending order of these numbers
    send_step: int | None = None
    recv_step: int | None = None  # Place of the receive, or of work within a rank, likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOperation:
    """Copy or sum of ``count`` slots."""

    src_rank: int  # Rank that has them
    src_buffer: int  # :class:`~coppice.program.memory.Buffer` that they lie in
    src_offset: int  # First slot
    dst_rank: int  # Rank that gets them; the same one for work within a rank
    dst_buffer: int  # Buffer that they go to
    dst_offset: int  # First slot
    count: int  # Slots, 1 or more
    adds: bool  # They are added to what is there; otherwise they take its place
    where: str = ""  # Where it was written down, such as `ring.py:12`, for messages
    hints: Hints = Hints()  # What its author wants
