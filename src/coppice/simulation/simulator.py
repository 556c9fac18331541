"""The simulator for whoever has a plan: from what stands for a schedule, and a size, to a timeline."""

from __future__ import annotations

from typing import Any, Literal

from coppice.arguments import checked
from coppice.schedule.files.plan_file import body_of
from coppice.schedule.messages import messages_of
from coppice.simulation.best_pieces import best_pieces
from coppice.simulation.engine import run
from coppice.simulation.model import DEFAULT_MODEL, Model
from coppice.simulation.timeline import Timeline
from coppice.text import size_of

__all__ = ["simulate"]


@checked
def simulate(
    plan: Any,
    size_bytes: int | str,
    *,
    model: Model = DEFAULT_MODEL,
    pieces: int | Literal["best"] = 1,
) -> Timeline:
    """When every message of a schedule starts and arrives.

    Args:
        plan: What is carried out; it should have been verified: a plan, what holds one, the name of a plan file, a
            schedule, or a forest. A forest is simulated as it is: switches at which its trees branch copy and add,
            without overhead and engines.
        size_bytes: M in bytes, 0 or more, also as text such as ``64M``.
        model: What messages cost beside rates and latencies of links.
        pieces: Every chunk is cut into so many pieces that follow each other, as
            :func:`coppice.schedule.schedule.in_pieces` does; ``best`` takes the number that is fastest.

    Raises:
        InputError: If the body is malformed, or the size or number of pieces out of range.
        UnreachableError: If a transfer names no path and there is none.

    Examples:
        A chain of two hops, 18,000 bytes at 3 GB/s and 1 us a message, in one piece and in three:

        >>> from coppice.collectives import Collective
        >>> from coppice.planners.algorithms.algorithm import AlgorithmCase
        >>> from coppice.planners.algorithms.parts.moves import Moves, whole
        >>> from coppice.topology.presets import preset
        >>> case = AlgorithmCase(topology=preset("ring", gpus=3, gb_per_s=3), collective=Collective.BROADCAST, root=0)
        >>> chain = Moves(case, whole(case))
        >>> chain.add([0, 1], [0, 1], [1, 2], 0)
        >>> simulate(chain.schedule(), 18000).time_us
        14.0
        >>> simulate(chain.schedule(), 18000, pieces=3).time_us
        12.0
    """
    body, size = body_of(plan), size_of(size_bytes)
    if pieces == "best":
        return best_pieces(body, size, model=model)[1]
    return run(
        messages_of(body, size, pieces=pieces), model=model, collective=body.collective, size_bytes=size
    )
