"""Schedules to compare AutoLRS with, and a schedule-free optimizer."""

# Types are checked without torch as well, where its classes are unknown.
# mypy: allow-subclassing-any, allow-untyped-decorators, no-warn-unused-ignores

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import cos, pi
from typing import Any

import torch

__all__ = ["SCHEDULES", "ScheduleFree", "range_test_rate"]

Schedule = Callable[[float], float]
"""Rate as a share of the peak, for a share of the training."""

SCHEDULES: dict[str, Schedule] = {
    "constant": lambda _: 1.0,
    "step (1/10 at 50%, 75%)": lambda share: 1.0 if share < 0.5 else 0.1 if share < 0.75 else 0.01,
    "cosine": lambda share: 0.5 * (1 + cos(pi * share)),
    "one-cycle": lambda share: (
        _rise(share / 0.3, 1 / 25, 1.0) if share < 0.3 else _rise((share - 0.3) / 0.7, 1.0, 1e-4)
    ),
}


def _rise(share: float, first: float, last: float) -> float:
    """A half cosine from one value to another."""
    return last + (first - last) * 0.5 * (1 + cos(pi * share))


def range_test_rate(rates: list[float], losses: list[float]) -> float:
    """The rate that a linear range test suggests: where the smoothed loss falls fastest.

    Args:
        rates: Rates of the test, rising linearly.
        losses: Training loss at each.
    """
    smooth, level = [], losses[0]
    for loss in losses:
        level = 0.9 * level + 0.1 * (loss if loss < 4 * losses[0] else 4 * losses[0])
        smooth.append(level)
    end = next((at for at, level in enumerate(smooth) if level > 2 * min(smooth[: at + 1])), len(smooth))
    slopes = [smooth[at + 5] - smooth[at] for at in range(max(end - 5, 1))]
    return rates[min(range(len(slopes)), key=slopes.__getitem__) + 2]


class ScheduleFree(torch.optim.Optimizer):
    """Schedule-free SGD or AdamW (Defazio et al. 2024).

    Gradients are taken at ``y = (1 - beta) z + beta x``, the step is made at ``z``, and ``x`` is the average of the
    ``z`` weighted by the square of the rate; ``x`` is what is evaluated.

    Args:
        parameters: What to train.
        lr: Rate after the warm-up.
        adaptive: Scale steps as Adam does.
        warmup: Steps of a linear rise.
        decay: Weight decay, at ``y``.
    """

    def __init__(
        self,
        parameters: Iterable[torch.Tensor],
        *,
        lr: float,
        adaptive: bool,
        warmup: int,
        decay: float,
        beta: float = 0.9,
    ) -> None:
        super().__init__(parameters, {"lr": lr})
        self._adaptive, self._warmup, self._decay, self._beta = adaptive, warmup, decay, beta
        self._step, self._weight = 0, 0.0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """One step; parameters are ``y`` before and after."""
        self._step += 1
        group = self.param_groups[0]
        rate = group["lr"] * min(self._step / max(self._warmup, 1), 1.0)
        if self._adaptive:
            rate *= (1 - 0.999**self._step) ** 0.5
        self._weight += rate * rate
        share = rate * rate / self._weight
        for y in group["params"]:
            state = self.state[y]
            if not state:
                state["z"], state["square"] = y.clone(), torch.zeros_like(y)
            z, direction = state["z"], y.grad
            if self._adaptive:
                state["square"].mul_(0.999).addcmul_(y.grad, y.grad, value=0.001)
                direction = y.grad / (state["square"].sqrt() + 1e-8)
            direction = direction + self._decay * y
            x = (y - (1 - self._beta) * z) / self._beta
            z.sub_(direction, alpha=rate)
            x.lerp_(z, share)
            y.copy_(self._beta * x + (1 - self._beta) * z)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The parameters are ``x`` inside."""
        held = [y.detach().clone() for y in self.param_groups[0]["params"]]
        with torch.no_grad():
            for y in self.param_groups[0]["params"]:
                y.copy_((y - (1 - self._beta) * self.state[y]["z"]) / self._beta)
        try:
            yield
        finally:
            with torch.no_grad():
                for y, before in zip(self.param_groups[0]["params"], held, strict=True):
                    y.copy_(before)
