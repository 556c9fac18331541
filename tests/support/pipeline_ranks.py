"""One rank of PyTorch's pipeline runtime, with orders from files: ``pipeline_ranks.py MODE RANK SIZE FOLDER``.

``load`` loads every order of a folder on a fake group; ``train`` runs one on gloo and writes its gradients' distance.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

from coppice.iteration.pipeline.torch_csv import read_order_csv

WIDTH = 8


def runtime(file: Path, rank: int, layers: list[nn.Module]) -> schedules._PipelineScheduleRuntime:
    """The runtime of a rank with an order loaded, every stage a layer."""
    order = read_order_csv(file.read_text())
    own = [stage for stage, device in sorted(order.device_of().items()) if device == rank]
    stages = [PipelineStage(layers[stage], stage, order.stages, torch.device("cpu")) for stage in own]
    made = schedules._PipelineScheduleRuntime(
        stages, order.micro_batches, loss_fn=nn.functional.mse_loss, scale_grads=True
    )
    made._load_csv(str(file), format="compute_only")
    return made


def layers_of(count: int) -> list[nn.Module]:
    """Layers that are the same on all ranks, and without a process group."""
    torch.manual_seed(1)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count)]


def load(rank: int, size: int, folder: Path) -> dict[str, object]:
    """What torch says of every order: how many steps its own simulation of all ranks takes."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    found: dict[str, object] = {}
    for file in sorted(folder.glob("*.csv")):
        order = read_order_csv(file.read_text())
        made = runtime(file, rank, layers_of(order.stages))
        skipped = ("UNSHARD", "RESHARD", "REDUCE_GRAD")
        lowered = {
            number: [
                part
                for action in actions
                if action.computation_type.name not in skipped
                for part in (action.sub_actions or (action,))
            ]
            for number, actions in made.pipeline_order_with_comms.items()
        }
        device_of = order.device_of()
        assert made.stage_index_to_group_rank == device_of
        steps = schedules._simulate_comms_compute(lowered, device_of.__getitem__, order.stages)
        found[file.stem] = len(steps[0])
    return found


def train(rank: int, size: int, folder: Path) -> dict[str, object]:
    """How far gradients are from those of one process."""
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=size)
    found: dict[str, object] = {}
    for file in sorted(folder.glob("*.csv")):
        order = read_order_csv(file.read_text())
        layers, alone = layers_of(order.stages), layers_of(order.stages)
        torch.manual_seed(2)
        x, y = torch.randn(4 * order.micro_batches, WIDTH), torch.randn(4 * order.micro_batches, WIDTH)
        made = runtime(file, rank, layers)
        device_of = order.device_of()
        args = (x,) if device_of[0] == rank else ()
        made.step(*args, target=y if device_of[order.stages - 1] == rank else None)
        nn.functional.mse_loss(nn.Sequential(*alone)(x), y).backward()
        own = [stage for stage, device in device_of.items() if device == rank]
        pairs = [
            (mine.grad, theirs.grad)
            for stage in own
            for mine, theirs in zip(layers[stage].parameters(), alone[stage].parameters(), strict=True)
        ]
        assert len(pairs) == 2 * len(own)
        least = min(float(theirs.abs().max()) for _, theirs in pairs)
        found[file.stem] = [max(float((mine - theirs).abs().max()) for mine, theirs in pairs), least]
    dist.barrier()
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    mode, rank, size, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    outcome = {"load": load, "train": train}[mode](rank, size, folder)
    (folder / f"outcome-{rank}.json").write_text(json.dumps(outcome))
