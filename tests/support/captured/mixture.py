"""A mixture of experts with slots: a token goes to two of four experts, which ranks shard."""

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from gpt import GPT, Block, begin, train
from torch import nn


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        del ctx
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, grad):
        del ctx
        out = torch.empty_like(grad)
        dist.all_to_all_single(out, grad.contiguous())
        return out


class Mixture(nn.Module):
    def __init__(self, width, ffn, experts=4, top_k=2):
        super().__init__()
        self.number, self.top_k = experts, top_k
        self.router = nn.Linear(width, experts, bias=False)
        local = experts // dist.get_world_size()
        self.w_up = nn.Parameter(torch.randn(local, width, ffn) * 0.02)
        self.w_down = nn.Parameter(torch.randn(local, ffn, width) * 0.02)

    def forward(self, x):
        tokens = x.flatten(0, 1)
        weights, chosen = self.router(tokens).softmax(-1).topk(self.top_k, dim=-1)
        slots = tokens.shape[0] * self.top_k // self.number
        mask = F.one_hot(chosen.flatten(), self.number)
        place = (mask.cumsum(0) - 1).gather(1, chosen.flatten()[:, None]).squeeze(1).clamp(max=slots - 1)
        row = chosen.flatten() * slots + place
        source = tokens.repeat_interleave(self.top_k, dim=0)
        sent = tokens.new_zeros(self.number * slots, tokens.shape[-1]).index_copy(0, row, source)
        received = Exchange.apply(sent)
        world, local = dist.get_world_size(), self.w_up.shape[0]
        grouped = received.view(world, local, slots, -1).transpose(0, 1).reshape(local, world * slots, -1)
        out = torch.bmm(F.relu(torch.bmm(grouped, self.w_up)), self.w_down)
        back = out.view(local, world, slots, -1).transpose(0, 1).reshape(self.number * slots, -1)
        found = Exchange.apply(back)[row].view(-1, self.top_k, x.shape[-1])
        return (found * weights.unsqueeze(-1)).sum(1).view_as(x)


class MixtureBlock(Block):
    def __init__(self, width, heads):
        super().__init__(width, heads)
        del self.up, self.down
        self.mixture = Mixture(width, 2 * width)

    def forward(self, x):
        batch, seq, width = x.shape
        h = self.norm1(x)
        q, k, v = (
            each(h).view(batch, seq, self.heads, -1).transpose(1, 2)
            for each in (self.q_proj, self.k_proj, self.v_proj)
        )
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, seq, width)
        x = x + self.o_proj(h)
        return x + self.mixture(self.norm2(x))


class Summed:
    """An optimizer that sums gradients of all but the experts over replicas first."""

    def __init__(self, model):
        self.shared = [each for name, each in model.named_parameters() if ".w_" not in name]
        self.inner = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)

    def step(self):
        flat = torch.cat([each.grad.flatten() for each in self.shared])
        dist.all_reduce(flat)
        at = 0
        for each in self.shared:
            each.grad.copy_(flat[at : at + each.numel()].view_as(each))
            at += each.numel()
        del flat
        self.inner.step()

    def zero_grad(self):
        self.inner.zero_grad()


if __name__ == "__main__":
    device = begin()
    model = GPT(block=MixtureBlock).to(device)
    train(model, device, optimizer=Summed(model))
