"""What scripts do besides: a scaler, autocast, checkpoints, streams, memory, processes, objects."""

import copy
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 16)
        self.norm = nn.BatchNorm1d(32)
        self.drop = nn.Dropout(0.1)
        self.register_buffer("scale", torch.ones(16))

    def forward(self, x):
        hidden = self.norm(torch.relu(checkpoint(self.first, x, use_reentrant=False)))
        return self.second(self.drop(hidden)) * self.scale


def main(rank, folder):
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 2
    assert "H100" in torch.cuda.get_device_name()
    assert torch.cuda.get_device_capability() == (9, 0)
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29500", rank=rank, world_size=2)
    assert dist.get_backend() == "nccl"
    assert dist.get_world_size() == 2
    torch.cuda.manual_seed_all(0)
    model = Net().cuda()
    assert model.first.weight.is_cuda
    assert model.first.weight.type() == "torch.cuda.FloatTensor"
    assert torch.zeros(2).device.type == "cpu"
    assert torch.arange(3).tolist() == [0, 1, 2]
    average = copy.deepcopy(model)
    model = DistributedDataParallel(model, device_ids=[rank])
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cuda")
    stream, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
    for _ in range(4):
        with torch.cuda.stream(stream):
            x = torch.randn(8, 16).pin_memory().cuda(non_blocking=True)
        torch.cuda.current_stream().wait_stream(stream)
        x.record_stream(stream)
        event.record()
        with torch.autocast("cuda", dtype=torch.float16):
            out = model(x)
            assert out.dtype == torch.float16 or out.dtype == torch.float32
            loss = out.float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        with torch.no_grad():
            for one, other in zip(average.parameters(), model.parameters(), strict=True):
                one.lerp_(other, 0.1)
        torch.cuda.synchronize()
        assert torch.cuda.max_memory_allocated() >= torch.cuda.memory_allocated() > 0
        assert event.elapsed_time(torch.cuda.Event()) > 0
        names = [None] * 2
        dist.all_gather_object(names, "here")
        assert names == ["here", "here"]
        if folder is not None:
            torch.save(model.state_dict(), Path(folder) / "model.pt")
            model.load_state_dict(torch.load(Path(folder) / "model.pt"))
            Path(folder, "log.txt").write_text("a line of its own\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(main, args=(sys.argv[1] if len(sys.argv) > 1 else None,), nprocs=2)
    assert "LOCAL_RANK" in os.environ
