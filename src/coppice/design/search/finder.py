"""Find the Pareto-optimal graphs for a number of ranks and ports, and write them with their cabling lists.

Base graphs are evaluated once, in parallel, and kept in a file; the table then follows from formulas; at the end the
graphs found are scheduled themselves, since breadth-first broadcast is often better than the formula says.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from coppice.arguments import also_named, checked
from coppice.comparison.pool import chosen_executor, run
from coppice.design.cabling import cabling_of
from coppice.design.graph import MAX_LINKS, MAX_NODES
from coppice.design.limits import CablingLimits
from coppice.design.search.bases import (
    BaseEvaluated,
    BaseJob,
    BasesFile,
    entry_of,
    evaluate,
    jobs_of,
    known_bases,
)
from coppice.design.search.table import Cell, GraphEntry, GraphTable, cells_below, front_of
from coppice.errors import InputError
from coppice.files import write_atomically

TRIES = 2000
TRIES_OF_MANY = 100
"""Circulants that are looked at for each size and degree: for one goal, and for many."""

_BATCH = 16
_SMALL = 2**21
"""Up to so many pairs of nodes in all the work is done before processes have started."""

_MOST_CELLS = 2**17

Progressing = Callable[[int, int, str], None]


@also_named(num_ranks="ranks")
@checked
def design(
    ranks: int,
    degree: int,
    *,
    both_ways: bool = False,
    tries: int | None = None,
    jobs: int | None = None,
    results: str | os.PathLike[str] | None = None,
) -> list[GraphEntry]:
    """Pareto-optimal direct-connect networks of a size by steps and bandwidth time of a collective.

    Args:
        ranks: Number of ranks N.
        degree: Links out of each rank d.
        both_ways: Only graphs whose links are full-duplex cables.
        tries: Circulants that are looked at; None takes 2,000.
        jobs: Processes; None is one per core, 1 does all the work in this process.
        results: File that keeps base graphs, so that an interrupted search goes on where it stopped.

    Returns:
        Entries with rising steps and falling bandwidth time; ``entry.recipe.build().to_topology()`` is a topology.

    Raises:
        InputError: If a number is out of range, or ``results`` cannot be used.

    Examples:
        >>> [(str(entry.recipe), entry.steps, str(entry.time)) for entry in design(6, 2, jobs=1)]
        [('kautz(2, 2)', 2, '1'), ('crown(3)', 3, '5/6')]
    """
    found = find([(ranks, degree)], both_ways=both_ways, tries=tries, jobs=jobs, results=results)
    return found[ranks, degree]


def find(
    goals: Iterable[Cell],
    *,
    both_ways: bool = False,  # Only graphs whose links are full-duplex cables
    # Circulants that are looked at for each size and degree; None takes 2,000, or 100 for many goals
    tries: int | None = None,
    measure: bool = True,  # Schedule the graphs found, and take the better of that and the formula
    # Where to evaluate: any :class:`concurrent.futures.Executor`. None starts processes on this machine.
    executor: Executor | None = None,
    jobs: int | None = None,  # How many; None is one per core, 1 does all the work in this process
    # File that keeps base graphs, so that an interrupted search goes on where it stopped
    results: str | os.PathLike[str] | None = None,
    on_progress: Progressing | None = None,  # Called with units done, units in all, and what was just done
) -> dict[Cell, list[GraphEntry]]:
    """Pareto fronts of steps and bandwidth time for numbers of ranks and degrees.

    The outcome depends on nothing but the arguments: not on the executor, the number of processes, or how often the
    work was interrupted.

    Returns:
        By goal, entries with rising steps and falling bandwidth time; none where no graph is known.

    Examples:
        >>> [(str(entry.recipe), entry.steps, str(entry.time)) for entry in find([(6, 2)], jobs=1)[6, 2]]
        [('kautz(2, 2)', 2, '1'), ('crown(3)', 3, '5/6')]
    """
    wanted = list(dict.fromkeys(goals))
    _check(wanted)
    if tries is None:
        tries = TRIES if len(wanted) == 1 else TRIES_OF_MANY
    elif tries < 1:
        raise InputError(f"expected 1 or more tries, found {tries}.")
    cells = cells_below(wanted)
    file = BasesFile(results)
    needed = {
        cell: list(jobs_of(cell, both_ways=both_ways, tries=tries)) for cell in sorted(cells, reverse=True)
    }
    work = [job for made in needed.values() for job in made if job.key not in file.known]
    batches, done = _batches(work), 0
    large = sum(job.ranks**2 for job in work) > _SMALL
    with chosen_executor(executor, processes=jobs, units=len(batches), large=large) as where:
        for rows in run(_batch, batches, where):
            file.add(rows)
            done += len(rows)
            if on_progress is not None:
                on_progress(done, len(work), rows[0].key)
    bases = known_bases(cells)
    for cell, made in needed.items():
        bases[cell].extend(entry_of(found, cell) for job in made for found in file.known[job.key].found)
    table = GraphTable(bases, both_ways=both_ways)
    fronts: dict[Cell, list[GraphEntry]] = {}
    for number, goal in enumerate(wanted, start=1):
        found = table.front(*goal)
        if measure:
            found = [better for entry in found for better in measured(entry)]
        fronts[goal] = front_of(found)
        if on_progress is not None:
            on_progress(number, len(wanted), "fronts")
    return fronts


def measured(entry: GraphEntry) -> list[GraphEntry]:
    """An entry by formula together with the computed figures of its graph, where feasible.

    Examples:
        >>> from coppice.design.recipes.parser import parse
        >>> recipe = parse("line^3(dicirculant(16, 1, 2, 3, 6))")
        >>> [str(made.time) for made in measured(GraphEntry(recipe, recipe.facts()))]
        ['261/256', '257/256']
    """
    if entry.facts.exact:
        return [entry]
    try:
        return [entry, GraphEntry(entry.recipe, entry.recipe.measured())]
    except InputError:  # too large for the distances between all nodes
        return [entry]


def _check(goals: Sequence[Cell]) -> None:
    """Refuse goals that make no sense or cannot be built."""
    if not goals:
        raise InputError("expected a number of ranks and a degree, found none.")
    for ranks, degree in goals:
        if not 2 <= ranks <= MAX_NODES or degree < 1 or ranks * degree > MAX_LINKS:
            raise InputError(
                f"expected 2 .. {MAX_NODES:,} ranks of degree 1 or more with at most {MAX_LINKS:,} links in all, found "
                f"{ranks:,} of degree {degree:,}: choose a smaller network."
            )
    if len(goals) > _MOST_CELLS:
        raise InputError(
            f"expected at most {_MOST_CELLS:,} pairs of ranks and degree, found {len(goals):,}: choose fewer."
        )


def _batch(batch: Sequence[BaseJob]) -> list[BaseEvaluated]:
    """What a few jobs found; runs in any process."""
    return [BaseEvaluated(key=job.key, found=evaluate(job)) for job in batch]


def _batches(work: Sequence[BaseJob]) -> list[Sequence[BaseJob]]:
    """Jobs together, fewer where there are few: an interruption then loses little."""
    size = max(1, min(_BATCH, len(work) // 32))
    return [work[first : first + size] for first in range(0, len(work), size)]


def write_front(
    folder: Path, front: Sequence[GraphEntry], limits: CablingLimits, record: Mapping[str, Any]
) -> list[str]:
    """Write a Pareto front.

    Args:
        folder: It is made where it does not exist.
        limits: Ports and patch panels of the cabling.
        record: What the file of the front says of it; the figures of the cabling lists join it.

    Returns:
        What was written, a line for each file.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot make the folder {folder} ({error.strerror or error}): choose another place."
        ) from None
    written = []
    lists: dict[str, Mapping[str, Any]] = {}
    for entry in front:
        name = re.sub(r"[^a-z0-9^*]+", "-", str(entry.recipe)).strip("-").replace("^", "").replace("*", "x")
        path = folder / f"{entry.steps:03}-steps-{name}.csv"
        made = cabling_of(entry.recipe.build(), limits)
        write_atomically(path, made.csv_text().encode())
        lists[path.name] = made.record()
        panels = f", {made.panels:,} panels" if made.panels else ""
        written.append(f"{path}: {len(made.ends):,} {made.kind}s{panels}")
    path = folder / "front.json"
    write_atomically(path, (json.dumps({**record, "cabling": lists}, indent=2) + "\n").encode())
    return [*written, str(path)]
