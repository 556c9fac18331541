"""FSDP2 with mixed precision, on the device meta first."""

import torch
from gpt import GPT, begin, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def main():
    device = begin()
    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),), mesh_dim_names=("fsdp",))
    with torch.device("meta"):
        model = GPT()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device=device)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    train(model, device)


if __name__ == "__main__":
    main()
