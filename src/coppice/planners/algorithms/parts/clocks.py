"""When each position is ready, as chains of messages: for algorithms whose steps do not keep everybody in time.

Where a position sends at most one message and receives at most one in a step, no engine is ever contended for. A
message then starts when both its ends are through with the steps before, and the time of every position is the
largest of a few sums of message costs, whatever alpha, beta and gamma are.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from coppice.planners.algorithms.parts.cost import Chain, Cost

__all__ = ["Clocks"]

_Sum = tuple[int, int, int]


class Clocks:
    """Chains that end at each position, step by step.

    Args:
        size: Number of positions.
        unit: Number of units of data in M: sizes of messages are whole units.

    Examples:
        >>> clocks = Clocks(3, unit=3)
        >>> clocks.step([(0, 1, 1, 0), (1, 0, 1, 0)])
        >>> clocks.step([(1, 2, 2, 0)])
        >>> clocks.cost()
        Cost(steps=2, sent=Fraction(1, 1), chains=(Chain(messages=2, sent=Fraction(1, 1), reduced=Fraction(0, 1)),))
    """

    def __init__(self, size: int, *, unit: int) -> None:
        self._unit = unit
        self._steps = 0
        self._sent = [0] * size
        self._chains: list[frozenset[_Sum]] = [frozenset([(0, 0, 0)])] * size

    def step(self, messages: Iterable[tuple[int, int, int, int]]) -> None:
        """Let messages (sender, receiver, units, units that the receiver adds) of one step pass."""
        ready = list(self._chains)
        moved = False
        for src, dst, units, reduced in messages:
            start = ready[src] | ready[dst]
            arrived = {(count + 1, sent + units, added) for count, sent, added in start}
            added_up = {(count, sent, added + reduced) for count, sent, added in arrived}
            self._chains[src] = _longest(self._chains[src] | arrived)
            self._chains[dst] = _longest(self._chains[dst] | added_up)
            self._sent[src] += units
            moved = True
        self._steps += moved

    def cost(self) -> Cost:
        """The cost of what has passed."""
        ends = _longest(frozenset().union(*self._chains))
        return Cost(
            steps=self._steps,
            sent=Fraction(max(self._sent), self._unit),
            chains=tuple(
                Chain(messages=count, sent=Fraction(sent, self._unit), reduced=Fraction(added, self._unit))
                for count, sent, added in sorted(ends)
                if count
            ),
        )


def _longest(chains: frozenset[_Sum]) -> frozenset[_Sum]:
    """Without the chains that another one exceeds in every term."""
    if len(chains) == 1:
        return chains
    return frozenset(
        chain
        for chain in chains
        if not any(
            other != chain and all(a <= b for a, b in zip(chain, other, strict=True)) for other in chains
        )
    )
