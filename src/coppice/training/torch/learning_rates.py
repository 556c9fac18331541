"""The learning rates of an optimizer's parameter groups, moved together."""

from __future__ import annotations

from math import isfinite

import torch

from coppice.errors import InputError

__all__ = ["LearningRates"]


class LearningRates:
    """Sets one rate; every group keeps the ratio to the first one that it has at the beginning.

    Args:
        optimizer: The optimizer.

    Attributes:
        initial: Rate of the first group at the beginning.
        current: Rate that was set last.
        ratios: Rate of every group, as a multiple of the first one's.

    Raises:
        InputError: If the first group's rate is not positive: the others have no ratio to it then.

    Examples:
        >>> weight, bias = torch.zeros(2, requires_grad=True), torch.zeros(2, requires_grad=True)
        >>> optimizer = torch.optim.SGD([{"params": [weight]}, {"params": [bias], "lr": 0.5}], lr=0.25)
        >>> rates = LearningRates(optimizer)
        >>> rates.set(0.1)
        >>> rates.all()
        [0.1, 0.2]
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        rates = self.all()
        self.initial = self.current = rates[0]
        if not (isfinite(self.initial) and self.initial > 0):
            msg = (
                f"expected a learning rate > 0 of the first parameter group, found {self.initial}: give one."
            )
            raise InputError(msg)
        self.ratios = [rate / self.initial for rate in rates]

    def set(self, rate: float) -> None:
        """Set the rate of the first group, and all others with it."""
        groups = self._optimizer.param_groups
        if len(groups) != len(self.ratios):
            msg = (
                f"expected {len(self.ratios)} parameter groups, found {len(groups)}: add them before AutoLRS."
            )
            raise InputError(msg)
        self.current = rate
        for group, ratio in zip(groups, self.ratios, strict=True):
            present = group["lr"]
            if isinstance(present, torch.Tensor):  # captured graphs read it where it is
                present.fill_(rate * ratio)
            else:
                group["lr"] = rate * ratio

    def all(self) -> list[float]:
        """The rate of every group."""
        return [float(group["lr"]) for group in self._optimizer.param_groups]
