"""What the tests of single algorithms share: schedules by name, read as messages."""

from __future__ import annotations

from collections import defaultdict

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.algorithms.catalogue import case_of, find
from coppice.planners.algorithms.parts.cost import Cost
from coppice.schedule.schedule import Op, Schedule
from coppice.schedule.verification.transfers import verify_schedule
from coppice.topology.presets import preset

RANKS = (*range(1, 18), 24, 32, 64)

# (sender, receiver) -> chunks, for every step
Steps = list[dict[tuple[int, int], list[int]]]


def made(name: str, collective: Collective, ranks: int, root: int = 0, **given: int) -> tuple[Schedule, Cost]:
    """The verified schedule and the cost of an algorithm."""
    entry = find(name, collective)
    chosen = root if collective.rooted else None
    case = case_of(
        entry, Problem(topology=preset("star", gpus=ranks), collective=collective, root=chosen), given
    )
    assert entry.refusal(case) is None
    schedule = entry.build(case)
    assert isinstance(schedule, Schedule)
    report = verify_schedule(schedule)
    assert report.ok, report.failures
    assert entry.cost is not None
    return schedule, entry.cost(case)


def refused(name: str, collective: Collective, ranks: int) -> str | None:
    """The condition that a number of ranks fails."""
    entry = find(name, collective)
    return entry.refusal(case_of(entry, Problem(topology=preset("star", gpus=ranks), collective=collective)))


def steps_of(schedule: Schedule) -> Steps:
    """The messages of every step, with what they carry."""
    found: defaultdict[int, defaultdict[tuple[int, int], list[int]]] = defaultdict(lambda: defaultdict(list))
    columns = (schedule.step, schedule.src, schedule.dst, schedule.chunk)
    for step, src, dst, chunk in zip(*(column.tolist() for column in columns), strict=True):
        found[step][src, dst].append(chunk)
    assert sorted(found) == list(range(len(found)))
    return [dict(found[step]) for step in range(len(found))]


def disordered_rows(schedule: Schedule) -> int:
    """Reductions that do not join two neighbouring intervals of ranks; a buffer starts with its own rank."""
    held: dict[tuple[int, int], tuple[int, int]] = {}
    before: dict[tuple[int, int], tuple[int, int]] = {}
    step, wrong = -1, 0
    columns = (schedule.step, schedule.src, schedule.dst, schedule.chunk, schedule.op)
    for at, src, dst, chunk, op in zip(*(column.tolist() for column in columns), strict=True):
        if at != step:
            step = at
            before.clear()
        own = held.get((chunk, dst), (dst, dst + 1))
        sent = before.get((chunk, src), held.get((chunk, src), (src, src + 1)))
        before.setdefault((chunk, dst), own)
        if op == Op.COPY:
            held[chunk, dst] = sent
            continue
        low, high = min(own, sent), max(own, sent)
        wrong += low[1] != high[0]
        held[chunk, dst] = (low[0], high[1])
    return wrong
