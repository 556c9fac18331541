"""Closed forms and bounds of published policies, against which their decisions are judged."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from coppice.errors import InputError
from coppice.iteration.policies.data_parallel.tictac import TransferGraph
from coppice.iteration.tasks import TaskGraphBuilder, run_tasks


def order_seconds(graph: TransferGraph, order: Sequence[int]) -> float:
    """Makespan with receives one at a time in a given order, and operations one at a time when ready."""
    tasks = TaskGraphBuilder()
    network, compute = tasks.stream("network"), tasks.stream("compute")
    rank = {receive: place for place, receive in enumerate(order)}
    for number, seconds in enumerate(graph.receives):
        tasks.add(f"receive {number}", "receive", network, seconds, priority=rank[number])
    base = len(graph.receives)
    for number, seconds in enumerate(graph.operations):
        after = [*graph.needs_receives[number], *(base + each for each in graph.needs_operations[number])]
        tasks.add(f"operation {number}", "operation", compute, seconds, after=after)
    return run_tasks(tasks.build()).seconds


def order_efficiency(graph: TransferGraph, seconds: float) -> float:
    """Scheduling efficiency: 1 at the load of the busiest resource, 0 without overlap.

    Examples:
        >>> two = TransferGraph(
        ...     receives=(1, 3), operations=(5, 1), needs_receives=((0,), (1,)), needs_operations=((), ())
        ... )
        >>> order_efficiency(two, 7.0), order_efficiency(two, 9.0)
        (0.75, 0.25)
    """
    loads = sum(graph.receives), sum(graph.operations)
    apart = sum(loads)
    return (apart - seconds) / (apart - max(loads)) if min(loads) else 1.0


def earliest_due_date(
    release: Sequence[float], work: Sequence[float], due: Sequence[float], quantum: float | None = None
) -> list[float]:
    """End times of jobs on one machine under preemptive earliest-due-date scheduling.

    Args:
        release: Time at which each job is there.
        due: Its due date; of equal ones the first job goes first.
        quantum: Jobs are interrupted after so much of their work only; None: at any time.

    Examples:
        >>> earliest_due_date([0, 1], [3, 1], [9, 2])
        [4.0, 2.0]
        >>> earliest_due_date([0, 1], [3, 1], [9, 2], quantum=3)
        [3.0, 4.0]
    """
    jobs = range(len(release))
    coming = sorted(jobs, key=lambda job: (release[job], job), reverse=True)
    left = [float(each) for each in work]
    waiting: list[tuple[float, int]] = []
    found = [0.0] * len(left)
    now = 0.0
    while coming or waiting:
        if not waiting:
            now = max(now, release[coming[-1]])
        while coming and release[coming[-1]] <= now:
            job = coming.pop()
            heapq.heappush(waiting, (due[job], job))
        job = waiting[0][1]
        if quantum is None:
            turn = min(left[job], release[coming[-1]] - now) if coming else left[job]
        else:
            turn = min(left[job], quantum)
        left[job] -= turn
        now += turn
        if left[job] <= 1e-12 * work[job]:
            heapq.heappop(waiting)
            found[job] = now
    return found


def greatest_lateness(release: Sequence[float], work: Sequence[float], due: Sequence[float]) -> float:
    """Lower bound on the maximum lateness over all preemptive orders.

    Examples:
        >>> greatest_lateness([0, 1], [3, 1], [9, 2])
        0
    """
    jobs = range(len(release))
    return max(
        since + sum(work[job] for job in jobs if release[job] >= since and due[job] <= until) - until
        for since in set(release)
        for until in set(due)
        if any(release[job] >= since and due[job] <= until for job in jobs)
    )


def adam_elements(rows: int, columns: int, workers: int, samples: int) -> float:
    """Elements that a node sends and receives when factors go to a server and matrices come back."""
    return float((workers - 1) * (rows * columns + samples * (rows + columns)))


def factor_samples(rows: int, columns: int, workers: int, servers: int) -> int:
    """Largest batch per worker for which factors are no larger than parameter-server traffic.

    Examples:
        >>> factor_samples(25088, 4096, 8, 8)
        880
    """
    if workers == 1:
        return 0
    return rows * columns * (workers + servers - 2) // (servers * (workers - 1) * (rows + columns))


def pieces_seconds(compute: float, communicate: float, start: float, pieces: int) -> float:
    """Time of computation and its communication, both pipelined in chunks.

    Args:
        communicate: Seconds of communication, without what pieces cost.
        start: Seconds that a piece of communication costs.

    Examples:
        >>> [pieces_seconds(8.0, 16.0, 0.125, pieces) for pieces in (1, 8, 32)]
        [24.125, 18.0, 20.25]
    """
    each, sent = compute / pieces, communicate / pieces + start
    return each + sent + (pieces - 1) * max(each, sent)


def best_pieces(compute: float, communicate: float, start: float, *, most: int = 1024) -> int:
    """Smallest number of chunks that minimises :func:`pieces_seconds`.

    While pieces of computation take longer, more of them take less time; from where those of communication do, the time
    is t_c / m + t_n + m alpha, least next to sqrt(t_c / alpha).

    Args:
        communicate: Seconds of communication, without what pieces cost.
        start: Seconds that a piece of communication costs.

    Examples:
        >>> best_pieces(8.0, 16.0, 0.125)
        8
    """
    if min(compute, communicate, start) < 0 or most < 1:
        raise InputError(
            f"expected times of 0 or more and a piece or more, found {compute}, {communicate}, {start} and "
            f"`most={most}`."
        )
    near = [1.0, float(most)]
    if start:
        near += [(compute - communicate) / start, math.sqrt(compute / start)]
    found = {min(most, max(1, math.floor(each) + more)) for each in near for more in (0, 1)}
    return min(sorted(found), key=lambda pieces: pieces_seconds(compute, communicate, start, pieces))
