"""What an algorithm costs on a uniform full crossbar, exactly.

The model is Hockney's with one port: P ranks around an ideal switch. A message of b bytes keeps the sender's only
send engine and the receiver's only receive engine busy for ``alpha + b beta``; a receiver that adds keeps its engine
for ``b gamma`` more. Ranks go from step to step as :mod:`coppice.schedule.schedule` says. The time of an algorithm is
then the largest of a few sums ``messages alpha + M (bytes beta + reduced gamma)``, one for each chain of messages that
can be the longest.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

__all__ = ["Chain", "Cost"]


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Messages that wait for each other.

    Attributes:
        messages: Number of messages on the chain: factor of alpha.
        sent: Bytes of these messages, as a share of M: factor of beta.
        reduced: Bytes that are added on the chain, as a share of M: factor of gamma.
    """

    messages: int
    sent: Fraction
    reduced: Fraction = Fraction(0)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Exact cost on a uniform full crossbar.

    Attributes:
        steps: Number of steps of the schedule.
        sent: Most bytes that a rank sends, as a share of M.
        chains: The chains that can be the longest; none where nothing moves.
    """

    steps: int
    sent: Fraction
    chains: tuple[Chain, ...]

    def time_us(
        self,
        size_bytes: int,
        *,
        alpha_us: Fraction,
        gb_per_s: Fraction,
        reduce_gb_per_s: Fraction | None = None,
    ) -> Fraction:
        """Time for M = ``size_bytes``, exact.

        Args:
            size_bytes: M in bytes.
            alpha_us: Cost of a message in microseconds.
            gb_per_s: Rate of a port, 1 / beta.
            reduce_gb_per_s: Rate at which a rank adds, 1 / gamma; None: adding takes no time.

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
