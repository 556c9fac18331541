"""The optimizer of a model of which ranks hold parts: norms are those of the whole model."""

from __future__ import annotations

import torch

from coppice.training.torch.overlap.pending import ScheduledOptimizer


class PartitionedOptimizer(ScheduledOptimizer):
    """See :class:`ScheduledOptimizer`; its schedule has the norm of all gradients (``gradient_norm``)."""

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Clip the norm of all gradients, with those of what other ranks hold."""
        norm: torch.Tensor = self.schedule.gradient_norm(norm_type)
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for gradient in gradients:
            gradient.mul_(factor.to(gradient.dtype))
        return norm
