"""Overlap tensor-parallel collectives with dependent matrix products, by decomposition into shards.

Source: Wang et al. (ASPLOS 2023); the theory is in :mod:`~coppice.iteration.policies.tensor.ring_products`.

A gather before a product, or a scatter behind one, is cut into a shard for each rank, and what still holds the pass up
is c + (N - 1) max(c, h) - N c, with c for the product of a shard and h for its hop. A shard of rows / N rows
reaches less of the peak than the product as a whole: with half of the peak at so many rows (``half_rows``) it takes
(rows / N + half) / (rows + half) of its time instead of 1 / N. Where that costs more than it hides nothing is cut: the
gate of the compiler. Activation all-reduces are no pattern of the pass: switch sequence parallelism on.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from coppice.iteration.policies.policy import Count, Seconds
from coppice.iteration.policies.tensor.policy import ProductOptions, ProductPolicy
from coppice.iteration.policies.tensor.ring_products import RingProduct
from coppice.iteration.step.plan import GroupExchange


class DecompositionOptions(ProductOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the decomposition."""

    # Half of the shards go each way around a ring whose links carry as much in both directions
    both_ways: bool = False
    copy_seconds: Seconds = 0.0  # What copying a buffer before each hop takes; 0: the loop is unrolled by two
    extra_seconds: Seconds = 0.0  # What cutting costs by itself, for the gate
    rows: Count = 4096  # Rows of the product as a whole: tokens of a micro-batch
    half_rows: Seconds = 0.0  # Rows with which a product reaches half of the peak; 0: shards lose nothing


class Decomposition(ProductPolicy):
    """Overlap all-gathers and reduce-scatters with shards of their matrix products."""

    name = "decomposition"
    about = "gathers and scatters hop by hop beside shards of their products (Wang et al., ASPLOS'23)"
    assumes = "sequence parallelism; messages that move while products run"
    stock = "torch._inductor.config._micro_pipeline_tp=True; Megatron-LM --tp-comm-overlap"
    options: ClassVar[type[msgspec.Struct]] = DecompositionOptions

    def exposed(self, each: GroupExchange, product: float) -> float:
        """Time of a decomposed product beyond the product alone, if decomposition pays."""
        ring = self.decomposed(each, product)
        return each.seconds if ring is None else max(0.0, ring.seconds - product)

    def decomposed(
        self, each: GroupExchange, product: float, *, hop: float | None = None
    ) -> RingProduct | None:
        """Decomposed product of a collective, if it pays; used in simulation and in real training.

        Args:
            product: Seconds of the product as a whole.
            hop: As :meth:`ring` takes it.
        """
        if each.collective not in ("all_gather", "reduce_scatter"):
            return None
        ring = self.ring(each, product, hop=hop)
        extra: float = self.settings.extra_seconds
        return ring if ring.pays(whole=product, collective=each.seconds, extra=extra) else None

    def ring(self, each: GroupExchange, product: float, *, hop: float | None = None) -> RingProduct:
        """Decomposed product of a collective.

        Args:
            product: Seconds of the product as a whole.
            hop: Seconds in which a shard goes to the neighbour; None: as in a ring that takes the exchange's time.
        """
        settings: DecompositionOptions = self.settings
        ranks = settings.ranks
        shard = (settings.rows / ranks + settings.half_rows) / (settings.rows + settings.half_rows)
        return RingProduct(
            ranks=ranks,
            product=product * shard,
            hop=each.seconds / (ranks - 1) if hop is None else hop,
            scatter=each.collective == "reduce_scatter",
            both_ways=settings.both_ways,
            copy=settings.copy_seconds,
        )
