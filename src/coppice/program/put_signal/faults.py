"""Faults of a running put/signal program, and their descriptions."""

from __future__ import annotations

import enum

from coppice.program.put_signal.program import PutSignalProgram


class PutSignalFault(enum.IntEnum):
    """Fault of a run."""

    NONE = 0
    STANDS_STILL = 1
    """Nothing may happen, and some rank has not ended."""
    CALLERS_MEMORY = 2
    """A put that may land in memory of a rank that has not begun, or may end."""
    RACE = 3
    """Two operations that may come in either order use a slot, and one of them writes it."""
    WRONG_OUTPUT = 4
    """A rank ends with another output than the collective's."""


def fault_sentence(
    program: PutSignalProgram, fault: PutSignalFault, first: int = -1, second: int = -1
) -> str:
    """Describe a fault.

    Args:
        first: Operation, or the rank of a wrong output.
        second: The other operation of a race, which began before.
    """
    match fault:
        case PutSignalFault.NONE:
            return ""
        case PutSignalFault.STANDS_STILL:
            return "it deadlocks"
        case PutSignalFault.CALLERS_MEMORY:
            return f"{program.place(first)} may write into memory that is the caller's"
        case PutSignalFault.RACE:
            one, other = program.place(second), program.place(first)
            return f"{one} and {other} may come in either order, and use the same slots"
        case PutSignalFault.WRONG_OUTPUT:
            return f"rank {first} ends with a wrong output"
