"""A module to import: ``coppice train import examples/iteration/module.py:build --parallel dp=16``."""

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def build() -> tuple[nn.Module, torch.Tensor]:
    """Eight blocks of two matrices, as any program would make them."""
    blocks = [nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)) for _ in range(8)]
    return nn.Sequential(*blocks).bfloat16(), torch.randn(4096, 1024, dtype=torch.bfloat16)


def parallelized(mesh: Any) -> tuple[nn.Module, torch.Tensor]:
    """The same, with tensor parallelism inside replicas that share parameters out."""
    module, inputs = build()
    for block in module.children():
        parallelize_module(block, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    return fully_shard(module, mesh=mesh["dp"]), inputs
