"""Reads values of GPU tensors in the way that its argument names."""

import sys

import torch
from torch import nn

model = nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    x = torch.randn(4, 8, device="cuda")
    loss = model(x).square().mean()
    if sys.argv[1] == "if":
        if loss > 3:
            break
    elif sys.argv[1] == "mask":
        x = x[x > 0]
    elif sys.argv[1] == "size":
        count = (x > 0).sum().item()
        x = torch.zeros(count, 8, device="cuda")
    elif sys.argv[1] == "split":
        sizes = torch.histc(x.flatten(), bins=2).int().tolist()
        x = torch.split(torch.zeros(8, 8, device="cuda"), sizes)[0]
        loss = loss + model(x).sum()
    elif sys.argv[1] == "printed":
        print(f"{loss.item():.3f}", float(loss), (x > 0).sum().item() / x.numel())
        if torch.isnan(loss).any() or not torch.isfinite(loss):
            raise ValueError("no number")
    elif sys.argv[1] == "crash":
        raise KeyError("nothing here")
    elif sys.argv[1] == "exit":
        sys.exit(3)
    elif sys.argv[1] == "mixed":
        loss = loss + torch.ones(4)
    elif sys.argv[1] == "graph":
        torch.cuda.CUDAGraph()
    loss.backward()
    optimizer.step()
