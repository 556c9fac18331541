"""Replicas with DDP, a data loader with processes, and a checkpoint."""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from gpt import GPT, begin, loss_of
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path, default=None)
parser.add_argument("--workers", type=int, default=0)
args = parser.parse_args()

if __name__ == "__main__":
    device = begin()
    model = DistributedDataParallel(
        GPT().to(device), device_ids=[device.index] if device.type == "cuda" else None
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, foreach=True)
    data = TensorDataset(torch.randint(0, 512, (64, 65)))
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(
        data,
        batch_size=4,
        sampler=sampler,
        num_workers=args.workers,
        pin_memory=device.type == "cuda",
    )
    for steps, (tokens,) in enumerate(loader, 1):
        tokens = tokens.to(device, non_blocking=True)
        loss = loss_of(model(tokens[:, :-1]), tokens[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if torch.isnan(loss):
            raise ValueError("the loss is no number")
        optimizer.step()
        print("loss", float(loss))
        if args.folder is not None and dist.get_rank() == 0:
            torch.save({"model": model.state_dict(), "step": steps}, args.folder / "model.pt")
        if steps == 3:
            break
    dist.destroy_process_group()
    raise SystemExit(0)
