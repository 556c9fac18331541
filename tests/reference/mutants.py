"""Schedules with one transfer gone wrong: dropped, doubled, re-aimed, flipped, or moved in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from coppice.schedule.schedule import Schedule

COLUMNS = ("src", "dst", "chunk", "op", "path", "step")


def mutants(schedule: Schedule) -> Iterator[tuple[str, Callable[[], Schedule]]]:
    """The names of all, each with what makes it: few of many are taken. There must be no column ``after``."""
    rows = schedule.num_transfers
    steps = sorted(set(schedule.step.tolist()))
    for row in range(rows):
        yield f"row {row} dropped", partial(dropped, schedule, row)
        yield f"row {row} doubled", partial(doubled, schedule, row)
        yield f"row {row} flipped", partial(changed, schedule, row, "op", 1 - int(schedule.op[row]))
        for name, count in (
            ("src", schedule.topology.num_ranks),
            ("dst", schedule.topology.num_ranks),
            ("chunk", schedule.num_chunks),
        ):
            for value in range(count):
                if value != getattr(schedule, name)[row]:
                    yield f"row {row} has {name} {value}", partial(changed, schedule, row, name, value)
        if steps[-1] < 0:
            for place in range(rows):
                if place != row:
                    yield f"row {row} moved to {place}", partial(moved, schedule, row, place)
            continue
        for step in (*steps, steps[-1] + 1):
            if step != schedule.step[row]:
                yield f"row {row} in step {step}", partial(in_step, schedule, row, step)
        if row + 1 < rows and schedule.step[row] == schedule.step[row + 1]:
            yield f"rows {row} and {row + 1} swapped", partial(moved, schedule, row, row + 1)


def dropped(schedule: Schedule, row: int) -> Schedule:
    """Without a row."""
    return picked(schedule, np.delete(np.arange(schedule.num_transfers), row))


def doubled(schedule: Schedule, row: int) -> Schedule:
    """With a row twice."""
    return picked(schedule, np.insert(np.arange(schedule.num_transfers), row, row))


def moved(schedule: Schedule, row: int, place: int) -> Schedule:
    """With a row at another place."""
    others = np.delete(np.arange(schedule.num_transfers), row)
    return picked(schedule, np.insert(others, place, row))


def in_step(schedule: Schedule, row: int, step: int) -> Schedule:
    """With a row in another step, behind those that are there."""
    found = changed(schedule, row, "step", step)
    return picked(found, np.argsort(found.step, kind="stable"))


def picked(schedule: Schedule, rows: np.ndarray) -> Schedule:
    """The named rows in the named order."""
    columns = {name: getattr(schedule, name)[rows] for name in COLUMNS}
    return replace(schedule, **columns, after_start=np.zeros(len(rows) + 1, dtype=np.int64))


def changed(schedule: Schedule, row: int, name: str, value: int) -> Schedule:
    """One entry of one column is another; a row with other ends takes its default route."""
    column = getattr(schedule, name).copy()
    column[row] = value
    columns = {name: column}
    if name in ("src", "dst"):
        path = schedule.path.copy()
        path[row] = -1
        columns["path"] = path
    return replace(schedule, **columns)
