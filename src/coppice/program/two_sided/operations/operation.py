"""Operations on slots: one copy or sum, within a rank or from one to another, and where its author wants it done."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Hints", "SlotOperation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """Where an operation is to be carried out; None leaves it to the lowering.

    Attributes:
        channel: Channel of its message.
        send_block: Label of the thread block of the sender that sends it.
        recv_block: Label of the thread block of the receiver (for work within a rank, of that rank).
        send_step: Place of the send in its thread block: its steps come in ascending order of these numbers.
        recv_step: Place of the receive, or of work within a rank, likewise.
    """

    channel: int | None = None
    send_block: int | None = None
    recv_block: int | None = None
    send_step: int | None = None
    recv_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOperation:
    """``count`` slots are copied or added, from one place to another.

    Attributes:
        src_rank: Rank that has them.
        src_buffer: :class:`~coppice.program.memory.Buffer` that they lie in.
        src_offset: First slot.
        dst_rank: Rank that gets them; the same one for work within a rank.
        dst_buffer: Buffer that they go to.
        dst_offset: First slot.
        count: Slots, 1 or more.
        adds: They are added to what is there; otherwise they take its place.
        where: Where it was written down, such as ``ring.py:12``, for messages.
        hints: What its author wants.
    """

    src_rank: int
    src_buffer: int
    src_offset: int
    dst_rank: int
    dst_buffer: int
    dst_offset: int
    count: int
    adds: bool
    where: str = ""
    hints: Hints = Hints()
