"""The least time in which one rank's data reach others, or theirs reach it, where workers handle messages.

Theory. A message is with its receiver c after it begins, and occupies a worker of its sender for o of these; a rank has
w workers. So a rank that has something at t can have begun w messages at t, w more at t + o, and so on, and the number
of ranks that can have something by t is at most

    N(t) = 1 + w (N(t - c) + N(t - c - o) + N(t - c - 2 o) + ...),   N(t) = 1 before c,

with N the recursion of optimal broadcast in the postal model and LogP (Bar-Noy and Kipnis, "Designing broadcasting
algorithms in the postal model for message-passing systems", SPAA 1992; Karp, Sahay, Santos and Schauser, SPAA 1993).
Turned round in time it holds for the ranks of which one rank can have something, with the occupancy of receivers.
Switches must not copy, or not add (docs/theory.md, Theorem 17).
"""

from __future__ import annotations

from fractions import Fraction
from heapq import heappop, heappush

from coppice.bounds.latency import partners
from coppice.bounds.problem import Problem
from coppice.bounds.sizes.timed import MessageCosts, exact_ns


def growth_time(others: int, *, workers: int, occupancy: Fraction, message: Fraction) -> Fraction:
    """Least time until so many others can have something of one rank.

    Args:
        others: Ranks beside the one that has it, 1 or more.
        workers: Of each rank, 1 or more.
        occupancy: Time for which a message occupies one.
        message: Time that a message takes, this included.

    Examples:
        16 at once, 32 with the next round of messages, and more when these send, too:

        >>> half = Fraction(1, 2)
        >>> [str(growth_time(n, workers=16, occupancy=half, message=Fraction(1))) for n in (16, 17, 48, 49)]
        ['1', '3/2', '2', '2']
    """
    if not occupancy:
        return message
    heap = [(message, 1)]  # When messages that ranks begin together are there, and how many ranks these are
    informed = 0
    while True:
        time, senders = heappop(heap)
        informed += senders * workers
        if informed >= others:
            return time
        heappush(heap, (time + occupancy, senders))
        heappush(heap, (time + message, senders * workers))


def growth(problem: Problem, costs: MessageCosts) -> tuple[Fraction, str] | None:
    """Nanoseconds of the slower direction, and which it is; None where workers do not limit it.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> costs = MessageCosts(message_us=0.6, workers=16, send_us=0.3, receive_us=0.3)
        >>> growth(Problem(preset("star", gpus=72), "broadcast", root=0), costs)
        (Fraction(1200, 1), 'spread')
    """
    message = exact_ns(costs.message_us)
    if not costs.workers or not message:
        return None
    found: tuple[Fraction, str] | None = None
    for others, direction, occupied in zip(
        partners(problem), ("spread", "gathered"), (costs.send_us, costs.receive_us), strict=True
    ):
        if others:
            time = growth_time(others, workers=costs.workers, occupancy=exact_ns(occupied), message=message)
            if found is None or time > found[0]:
                found = time, direction
    return found
