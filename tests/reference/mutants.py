"""Schedules with one transfer gone wrong: dropped, doubled, re-aimed, flipped, or moved in time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from coppice.schedule.schedule import Schedule

COLUMNS = ("src", "dst", "chunk", "op", "path", "step")


def mutants(schedule: Schedule) -> Iterator[tuple[str, Schedule]]:
    """All of them, each with its name; the schedule must have no column ``after``."""
    rows = schedule.num_transfers
    steps = sorted(set(schedule.step.tolist()))
    for row in range(rows):
        yield f"row {row} dropped", picked(schedule, np.delete(np.arange(rows), row))
        yield f"row {row} doubled", picked(schedule, np.insert(np.arange(rows), row, row))
        yield f"row {row} flipped", changed(schedule, row, "op", 1 - int(schedule.op[row]))
        for name, count in (
            ("src", schedule.topology.num_ranks),
            ("dst", schedule.topology.num_ranks),
            ("chunk", schedule.num_chunks),
        ):
            for value in range(count):
                if value != getattr(schedule, name)[row]:
                    yield f"row {row} has {name} {value}", changed(schedule, row, name, value)
        if steps[-1] < 0:
            for place in range(rows):
                if place != row:
                    order = np.insert(np.delete(np.arange(rows), row), place, row)
                    yield f"row {row} moved to {place}", picked(schedule, order)
            continue
        for step in (*steps, steps[-1] + 1):
            if step != schedule.step[row]:
                moved = changed(schedule, row, "step", step)
                yield f"row {row} in step {step}", picked(moved, np.argsort(moved.step, kind="stable"))
        if row + 1 < rows and schedule.step[row] == schedule.step[row + 1]:
            order = np.arange(rows)
            order[row : row + 2] = row + 1, row
            yield f"rows {row} and {row + 1} swapped", picked(schedule, order)


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
