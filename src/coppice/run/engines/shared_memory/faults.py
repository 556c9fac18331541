"""Errors for what the native core finds wrong with a group in shared memory."""

from __future__ import annotations

from coppice.run.errors import Mismatch, PeerLost, RunError, TimedOut

__all__ = ["Fault", "raise_fault"]

Fault = tuple[int, int, int]
"""Kind as in the native core, the rank at fault, and the rank that found it."""

_LOST, _LEFT, _TIMED_OUT, _MISMATCH, _FULL, _INTERRUPTED = range(1, 7)
_REASONS = {_LOST: "has ended", _LEFT: "has closed its engine", _INTERRUPTED: "has given up"}


def raise_fault(fault: Fault | None, rank: int, what: str, timeout_s: float) -> None:
    """Raise what has gone wrong, if anything has.

    Args:
        fault: What the native core says, None if all is well.
        rank: The rank that raises.
        what: What it was doing.
        timeout_s: How long it was ready to wait, in seconds.

    Raises:
        RunError: Of the kind that fits.

    Examples:
        >>> raise_fault(None, 0, "all_reduce", 60)
        >>> raise_fault((1, 2, 0), 0, "a barrier", 60)
        Traceback (most recent call last):
        coppice.run.errors.PeerLost: rank 2 has ended while rank 0 needed it for a barrier: see the output of that rank.
    """
    if fault is None:
        return
    kind, culprit, by = fault
    if kind == _TIMED_OUT:
        if culprit == rank:
            msg = f"rank {rank} came too late to {what}: the other ranks have given up waiting."
        else:
            msg = (
                f"rank {culprit} did not do its part of {what} within {timeout_s:g} s: see what that rank does, "
                "or allow more time."
            )
        raise TimedOut(msg)
    if kind == _MISMATCH:
        msg = (
            f"expected the same {what} on all ranks, found that rank {by} and rank {culprit} differ in the "
            "collective, its size, type, operation or root: make the same calls on all ranks."
        )
        raise Mismatch(msg)
    if kind == _FULL:
        msg = (
            f"expected memory for the data of {what}, found none left for rank {culprit}: make room where the "
            "segment lies, or name another directory in memory with COPPICE_SHM_DIR."
        )
        raise RunError(msg)
    msg = f"rank {culprit} {_REASONS[kind]} while rank {rank} needed it for {what}: see the output of that rank."
    raise PeerLost(msg)
