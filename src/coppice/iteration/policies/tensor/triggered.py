"""A product whose stores start the communication, by hardware that tracks them, beside what software can do.

Source: Pati et al., "T3: Transparent Tracking & Triggering for Fine-grained Overlap of Compute & Collectives" (ASPLOS
2024), a proposal that was evaluated in a simulator of GPUs; no GPU has it.

Theory. A product writes its result tile by tile. A tracker at the memory controller counts the stores of a chunk and
the update that the neighbour sends; when both are complete it starts the copy of the chunk to the next neighbour, which
adds as it stores. Ranks compute their chunks in an order shifted by their number, so that the chunks form the ring of a
reduce-scatter. That is the decomposed product of :mod:`~coppice.iteration.policies.tensor.ring_products` without
launches, without compute units for communication, and with contention for memory instead: beside a hop a product takes
1 + gamma times as long, so that N chunks of c seconds with hops of h seconds take

    sequential   N c + (N - 1) h
    T3           c + (N - 1) max(c (1 + gamma), h)
    T3-MCA       the same with gamma = 0: the memory controller serves the product first
    ideal        max(N c, (N - 1) h): a product and a collective that need nothing of each other.

Software gives a share x of the compute units to the collective: the product takes 1 / (1 - x) times as long, and hops
needed / x times if x is less than what they need. With contention below x / (1 - x), less than h / c, and shares that
cost less than they hide the order is sequential > split > T3 > T3-MCA >= ideal, as published; outside of it T3 may be
slower than no overlap at all, so that policies keep what is quicker. The all-gather that follows stays where it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from coppice.errors import InputError
from coppice.iteration.policies.tensor.ring_products import RingProduct

__all__ = ["TriggeredProduct"]


@dataclass(frozen=True, kw_only=True)
class TriggeredProduct:
    """A product and the reduce-scatter of its result, on N ranks.

    Attributes:
        ranks: Ranks of the ring.
        product: Seconds of the product of a chunk on all compute units.
        hop: Seconds of the hop of a chunk with all it needs.
        contention: By what share a product takes longer beside a hop, gamma.
        units: Share of the compute units that the software gives to communication, x.
        needed: Share of the compute units with which hops are as quick as they can be.

    Raises:
        InputError: If a number is out of range.

    Examples:
        >>> product = TriggeredProduct(ranks=8, product=1.0, hop=1.0, contention=0.125, units=0.2)
        >>> product.sequential_seconds, product.split.seconds, product.tracked.seconds, product.arbitrated.seconds
        (15.0, 10.0, 8.875, 8.0)
    """

    ranks: int
    product: float
    hop: float
    contention: float = 0.0
    units: float = 0.2
    needed: float = 0.14

    def __post_init__(self) -> None:
        if not (self.contention >= 0 and 0 < self.units < 1 and 0 < self.needed < 1):
            msg = (
                "expected contention of 0 or more and shares of the compute units between 0 and 1, found "
                f"{self.contention}, {self.units} and {self.needed}."
            )
            raise InputError(msg)

    @property
    def sequential_seconds(self) -> float:
        """The product, then the collective."""
        return self.arbitrated.serial_seconds

    @property
    def split(self) -> RingProduct:
        """Both side by side, compute units shared out among them."""
        product = self.product / (1 - self.units)
        return RingProduct(
            ranks=self.ranks,
            product=product,
            hop=self.hop * max(1.0, self.needed / self.units),
            scatter=True,
        )

    @property
    def tracked(self) -> RingProduct:
        """T3."""
        later = self.product * (1 + self.contention)
        return RingProduct(ranks=self.ranks, product=self.product, hop=self.hop, scatter=True, later=later)

    @property
    def arbitrated(self) -> RingProduct:
        """T3-MCA: without contention."""
        return RingProduct(ranks=self.ranks, product=self.product, hop=self.hop, scatter=True)

    @property
    def ideal_seconds(self) -> float:
        """The longer of product and collective."""
        return max(self.ranks * self.product, (self.ranks - 1) * self.hop)
