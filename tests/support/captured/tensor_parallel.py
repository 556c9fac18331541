"""DTensor's tensor parallelism."""

import torch
import torch.distributed as dist
from gpt import GPT, begin, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

device = begin()
mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("tp",))
model = GPT().to(device)
columns, rows = ("q_proj", "k_proj", "v_proj", "up"), ("o_proj", "down")
for block in model.blocks:
    parallelize_module(
        block,
        mesh,
        {name: ColwiseParallel() for name in columns} | {name: RowwiseParallel() for name in rows},
    )
groups = ([], [])
for parameter in model.parameters():
    groups[isinstance(parameter, DTensor)].append(parameter)
optimizer = torch.optim.AdamW([{"params": each} for each in groups], lr=1e-3, foreach=True)
train(model, device, optimizer=optimizer)
