"""How many pieces make a schedule fastest at a given size."""

from __future__ import annotations

from coppice.errors import InputError
from coppice.schedule.forest import Forest
from coppice.schedule.messages import messages_of
from coppice.schedule.schedule import Schedule
from coppice.simulation.engine import run
from coppice.simulation.model import DEFAULT_MODEL, Model
from coppice.simulation.timeline import Timeline

__all__ = ["best_pieces"]

_PATIENCE = 2


def best_pieces(
    body: Schedule | Forest, size_bytes: int, *, model: Model = DEFAULT_MODEL, most: int = 256
) -> tuple[int, Timeline]:
    """The number of pieces with the least time, and its timeline.

    Tries 1, 2, 4, ... up to ``most`` until the time has grown twice in a row, and then the numbers half-way to the
    neighbours of the best one. The least of several best ones is taken.

    Args:
        body: What is carried out.
        size_bytes: M in bytes.
        model: What messages cost.
        most: Most pieces to try, 1 or more.

    Raises:
        InputError: As :func:`~coppice.simulation.simulator.simulate`, or if ``most`` is less than 1.
    """
    if most < 1:
        msg = f"expected at least 1 piece at most, found {most}."
        raise InputError(msg)
    tried: dict[int, float] = {}

    def attempt(pieces: int) -> tuple[float, int, Timeline]:
        timeline = run(
            messages_of(body, size_bytes, pieces=pieces),
            model=model,
            collective=body.collective,
            size_bytes=size_bytes,
        )
        tried[pieces] = timeline.time_us
        return timeline.time_us, pieces, timeline

    best = attempt(1)
    pieces, worse = 2, 0
    while pieces <= most and worse < _PATIENCE:
        best = min(best, attempt(pieces), key=lambda found: found[:2])
        worse = worse + 1 if tried[pieces] >= tried[pieces // 2] else 0
        pieces *= 2
    middle = best[1]
    for between in (middle * 3 // 4, middle * 3 // 2):
        if between not in tried and 1 <= between <= most:
            best = min(best, attempt(between), key=lambda found: found[:2])
    return best[1], best[2]
