"""Interface of tensor-parallel policies, which transform the blocks of a training step.

A block's pass computes, and exchanges between tensor-parallel ranks hold it up. A policy that hides an exchange leaves
what still holds the pass up; one that computes less again leaves less to compute. What is hidden takes no share of
links from others any more.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import msgspec

from coppice.iteration.policies.policy import ConfiguredPolicy
from coppice.iteration.step.plan import BACKWARD, FORWARD, RECOMPUTE, GroupExchange, LayerBlock, Step

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Ranks = Annotated[int, msgspec.Meta(ge=2)]


class TensorPolicy(ConfiguredPolicy):
    """Policy that changes the times and collectives of blocks."""

    kind: ClassVar[str] = "a policy inside layers"
    decides: ClassVar[frozenset[str]] = frozenset({"tensor"})

    def transform(self, step: Step) -> Step:
        """Transform a step; under 1F1B a stage has as many micro-batches in flight as stages follow."""
        count = len(step.stages)
        stages = tuple(
            self.stage(blocks, min(step.micro_batches, count - number))
            for number, blocks in enumerate(step.stages)
        )
        return replace(step, stages=stages)

    @abstractmethod
    def stage(self, blocks: tuple[LayerBlock, ...], in_flight: int) -> tuple[LayerBlock, ...]:
        """Transform the blocks of a stage.

        Args:
            blocks: The blocks in the order of the forward pass.
            in_flight: Micro-batches whose activations the stage holds.
        """


def transformed(step: Step, policies: Sequence[TensorPolicy]) -> Step:
    """Apply several policies to a step, those on collectives before those on recomputation."""
    for policy in sorted(policies, key=lambda each: "tensor" not in each.decides):
        step = policy.transform(step)
    return step


class ProductOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of policies that overlap matrix products."""

    ranks: Ranks = 8  # Ranks of a tensor-parallel group
    products: Share = 0.8  # Share of a pass's computation that products next to its exchanges make up


class ProductPolicy(TensorPolicy):
    """Overlap each collective with its matrix product.

    A pass has a product next to each gather and scatter, an activation all-reduce is one of each; products of
    a pass are taken to be alike. The backward pass counts gradients of inputs only.
    """

    options: ClassVar[type[msgspec.Struct]] = ProductOptions

    @abstractmethod
    def exposed(self, each: GroupExchange, product: float) -> float:
        """Exposed time of a collective next to a matrix product."""

    def saved(self, block: LayerBlock, when: str) -> float:
        """Share of compute time that the policy saves: by default none."""
        del block, when
        return 0.0

    def stage(self, blocks: tuple[LayerBlock, ...], in_flight: int) -> tuple[LayerBlock, ...]:
        """Transform each block; equal blocks stay one object."""
        del in_flight
        made: dict[int, LayerBlock] = {}
        for block in blocks:
            if id(block) not in made:
                made[id(block)] = self.block(block)
        return tuple(made[id(block)] for block in blocks)

    def block(self, block: LayerBlock) -> LayerBlock:
        """Transform a block."""
        # A product's gradient of inputs takes as long as the product, whatever else the backward pass computes.
        computed = {FORWARD: block.forward, BACKWARD: block.forward, RECOMPUTE: block.recompute}
        product = {}
        for when, seconds in computed.items():
            inside = tensor_exchanges(block, when)
            count = sum(2 if each.collective == "all_reduce" else 1 for each in inside)
            product[when] = self.settings.products * seconds / count if count else 0.0
        exchanges = tuple(
            replace(each, seconds=min(each.seconds, self.exposed(each, product[each.when])))
            if each.group == "tp" and each.seconds and product.get(each.when)
            else each
            for each in block.exchanges
        )
        left = {when: 1 - self.saved(block, when) for when in computed}
        return replace(
            block,
            exchanges=exchanges,
            forward=block.forward * left[FORWARD],
            input_gradient=block.input_gradient * left[BACKWARD],
            recompute=block.recompute * left[RECOMPUTE],
        )


def tensor_exchanges(block: LayerBlock, when: str) -> list[GroupExchange]:
    """Tensor-parallel collectives of a pass that take time."""
    return [each for each in block.exchanges if each.group == "tp" and each.when == when and each.seconds]


def is_sum(exchanges: Sequence[GroupExchange]) -> bool:
    """Whether all are activation all-reduces."""
    return all(each.collective == "all_reduce" for each in exchanges)


def kept_results(block: LayerBlock) -> float:
    """Activation bytes of results of all-reduces that are not made again, unless they stay anyway."""
    again = tensor_exchanges(block, RECOMPUTE)
    sums = [each for each in again if each.collective != "all_gather"]
    return sum(each.size_bytes for each in sums[1:])


def silenced(block: LayerBlock) -> LayerBlock:
    """The block with the results of its exchanges kept, so that nothing is exchanged where it is computed again."""
    left = tuple(each for each in block.exchanges if each.group != "tp" or each.when != RECOMPUTE)
    return replace(block, exchanges=left, activation_bytes=block.activation_bytes + kept_results(block))
