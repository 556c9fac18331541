"""Flat memory of gradients: tensors that are sent together lie one after the other.

A policy counts bytes of gradients in a row. Tensors of one type that follow each other in the row are a run, one flat
tensor; a message over part of the row is a slice of each run that it touches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from coppice.iteration.policies.messages import Message


@dataclass(frozen=True)
class _Run:
    """Tensors of one type in a row."""

    flat: torch.Tensor  # Their memory, with room at its end for equal shares of all ranks
    begin: int  # Byte of the row at which it begins
    size_bytes: int  # Bytes of gradients in it


class Pool:
    """Gradients of one group of tensors.

    Args:
        parameters: The tensors whose gradients it holds, in their row.
        ranks: Its runs are padded to as many equal shares.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], ranks: int) -> None:
        self.views: list[torch.Tensor] = []  # For each tensor, its gradient's place
        self._runs: list[_Run] = []
        begin = first = 0
        while first < len(parameters):
            kind = (parameters[first].dtype, parameters[first].device)
            last = first
            while last < len(parameters) and (parameters[last].dtype, parameters[last].device) == kind:
                last += 1
            own = parameters[first:last]
            count = sum(each.numel() for each in own)
            flat = torch.zeros(-(-count // ranks) * ranks, dtype=kind[0], device=kind[1])
            place = 0
            for each in own:
                self.views.append(flat[place : place + each.numel()].view(each.shape))
                place += each.numel()
            self._runs.append(_Run(flat, begin, count * flat.element_size()))
            begin += self._runs[-1].size_bytes
            first = last

    @property
    def whole(self) -> list[torch.Tensor]:
        """All of it, padded."""
        return [run.flat for run in self._runs]

    def slices(self, offset_bytes: float, size_bytes: float) -> list[torch.Tensor]:
        """What lies in so many bytes from an offset on, cut at whole elements.

        Cuts are rounded, not sizes, so that the slices of a row that is cut anywhere are the row.
        """
        found = []
        for run in self._runs:
            item = run.flat.element_size()
            count = run.size_bytes // item
            low = min(max(round((offset_bytes - run.begin) / item), 0), count)
            high = min(max(round((offset_bytes + size_bytes - run.begin) / item), 0), count)
            if high > low:
                found.append(run.flat[low:high])
        return found


def pools_of(
    messages: Sequence[Message], tensors: Sequence[torch.Tensor], ranks: int
) -> dict[tuple[int, ...], Pool]:
    """A pool for each group of layers that messages carry."""
    groups = dict.fromkeys(message.gradients for message in messages)
    return {group: Pool([tensors[layer] for layer in group], ranks) for group in groups}
