"""Exact cost of an algorithm on a uniform full crossbar.

The model is Hockney's with one port: P ranks around an ideal switch. A message of b bytes keeps the sender's only
send engine and the receiver's only receive engine busy for ``alpha + b beta``; a receiver that adds keeps its engine
for ``b gamma`` more. Ranks go from step to step as :mod:`coppice.schedule.schedule` says. The time of an algorithm is
then the largest of a few sums ``messages alpha + M (bytes beta + reduced gamma)``, one for each chain of messages that
can be the longest.

For algorithms whose steps do not keep all ranks in time, :class:`Clocks` follows the chains that end at each position.
Where a position sends at most one message and receives at most one in a step, no engine is ever contended for. A
message then starts when both its ends are through with the steps before, and the time of every position is the
largest of a few sums of message costs, whatever alpha, beta and gamma are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from coppice.collectives import Collective


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Dependency chain of messages: its number, bytes and reductions."""

    messages: int  # Number of messages on the chain: factor of alpha
    sent: Fraction  # Bytes of these messages, as a share of M: factor of beta
    reduced: Fraction = Fraction(0)  # Bytes that are added on the chain, as a share of M: factor of gamma


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Exact alpha-beta-gamma cost on a uniform full crossbar."""

    steps: int  # Number of steps of the schedule
    sent: Fraction  # Most bytes that a rank sends, as a share of M
    chains: tuple[Chain, ...]  # The chains that can be the longest; none where nothing moves

    @classmethod
    def of_one_chain(
        cls,
        *,
        steps: int,
        sent: Fraction,  # Most bytes that a rank sends, as a share of M
        messages: int | None = None,  # Messages of the chain; None: one in every step
        moved: Fraction | None = None,  # Bytes of these messages; None: as many as `sent`
        reduced: Fraction = Fraction(0),  # Bytes that are added on the chain
    ) -> Cost:
        """Cost given by a single chain that dominates for every alpha, beta and gamma.

        Examples:
            >>> Cost.of_one_chain(steps=2, sent=Fraction(3, 4)).chains
            (Chain(messages=2, sent=Fraction(3, 4), reduced=Fraction(0, 1)),)
        """
        count = steps if messages is None else messages
        if not count:
            return cls(steps=0, sent=Fraction(0), chains=())
        chain = Chain(messages=count, sent=sent if moved is None else moved, reduced=reduced)
        return cls(steps=steps, sent=sent, chains=(chain,))

    @classmethod
    def of_phases(cls, collective: Collective, ranks: int, steps: int, *, ways: int = 1) -> Cost:
        """Cost of a bandwidth-optimal reduce-scatter or all-gather, or of an all-reduce from both.

        Args:
            ranks: P: a rank sends (P - 1)/P M in a phase, and adds as much where it reduces.
            ways: Messages of a step, one after the other.
        """
        moved = Fraction(ranks - 1, ranks)
        phases = 2 if collective is Collective.ALL_REDUCE else 1
        return cls.of_one_chain(
            steps=phases * steps,
            sent=phases * moved,
            messages=ways * phases * steps,
            reduced=moved * collective.reduces,
        )

    def time_us(
        self,
        size_bytes: int,  # M in bytes
        *,
        alpha_us: Fraction,  # Cost of a message in microseconds
        gb_per_s: Fraction,  # Rate of a port, 1 / beta
        # Rate at which a rank adds, 1 / gamma; None: adding takes no time
        reduce_gb_per_s: Fraction | None = None,
    ) -> Fraction:
        """Time for M = ``size_bytes``, exact.

        Examples:
            >>> ring = Cost(steps=3, sent=Fraction(3, 4), chains=(Chain(messages=3, sent=Fraction(3, 4)),))
            >>> ring.time_us(4000, alpha_us=Fraction(2), gb_per_s=Fraction(1))
            Fraction(9, 1)
        """
        gamma = Fraction(0) if reduce_gb_per_s is None else 1 / reduce_gb_per_s
        return max(
            (
                chain.messages * alpha_us
                + size_bytes * (chain.sent / gb_per_s + chain.reduced * gamma) / 1000
                for chain in self.chains
            ),
            default=Fraction(0),
        )


_Sum = tuple[int, int, int]


class Clocks:
    """Pareto-optimal chains that end at each position, updated step by step.

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
        """Add the messages (sender, receiver, units, units to reduce) of one step."""
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
        """Cost of the steps so far."""
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
