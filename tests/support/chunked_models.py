"""A small transformer whose layers are shared by ranks, and the same model whole."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from coppice.training.torch.whole.sections import TensorParallelModule

WIDTH, HEADS, WORDS, LENGTH = 16, 4, 13, 6


class Attention(nn.Module):
    """Some heads: columns of the matrices before them, rows of the one behind."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        own = heads * WIDTH // HEADS
        self.mixed = nn.Linear(WIDTH, 3 * own)
        self.out = nn.Linear(own, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.mixed(x).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(found.transpose(1, 2).flatten(2))


class Perceptron(nn.Module):
    """Some columns of the first matrix, the same rows of the second."""

    def __init__(self, own: int) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, own)
        self.down = nn.Linear(own, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.gelu(self.up(x)))


def transformer(
    seed: int = 0, share: int = 1, place: int = 0, group: dist.ProcessGroup | None = None, layers: int = 2
) -> nn.Module:
    """The model, or a rank's share of it."""
    torch.manual_seed(seed)
    rows: list[nn.Module] = [nn.Embedding(WORDS, WIDTH)]
    for _ in range(layers):
        for whole in (Attention(HEADS), Perceptron(4 * WIDTH)):
            inner: nn.Module = whole
            if share > 1:
                with torch.random.fork_rng():
                    attends = isinstance(whole, Attention)
                    inner = Attention(HEADS // share) if attends else Perceptron(4 * WIDTH // share)
                cut(whole, inner, share, place)
            bias = nn.Parameter(torch.randn(WIDTH) / 10)
            rows.append(TensorParallelModule(inner, norm=nn.LayerNorm(WIDTH), bias=bias, group=group))
    rows.append(nn.Linear(WIDTH, WORDS))
    return nn.Sequential(*rows)


def cut(whole: nn.Module, part: nn.Module, share: int, place: int) -> None:
    """Give a rank its columns of the first matrix and its rows of the second."""
    with torch.no_grad():
        own = dict(part.named_parameters())
        for name, full in whole.named_parameters():
            own[name].copy_(share_of(name, full, share, place))


def share_of(name: str, full: torch.Tensor, share: int, place: int) -> torch.Tensor:
    """A rank's share of a matrix."""
    if name.endswith(("out.weight", "down.weight")):
        return full.chunk(share, dim=1)[place]
    if "mixed" in name:
        return full.unflatten(0, (3, -1)).chunk(share, dim=1)[place].flatten(0, 1)
    return full.chunk(share)[place]


def distance(model: nn.Module, whole: nn.Module, share: int, place: int) -> float:
    """The largest difference of a rank's weights from its share of the whole model's."""
    found = 0.0
    full = dict(whole.named_parameters())
    for name, own in model.state_dict().items():
        other = full[name].detach()
        if ".inner." in name:
            other = share_of(name, other, share, place)
        found = max(found, float((own.detach() - other).abs().max()))
    return found


def words(step: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of all replicas."""
    generator = torch.Generator().manual_seed(step)
    return tuple(torch.randint(WORDS, (rows, LENGTH), generator=generator) for _ in range(2))  # type: ignore[return-value]


def loss_of(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor], rows: slice) -> Any:
    """The loss on some rows."""
    x, y = batch
    return nn.functional.cross_entropy(model(x[rows]).flatten(0, 1), y[rows].flatten())
