"""Tensor-parallel blocks as sequences of parts that end in an all-reduce, and Megatron blocks in this form.

Source: Shoeybi et al., "Megatron-LM" (arXiv 1909.08053), section 3.

A part computes, from activations that all ranks of its group hold alike,

    x -> prepare(x) = h -> partial(h), summed over the ranks = s -> finish(x, s)

with ``partial`` the only piece whose weights are split: its result on a rank is one term of the sum, and so is the
gradient of h. Called by itself a part is plain synchronous tensor parallelism, with its two sums, one in each pass.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from coppice.arguments import checked
from coppice.errors import InputError
from coppice.training.torch.core.agree import lost_rank


class ActivationSum:
    """An outstanding all-reduce in place.

    Args:
        tensor: One term, contiguous; not to be touched before :meth:`wait`.
        group: The ranks; None: all.
        alone: There is no other rank.
    """

    def __init__(self, tensor: torch.Tensor, group: dist.ProcessGroup | None, *, alone: bool) -> None:
        self.tensor = tensor
        self._work: Any = None
        if not alone:
            try:
                # Backends keep what they sum for a moment longer: an alias, which no graph hangs on.
                self._work = dist.all_reduce(tensor.detach(), group=group, async_op=True)
            except RuntimeError as error:
                raise lost_rank(error, "sum activations") from error

    def wait(self) -> torch.Tensor:
        """Wait for the result."""
        work, self._work = self._work, None
        if work is not None:
            try:
                work.wait()
            except RuntimeError as error:
                raise lost_rank(error, "sum activations") from error
        return self.tensor


class _Spread(torch.autograd.Function):
    """Identity with all-reduced gradients (Megatron's f)."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, part: SummedPart) -> torch.Tensor:
        ctx.part = part
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return ctx.part.sum(gradients[0].clone(memory_format=torch.contiguous_format)).wait(), None


class _Gathered(torch.autograd.Function):
    """All-reduce with identity gradients (Megatron's g)."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, part: SummedPart) -> torch.Tensor:
        del ctx
        return part.sum(tensor.clone(memory_format=torch.contiguous_format)).wait()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        del ctx
        return gradients[0], None


class AddedSum(nn.Module):
    """Default epilogue of a part: add the reduced output to its input."""

    def forward(self, x: torch.Tensor, summed: torch.Tensor) -> torch.Tensor:
        """Residual sum."""
        return x + summed


class SummedPart(nn.Module):
    """A part of a block that ends in an all-reduce.

    Args:
        partial: From h to one term of the sum, with this rank's weights. The pieces of an ``nn.Sequential`` are
            operations of their own for policies that compute some of them again.
        finish: ``finish(x, summed)``, what follows the sum: bias, dropout, residual. Default: ``x + summed``.
        prepare: From x to h, such as a norm. Default: h is x.
        group: The ranks that share ``partial``; None: all.

    Pieces take and give one tensor, with sequences first, and change no tensor that they are given. What they draw
    at random has to be alike on all ranks in ``prepare`` and ``finish``.

    Examples:
        >>> part = SummedPart(nn.Linear(4, 4, bias=False), prepare=nn.LayerNorm(4))
        >>> part(torch.zeros(2, 3, 4)).shape
        torch.Size([2, 3, 4])
    """

    def __init__(
        self,
        partial: nn.Module,
        finish: nn.Module | None = None,
        *,
        prepare: nn.Module | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.prepare = prepare if prepare is not None else nn.Identity()
        self.partial = partial
        self.finish = finish if finish is not None else AddedSum()
        self.group = group
        self.ranks = dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1

    def sum(self, tensor: torch.Tensor) -> ActivationSum:
        """Start the all-reduce of a term."""
        return ActivationSum(tensor, self.group, alone=self.ranks == 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the whole part without overlap."""
        spread: Any = _Spread.apply
        gathered: Any = _Gathered.apply
        summed = gathered(self.partial(spread(self.prepare(x), self)), self)
        made: torch.Tensor = self.finish(x, summed)
        return made


def parts_of(blocks: nn.Module) -> list[list[SummedPart]]:
    """Parts of sequential blocks, block by block.

    Args:
        blocks: An ``nn.Sequential`` of blocks; a block is a part, or a row of them (``nn.Sequential``).
    """
    found: list[list[SummedPart]] = []
    for number, block in enumerate(_row(blocks)):
        own = [block] if isinstance(block, SummedPart) else _row(block)
        for each in own or [block]:
            if not isinstance(each, SummedPart):
                raise InputError(
                    f"expected blocks that are rows of SummedPart, found {type(each).__name__} in block {number}: "
                    "write it as `partial` and what follows its sum as `finish`, or keep it outside."
                )
        found.append([each for each in own if isinstance(each, SummedPart)])
    if not found:
        raise InputError("expected 1 block or more, found none.")
    return found


def _row(module: nn.Module) -> list[nn.Module]:
    """Modules in sequence, repetitions included."""
    return list(module) if isinstance(module, nn.Sequential) else list(module.children())


class MegatronBlock(nn.Sequential):
    """Attention and MLP of a transformer, split over ranks by heads and by columns, as in Megatron-LM.

    Args:
        width: Width of activations.
        heads: Heads of attention.
        hidden: Width inside the MLP; None: four times as wide.
        dropout: Share of attention and of sums that is dropped.
        causal: Tokens see those before them only.
        group: The ranks; None: all. A pair: those of attention, and those of the MLP.

    Weights are drawn whole, on every rank alike, and split then: ranks that start from one seed hold the parts of one
    block. Input: (sequences, tokens, width).

    Raises:
        InputError: If heads or hidden are not multiples of the ranks, or the width is not one of the heads.

    Examples:
        >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
        <...>
        >>> MegatronBlock(8, 2)(torch.zeros(1, 3, 8)).shape
        torch.Size([1, 3, 8])
    """

    @checked
    def __init__(
        self,
        width: int,
        heads: int,
        *,
        hidden: int | None = None,
        dropout: float = 0.0,
        causal: bool = True,
        group: Any = None,
    ) -> None:
        pair = group if isinstance(group, tuple) else (group, group)
        (ranks, rank), (beside, place) = (_ranks_of(each) for each in pair)
        hidden = 4 * width if hidden is None else hidden
        if heads % ranks or hidden % beside or width % heads:
            counts = f"{ranks}" if ranks == beside else f"{ranks} and {beside}"
            raise InputError(
                f"expected heads and a hidden width that {counts} ranks divide, and a width that the heads divide, "
                f"found heads={heads}, hidden={hidden} and width={width}."
            )
        mine, columns = slice(rank, None, ranks), slice(place, None, beside)
        # By heads: rows of queries, keys and values of the same heads stay together.
        split = nn.Linear(width, 3 * width)
        ahead = nn.Linear(width, width)
        wide, back = nn.Linear(width, hidden), nn.Linear(hidden, width)
        size = width // heads

        def by_heads(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.view(3, heads, size, -1)[:, mine].flatten(0, 2)

        attention = nn.Sequential(
            _linear(by_heads(split.weight), by_heads(split.bias).flatten()),
            _HeadAttention(heads // ranks, dropout, causal=causal, rank=rank),
            _linear(ahead.weight.view(width, heads, size)[:, mine].flatten(1)),
        )
        mlp = nn.Sequential(
            _linear(wide.weight[columns], wide.bias[columns]), nn.GELU(), _linear(back.weight[:, columns])
        )
        super().__init__(
            SummedPart(
                attention, _BiasDropoutAdd(ahead.bias, dropout), prepare=nn.LayerNorm(width), group=pair[0]
            ),
            SummedPart(mlp, _BiasDropoutAdd(back.bias, dropout), prepare=nn.LayerNorm(width), group=pair[1]),
        )


def _ranks_of(group: Any) -> tuple[int, int]:
    """Size of a group, and this rank's index in it."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1, 0
    return dist.get_world_size(group), dist.get_rank(group)


def _linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> nn.Linear:
    """Linear layer with given weights."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    made.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        made.bias = nn.Parameter(bias.detach().clone())
    return made


class _BiasDropoutAdd(nn.Module):
    """Epilogue of Megatron's all-reduces."""

    def __init__(self, bias: torch.Tensor, dropout: float) -> None:
        super().__init__()
        self.bias = nn.Parameter(bias.detach().clone())
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, summed: torch.Tensor) -> torch.Tensor:
        dropped: torch.Tensor = self.dropout(summed + self.bias)
        return x + dropped


class _HeadAttention(nn.Module):
    """Attention of a rank's heads; ranks use different dropout seeds."""

    def __init__(self, heads: int, dropout: float, *, causal: bool, rank: int) -> None:
        super().__init__()
        self.heads, self.dropout, self.causal, self.rank = heads, dropout, causal, rank

    def forward(self, mixed: torch.Tensor) -> torch.Tensor:
        rows, tokens, _ = mixed.shape
        q, k, v = mixed.view(rows, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.dropout and self.training:
            seed = int(torch.randint(2**62, (), device="cpu")) + self.rank
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            if self.causal:
                later = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1)
                scores = scores.masked_fill(later, -math.inf)
            own = torch.Generator(q.device).manual_seed(seed)
            kept = torch.empty_like(scores).bernoulli_(1 - self.dropout, generator=own)
            seen = (scores.softmax(-1) * kept / (1 - self.dropout)) @ v
        else:
            seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        joined: torch.Tensor = seen.transpose(1, 2).flatten(2)
        return joined
