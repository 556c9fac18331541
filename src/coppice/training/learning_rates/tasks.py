"""Small trainings on data that is made or that Python ships: pictures, sequences to translate, text with gaps.

Each stands for a training of the AutoLRS paper (ICLR'21, section 5) with the optimizer and the schedule of the work it
was taken from: a residual net (Goyal et al. 2017, section 5.1), a transformer (Vaswani et al. 2017, section 5.3), a
masked language model (Devlin et al. 2019, appendix A.2).
"""

# Types are checked without torch as well, where its classes are unknown.
# mypy: allow-subclassing-any, allow-untyped-decorators, no-warn-unused-ignores

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from math import pi
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Batch = tuple[torch.Tensor, torch.Tensor]
Schedule = Callable[[float], float]
"""Learning rate as a share of its peak, for a share of the training."""


@dataclass(frozen=True, kw_only=True)
class LearningTask:
    """A training: model, data, optimizer, and the schedule of the work that it stands for."""

    name: str
    module: Callable[[], nn.Module]  # Makes the model from the random numbers that are next
    batch: Callable[[int, torch.Generator], Batch]  # Inputs and targets of one step, of so many examples
    held_out: Callable[[str], Batch]  # What the `validation` or the `test` looks at
    optimizer: Callable[[Iterable[nn.Parameter], float], torch.optim.Optimizer]  # As published, at a rate
    schedule: Schedule  # As published, scaled to the length of the training
    batch_size: int
    rates: tuple[float, ...]  # Peak rates that schedules are tuned over
    lr_range: tuple[float, float]  # Rates that AutoLRS looks at

    def seeded(self, seed: int) -> nn.Module:
        """Make the model with the weights that a seed gives."""
        torch.manual_seed(seed)
        return self.module()

    def next_batch(self, numbers: torch.Generator) -> Batch:
        """Draw the inputs and targets of one step."""
        return self.batch(self.batch_size, numbers)

    def loss(self, module: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean cross entropy in nats; targets below zero do not count."""
        inputs, targets = batch
        logits = module(inputs)
        return functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), ignore_index=-1
        )


def _stepped(share: float) -> float:
    """Rise over 5 of 90 epochs; a tenth from epochs 30, 60 and 80 on."""
    if share < 5 / 90:
        return share * 90 / 5
    falls: float = 10.0 ** -sum(share >= epoch / 90 for epoch in (30, 60, 80))
    return falls


def _inverse_root(share: float) -> float:
    """Rise over 4,000 of 100,000 steps, then with the inverse square root of the step."""
    rise = 0.04
    return share / rise if share < rise else float((rise / share) ** 0.5)


def _linear(share: float) -> float:
    """Rise over 10,000 of 1,000,000 steps, then fall linearly to zero."""
    return share / 0.01 if share < 0.01 else (1 - share) / 0.99


class _ResidualNet(nn.Module):
    """A convolution, two residual blocks of 8 and 16 channels, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.blocks = nn.ModuleList(_ResidualBlock(a, b) for a, b in ((8, 8), (8, 16)))
        self.norm, self.last = nn.BatchNorm2d(16), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        for block in self.blocks:
            hidden = block(hidden)
        logits: torch.Tensor = self.last(functional.relu(self.norm(hidden)).mean((2, 3)))
        return logits


class _ResidualBlock(nn.Module):
    """Normalised before each of two convolutions; half the size where there are more channels."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.norms = nn.ModuleList((nn.BatchNorm2d(inputs), nn.BatchNorm2d(outputs)))
        self.one = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.two = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.past = nn.Identity() if stride == 1 else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.one(functional.relu(self.norms[0](x)))
        hidden = self.two(functional.relu(self.norms[1](hidden)))
        sum_of_both: torch.Tensor = self.past(x) + hidden
        return sum_of_both


def _some_pictures(count: int, numbers: torch.Generator) -> Batch:
    pictures, kinds = _pictures()
    chosen = torch.randint(4096, (count,), generator=numbers)
    return pictures[chosen], kinds[chosen]


def _other_pictures(part: str) -> Batch:
    pictures, kinds = _pictures()
    begin = 4096 if part == "validation" else 4608
    return pictures[begin : begin + 512], kinds[begin : begin + 512]


@cache
def _pictures() -> Batch:
    """5,120 pictures with their kinds: direction k x 18 degrees, any phase, near frequencies, much noise."""
    numbers = torch.Generator().manual_seed(1)
    count, side = 5120, 8
    kinds = torch.randint(10, (count,), generator=numbers)
    turn = kinds * pi / 10 + 0.08 * torch.randn(count, generator=numbers)
    phase = 2 * pi * torch.rand(count, generator=numbers)
    frequency = 2 * pi * (0.15 + 0.1 * torch.rand(count, generator=numbers))
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    along = x * torch.cos(turn)[:, None, None] + y * torch.sin(turn)[:, None, None]
    waves = torch.cos(frequency[:, None, None] * along + phase[:, None, None])
    noise = torch.randn(count, side, side, generator=numbers)
    return (waves + noise)[:, None], kinds


_WORDS, _LENGTH = 24, 10


class _Translator(nn.Module):
    """Encoder and decoder of one layer each, width 32, four heads."""

    def __init__(self) -> None:
        super().__init__()
        width = 32
        self.words = nn.Embedding(_WORDS + 1, width)
        self.places = nn.Parameter(0.02 * torch.randn(_LENGTH, width))
        options: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        self.encoder = nn.TransformerEncoderLayer(width, 4, 4 * width, **options)
        self.decoder = nn.TransformerDecoderLayer(width, 4, 4 * width, **options)
        self.norms = nn.ModuleList((nn.LayerNorm(width), nn.LayerNorm(width)))
        self.last = nn.Linear(width, _WORDS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(_LENGTH))

    def forward(self, both: torch.Tensor) -> torch.Tensor:
        source, before = both[:, 0], both[:, 1]
        read = self.norms[0](self.encoder(self.words(source) + self.places))
        hidden = self.decoder(self.words(before) + self.places, read, tgt_mask=self.mask, tgt_is_causal=True)
        logits: torch.Tensor = self.last(self.norms[1](hidden))
        return logits


def _other_translations(part: str) -> Batch:
    return _translations(256, torch.Generator().manual_seed(2 if part == "validation" else 3))


def _translations(count: int, numbers: torch.Generator) -> Batch:
    """Sources with the words before each target, and targets: rotated by the first word, one word in ten another."""
    dictionary = torch.randperm(_WORDS, generator=torch.Generator().manual_seed(4))
    source = torch.randint(_WORDS, (count, _LENGTH), generator=numbers)
    places = (torch.arange(_LENGTH) + source[:, :1]) % _LENGTH
    target = dictionary[source.gather(1, places)]
    other = torch.randint(_WORDS, target.shape, generator=numbers)
    target = torch.where(torch.rand(target.shape, generator=numbers) < 0.1, other, target)
    before = torch.cat((torch.full((count, 1), _WORDS), target[:, :-1]), 1)
    return torch.stack((source, before), 1), target


_CONTEXT = 32


class _Masked(nn.Module):
    """Two layers of width 48, four heads, that look both ways."""

    def __init__(self) -> None:
        super().__init__()
        width, letters = 48, int(_letters().max()) + 1
        self.letters = nn.Embedding(letters + 1, width)
        self.places = nn.Parameter(0.02 * torch.randn(_CONTEXT, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True, activation="gelu"
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, letters)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.last(self.norm(self.layers(self.letters(x) + self.places)))
        return logits


def _some_gaps(count: int, numbers: torch.Generator) -> Batch:
    text = _letters()
    return _hidden(text[: len(text) * 9 // 10], count, numbers)


def _other_gaps(part: str) -> Batch:
    text = _letters()
    nine, half = len(text) * 9 // 10, len(text) // 20
    begin = nine if part == "validation" else nine + half
    return _hidden(text[begin : begin + half], 256, torch.Generator().manual_seed(len(part)))


@cache
def _letters() -> torch.Tensor:
    """The topics that ``help()`` knows, as numbers of letters."""
    topics: dict[str, str] = import_module("pydoc_data.topics").topics
    text = "\n".join(topics[name] for name in sorted(topics))
    numbers = {letter: number for number, letter in enumerate(sorted(set(text)))}
    return torch.tensor([numbers[letter] for letter in text])


def _hidden(text: torch.Tensor, count: int, numbers: torch.Generator) -> Batch:
    """Pieces of a text with gaps, and what stood there (-1 elsewhere)."""
    starts = torch.randint(len(text) - _CONTEXT, (count, 1), generator=numbers)
    pieces = text[starts + torch.arange(_CONTEXT)]
    gaps = torch.rand(pieces.shape, generator=numbers) < 0.15
    mask = int(_letters().max()) + 1
    return torch.where(gaps, mask, pieces), torch.where(gaps, pieces, -1)


TASKS = {
    # Gratings in noise, classified by a residual net
    "pictures": LearningTask(
        name="pictures",
        module=_ResidualNet,
        batch=_some_pictures,
        held_out=_other_pictures,
        optimizer=lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=1e-4),
        schedule=_stepped,
        batch_size=32,
        rates=(0.03, 0.1, 0.3, 1.0),
        lr_range=(1e-3, 3.0),
    ),
    # Words replaced by a dictionary, and rotated by as many places as the first word says
    "translation": LearningTask(
        name="translation",
        module=_Translator,
        batch=_translations,
        held_out=_other_translations,
        optimizer=lambda parameters, lr: torch.optim.Adam(parameters, lr=lr, betas=(0.9, 0.98), eps=1e-9),
        schedule=_inverse_root,
        batch_size=32,
        rates=(1e-3, 3e-3, 1e-2, 3e-2),
        lr_range=(1e-4, 0.1),
    ),
    # Letters of the help topics of Python, 15% of them hidden
    "masked": LearningTask(
        name="masked",
        module=_Masked,
        batch=_some_gaps,
        held_out=_other_gaps,
        optimizer=lambda parameters, lr: torch.optim.AdamW(parameters, lr=lr, weight_decay=0.01),
        schedule=_linear,
        batch_size=32,
        rates=(1e-3, 3e-3, 1e-2, 3e-2),
        lr_range=(1e-4, 0.1),
    ),
}
"""Tasks by name."""
