"""Deferred reading of losses, so that no step waits for the GPU, and learning rates in a fixed ratio."""

from __future__ import annotations

from math import inf, isfinite

import torch
from torch.distributed.tensor import DTensor

from coppice.errors import InputError


class LossBuffer:
    """Sums of the losses of micro-batches, one per step.

    Args:
        capacity: Most steps between two reads.
        accumulate: Micro-batches per step; the loss of a step is their mean.
    """

    def __init__(self, *, capacity: int, accumulate: int = 1) -> None:
        self.accumulate = accumulate
        self.parts = 0
        """Micro-batches of the step that is under way."""
        self.steps = 0
        """Steps that are complete."""
        self._capacity = capacity
        self._slots: list[torch.Tensor] = []
        self._sums: torch.Tensor | None = None

    def add(self, loss: torch.Tensor | float) -> bool:
        """Add a loss without synchronising; return whether it completes a step."""
        if not isinstance(loss, torch.Tensor):
            loss = _tensor(loss)
        elif isinstance(loss, DTensor):
            loss = loss.full_tensor()
        if loss.numel() != 1:
            raise InputError(
                f"expected the loss of a step as one number, found a tensor of {tuple(loss.shape)}: take its mean."
            )
        sums = self._sums
        if sums is None or sums.device != loss.device or (loss.dtype == torch.float64 != sums.dtype):
            self._move(loss)
        slot, value = self._slots[self.steps], loss.detach()
        if value.dim():
            value = value.reshape(())
        # A copy, not a reference: the tensor may be a static one that a captured graph overwrites.
        if self.parts:
            slot.add_(value)
        else:
            slot.copy_(value)
        self.parts += 1
        if self.parts < self.accumulate:
            return False
        self.parts = 0
        self.steps += 1
        return True

    def read(self) -> list[float]:
        """Return and clear the losses of complete steps; synchronises with the device."""
        if self._sums is None:
            return []
        values: list[float] = self._sums[: self.steps].tolist()
        self.steps = 0
        return [value / self.accumulate for value in values]

    def state(self) -> dict[str, object]:
        """State of the unread losses."""
        sums = [] if self._sums is None else self._sums[: self.steps + bool(self.parts)].tolist()
        wide = self._sums is not None and self._sums.dtype is torch.float64
        return {"sums": sums, "parts": self.parts, "wide": wide}

    def load(self, state: dict[str, object]) -> None:
        """Restore :meth:`state`."""
        sums, parts = state["sums"], state["parts"]
        if not isinstance(sums, list) or not isinstance(parts, int) or len(sums) > self._capacity:
            raise InputError(
                "expected the losses that a checkpoint holds, found something else: use a checkpoint of AutoLRS."
            )
        self._sums, self._slots = None, []
        self.parts, self.steps = parts, len(sums) - bool(parts)
        if sums:
            self._move(torch.zeros((), dtype=torch.float64 if state["wide"] else torch.float32))
            for slot, value in zip(self._slots, sums, strict=False):
                slot.fill_(value)

    def _move(self, loss: torch.Tensor) -> None:
        """Wait where losses are; single precision holds them, unless they have more."""
        before = torch.float32 if self._sums is None else self._sums.dtype
        dtype = torch.float64 if torch.float64 in (loss.dtype, before) else torch.float32
        sums = torch.zeros(self._capacity, dtype=dtype, device=loss.device)
        if self._sums is not None:
            sums.copy_(self._sums)
        self._sums, self._slots = sums, list(sums.unbind())


def _tensor(loss: object) -> torch.Tensor:
    try:
        return torch.tensor(float(loss), dtype=torch.float64)  # type: ignore[arg-type]
    except OverflowError:
        return torch.tensor(inf, dtype=torch.float64)
    except (TypeError, ValueError):
        raise InputError(
            f"expected a loss as a tensor or a number, found {type(loss).__name__}: give the loss of the step."
        ) from None


class LearningRates:
    """Set the learning rate; groups keep their initial ratio to the first one.

    Args:
        optimizer: The optimizer.

    Attributes:
        initial: Rate of the first group at the beginning.
        current: Rate that was set last.

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
            raise InputError(
                f"expected a learning rate > 0 of the first parameter group, found {self.initial}: give one."
            )
        # Rate of every group, as a multiple of the first one's
        self.ratios = [rate / self.initial for rate in rates]

    def set(self, rate: float) -> None:
        """Set the rate of the first group, and the others in proportion."""
        groups = self._optimizer.param_groups
        if len(groups) != len(self.ratios):
            raise InputError(
                f"expected {len(self.ratios)} parameter groups, found {len(groups)}: add them before AutoLRS."
            )
        self.current = rate
        for group, ratio in zip(groups, self.ratios, strict=True):
            present = group["lr"]
            if isinstance(present, torch.Tensor):  # captured graphs read it where it is
                present.fill_(rate * ratio)
            else:
                group["lr"] = rate * ratio

    def all(self) -> list[float]:
        """Rate of every group."""
        return [float(group["lr"]) for group in self._optimizer.param_groups]
