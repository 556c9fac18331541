"""Overlap all-reduces with the matrix products that they reduce, and fuse the elementwise operations after them.

Source: CoCoNet (ASPLOS 2022); programs, rewrites and the tuner that finds this variant for the end of a tensor-parallel
layer are in :mod:`coppice.iteration.policies.tensor.coconet`.

A product of c seconds and the fused collective of s seconds run side by side in k chunks: the pass is held up for
(c + s + (k - 1) max(c, s)) / k - c. Bias, dropout and residual run inside on slices: a share of the computation of a
pass takes 1 / N of its time, where ranks did not share it out before (``elementwise``). What the rewrites do to
optimizers and to sends between stages is for policies of gradients, and done by the layout: stages send slices already.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from coppice.iteration.policies.policy import Count
from coppice.iteration.policies.tensor.coconet.costs import overlapped_seconds
from coppice.iteration.policies.tensor.policy import (
    ProductOptions,
    ProductPolicy,
    Share,
    is_sum,
    tensor_exchanges,
)
from coppice.iteration.step.plan import GroupExchange, LayerBlock


class FusedOptions(ProductOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of fusion and overlap."""

    chunks: Count = 16  # Chunks of a product and its collective
    elementwise: Share = 0.0  # Share of a pass's computation that moves into its sums


class FusedCollectives(ProductPolicy):
    """Overlap all-reduces and reduce-scatters with their matrix products, chunk by chunk."""

    name = "coconet"
    about = "sums chunk by chunk beside their products, elementwise work inside of them (CoCoNet, ASPLOS'22)"
    assumes = "kernels that wait for chunks of others; dropout whose random numbers know their place"
    options: ClassVar[type[msgspec.Struct]] = FusedOptions

    def exposed(self, each: GroupExchange, product: float) -> float:
        """Time of product and collective beyond the product alone."""
        if each.collective not in ("all_reduce", "reduce_scatter"):
            return each.seconds
        chunks: int = self.settings.chunks
        return max(0.0, overlapped_seconds([product, each.seconds], chunks) - product)

    def saved(self, block: LayerBlock, when: str) -> float:
        """Share of compute time saved by elementwise work on shards instead of on all ranks."""
        inside = tensor_exchanges(block, when)
        if not inside or not is_sum(inside):
            return 0.0
        return float(self.settings.elementwise * (1 - 1 / self.settings.ranks))
