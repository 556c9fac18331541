"""Policies of overlap and rewritten tensor-parallel graphs on GPUs over NCCL, with weights compared to plain training.

    python benchmarks/gpu_policies.py                  # a rank for each GPU of this machine
    python benchmarks/gpu_policies.py --cpu 2          # the same program on two CPU processes over gloo, to try it

Every policy trains a transformer's feed-forward layers beside DistributedDataParallel: the time of a step, and the
greatest difference of any weight after 20 steps. `decomposition` and `coconet` rewrite a tensor-parallel layer and are
compared to the same layer as torch compiles it. NCCL wants a GPU for each rank; on a machine with one GPU there is one
rank, so streams and events are at work and the network is not. Without a GPU this prints a line and ends.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.multiprocessing as processes
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from coppice.training.torch import schedule, tensor_overlap
from tables import Table

POLICIES: list[tuple[str, dict[str, Any]]] = [
    ("ddp", {}),
    ("wfbp", {}),
    ("bytescheduler", {"partition_bytes": 4 * 2**20, "credit_bytes": 8 * 2**20}),
    ("dear", {}),
    ("p3", {"slice_elements": 2**20}),
    ("tictac", {}),
    ("pace", {}),
    ("ooo", {}),
    ("poseidon", {}),
    ("gradientflow", {}),
]
PASSES: list[tuple[str, dict[str, Any]]] = [("decomposition", {}), ("coconet", {})]
STEPS = 20
LIKE = 2e-5
"""Sums of the same numbers in another order, and 20 steps with momentum on them."""


class Layers(nn.Module):
    """Feed-forward layers with residuals."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )
            for _ in range(depth)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def trained(model: nn.Module, optimizer: Any, device: torch.device, width: int) -> float:
    """Median seconds of a step behind the first ten; weights are what they are after 20."""
    times = []
    for step in range(STEPS):
        generator = torch.Generator(device).manual_seed(1000 * step + dist.get_rank())
        x, y = (torch.randn(256, width, device=device, generator=generator) for _ in range(2))
        synchronize(device)
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss: Any = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        synchronize(device)
        times.append(time.perf_counter() - begin)
    if hasattr(optimizer, "flush"):
        optimizer.flush()
    synchronize(device)
    return statistics.median(times[STEPS // 2 :])


def distance(a: nn.Module, b: nn.Module) -> float:
    """The greatest difference of their weights, on any rank."""
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    with torch.no_grad():
        most = torch.stack([(one - other).abs().max() for one, other in pairs]).max()
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return float(most)


def policies(device: torch.device, width: int, depth: int) -> list[tuple[str, ...]]:
    """A row for each policy."""
    torch.manual_seed(0)
    start = Layers(width, depth).to(device)

    def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    plain = copy.deepcopy(start)
    wrapped = DistributedDataParallel(plain, device_ids=[device.index] if device.type == "cuda" else None)
    rows: list[tuple[str, ...]] = [
        (
            "DistributedDataParallel",
            f"{1e3 * trained(wrapped, optimizer_of(plain), device, width):.2f}",
            "",
            "",
        )
    ]
    for name, settings in POLICIES:
        model = copy.deepcopy(start)
        try:
            _, optimizer = schedule(model, optimizer_of(model), name, **settings)
            seconds = trained(model, optimizer, device, width)
            apart = distance(model, plain)
            optimizer.close()
        except Exception as error:  # noqa: BLE001 (told in the table, the next one is tried)
            rows.append((name, "", "", f"FAILED: {str(error).splitlines()[0]}"))
            continue
        rows.append((name, f"{1e3 * seconds:.2f}", f"{apart:.1e}", "equal" if apart <= LIKE else "DIFFERENT"))
    return rows


class Parallel(nn.Module):
    """A layer whose sequence is gathered before the first product and scattered behind the second."""

    def __init__(self, width: int, ranks: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width // ranks, bias=False)
        self.down = nn.Linear(4 * width // ranks, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        group: Any = dist.group.WORLD
        whole = functional.all_gather_tensor_autograd(x, 0, group)
        made = self.down(torch.relu(self.up(whole)))
        scattered: torch.Tensor = functional.reduce_scatter_tensor_autograd(made, "sum", 0, group)
        return scattered


def passes(device: torch.device, width: int) -> list[tuple[str, ...]]:
    """A row for each pass over the graphs of a tensor-parallel layer."""
    ranks = dist.get_world_size()
    rows: list[tuple[str, ...]] = []
    torch.manual_seed(dist.get_rank())
    start = Parallel(width, ranks).to(device)
    reference: nn.Module | None = None
    for name, settings in [("torch.compile", {}), *PASSES]:
        model = copy.deepcopy(start)
        try:
            overlap: Any = tensor_overlap(name, **settings) if reference is not None else "aot_eager"
            compiled: Any = torch.compile(model, backend=overlap)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
            seconds = trained(compiled, optimizer, device, width)
            apart = 0.0 if reference is None else distance(model, reference)
            regions = len(overlap.regions) if reference is not None else 0
        except Exception as error:  # noqa: BLE001 (told in the table, the next one is tried)
            rows.append((name, "", "", f"FAILED: {str(error).splitlines()[0]}"))
            if reference is None:
                return rows
            continue
        said = (
            ""
            if reference is None
            else ("equal" if apart <= LIKE else "DIFFERENT") + f", {regions} collectives"
        )
        rows.append((name, f"{1e3 * seconds:.2f}", "" if reference is None else f"{apart:.1e}", said))
        reference = reference or model
    return rows


def work(rank: int, ranks: int, kind: str, store: str, width: int, depth: int) -> None:
    """One rank."""
    warnings.simplefilter("ignore")
    torch.backends.cuda.matmul.allow_tf32 = False
    device = torch.device(kind, rank) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    backend = "nccl" if kind == "cuda" else "gloo"
    shared = dist.FileStore(store, ranks)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=shared, rank=rank, world_size=ranks)
    rows = [*policies(device, width, depth), *passes(device, width)]
    if rank == 0:
        name = torch.cuda.get_device_name(device) if kind == "cuda" else "CPU"
        table = Table(
            title=f"{ranks} x {name}, {backend}, torch {torch.__version__}",
            header=("policy or pass", "step ms", "greatest difference", "weights after 20 steps"),
            rows=rows,
        )
        if ranks == 1:
            table.notes.append("One rank: streams and events are at work, the network is not.")
        print(table.text(), flush=True)
    dist.barrier()
    os._exit(0)  # a policy that failed may have left threads behind


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cpu", type=int, default=0, metavar="RANKS", help="CPU processes over gloo instead")
    parser.add_argument("--width", type=int, default=0, help="1024 on GPUs, 64 on CPUs")
    parser.add_argument("--depth", type=int, default=8)
    given = parser.parse_args()
    kind = "cpu" if given.cpu else "cuda"
    if kind == "cuda" and not torch.cuda.is_available():
        print("no GPU: nothing was measured; --cpu 2 tries the program over gloo")
        return
    ranks = given.cpu or torch.cuda.device_count()
    width = given.width or (64 if given.cpu else 1024)
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        given_all = ranks, kind, store, width, given.depth
        processes.spawn(work, args=given_all, nprocs=ranks)  # type: ignore[attr-defined,no-untyped-call]


if __name__ == "__main__":
    main()
