"""What a framework of training does that a layout does not say."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Framework:
    """Habits of a framework."""

    gradient_bytes: int = 2  # Bytes of an element of the gradients that replicas sum
    # What ZeRO scatters and gathers goes tensor by tensor instead of in large buckets
    by_tensor: bool = False
    # Stages get layers so that the slowest is quickest, the head counted; otherwise as many each
    balanced: bool = False
    # ZeRO-3 gathers parameters once more for what is computed again, copies what it gathers, and sums whole
    # gradients of which each replica keeps its share; otherwise it gathers twice and scatters sums
    regathers: bool = False


MEGATRON = Framework()
"""Megatron-LM: 16-bit gradients in buckets, as many layers on each stage."""

NANOTRON = Framework(gradient_bytes=4, by_tensor=True, balanced=True)
"""nanotron: gradients are kept in 32 bits, ZeRO-1 exchanges each tensor, blocks are dealt to stages by their cost."""

DEEPSPEED_2021 = Framework(by_tensor=True, regathers=True)
"""DeepSpeed when ZeRO-3 was new."""
