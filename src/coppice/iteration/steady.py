"""The time of an iteration in the long run: the distance between two that follow each other, once it repeats."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coppice.iteration.policies.policy import IterationGraph
from coppice.iteration.running import run_tasks

__all__ = ["SteadyIteration", "steady_iteration"]

_SAME = 1e-9
_COUNTS = (6, 12, 24, 48, 96)


@dataclass(frozen=True, kw_only=True)
class SteadyIteration:
    """An iteration among many.

    Attributes:
        seconds: Time from one to the next, over a period.
        period: Iterations after which the distances repeat; 0 if they did not within those simulated, and ``seconds``
            is their mean.
        simulated: Iterations simulated.
    """

    seconds: float
    period: int
    simulated: int


def steady_iteration(iterations: Callable[[int], IterationGraph]) -> SteadyIteration:
    """Simulate iterations until their distances repeat.

    Args:
        iterations: Gives the tasks of so many iterations in a row.

    Examples:
        >>> from coppice.iteration.layers import LayerWorkload
        >>> from coppice.iteration.policies.data_parallel.overlap import WaitFree
        >>> three = LayerWorkload(forward=(1, 1, 1), backward=(2, 2, 2), bytes=(2, 2, 8), bytes_per_second=1.0)
        >>> steady_iteration(lambda count: WaitFree.of().iterations(three, count)).seconds
        17.0
    """
    gaps: list[float] = []
    for count in _COUNTS:
        made = iterations(count)
        times = run_tasks(made.graph)
        starts = [float(times.start[task]) for task in made.first]
        gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
        period = _period(gaps)
        if period:
            return SteadyIteration(seconds=sum(gaps[-period:]) / period, period=period, simulated=count)
    half = gaps[len(gaps) // 2 :]
    return SteadyIteration(seconds=sum(half) / len(half), period=0, simulated=_COUNTS[-1])


def _period(gaps: Sequence[float]) -> int:
    """Least number of gaps after which the last ones repeat, seen at least three times where it is above 1; 0: none."""
    for period in range(1, len(gaps) // 3 + 1):
        last = gaps[-period:]
        seen = [gaps[len(gaps) - (turn + 1) * period : len(gaps) - turn * period] for turn in range(1, 3)]
        if all(
            abs(a - b) <= _SAME * max(1.0, abs(b)) for each in seen for a, b in zip(each, last, strict=True)
        ):
            return period
    return 0
