"""Small models whose step takes about a millisecond, many of them trained at once as one stack.

A stack of S models holds all their parameters in one tensor of S rows, so that a step of S models costs little more
calls than a step of one; rates differ from row to row. A stack of one is an ordinary module, which AutoLRS trains with
an ordinary optimizer. What a model draws depends on its seed only, not on the stack that it is in.

* digits: scikit-learn's 1,797 images of 8 x 8, also moved by a pixel; a perceptron, SGD with momentum.
* text: the help topics of Python (``pydoc_data``, 465,000 characters); a perceptron over the last eight characters, SGD
  with momentum.
* transformer: the same text; a causal transformer of two layers of width 32, AdamW.
"""

# Types are checked without torch as well, where its classes are unknown.
# mypy: allow-subclassing-any, allow-untyped-decorators, no-warn-unused-ignores

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from math import prod, sqrt
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

__all__ = ["TASKS", "Feed", "Stack", "StackOptimizer", "Task", "evaluate"]

MOMENTUM, BETAS, EPSILON = 0.9, (0.9, 0.999), 1e-8
_BLOCK = 256
"""Steps whose batches are drawn at once."""

_EVALUATED, _VALIDATED = 256, 64
"""Batches' worth of examples of a text that a test and AutoLRS's validation look at, in eights."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A training.

    Attributes:
        name: Its name.
        batch: Examples per step.
        context: Characters that a text model sees; 0 for images.
        adaptive: Trained with AdamW, not SGD with momentum.
        decay: Weight decay.
        steps: Steps that are kept.
        lr_range: Rates that AutoLRS looks at; the grid of the baselines lies in it.
        grid: Peak rates that the baselines are tuned over.
    """

    name: str
    batch: int
    context: int
    adaptive: bool
    decay: float
    steps: int
    lr_range: tuple[float, float]
    grid: tuple[float, ...]


TASKS = {
    task.name: task
    for task in (
        Task(
            name="digits",
            batch=32,
            context=0,
            adaptive=False,
            decay=1e-4,
            steps=15_000,
            lr_range=(1e-3, 1.0),
            grid=(0.01, 0.03, 0.1, 0.3),
        ),
        Task(
            name="text",
            batch=32,
            context=8,
            adaptive=False,
            decay=1e-6,
            steps=15_000,
            lr_range=(1e-3, 1.0),
            grid=(0.01, 0.03, 0.1, 0.3, 0.6),
        ),
        Task(
            name="transformer",
            batch=4,
            context=32,
            adaptive=True,
            decay=1e-2,
            steps=23_000,
            lr_range=(1e-4, 1e-1),
            grid=(1e-3, 3e-3, 1e-2, 3e-2),
        ),
    )
}

_WIDTH, _LAYERS, _HEADS = 32, 1, 2
_LETTER_WIDTH, _HIDDEN = 8, 64


@cache
def _text() -> tuple[torch.Tensor, int]:
    topics: dict[str, str] = import_module("pydoc_data.topics").topics
    text = "\n".join(topics[name] for name in sorted(topics))
    text = re.sub(r"[^a-z0-9\n .,:;()'\"=-]", "*", re.sub(r"([ \n])\1+", r"\1", text.lower()))
    letters = {letter: number for number, letter in enumerate(sorted(set(text)))}
    return torch.tensor([letters[letter] for letter in text]), len(letters)


@cache
def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Images as they are and moved by a pixel: nine ways by 1,797 by 64; what they show."""
    bunch: Any = import_module("sklearn.datasets").load_digits()
    images = functional.pad(torch.tensor(bunch.images, dtype=torch.float32) / 16, (1, 1, 1, 1))
    ways = [images[:, dy : dy + 8, dx : dx + 8].reshape(-1, 64) for dy in range(3) for dx in range(3)]
    return torch.stack([ways[4], *ways[:4], *ways[5:]]), torch.tensor(bunch.target, dtype=torch.long)


def _digit_rows(seed: int) -> tuple[torch.Tensor, ...]:
    """Rows to train with, to validate, to test."""
    order: Any = torch.randperm(len(_digits()[1]), generator=torch.Generator().manual_seed(seed))
    return tuple(order.split([1078, 359, 360]))


def _text_parts() -> tuple[torch.Tensor, ...]:
    codes, _ = _text()
    nine = len(codes) * 9 // 10
    half = (len(codes) - nine) // 2
    return codes[:nine], codes[nine : nine + half], codes[nine + half :]


class Feed:
    """Batches without end for a stack: a row of each for every model, from its own seed.

    ``state_dict`` and ``load_state_dict`` turn it back.
    """

    def __init__(self, task: Task, seeds: Sequence[int]) -> None:
        self.task = task
        self._own = sorted(set(seeds))
        self._which = torch.tensor([self._own.index(seed) for seed in seeds])
        self._streams = [np.random.default_rng([seed, 1]) for seed in self._own]
        self._step = 0
        self._starts = [stream.bit_generator.state for stream in self._streams]
        self._block = torch.empty(0)
        if task.context:
            self._count = len(_text_parts()[0]) - task.context - 1
        else:
            self._rows = torch.stack([_digit_rows(seed)[0] for seed in self._own])
            self._count = 9 * self._rows.shape[1]

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of a step, a row per model."""
        within = self._step % _BLOCK
        if within == 0:
            self._draw()
        self._step += 1
        drawn = self._block[within]
        if self.task.context:
            windows = _text_parts_cached()[drawn[..., None] + torch.arange(self.task.context + 1)]
            windows = windows[self._which]
            return _question(self.task, windows)
        images, shown = _digits()
        count = self._rows.shape[1]
        rows = torch.gather(self._rows, 1, drawn % count)
        return images[drawn // count, rows][self._which], shown[rows][self._which]

    def _draw(self) -> None:
        self._starts = [stream.bit_generator.state for stream in self._streams]
        size = (_BLOCK, self.task.batch)
        drawn = [stream.integers(self._count, size=size) for stream in self._streams]
        self._block = torch.from_numpy(np.stack(drawn, axis=1))

    def state_dict(self) -> dict[str, Any]:
        """Where it is."""
        return {"step": self._step, "starts": repr(self._starts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to where it was."""
        from ast import literal_eval

        for stream, start in zip(self._streams, literal_eval(state["starts"]), strict=True):
            stream.bit_generator.state = start
        self._step = state["step"]
        if self._step % _BLOCK:
            self._draw()


@cache
def _text_parts_cached() -> torch.Tensor:
    return _text_parts()[0]


def _question(task: Task, windows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets: each next character of a transformer, the last one otherwise."""
    if task.name == "transformer":
        return windows[..., :-1], windows[..., 1:]
    return windows[..., :-1], windows[..., -1]


def _layers(task: Task) -> list[tuple[tuple[int, ...], float | None]]:
    """Shapes of the parameters, and the half width of their uniform beginning; None begins with ones."""

    def linear(inside: int, outside: int) -> list[tuple[tuple[int, ...], float | None]]:
        return [((inside, outside), 1 / sqrt(inside)), ((1, outside), 1 / sqrt(inside))]

    if not task.context:
        return [*linear(64, _HIDDEN), *linear(_HIDDEN, 10)]
    _, letters = _text()
    if task.name == "text":
        return [
            ((letters, _LETTER_WIDTH), sqrt(3)),
            *linear(task.context * _LETTER_WIDTH, _HIDDEN),
            *linear(_HIDDEN, letters),
        ]
    norm: list[tuple[tuple[int, ...], float | None]] = [((1, 1, _WIDTH), None), ((1, 1, _WIDTH), 0.0)]
    block = [
        *norm,
        *linear(_WIDTH, 3 * _WIDTH),
        *linear(_WIDTH, _WIDTH),
        *norm,
        *linear(_WIDTH, 4 * _WIDTH),
        *linear(4 * _WIDTH, _WIDTH),
    ]
    places = ((1, task.context, _WIDTH), 0.03)
    return [((letters, _WIDTH), sqrt(3)), places, *block * _LAYERS, *norm, *linear(_WIDTH, letters)]


class Stack(nn.Module):
    """Models of a task, one per seed; their parameters are the rows of one tensor."""

    def __init__(self, task: Task, seeds: Sequence[int]) -> None:
        super().__init__()
        self.task = task
        layers = _layers(task)
        self._shapes = [shape for shape, _ in layers]
        self._sizes = [prod(shape) for shape in self._shapes]
        rows = {}
        for seed in set(seeds):
            draw = torch.Generator().manual_seed(seed)
            parts = [
                torch.ones(size) if half is None else half * (2 * torch.rand(size, generator=draw) - 1)
                for (_, half), size in zip(layers, self._sizes, strict=True)
            ]
            rows[seed] = torch.cat(parts)
        self.rows = nn.Parameter(torch.stack([rows[seed] for seed in seeds]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of every model for its row of ``x``."""
        count = len(self.rows)
        parts = iter(
            [
                part.view(count, *shape)
                for part, shape in zip(torch.split(self.rows, self._sizes, dim=1), self._shapes, strict=True)
            ]
        )
        if not self.task.context:
            return self._perceptron(x, parts)
        letters = next(parts)
        shift = letters.shape[1] * torch.arange(count)
        seen = functional.embedding(
            x + shift.view(count, *[1] * (x.dim() - 1)), letters.reshape(-1, letters.shape[-1])
        )
        if self.task.name == "text":
            return self._perceptron(seen.flatten(2), parts)
        return self._transformer(seen, parts)

    def _perceptron(self, hidden: torch.Tensor, parts: Any) -> torch.Tensor:
        weights = list(parts)
        for at in range(0, len(weights), 2):
            hidden = torch.baddbmm(weights[at + 1], hidden, weights[at])
            if at + 2 < len(weights):
                hidden = hidden.relu()
        return hidden

    def _transformer(self, hidden: torch.Tensor, parts: Any) -> torch.Tensor:
        hidden = hidden + next(parts)
        count, batch, length, width = hidden.shape
        hidden = hidden.reshape(count, batch * length, width)

        def norm(x: torch.Tensor) -> torch.Tensor:
            scale, shift = next(parts)[:, 0], next(parts)[:, 0]
            normed: torch.Tensor = functional.layer_norm(x, (width,)) * scale + shift
            return normed

        def linear(x: torch.Tensor) -> torch.Tensor:
            weight, bias = next(parts), next(parts)
            return torch.baddbmm(bias, x, weight)

        for _ in range(_LAYERS):
            heads = linear(norm(hidden)).view(count * batch, length, 3, _HEADS, width // _HEADS)
            query, key, value = heads.permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            hidden = hidden + linear(mixed.transpose(1, 2).reshape(count, batch * length, width))
            hidden = hidden + linear(linear(norm(hidden)).relu())
        logits = linear(norm(hidden))
        return logits.view(count, batch, length, -1)

    def losses(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Cross entropy of every model, in nats."""
        logits = self(x)
        flat = functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1), reduction="none")
        means: torch.Tensor = flat.view(len(self.rows), -1).mean(dim=1)
        return means


class StackOptimizer:
    """SGD with momentum or AdamW on a stack, as torch's own but with a rate per model; schedule-free where asked.

    Args:
        stack: What to train.
        free: Models that are trained schedule-free (Defazio et al. 2024); their parameters are ``y``.
    """

    def __init__(self, stack: Stack, *, free: bool = False, warmup: int = 0) -> None:
        self._rows, self._task = stack.rows, stack.task
        self._free, self._warmup, self._done = free, warmup, 0
        self._first, self._second = torch.zeros_like(self._rows), torch.zeros_like(self._rows)
        self._z = self._rows.detach().clone()
        self._weight = torch.zeros(len(self._rows), 1)

    @torch.no_grad()
    def step(self, rates: torch.Tensor) -> None:
        """One step, with a rate per model."""
        self._done += 1
        rate, task, rows = rates.view(-1, 1), self._task, self._rows
        direction = rows.grad
        if direction is None:
            return
        if self._free:
            self._free_step(rate, direction)
        elif task.adaptive:
            self._first.lerp_(direction, 1 - BETAS[0])
            self._second.mul_(BETAS[1]).addcmul_(direction, direction, value=1 - BETAS[1])
            scale = self._second.sqrt().div_((1 - BETAS[1] ** self._done) ** 0.5).add_(EPSILON)
            rows.mul_(1 - rate * task.decay)
            rows.sub_(self._first / scale * (rate / (1 - BETAS[0] ** self._done)))
        else:
            self._first.mul_(MOMENTUM).add_(direction).add_(rows, alpha=task.decay)
            rows.sub_(rate * self._first)
        rows.grad = None

    def _free_step(self, rate: torch.Tensor, direction: torch.Tensor, beta: float = 0.9) -> None:
        y, z = self._rows, self._z
        rate = rate * min(self._done / max(self._warmup, 1), 1.0)
        if self._task.adaptive:
            rate = rate * (1 - BETAS[1] ** self._done) ** 0.5
            self._second.mul_(BETAS[1]).addcmul_(direction, direction, value=1 - BETAS[1])
            direction = direction / (self._second.sqrt() + EPSILON)
        self._weight += rate * rate
        share = rate * rate / self._weight
        x = (y - (1 - beta) * z) / beta
        z.sub_(rate * (direction + self._task.decay * y))
        x.lerp_(z, share)
        y.copy_(beta * x + (1 - beta) * z)

    @torch.no_grad()
    def evaluated(self, beta: float = 0.9) -> torch.Tensor:
        """The rows to evaluate: the averages ``x`` of schedule-free training, else the rows themselves."""
        return (self._rows - (1 - beta) * self._z) / beta if self._free else self._rows.detach().clone()


@torch.no_grad()
def evaluate(
    stack: Stack, seeds: Sequence[int], part: str, *, quick: bool = False
) -> list[tuple[float, float]]:
    """Loss (nats) and share of wrong answers of every model on held-out data; ``quick`` looks at less of a text.

    Args:
        stack: The models.
        seeds: Their seeds, which decide what of the digits is held out.
        part: ``validation`` or ``test``.
        quick: Look at less of a text.
    """
    task, number = stack.task, {"validation": 1, "test": 2}[part]
    if task.context:
        codes = _text_parts()[number]
        windows = codes[: len(codes) - len(codes) % (task.context + 1)].view(-1, task.context + 1)
        most = 8 * (_VALIDATED if quick else _EVALUATED) // (4 if task.name == "transformer" else 1)
        x, y = _question(task, windows[:: max(len(windows) // most, 1)][:most])
        x, y = (part.expand(len(seeds), *part.shape) for part in (x, y))
    else:
        images, shown = _digits()
        rows = torch.stack([_digit_rows(seed)[number] for seed in seeds])
        x, y = images[0][rows], shown[rows]
    logits = stack(x)
    flat = functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1), reduction="none")
    losses = flat.view(len(seeds), -1).mean(dim=1).tolist()
    wrong = (logits.argmax(-1) != y).reshape(len(seeds), -1).float().mean(dim=1).tolist()
    return list(zip(losses, wrong, strict=True))
