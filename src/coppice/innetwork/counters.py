"""Names of the packet counters of switches, and the former names under which reports still carry some of them."""

from __future__ import annotations

from collections.abc import Mapping

SWITCHML_COUNTS = (
    "received",
    "aggregated",
    "completed",
    "duplicate",
    "answered",
    "malformed",
    "unknown_sender",
    "out_of_range",
    "stale",
    "future",
)
"""What a switch of SwitchML counts, in the order of the cells of the P4 and XDP programs."""

FORMER_NAMES = {"duplicate": "repeated", "unknown_sender": "stranger", "future": "ahead"}


def with_former_names(counts: Mapping[str, int]) -> dict[str, int]:
    """Add renamed counters under their former names, so that readers of earlier reports find them.

    Examples:
        >>> with_former_names({"sent": 9, "duplicate": 1})
        {'sent': 9, 'duplicate': 1, 'repeated': 1}
    """
    return {**counts, **{old: counts[new] for new, old in FORMER_NAMES.items() if new in counts}}


def without_former_names(counts: Mapping[str, int]) -> dict[str, int]:
    """Leave out the former names again, for tables that people read."""
    return {name: count for name, count in counts.items() if name not in FORMER_NAMES.values()}
