"""Small trainings for the AutoLRS benchmark: data that packages bundle, no download, seconds on one core.

* digits: scikit-learn's 1,797 images of 8 x 8, a perceptron with two hidden layers, SGD with momentum.
* text: the help topics of Python (``pydoc_data``, 465,000 characters), a transformer over characters, AdamW.
"""

# Types are checked without torch as well, where its classes are unknown.
# mypy: allow-subclassing-any, allow-untyped-decorators, no-warn-unused-ignores

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.nn import functional

__all__ = ["WORKLOADS", "Split", "Workload", "batches", "evaluate", "load", "loss_of", "make_model"]

CONTEXT = 32
TEXT_EVALUATED = 16_000
"""Characters of the held-out text that a test looks at."""

TEXT_VALIDATED = 4_000
"""Characters that AutoLRS looks at, again and again."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A training.

    Attributes:
        name: Its name.
        steps: Steps that are kept.
        warmup: Steps of AutoLRS's warm-up, to the lowest rate of the grid.
        tau: Steps of AutoLRS's first stage.
        tau_max: Steps of its longest one.
        lr_range: Rates that AutoLRS and the range test look at.
        grid: Peak rates that the baselines are tuned over.
        batch: Examples per step.
        adaptive: Trained with AdamW, not SGD with momentum.
    """

    name: str
    steps: int
    warmup: int
    tau: int
    tau_max: int
    lr_range: tuple[float, float]
    grid: tuple[float, ...]
    batch: int
    adaptive: bool


WORKLOADS = {
    "digits": Workload(
        name="digits",
        steps=2000,
        warmup=0,
        tau=200,
        tau_max=800,
        lr_range=(1e-3, 1.0),
        grid=(0.01, 0.03, 0.1, 0.3),
        batch=64,
        adaptive=False,
    ),
    "text": Workload(
        name="text",
        steps=600,
        warmup=40,
        tau=160,
        tau_max=320,
        lr_range=(3e-4, 3e-2),
        grid=(1e-3, 3e-3, 1e-2, 3e-2),
        batch=16,
        adaptive=True,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Split:
    """Inputs and targets: to train with, to validate, to test."""

    train: tuple[torch.Tensor, torch.Tensor]
    validation: tuple[torch.Tensor, torch.Tensor]
    test: tuple[torch.Tensor, torch.Tensor]


def load(workload: Workload, seed: int) -> Split:
    """The data of a workload; the split of the digits depends on the seed."""
    return _digits(seed) if workload.name == "digits" else _text()


def _digits(seed: int) -> Split:
    bunch: Any = import_module("sklearn.datasets").load_digits()
    x = torch.tensor(bunch.data, dtype=torch.float32) / 16
    y = torch.tensor(bunch.target, dtype=torch.long)
    order: Any = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    parts = [(x[part], y[part]) for part in order.split([1078, 359, 360])]
    return Split(train=parts[0], validation=parts[1], test=parts[2])


def _text() -> Split:
    topics: dict[str, str] = import_module("pydoc_data.topics").topics
    text = "\n".join(topics[name] for name in sorted(topics))
    letters = {letter: number for number, letter in enumerate(sorted(set(text)))}
    codes = torch.tensor([letters[letter] for letter in text])
    nine = len(codes) * 9 // 10
    half = (len(codes) - nine) // 2
    parts = [codes[:nine], codes[nine : nine + half], codes[nine + half :]]
    return Split(train=(parts[0], parts[0]), validation=(parts[1], parts[1]), test=(parts[2], parts[2]))


class Perceptron(nn.Module):
    """64 - 128 - 128 - 10."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        logits: torch.Tensor = self.layers(x)
        return logits


class Transformer(nn.Module):
    """Two layers of width 48, four heads, causal."""

    def __init__(self, letters: int, width: int = 48) -> None:
        super().__init__()
        self.letters = nn.Embedding(letters, width)
        self.places = nn.Parameter(0.02 * torch.randn(CONTEXT, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True, activation="gelu"
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits for the next letter at every place."""
        hidden = self.layers(self.letters(x) + self.places, mask=self.mask, is_causal=True)
        logits: torch.Tensor = self.head(self.norm(hidden))
        return logits


def make_model(workload: Workload, split: Split, seed: int) -> nn.Module:
    """The model with the weights that the seed gives."""
    torch.manual_seed(seed)
    if workload.name == "digits":
        return Perceptron()
    return Transformer(int(split.train[0].max()) + 1)


def batches(workload: Workload, split: Split, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches without end; another stream of random numbers than the model's."""
    rng = random.Random(seed)
    x, y = split.train
    while True:
        if workload.name == "text":
            starts = [rng.randrange(len(x) - CONTEXT - 1) for _ in range(workload.batch)]
            windows = torch.stack([x[start : start + CONTEXT + 1] for start in starts])
            yield windows[:, :-1], windows[:, 1:]
            continue
        order = list(range(len(x)))
        rng.shuffle(order)
        for start in range(0, len(order) - workload.batch + 1, workload.batch):
            chosen = order[start : start + workload.batch]
            yield x[chosen], y[chosen]


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Cross entropy per example or letter, in nats."""
    logits = model(x)
    return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))


def evaluate(
    workload: Workload, model: nn.Module, data: tuple[torch.Tensor, torch.Tensor], *, quick: bool = False
) -> tuple[float, float]:
    """Loss (nats) and share of wrong answers on held-out data; ``quick`` looks at less of a text."""
    x, y = data
    if workload.name == "text":
        count = min(len(x) - 1, TEXT_VALIDATED if quick else TEXT_EVALUATED) // CONTEXT
        x, y = (
            x[: count * CONTEXT].reshape(count, CONTEXT),
            x[1 : count * CONTEXT + 1].reshape(count, CONTEXT),
        )
    was_training = model.training
    model.eval()
    with torch.no_grad():
        logits = model(x)
    model.train(was_training)
    loss = functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))
    wrong = (logits.argmax(-1) != y).float().mean()
    return float(loss), float(wrong)
