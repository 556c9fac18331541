"""Who waits for whom: collectives joined over ranks by communicator and number.

A collective ends everywhere at about the same time, so that its kernel is shortest on the rank that came last: the
others wait there for it. By chance each rank would be last equally often.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coppice.diagnosis.recorded.chance import binomial_tail, rank_sum
from coppice.diagnosis.recorded.records import RankCall, RunRecords
from coppice.logs.profiler_events import ProxyWait

CHANCE = 1e-3
"""Probability below which an observation is not left to chance, corrected for the number of ranks."""

LEAST_SHARE = 0.02
"""Share of the time of collectives from which on waiting is worth a word."""


@dataclass(frozen=True, kw_only=True)
class LateRank:
    """How often a rank came last into the collectives of a group, and what that cost."""

    communicator: str
    rank: int
    ranks: int  # Ranks that tell their times
    calls: int  # Collectives that all of them tell of
    last: int  # Collectives that it came last into
    wait_us: float  # Mean time that the median of the others waited in those
    share: float  # Of the time of all collectives, what others waited for it
    p_value: float  # Probability that a rank is last so often by chance, corrected for their number
    file: str

    @property
    def sure(self) -> bool:
        """Whether it is no chance, and costs something."""
        return self.p_value < CHANCE and self.share >= LEAST_SHARE

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "communicator": self.communicator,
            "rank": self.rank,
            "ranks": self.ranks,
            "call_count": self.calls,
            "last_count": self.last,
            "wait_us": self.wait_us,
            "waited_share": self.share,
            "p_value": self.p_value,
        }


def late_ranks(records: RunRecords) -> tuple[LateRank, ...]:
    """Ranks of all groups with times of kernels, those that cost most first."""
    groups: dict[str, dict[tuple[int, str], list[RankCall]]] = {}
    for call in records.calls:
        if call.kernels:
            groups.setdefault(call.communicator, {}).setdefault((call.number, call.operation), []).append(
                call
            )
    found: list[LateRank] = []
    for communicator, calls in groups.items():
        members = {call.rank for some in calls.values() for call in some}
        whole = [some for some in calls.values() if {call.rank for call in some} == members]
        whole = [some for some in whole if len(some) == len(members)]
        if len(members) < 2 or not whole:
            continue
        last: dict[int, list[float]] = {}
        total = 0.0
        for some in whole:
            first = min(some, key=lambda call: (call.time_us, call.rank))
            others = statistics.median(call.time_us for call in some if call is not first)
            total += max(call.time_us for call in some)
            last.setdefault(first.rank, []).append(others - first.time_us)
        for rank, waited in last.items():
            chance = binomial_tail(len(waited), len(whole), 1 / len(members))
            found.append(
                LateRank(
                    communicator=communicator,
                    rank=rank,
                    ranks=len(members),
                    calls=len(whole),
                    last=len(waited),
                    wait_us=statistics.fmean(waited),
                    share=sum(waited) / total if total else 0.0,
                    p_value=min(1.0, chance * len(members)),
                    file=whole[0][0].file,
                )
            )
    return tuple(sorted(found, key=lambda each: (-each.share, each.communicator, each.rank)))


@dataclass(frozen=True, kw_only=True)
class SlowOperations:
    """Operations of proxies that wait longer than the others: those of a channel, or of a rank."""

    what: str  # In words, such as `channel 3`
    number: int
    waits: int  # Operations
    median_us: float  # They waited for each megabyte, or in all
    others_us: float  # Likewise, of the others
    p_value: float


def slow_operations(waits: Sequence[ProxyWait], by: str, waited_for: str) -> tuple[SlowOperations, ...]:
    """Channels or ranks that wait longer for something, the surest first.

    Args:
        by: ``channel``, ``rank`` or ``peer``.
        waited_for: What is waited for (see :class:`ProxyWait`); of the network for each megabyte that was moved.
    """
    values: dict[int, list[float]] = {}
    for each in waits:
        if waited_for in each.waited_us:
            size = each.moved_bytes / 1e6 if waited_for in ("network", "peer") and each.moved_bytes else 1.0
            values.setdefault(getattr(each, by), []).append(each.waited_us[waited_for] / size)
    found = []
    for key, own in values.items():
        others = [value for other, some in values.items() if other != key for value in some]
        chance = min(1.0, rank_sum(own, others) * len(values))
        if others and chance < CHANCE and statistics.median(own) > statistics.median(others):
            found.append(
                SlowOperations(
                    what=f"{by} {key}",
                    number=key,
                    waits=len(own),
                    median_us=statistics.median(own),
                    others_us=statistics.median(others),
                    p_value=chance,
                )
            )
    return tuple(sorted(found, key=lambda each: each.p_value))
