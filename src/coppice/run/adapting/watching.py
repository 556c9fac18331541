"""Watch the times of calls for a lasting change.

Times are compared with those of the first calls of the same program: first the median of its calls becomes one, so that
calls of all programs count together. The newest ones are slower for good if nearly all of them are slower than nearly
all of the first: a rank-sum test, which outliers do not sway, however large they are.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from coppice.diagnosis.recorded.chance import rank_sum

WARM = 3
"""First calls of a program that do not count."""

FIRST = 16
"""Calls of a program that say what is usual."""

NEWEST = 12
"""Calls that are compared with them."""

CHANCE = 1e-5
"""Probability below which the newest calls are not slower by chance; where all 12 are slower than all of 16, the normal
approximation gives 4.6e-6 (exactly it is 3.3e-8)."""

LEAST = 1.1
"""Times the usual time from which on a change is worth a new plan."""


@dataclass
class CallTimes:
    """Times of the calls of one rank.

    Examples:
        >>> times = CallTimes()
        >>> for second in [9, 9, 9, *([1.0, 1.1] * 8), *([3.0] * 12)]:
        ...     times.add("all_reduce", second)
        >>> times.slower() > 2.5, CallTimes().slower()
        (True, 1.0)
    """

    _calls: Counter[Hashable] = field(default_factory=Counter)
    _usual: dict[Hashable, list[float]] = field(
        default_factory=dict
    )  # Logarithms of the first calls that count
    _newest: deque[float] = field(
        default_factory=lambda: deque(maxlen=NEWEST)
    )  # Over the usual ones, likewise

    def add(self, program: Hashable, seconds: float) -> None:
        """Add the time of a call."""
        time = math.log(max(seconds, 1e-9))
        self._calls[program] += 1
        number, usual = self._calls[program], self._usual.setdefault(program, [])
        if WARM < number <= WARM + FIRST:
            usual.append(time)
        elif number > WARM + FIRST:
            self._newest.append(time - statistics.median(usual))

    def slower(self) -> float:
        """Times the usual time that the newest calls take for good; 1.0 where that may be chance."""
        if len(self._newest) < NEWEST:
            return 1.0
        first: list[float] = []
        for usual in self._usual.values():
            if len(usual) == FIRST:
                middle = statistics.median(usual)
                first += [time - middle for time in usual]
        newest = list(self._newest)
        ratio = math.exp(statistics.median(newest))
        return ratio if ratio >= LEAST and rank_sum(newest, first) < CHANCE else 1.0

    def forget(self) -> None:
        """Begin anew: what comes now is usual."""
        self._calls.clear()
        self._usual.clear()
        self._newest.clear()
