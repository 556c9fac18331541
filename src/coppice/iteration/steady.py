"""Steady-state iteration time: the interval between consecutive iterations, once it repeats."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.iteration.running import run_tasks
from coppice.iteration.step.lower import StepGraph

_SAME = 1e-9
_COUNTS = (6, 12, 24, 48, 96)


@dataclass(frozen=True, kw_only=True)
class SteadyIteration:
    """An iteration in steady state."""

    seconds: float  # Time from one to the next, over a period
    # Iterations after which the distances repeat; 0 if they did not within those simulated, and `seconds` is
    # their mean
    period: int
    simulated: int  # Iterations simulated


def steady_iteration(iterations: Callable[[int], StepGraph]) -> SteadyIteration:
    """Simulate iterations until their intervals and the lags of their last tasks repeat.

    Distances alone may repeat for a while as messages fall further and further behind, until an iteration waits for
    them. Where nothing repeats within those simulated, what falls behind most sets the pace.

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
        # The last iterations have no others after them that their messages compete with.
        ends = [times.finish[list(tasks)] for tasks in made.last]
        behind = [end - start for end, start in zip(ends[:-2], starts[:-2], strict=True)]
        if period and _settled(behind, period):
            return SteadyIteration(seconds=sum(gaps[-period:]) / period, period=period, simulated=count)
    half = gaps[len(gaps) // 2 :]
    mean = sum(half) / len(half)
    first = behind[len(behind) // 2]
    if len(first) and len(first) == len(behind[-1]):
        mean += max(0.0, float((behind[-1] - first).max())) / (len(behind) - 1 - len(behind) // 2)
    return SteadyIteration(seconds=mean, period=0, simulated=_COUNTS[-1])


def _settled(behind: Sequence[NDArray[np.float64]], period: int) -> bool:
    """Whether the lags of an iteration's last tasks equal those a period earlier, over the last period."""
    numbers = range(max(period, len(behind) - period), len(behind))
    return all(
        len(behind[number]) != len(behind[number - period])
        or np.allclose(behind[number], behind[number - period], rtol=_SAME, atol=_SAME)
        for number in numbers
    )


def _period(gaps: Sequence[float]) -> int:
    """Shortest period of the last intervals, seen at least three times if above 1; 0: none."""
    for period in range(1, len(gaps) // 3 + 1):
        last = gaps[-period:]
        seen = [gaps[len(gaps) - (turn + 1) * period : len(gaps) - turn * period] for turn in range(1, 3)]
        if all(
            abs(a - b) <= _SAME * max(1.0, abs(b)) for each in seen for a, b in zip(each, last, strict=True)
        ):
            return period
    return 0
