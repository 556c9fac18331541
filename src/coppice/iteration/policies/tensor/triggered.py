"""Matrix products whose stores trigger communication by tracking hardware (T3), compared with software overlap.

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
from typing import Annotated, ClassVar, Literal

import msgspec

from coppice.errors import InputError
from coppice.iteration.policies.policy import Seconds
from coppice.iteration.policies.tensor.policy import ProductOptions, ProductPolicy
from coppice.iteration.policies.tensor.ring_products import RingProduct
from coppice.iteration.step.plan import GroupExchange


@dataclass(frozen=True, kw_only=True)
class TriggeredProduct:
    """A matrix product and the reduce-scatter of its result on N ranks.

    Raises:
        InputError: If a number is out of range.

    Examples:
        >>> product = TriggeredProduct(ranks=8, product=1.0, hop=1.0, contention=0.125, units=0.2)
        >>> product.sequential_seconds, product.split.seconds, product.tracked.seconds, product.arbitrated.seconds
        (15.0, 10.0, 8.875, 8.0)
    """

    ranks: int  # Ranks of the ring
    product: float  # Seconds of the product of a chunk on all compute units
    hop: float  # Seconds of the hop of a chunk with all it needs
    contention: float = 0.0  # By what share a product takes longer beside a hop, gamma
    units: float = 0.2  # Share of the compute units that the software gives to communication, x
    needed: float = 0.14  # Share of the compute units with which hops are as quick as they can be

    def __post_init__(self) -> None:
        if not (self.contention >= 0 and 0 < self.units < 1 and 0 < self.needed < 1):
            raise InputError(
                "expected contention of 0 or more and shares of the compute units between 0 and 1, found "
                f"{self.contention}, {self.units} and {self.needed}."
            )

    @property
    def sequential_seconds(self) -> float:
        """Time without overlap."""
        return self.arbitrated.serial_seconds

    @property
    def split(self) -> RingProduct:
        """Concurrent execution with compute units divided between both."""
        product = self.product / (1 - self.units)
        return RingProduct(
            ranks=self.ranks, product=product, hop=self.hop * max(1.0, self.needed / self.units), scatter=True
        )

    @property
    def tracked(self) -> RingProduct:
        """Time under T3."""
        later = self.product * (1 + self.contention)
        return RingProduct(ranks=self.ranks, product=self.product, hop=self.hop, scatter=True, later=later)

    @property
    def arbitrated(self) -> RingProduct:
        """Time under T3-MCA: without contention."""
        return RingProduct(ranks=self.ranks, product=self.product, hop=self.hop, scatter=True)

    @property
    def ideal_seconds(self) -> float:
        """Maximum of product and collective."""
        return max(self.ranks * self.product, (self.ranks - 1) * self.hop)


_Part = Annotated[float, msgspec.Meta(gt=0, lt=1)]


class TriggeredOptions(ProductOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Overlap of products with their reduce-scatters."""

    # `t3` with contention for memory, `t3-mca` without, `split` by sharing out compute units in software
    mode: Literal["t3", "t3-mca", "split"] = "t3"
    contention: Seconds = 0.1  # By what share a product takes longer beside a hop
    units: _Part = 0.2  # Share of the compute units that `split` gives to communication
    needed: _Part = 0.14  # Share of the compute units with which hops are as quick as they can be


class Triggered(ProductPolicy):
    """Reduce-scatters, also those of all-reduces, triggered by their products' stores; all-gathers are unchanged."""

    name = "t3"
    about = "stores of a product start its scatter, by trackers in hardware (T3, ASPLOS'24)"
    assumes = "GPUs that have not been built; nothing else on the links of the group"
    options: ClassVar[type[msgspec.Struct]] = TriggeredOptions

    def exposed(self, each: GroupExchange, product: float) -> float:
        """Time of product and reduce-scatter beyond the product, and the all-gather of an all-reduce."""
        if each.collective not in ("all_reduce", "reduce_scatter"):
            return each.seconds
        settings: TriggeredOptions = self.settings
        ranks = settings.ranks
        scatter = each.seconds / 2 if each.collective == "all_reduce" else each.seconds
        both = TriggeredProduct(
            ranks=ranks,
            product=product / ranks,
            hop=scatter / (ranks - 1),
            contention=settings.contention,
            units=settings.units,
            needed=settings.needed,
        )
        ring = {"t3": both.tracked, "t3-mca": both.arbitrated, "split": both.split}[settings.mode]
        return each.seconds - scatter + max(0.0, ring.seconds - product)
