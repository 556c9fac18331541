"""Oases: two half micro-batches, each computing while the other is all-reduced.

Source: Oases (arXiv 2305.16121); the theory is in :mod:`~coppice.iteration.policies.tensor.half_batches`, the choice of
degrees in :mod:`~coppice.iteration.policies.tensor.degrees`.

A layer with k sums in its forward pass counts as k blocks that are alike. A sum holds the stage up for what the
computation beside it leaves of it: max(0, sum - computation), the last one of a pass as a whole. A layer without sums
computes as one. Sequence-parallel gathers and scatters count as one sum together. With silent recomputation exchanges
of what is computed again are gone, and the result of every sum is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import msgspec

from coppice.iteration.policies.policy import Seconds
from coppice.iteration.policies.tensor.policy import TensorPolicy, is_sum, kept_results, tensor_exchanges
from coppice.iteration.step.plan import BACKWARD, FORWARD, RECOMPUTE, GroupExchange, LayerBlock


class HalvesOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Order of the halves."""

    silent: bool = True  # Nothing is summed again where layers are computed again
    slower: Seconds = 0.0  # By what share products of half a micro-batch take longer than half of the whole
    # Share of the time of a sum that the sum of half as much takes
    half_sum: Annotated[float, msgspec.Meta(ge=0.5, le=1)] = 0.5


class TwoHalves(TensorPolicy):
    """Compute one half micro-batch while the other is all-reduced."""

    name = "oases"
    about = "two half micro-batches hide each other's sums; nothing is summed again (Oases, arXiv 2305.16121)"
    assumes = "micro-batches of two sequences or more; sums in the same order on all ranks"
    decides: ClassVar[frozenset[str]] = frozenset({"tensor", "recompute"})
    options: ClassVar[type[msgspec.Struct]] = HalvesOptions

    def stage(self, blocks: tuple[LayerBlock, ...], in_flight: int) -> tuple[LayerBlock, ...]:
        """A stage; its blocks follow each other without a pause in a pass."""
        del in_flight
        settings = self.settings
        halves: list[_Half] = []
        again = [BACKWARD] if settings.silent else [RECOMPUTE, BACKWARD]
        for whens, numbers in (([FORWARD], range(len(blocks))), (again, range(len(blocks))[::-1])):
            halves += self._exposed(
                [half for number in numbers for half in self._halves(blocks[number], number, whens)]
            )
        left: dict[tuple[int, str], float] = {}
        for half in halves:
            left[half.block, half.when] = left.get((half.block, half.when), 0.0) + half.exposed
        longer = 1 + settings.slower
        return tuple(
            replace(
                block,
                forward=block.forward * longer,
                input_gradient=block.input_gradient * longer,
                weight_gradient=block.weight_gradient * longer,
                recompute=block.recompute * longer,
                activation_bytes=block.activation_bytes + (kept_results(block) if settings.silent else 0.0),
                exchanges=self._left(block, number, left),
            )
            if any(tensor_exchanges(block, when) for when in (FORWARD, BACKWARD))
            else block
            for number, block in enumerate(blocks)
        )

    def _halves(self, block: LayerBlock, number: int, whens: Sequence[str]) -> list[_Half]:
        """Computation of a block between all-reduces, and the all-reduces, in order."""
        settings = self.settings
        summed = {
            when: _sums(tensor_exchanges(block, when), settings.half_sum)
            for when in (FORWARD, BACKWARD, RECOMPUTE)
        }
        count = max(1, len(summed[FORWARD]), len(summed[BACKWARD]))
        longer = (1 + settings.slower) if any(summed.values()) else 1.0
        half = longer / 2 / count
        found = []
        for part in range(count):
            sums = {when: times[part] if part < len(times) else 0.0 for when, times in summed.items()}
            if FORWARD in whens:
                found += [_Half(number, FORWARD, block.forward * half, sums[FORWARD])] * 2
                continue
            gradients = (block.input_gradient + block.weight_gradient) * half
            again = block.recompute * half
            if RECOMPUTE in whens and again:
                found += [_Half(number, RECOMPUTE, again, sums[RECOMPUTE])] * 2
                again = 0.0
            found.append(_Half(number, BACKWARD, 2 * again + gradients, sums[BACKWARD]))
            found.append(_Half(number, BACKWARD, gradients, sums[BACKWARD]))
        return found

    def _exposed(self, halves: Sequence[_Half]) -> list[_Half]:
        """Exposed time of each all-reduce after the next computation; all of the last one."""
        following = [*halves[1:], None]
        return [
            replace(half, exposed=max(0.0, half.summed - (after.computed if after else 0.0)))
            for half, after in zip(halves, following, strict=True)
        ]

    def _left(
        self, block: LayerBlock, number: int, left: dict[tuple[int, str], float]
    ) -> tuple[GroupExchange, ...]:
        """Collectives scaled to their exposed time."""
        found = []
        for each in block.exchanges:
            if each.group != "tp" or not each.seconds:
                found.append(each)
            elif each.when != RECOMPUTE or not self.settings.silent:
                whole = sum(other.seconds for other in tensor_exchanges(block, each.when))
                found.append(replace(each, seconds=each.seconds / whole * left.get((number, each.when), 0.0)))
        return tuple(found)


@dataclass(frozen=True)
class _Half:
    """Half of a block in a pass."""

    block: int  # Number of the block
    when: str  # The pass
    computed: float  # Seconds of computation
    summed: float  # Seconds of the sum behind it
    exposed: float = 0.0  # Seconds for which that holds the stage up


def _sums(exchanges: Sequence[GroupExchange], share: float) -> list[float]:
    """All-reduce times of a half; an all-gather and a reduce-scatter count as one."""
    times = [each.seconds * share for each in exchanges]
    if is_sum(exchanges):
        return times
    return [sum(times[first : first + 2]) for first in range(0, len(times), 2)]
