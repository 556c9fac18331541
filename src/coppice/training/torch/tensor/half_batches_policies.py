"""Tensor-parallel blocks under a named policy."""

from __future__ import annotations

from typing import Any

from torch import nn

from coppice.arguments import checked
from coppice.errors import InputError
from coppice.iteration.policies.tensor.lynx import WindowedRecompute
from coppice.iteration.policies.tensor.oases import TwoHalves
from coppice.training.torch.tensor.half_batches import HalvedBlocks
from coppice.training.torch.tensor.half_batches_degrees import DegreeGroups, RegroupedBlocks
from coppice.training.torch.tensor.recompute_blocks import RecomputedBlocks


@checked
def tensor_parallel(
    blocks: nn.Module, policy: str, *, groups: DegreeGroups | None = None, **settings: Any
) -> nn.Sequential:
    """Tensor-parallel blocks executed by a policy, in place of the sequential blocks.

    Args:
        blocks: An ``nn.Sequential`` of blocks: each a ``SummedPart``, or a row of them, such as ``MegatronBlock``.
        policy: ``oases``: two half micro-batches hide each other's sums, nothing is summed again. ``lynx``: what
            ``limit_bytes`` leaves no memory for is computed again beside sums.
        groups: The groups of parts of several degrees, under ``oases``; None: all parts have one degree.
        settings: Options of the policy; ``recompute=False`` of ``oases`` keeps all activations; ``in_flight``,
            ``passes`` and ``block`` of ``lynx`` are those of its blocks.

    Returns:
        The same blocks, with the same keys of their state.

    Raises:
        InputError: If there is no such policy, or it cannot run these blocks.

    Examples:
        >>> import torch
        >>> from coppice.training.torch import MegatronBlock
        >>> blocks = nn.Sequential(MegatronBlock(8, 2), MegatronBlock(8, 2))
        >>> halved = tensor_parallel(blocks, "oases")
        >>> halved(torch.zeros(2, 3, 8)).shape, halved.launched[:3]
        (torch.Size([2, 3, 8]), ['F0 of 1', 'before sum of F0 of 1', 'sum of F0 of 1'])
    """
    if policy == TwoHalves.name:
        recompute = settings.pop("recompute", True)
        found = TwoHalves.of(**settings)
        if groups is not None:
            return RegroupedBlocks(blocks, found, groups, recompute=bool(recompute))
        return HalvedBlocks(blocks, found, recompute=bool(recompute))
    if policy == WindowedRecompute.name:
        if groups is not None:
            raise InputError(
                f"expected parts of one degree under {policy!r}, found `groups`: leave it out, or use 'oases'."
            )
        own = {name: settings.pop(name) for name in ("in_flight", "passes", "block") if name in settings}
        return RecomputedBlocks(blocks, WindowedRecompute.of(**settings), **own)
    known = f"{TwoHalves.name}, {WindowedRecompute.name}"
    raise InputError(f"expected a policy that runs blocks of tensor parallelism ({known}), found {policy!r}.")
