"""Layers that take as long as on a device of their own: they compute, then wait until their time is over.

Ranks that share two cores slow each other down, and the threads that carry messages too, which says nothing about a
cluster whose devices compute beside their hosts. A paced layer does the real arithmetic of a small batch, so weights
and losses are real, and sleeps for the rest of its time, in which the cores are free.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

__all__ = ["paced", "waited"]


class _BackwardWaits(torch.autograd.Function):
    """The identity; its backward pass takes a time."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        time.sleep(ctx.seconds)
        return gradients[0], None


def waited(tensor: torch.Tensor, forward_seconds: float, backward_seconds: float) -> torch.Tensor:
    """The tensor, after a time; its gradient after another."""
    time.sleep(forward_seconds)
    return _BackwardWaits.apply(tensor, backward_seconds)  # type: ignore[no-any-return,no-untyped-call]


def paced(module: nn.Module, forward_seconds: float, backward_seconds: float) -> nn.Module:
    """The module with hooks: its forward pass takes a time in all, its backward pass another beside its arithmetic."""
    begun = [0.0]

    def start(*_: object) -> None:
        begun[0] = time.perf_counter()

    def end(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
        rest = begun[0] + forward_seconds - time.perf_counter()
        return waited(output, max(rest, 0.0), backward_seconds)

    module.register_forward_pre_hook(start)
    module.register_forward_hook(end)
    return module
