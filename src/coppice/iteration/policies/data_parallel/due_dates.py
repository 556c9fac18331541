"""When gradients are there, when they are needed, and the order that is latest least.

Gradients of layer i are released when its backward pass ends, and due when its next forward pass must start so that
the iteration is not delayed: the forward pass as a whole less layer i and all that needs it. On a chain, a forward
pass is delayed by just the greatest lateness. One machine with release and due dates that may be interrupted has the
least greatest lateness when it always runs the released job that is due first (Horn, 1974), and this is

    max over r, d of r + (work released from r on and due by d) - d

A layer on a branch whose output is needed late is due late, whatever its number: that is what due dates know and
numbers of layers do not.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from coppice.iteration.layers import LayerWorkload


def due_dates(workload: LayerWorkload) -> list[float]:
    """Seconds after the start of a forward pass at which each layer must start.

    Examples:
        >>> chain = LayerWorkload(forward=(1, 2, 3), backward=(1, 1, 1), bytes=(1, 1, 1), bytes_per_second=1)
        >>> due_dates(chain)
        [0, 1, 3]
        >>> branch = LayerWorkload(
        ...     forward=(1, 2, 3, 1),
        ...     backward=(1, 1, 1, 1),
        ...     bytes=(1, 1, 1, 1),
        ...     bytes_per_second=1,
        ...     inputs=((), (0,), (0,), (1, 2)),
        ... )
        >>> due_dates(branch)
        [0, 4, 3, 6]
    """
    whole = sum(workload.forward)
    return [whole - own for own in workload.following(workload.forward)]


def earliest_due_date(
    release: Sequence[float], work: Sequence[float], due: Sequence[float], quantum: float | None = None
) -> list[float]:
    """When jobs end that one machine runs, always the released one that is due first.

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
    """The greatest lateness of jobs that no order can beat, however often it interrupts them.

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
