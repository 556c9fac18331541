"""The first rank that stopped in a hang: by how far each rank came in every group, and what it waits for.

A rank that called fewer collectives of a group than others keeps them waiting. It may itself wait in another group;
the one that does not is where the hang began.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coppice.diagnosis.recorded.records import RunRecords
from coppice.logs.flight_recorder import FlightRecording, RecordedCall

OF_EQUAL_SIZES = (
    "all_reduce",
    "allreduce",
    "broadcast",
    "reduce",
    "all_gather",
    "_all_gather_base",
    "reduce_scatter",
)
"""Operations whose inputs are equal on all ranks."""


@dataclass(frozen=True, kw_only=True)
class StoppedRank:
    """A rank for which the others of a group wait."""

    group: str
    description: str
    rank: int
    called: int  # Last collective that it called there; -1 where it left no dump
    others: int  # Last one that another rank called
    operation: str  # What the others wait in
    caller: str  # Where it was when it called its last; empty where nothing tells
    why: str  # behind, not launched, no dump
    waits_in: str  # Group in which it waits itself, empty for none
    file: str

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "group": self.group,
            "rank": self.rank,
            "called_count": max(self.called, 0),
            "other_count": self.others,
            "operation_name": self.operation,
            "caller": self.caller,
            "stopped_how": self.why,
            "waits_in": self.waits_in,
        }


def _last(recording: FlightRecording, group: str) -> tuple[int, RecordedCall | None]:
    """The last collective of a group that a rank called."""
    own = [call for call in recording.calls if call.group == group and not call.message]
    last = max(own, key=lambda call: call.number, default=None)
    number = recording.called.get(group, 0)
    return max(number, 0 if last is None else last.number), last


def _pending(recording: FlightRecording) -> dict[str, RecordedCall]:
    """The first collective of each group that a rank called and that did not end."""
    found: dict[str, RecordedCall] = {}
    for call in sorted(recording.calls, key=lambda each: each.number):
        done = recording.completed.get(call.group, -1)
        if not call.message and call.state != "completed" and call.number > done:
            found.setdefault(call.group, call)
    return found


def stopped(records: RunRecords) -> tuple[StoppedRank, ...]:
    """Ranks for which others wait, those where the hang began first."""
    by_rank = {each.rank: each for each in records.recordings}
    pending = {rank: _pending(each) for rank, each in by_rank.items()}
    groups = dict.fromkeys(call.group for each in records.recordings for call in each.calls)
    found: list[StoppedRank] = []
    for group in groups:
        waiting = {rank: own[group] for rank, own in pending.items() if group in own}
        if not waiting:
            continue
        members = _members(records, group)
        came = {rank: _last(by_rank[rank], group) for rank in members if rank in by_rank}
        if len(members) < 2 or not came:
            continue
        furthest = max(number for number, _ in came.values())
        first = min(waiting.values(), key=lambda call: call.number)
        behind = {rank: last for rank, last in came.items() if last[0] < min(first.number, furthest)}
        how = dict.fromkeys(behind, "behind")
        for rank in members:
            if rank not in by_rank:
                how[rank] = "no dump"
        if not how:
            states = {rank: call.state for rank, call in waiting.items() if call.number == first.number}
            if "started" in states.values():
                how = {rank: "not launched" for rank, state in states.items() if state == "scheduled"}
        for rank, why in how.items():
            number, call = came.get(rank, (-1, None))
            elsewhere = [name for name in pending.get(rank, {}) if name != group]
            found.append(
                StoppedRank(
                    group=group,
                    description=_description(records, group),
                    rank=rank,
                    called=number,
                    others=furthest,
                    operation=first.operation,
                    caller=call.caller if call is not None else "",
                    why=why,
                    waits_in=elsewhere[0] if elsewhere else "",
                    file=by_rank[rank].file if rank in by_rank else records.recordings[0].file,
                )
            )
    return tuple(sorted(found, key=lambda each: (each.waits_in != "", each.called, each.group, each.rank)))


def _members(records: RunRecords, group: str) -> list[int]:
    """Ranks of a group: as the dumps say, else those that called anything of it."""
    for each in records.recordings:
        if group in each.groups and each.groups[group][1]:
            return list(each.groups[group][1])
    return [each.rank for each in records.recordings if any(call.group == group for call in each.calls)]


def _description(records: RunRecords, group: str) -> str:
    told = {call[0] for each in records.recordings if (call := each.groups.get(group))}
    return next((words for words in told if words), group or "the default group")


@dataclass(frozen=True, kw_only=True)
class CallMismatch:
    """A collective that ranks of a group call differently."""

    group: str
    number: int
    calls: Mapping[str, tuple[int, ...]]  # Ranks by what they call, the most first
    caller: str  # Of the first of the fewest
    file: str


def mismatches(records: RunRecords) -> tuple[CallMismatch, ...]:
    """The first collective of each group that ranks call differently."""
    told: dict[tuple[str, int], dict[str, list[tuple[FlightRecording, RecordedCall]]]] = {}
    for each in records.recordings:
        for call in each.calls:
            if not call.message:
                words = call.operation
                if call.operation in OF_EQUAL_SIZES:
                    shapes = " ".join("x".join(map(str, shape)) or "scalar" for shape in call.sizes)
                    words = " ".join(part for part in (call.operation, shapes, *call.types) if part)
                told.setdefault((call.group, call.number), {}).setdefault(words, []).append((each, call))
    found: dict[str, CallMismatch] = {}
    for (group, number), ways in sorted(told.items()):
        if len(ways) < 2 or group in found:
            continue
        order = sorted(ways.items(), key=lambda each: -len(each[1]))
        odd, call = order[-1][1][0]
        found[group] = CallMismatch(
            group=group,
            number=number,
            calls={words: tuple(each.rank for each, _ in some) for words, some in order},
            caller=call.caller,
            file=odd.file,
        )
    return tuple(found.values())
