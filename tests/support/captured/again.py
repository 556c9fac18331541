"""A GPT some of which is computed again in the backward pass: `again.py WHAT`, in layers `--every N` or `--first N`."""

import argparse
from functools import partial

import torch.nn.functional as F  # noqa: N812
from gpt import GPT, Block, begin, train
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

again = partial(checkpoint, use_reentrant=False)


class Parts(Block):
    """A layer whose parts are checkpointed by their names."""

    parts = ()

    def part(self, name, function, *inputs):
        return again(function, *inputs) if name in self.parts else function(*inputs)

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def forward(self, x):
        batch, seq, _ = x.shape
        h = self.part("layernorm", self.norm1, x)
        q, k, v = (
            each(h).view(batch, seq, -1, x.shape[-1] // self.heads).transpose(1, 2)
            for each in (self.q_proj, self.k_proj, self.v_proj)
        )
        h = self.part("core_attn", self.attend, q, k, v)
        x = x + self.o_proj(h.transpose(1, 2).reshape(batch, seq, -1))
        h = self.part("layernorm", self.norm2, x)
        return x + self.part("mlp", lambda inner: self.down(F.gelu(self.up(inner))), h)


def every_second_product():
    """What torchtitan keeps: attention, and every second matrix product."""
    seen = {False: 0, True: 0}

    def policy(context, operator, *_, **__):
        name = str(operator)
        if name.startswith(("aten.mm", "aten.addmm")):
            seen[context.is_recompute] += 1
            keep = seen[context.is_recompute] % 2
        else:
            keep = "scaled_dot_product" in name
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def wrapped(block, what):
    """A layer that computes something again."""
    if what in ("full", "operators"):
        contexts = {"context_fn": every_second_product} if what == "operators" else {}
        plain = block.forward
        block.forward = lambda x: again(plain, x, **contexts)
    else:
        block.parts = tuple(what.split("+"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=99)
    options = parser.parse_args()
    device = begin()
    model = GPT(layers=4, block=Parts).to(device)
    for number, each in enumerate(model.blocks):
        if (number + 1) % options.every == 0 and number < options.first:
            wrapped(each, options.what)
    train(model, device)
