"""Watch the times of calls for a lasting change.

Times are taken in units of the simulated time of the call, where it has one. Two things are slow for good. The newest
calls of all programs together are, if nearly all of them are slower than nearly all of the first: a rank-sum test,
which outliers do not sway, however large they are; before, the first calls of each program become one by their median,
as what the simulator does not know (processors, protocols) differs from program to program. And a network that was slow
from the start is, if the first calls of every program that takes long take longer than it says, most of them; that is
told once, as what the simulator does not know may be the reason.
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


BEYOND = 1.5
"""Times the simulated time from which on first calls are slow: what it does not know costs good networks less."""

LONG_S = 1e-3
"""Seconds of simulated time from which on rates decide how long a call takes, and not what messages cost."""

SIMULATED, USUAL = "as simulated", "as before"
"""What times are compared with."""


@dataclass
class CallTimes:
    """Times of the calls of one rank.

    Examples:
        >>> times = CallTimes()
        >>> for second in [9, 9, 9, *([1.0, 1.1] * 8), *([3.0] * 12)]:
        ...     times.add("all_reduce", second)
        >>> times.slower() > 2.5, CallTimes().slower()
        (True, 1.0)
        >>> times = CallTimes()
        >>> for second in [9, 9, 9, *([0.6] * 16)]:
        ...     times.add("all_reduce", second, simulated_s=0.2)
        >>> round(times.slower(), 2), times.slower()
        (3.0, 1.0)
    """

    _calls: Counter[Hashable] = field(default_factory=Counter)
    _usual: dict[Hashable, list[float]] = field(
        default_factory=dict
    )  # Logarithms of the first calls that count
    _newest: deque[float] = field(
        default_factory=lambda: deque(maxlen=NEWEST)
    )  # Over the usual ones, likewise
    _long: set[Hashable] = field(default_factory=set)  # Programs that the simulator says how long to take
    _compared: bool = False  # Whether the first calls have been compared with the simulation
    yardstick: str = USUAL  # What times were compared with

    def add(self, program: Hashable, seconds: float, simulated_s: float = 0.0) -> None:
        """Add the time of a call, and what it takes by the simulation, 0 where that is not known."""
        time = math.log(max(seconds, 1e-9) / (simulated_s or 1.0))
        self._calls[program] += 1
        if simulated_s >= LONG_S:
            self._long.add(program)
        number, usual = self._calls[program], self._usual.setdefault(program, [])
        if WARM < number <= WARM + FIRST:
            usual.append(time)
        elif number > WARM + FIRST:
            self._newest.append(time - statistics.median(usual))

    def slower(self) -> float:
        """Times the usual or the simulated time that calls take for good; 1.0 where that may be chance."""
        self.yardstick = USUAL
        if not self._compared:
            firsts = [usual for program, usual in self._usual.items() if program in self._long]
            if firsts and all(len(usual) == FIRST for usual in firsts):
                self._compared = True
                ratio = math.exp(min(statistics.median(usual) for usual in firsts))
                if ratio >= BEYOND:
                    self.yardstick = SIMULATED
                    return ratio
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
        """Begin anew: what comes now is usual, whatever is simulated."""
        self._calls.clear()
        self._usual.clear()
        self._newest.clear()
