"""PyTorch's pipelining: two stages, 1F1B, stages that tell each other their shapes."""

import torch
import torch.distributed as dist
from gpt import GPT, begin, loss_of
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


class Stage(nn.Module):
    def __init__(self, whole, first, last, blocks):
        super().__init__()
        self.embedding = whole.embedding if first else None
        self.blocks = nn.ModuleList(blocks)
        self.norm, self.head = (whole.norm, whole.head) if last else (None, None)

    def forward(self, x):
        x = self.embedding(x) if self.embedding is not None else x
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)) if self.head is not None else x


def main():
    device = begin()
    rank, world = dist.get_rank(), dist.get_world_size()
    with torch.device("meta"):
        whole = GPT(layers=4)
    each = 4 // world
    module = Stage(whole, rank == 0, rank == world - 1, whole.blocks[rank * each : (rank + 1) * each])
    module.to_empty(device=device)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.02)
    stage = PipelineStage(module, rank, world, device)
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, foreach=True)
    for _ in range(3):
        tokens = torch.randint(0, 512, (8, 65), device=device)
        losses = []
        if rank == 0:
            schedule.step(tokens[:, :-1])
        else:
            schedule.step(target=tokens[:, 1:].contiguous(), losses=losses)
        optimizer.step()
        optimizer.zero_grad()
        if losses:
            print("loss", torch.stack(losses).mean().item())
    dist.destroy_process_group()


main()
