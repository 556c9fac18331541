"""Methods that give a training its learning rates: schedules whose peak is tuned, optimizers that tune, and AutoLRS."""

# Types are checked without torch as well, where its classes are unknown.
# mypy: allow-untyped-calls, no-warn-unused-ignores

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from math import cos, isfinite, pi
from typing import Any

import torch

from coppice.errors import InputError
from coppice.options.names import LR_METHODS
from coppice.training.learning_rates.tasks import LearningTask, Schedule
from coppice.training.torch.autolrs import AutoLRS

LOOKS = 50
"""Validations of a training, evenly over its kept steps."""

AUTOLRS = {"autolrs": "annealed", "autolrs-staged": "robust", "autolrs-published": "published"}
"""Methods of AutoLRS by the names that they have here."""

PACKAGES = {"schedule-free": "schedulefree", "prodigy": "prodigyopt", "d-adaptation": "dadaptation"}
"""Packages with the optimizers of others."""

UNTUNED = (*AUTOLRS, "prodigy", "d-adaptation")
"""Methods that find the size of their rates themselves."""


@dataclass(frozen=True, kw_only=True)
class LearningRun:
    """Outcome of one training."""

    kept: tuple[int, ...]  # Kept steps at each validation
    made: tuple[int, ...]  # Steps made until then, trials included
    losses: tuple[float, ...]  # Validation losses in nats
    test_loss: float  # At the end, in nats

    @property
    def end(self) -> float:
        """Last validation loss; infinity for one that diverged."""
        return self.losses[-1] if self.losses and isfinite(self.losses[-1]) else float("inf")

    def reach(self, goal: float) -> tuple[int, int] | None:
        """Kept steps and steps made when the validation loss first is at most a goal."""
        return next(
            (
                (kept, made)
                for kept, made, loss in zip(self.kept, self.made, self.losses, strict=True)
                if loss <= goal
            ),
            None,
        )


def missing_package(method: str) -> str | None:
    """Name of the package that a method needs and that is not installed."""
    package = PACKAGES.get(method)
    return package if package is not None and find_spec(package) is None else None


def train(task: LearningTask, method: str, *, rate: float, seed: int, steps: int) -> LearningRun:
    """Train once.

    Args:
        task: What is trained.
        method: One of ``LR_METHODS``.
        rate: Peak rate; of no meaning to methods that find it.
        seed: Weights and batches follow from it.
        steps: Steps that are kept; AutoLRS makes as many again in trials.

    Raises:
        InputError: If there is no such method, or its package is not installed.

    Examples:
        >>> from coppice.training.learning_rates.tasks import TASKS
        >>> found = train(TASKS["translation"], "cosine", rate=3e-3, seed=0, steps=100)
        >>> found.kept[-1], found.losses[-1] < found.losses[0]
        (100, True)
    """
    if method not in LR_METHODS:
        raise InputError(
            f"expected a method among {', '.join(LR_METHODS)}, found {method!r}: choose one of them."
        )
    package = missing_package(method)
    if package is not None:
        raise InputError(
            f"{method} needs the package {package}, which is not installed: pip install {package}."
        )
    with _single_thread():
        if method in AUTOLRS:
            return _searched(task, AUTOLRS[method], seed=seed, steps=steps)
        return _scheduled(task, method, rate=rate, seed=seed, steps=steps)


@contextmanager
def _single_thread() -> Iterator[None]:
    """Nets as small as these are slower on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def rates_of(task: LearningTask, method: str) -> tuple[float, ...]:
    """Peak rates that a method is tuned over; none where it finds its own.

    Schedule-free SGD has no momentum that multiplies its rate, and wants larger ones.
    """
    if method in UNTUNED:
        return ()
    plain = isinstance(task.optimizer(task.seeded(0).parameters(), 1.0), torch.optim.SGD)
    return tuple(10 * rate for rate in task.rates) if method == "schedule-free" and plain else task.rates


def _shape(task: LearningTask, method: str) -> Schedule:
    """Rate as a share of its peak."""
    shapes: dict[str, Schedule] = {
        "original": task.schedule,
        "constant": lambda _: 1.0,
        "linear": lambda share: min(share / 0.05, (1 - share) / 0.95),
    }
    return shapes.get(method, lambda share: 0.5 * (1 + cos(pi * share)))


def _optimizer(task: LearningTask, method: str, module: torch.nn.Module, rate: float, steps: int) -> Any:
    """The optimizer of a method that has no search; those of packages take the decay of the task's own."""
    own = task.optimizer(module.parameters(), rate)
    package = PACKAGES.get(method)
    if package is None:
        return own
    library = import_module(package)
    decay, adaptive = own.defaults["weight_decay"], not isinstance(own, torch.optim.SGD)
    if method == "prodigy":
        with redirect_stdout(StringIO()):  # it prints how it decays
            return library.Prodigy(module.parameters(), lr=1.0, weight_decay=decay)
    if method == "d-adaptation":
        if adaptive:
            return library.DAdaptAdam(module.parameters(), lr=1.0, weight_decay=decay, decouple=True)
        return library.DAdaptSGD(module.parameters(), lr=1.0, momentum=0.9, weight_decay=decay)
    kind = library.AdamWScheduleFree if adaptive else library.SGDScheduleFree
    return kind(module.parameters(), lr=rate, warmup_steps=steps // 20, weight_decay=decay)


def _scheduled(task: LearningTask, method: str, *, rate: float, seed: int, steps: int) -> LearningRun:
    """A training with a schedule that is known, or an optimizer that needs none."""
    module = task.seeded(seed)
    optimizer = _optimizer(task, method, module, rate, steps)
    free = method == "schedule-free"
    peak = 1.0 if method in UNTUNED else rate
    shape = _shape(task, "constant" if free else method)
    numbers = torch.Generator().manual_seed(seed)
    kept, losses = [], []
    for step in range(steps):
        for group in () if free else optimizer.param_groups:
            group["lr"] = peak * shape(step / steps)
        if free:
            optimizer.train()
        loss = task.loss(module, task.next_batch(numbers))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        if _is_look(step + 1, steps):
            if free:
                _settle(task, module, optimizer)
            kept.append(step + 1)
            losses.append(_validated(task, module, "validation"))
    return LearningRun(
        kept=tuple(kept), made=tuple(kept), losses=tuple(losses), test_loss=_validated(task, module, "test")
    )


def _settle(task: LearningTask, module: torch.nn.Module, optimizer: Any) -> None:
    """Put averaged weights in place; running means of batch norms follow them on a few batches."""
    optimizer.eval()
    if any(isinstance(part, torch.nn.modules.batchnorm._BatchNorm) for part in module.modules()):  # noqa: SLF001
        numbers = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for _ in range(20):
                module(task.next_batch(numbers)[0])


def _searched(task: LearningTask, method: str, *, seed: int, steps: int) -> LearningRun:
    """AutoLRS; stages have the share of the training that they have in the published example."""
    module = task.seeded(seed)
    optimizer = task.optimizer(module.parameters(), task.rates[0])
    numbers = torch.Generator().manual_seed(seed)
    look = partial(_validated, task, module, "validation")
    first, longest = stages_of(steps)
    tuner = AutoLRS(
        module,
        optimizer,
        val_fn=look,
        lr_range=task.lr_range,
        tau=first,
        tau_max=longest,
        kept_steps=steps,
        method=method,
        also=None if method == "published" else {"batches": numbers},
        seed=seed,
        progress=False,
    )
    curve: list[tuple[int, int, float]] = []
    while not tuner.finished:
        loss = task.loss(module, task.next_batch(numbers))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        kept = tuner.kept_steps + 1
        if tuner.phase == "exploit" and _is_look(kept, steps):
            curve = [place for place in curve if place[0] < kept]  # a stage may have begun again
            curve.append((kept, tuner.total_steps + 1, look()))
        tuner.step(loss)
    kept_steps, made, losses = zip(*curve, strict=True)
    return LearningRun(kept=kept_steps, made=made, losses=losses, test_loss=_validated(task, module, "test"))


def stages_of(steps: int) -> tuple[int, int]:
    """First and longest stage: 1,000 and 8,000 of 137,000 steps, as in the published example, of 50 steps or more.

    Examples:
        >>> stages_of(137_000), stages_of(2000)
        ((1000, 8000), (50, 116))
    """
    return max(50, steps // 137), max(50, 8 * steps // 137)


def _is_look(step: int, steps: int) -> bool:
    """Whether the training is validated after a step: fifty times, and at the end."""
    return step * LOOKS // steps > (step - 1) * LOOKS // steps


@torch.no_grad()
def _validated(task: LearningTask, module: torch.nn.Module, part: str) -> float:
    was = module.training
    module.eval()
    loss = float(task.loss(module, task.held_out(part)))
    module.train(was)
    return loss
