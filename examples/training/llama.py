"""A Llama: RMS norms, rotary positions, grouped keys and values, a gated MLP."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


@dataclass
class ModelArgs:
    """Numbers of the model."""

    dim: int = 64
    n_layers: int = 4
    n_heads: int = 8
    n_kv_heads: int = 4
    ffn_dim: int = 176
    vocab_size: int = 512
    max_seq_len: int = 64


class Attention(nn.Module):
    """Attention with grouped keys and values."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.head_dim = args.dim // args.n_heads
        self.wq = nn.Linear(args.dim, args.n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(args.dim, args.n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(args.dim, args.n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(args.n_heads * self.head_dim, args.dim, bias=False)

    def forward(self, x: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
        """Attend; the number of heads is that of this rank."""
        batch, seq, _ = x.shape
        q, k, v = (w(x).view(batch, seq, -1, self.head_dim) for w in (self.wq, self.wk, self.wv))
        q, k = rotated(q, freqs), rotated(k, freqs)
        repeats = q.shape[2] // k.shape[2]
        k, v = (each.repeat_interleave(repeats, dim=2) for each in (k, v))
        out = F.scaled_dot_product_attention(*(each.transpose(1, 2) for each in (q, k, v)), is_causal=True)
        return self.wo(out.transpose(1, 2).reshape(batch, seq, -1))


def rotated(x: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
    """Rotate halves of each head by its position."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = freqs[: x.shape[1], None, :].cos(), freqs[: x.shape[1], None, :].sin()
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).type_as(x)


class FeedForward(nn.Module):
    """Gated MLP."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.w1 = nn.Linear(args.dim, args.ffn_dim, bias=False)
        self.w2 = nn.Linear(args.ffn_dim, args.dim, bias=False)
        self.w3 = nn.Linear(args.dim, args.ffn_dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class TransformerBlock(nn.Module):
    """A layer."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.attention = Attention(args)
        self.feed_forward = FeedForward(args)
        self.attention_norm = nn.RMSNorm(args.dim)
        self.ffn_norm = nn.RMSNorm(args.dim)

    def forward(self, x: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
        """Run it."""
        x = x + self.attention(self.attention_norm(x), freqs)
        return x + self.feed_forward(self.ffn_norm(x))


class Transformer(nn.Module):
    """The model."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.args = args
        self.tok_embeddings = nn.Embedding(args.vocab_size, args.dim)
        self.register_buffer("freqs", self._freqs(), persistent=False)
        self.layers = nn.ModuleDict({str(each): TransformerBlock(args) for each in range(args.n_layers)})
        self.norm = nn.RMSNorm(args.dim)
        self.output = nn.Linear(args.dim, args.vocab_size, bias=False)

    def _freqs(self) -> torch.Tensor:
        half = self.args.dim // self.args.n_heads // 2
        rates = 10000.0 ** (-torch.arange(half, dtype=torch.float32) / half)
        return torch.outer(torch.arange(self.args.max_seq_len, dtype=torch.float32), rates)

    def init_weights(self, device: torch.device) -> None:
        """Fill what was made on the device meta."""
        with device:
            self.freqs = self._freqs()
        for name, each in self.named_parameters():
            if "norm" in name:
                nn.init.ones_(each)
            else:
                nn.init.trunc_normal_(each, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the next words."""
        x = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            x = layer(x, self.freqs)
        return self.output(self.norm(x))
