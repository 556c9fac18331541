"""A small GPT and what the scripts beside it share, as a trainer's own folder has it."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width) for _ in range(3))
        self.o_proj = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, seq, _ = x.shape
        h = self.norm1(x)
        q, k, v = (
            each(h).view(batch, seq, -1, x.shape[-1] // self.heads).transpose(1, 2)
            for each in (self.q_proj, self.k_proj, self.v_proj)
        )
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(h.transpose(1, 2).reshape(batch, seq, -1))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, vocab=512, width=64, heads=4, layers=3, *, block=Block):
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def begin():
    """Device of this rank, in a process group."""
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if on_gpu else "gloo")
    torch.manual_seed(0)
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


def loss_of(scores, tokens):
    return F.cross_entropy(scores.flatten(0, 1), tokens.flatten())


def train(model, device, *, steps=3, batch=4, seq=64, optimizer=None):
    """Train as all loops do."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    for step in range(steps):
        tokens = torch.randint(0, 512, (batch, seq + 1)).to(device)
        loss = loss_of(model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print("step", step, "loss", loss.item())
    dist.destroy_process_group()
