"""Layers that are compiled, in 16 bits by autocast, with gradients summed by a hook of the script."""

import torch
import torch.distributed as dist
from gpt import GPT, begin, loss_of


def main():
    device = begin()
    model = GPT(layers=2).to(device)
    for block in model.blocks:
        block.compile(backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    for _ in range(3):
        tokens = torch.randint(0, 512, (4, 65), device=device)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = loss_of(model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
            parameter.grad.div_(dist.get_world_size())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
