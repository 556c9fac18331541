"""Where the time of a step goes: on its busiest device, and along what it waited for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.iteration.running import TaskTimes
from coppice.iteration.step.graph import StepGraph
from coppice.iteration.step.palette import Kind

_Floats = NDArray[np.float64]
_RANK = ("compute", "optimizer", "exchange", "send", "message")
"""Where several things run on a device, time counts for the first of them."""


@dataclass(frozen=True, kw_only=True)
class PathPart:
    """What a kind of task makes up of the critical path."""

    part: str  # `compute`, `exchange`, `send`, `message` or `optimizer`
    name: str  # The pass of a computation, the collective of anything else
    group: str  # Ranks that exchange; empty: none
    link: str  # The link that limits it; empty: none is known
    seconds: float  # Its time on the path


def path_parts(made: StepGraph, times: TaskTimes, begin: float) -> tuple[PathPart, ...]:
    """What the last iteration waited for, from its end back to its begin, summed by kind, the most first.

    Each task of the path starts when the one before it ends, so that the parts add up to the iteration.
    """
    cause, size = times.cause, made.size
    path: list[int] = []
    task = int(made.marks()[-1])
    while task >= 0 and times.finish[task] > begin:
        path.append(task)
        task = int(cause[task])
    tasks = np.asarray(path, dtype=np.int64)
    seconds = times.finish[tasks] - np.maximum(times.start[tasks], begin)
    total = np.bincount(made.kind[tasks % size], weights=seconds, minlength=len(made.kinds))
    found = [
        PathPart(part=kind.part, name=kind.name, group=kind.group, link=kind.link, seconds=float(each))
        for kind, each in zip(made.kinds, total, strict=True)
        if each > 0
    ]
    return tuple(sorted(found, key=lambda each: -each.seconds))


def device_parts(
    made: StepGraph, times: TaskTimes, begin: float, end: float, device: int
) -> Mapping[Kind, float]:
    """Where the time of a device goes between two instants, by kind; what is left is a bubble.

    Time in which several things run counts for one of them, computation first, so that exchanges count as far as they
    are exposed. A wait for what another stage sends counts as a send for as long as that takes.
    """
    own = np.flatnonzero(np.tile(made.device == device, made.count))
    start, finish = np.clip(times.start[own], begin, end), np.clip(times.finish[own], begin, end)
    lasting = finish > start
    own, start, finish = own[lasting], start[lasting], finish[lasting]
    kind = made.kind[own % made.size]
    program = made.program[own % made.size] | np.isin(
        kind, [k for k, each in enumerate(made.kinds) if each.part in ("optimizer", "message")]
    )
    own, start, finish, kind = own[program], start[program], finish[program], kind[program]
    cuts = np.unique(np.concatenate([start, finish, [begin, end]]))
    free = np.ones(len(cuts) - 1, dtype=np.bool_)
    lengths = np.diff(cuts)
    found: dict[Kind, float] = {}
    order = sorted(np.unique(kind).tolist(), key=lambda k: (_RANK.index(made.kinds[k].part), k))
    for k in order:
        mine = kind == k
        steps = np.zeros(len(cuts), dtype=np.int64)
        np.add.at(steps, np.searchsorted(cuts, start[mine]), 1)
        np.add.at(steps, np.searchsorted(cuts, finish[mine]), -1)
        covered = (np.cumsum(steps)[:-1] > 0) & free
        found[made.kinds[k]] = float(lengths[covered].sum())
        free &= ~covered
    _waits_for_sends(made, times, (own, start), (cuts, free), found)
    idle = end - begin - sum(found.values())
    found[Kind("bubble", "bubble")] = max(0.0, idle)
    return found


def _waits_for_sends(
    made: StepGraph,
    times: TaskTimes,
    tasks: tuple[NDArray[np.int64], _Floats],
    segments: tuple[_Floats, NDArray[np.bool_]],
    found: dict[Kind, float],
) -> None:
    """Add idle time before passes that waited for what another stage sends."""
    (own, start), (cuts, free) = tasks, segments
    if not len(own):
        return
    order = np.argsort(start, kind="stable")
    ends = cuts[1:][free]
    begins = cuts[:-1][free]
    first = np.minimum(np.searchsorted(start[order], ends), len(own) - 1)
    after = own[order][first]
    held = start[order][first] == ends
    cause = times.cause[after]
    sends = [k for k, each in enumerate(made.kinds) if each.part == "send"]
    waits = (
        held & (cause >= 0) & np.isin(made.kind[cause % made.size], sends) & ~made.program[cause % made.size]
    )
    taken = np.minimum(ends - begins, times.finish[cause] - times.start[cause])[waits]
    for k in sends:
        mine = made.kind[cause[waits] % made.size] == k
        if mine.any():
            found[made.kinds[k]] = found.get(made.kinds[k], 0.0) + float(taken[mine].sum())


def total_of(parts: Mapping[Kind, float], names: Sequence[str], group: str | None = None) -> float:
    """Seconds of parts of some names, and of a group."""
    return sum(
        seconds
        for kind, seconds in parts.items()
        if kind.part in names and (group is None or kind.group == group)
    )
