"""How busy this host's cores are: what was measured while none was free was the cores, not the network."""

from __future__ import annotations

from pathlib import Path

__all__ = ["busy_share", "core_times"]

CoreTimes = tuple[float, float]
"""Time that all cores were idle, and all their time, since the host started; in ticks of the system's clock."""


def core_times() -> CoreTimes | None:
    """Idle and all time of all cores so far, None where the system does not tell (it does where it is Linux).

    Time that waits for a disk counts as idle; time of guests is part of the time of programs, and counts once.
    """
    try:
        fields = [float(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return fields[3] + fields[4], sum(fields)
    except (OSError, ValueError, IndexError):
        return None


def busy_share(before: CoreTimes | None, after: CoreTimes | None) -> float:
    """Share of all cores that was busy between two calls of :func:`core_times`, 0 to 1; -1 where it is not known.

    Examples:
        >>> busy_share((700.0, 1000.0), (750.0, 1200.0))
        0.75
        >>> busy_share(None, None)
        -1.0
    """
    if before is None or after is None or after[1] <= before[1]:
        return -1.0
    return 1 - (after[0] - before[0]) / (after[1] - before[1])
