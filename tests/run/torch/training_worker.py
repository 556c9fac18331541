"""One rank that trains small models in every parallel way, in several settings: the losses must be gloo's."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from worker import FOLDER, MODES, RANK, RANKS, world

warnings.simplefilter("ignore")
STEPS = 4
WIDTH = 16
Losses = list[float]
Case = Callable[[str], Losses]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def model() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.LayerNorm(WIDTH)
    )


def batch(step: int, rank: int = RANK) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    given = torch.randn(8, WIDTH, generator=generator)
    return given, given.cumsum(1).tanh()


def mean(loss: torch.Tensor) -> float:
    found = loss.detach().float().clone()
    dist.all_reduce(found)
    return float(found) / RANKS


def train(network: nn.Module, optimizer: torch.optim.Optimizer, *, same_data: bool = False) -> Losses:
    losses = []
    for step in range(STEPS):
        given, wanted = batch(step, 0 if same_data else RANK)
        optimizer.zero_grad()
        loss = (network(given).float() - wanted).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(mean(loss))
    return losses


@case
def data_parallel(_: str) -> Losses:
    """The loss of every step, and at the end the largest difference between replicas, which is none."""
    network = DistributedDataParallel(model(), bucket_cap_mb=1)
    losses = train(network, torch.optim.Adam(network.parameters(), lr=1e-2))
    own = torch.cat([parameter.detach().reshape(-1) for parameter in network.parameters()])
    least, most = own.clone(), own.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    assert torch.equal(least, most)
    return losses


@case
def fully_sharded_in_bfloat16(_: str) -> Losses:
    network = model()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = init_device_mesh("cpu", (RANKS,))
    fully_shard(network[0], mesh=mesh, mp_policy=policy)
    fully_shard(network, mesh=mesh, mp_policy=policy)
    return train(network, torch.optim.Adam(network.parameters(), lr=1e-2))


@case
def hybrid_sharded(_: str) -> Losses:
    network = model()
    fully_shard(network, mesh=init_device_mesh("cpu", (2, RANKS // 2), mesh_dim_names=("replicate", "shard")))
    return train(network, torch.optim.Adam(network.parameters(), lr=1e-2))


@case
def tensor_parallel(_: str) -> Losses:
    network = model()[:3]
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(network, init_device_mesh("cpu", (RANKS,)), plan)
    return train(network, torch.optim.SGD(network.parameters(), lr=1e-1), same_data=True)


@case
def zero_redundancy(_: str) -> Losses:
    network = DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(network.parameters(), torch.optim.Adam, lr=1e-2)
    return train(network, optimizer)


@case
def pipeline(_: str) -> Losses:
    torch.manual_seed(7)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(RANKS)]
    own, device = layers[RANK], torch.device("cpu")
    stage = PipelineStage(own, RANK, RANKS, device)
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(own.parameters(), lr=1e-1)
    losses = []
    for step in range(STEPS):
        given, wanted = batch(step, 0)
        optimizer.zero_grad()
        found: list[torch.Tensor] = []
        if RANK == 0:
            schedule.step(given)
        elif RANK == RANKS - 1:
            schedule.step(target=wanted, losses=found)
        else:
            schedule.step()
        optimizer.step()
        total = torch.stack(found).mean().detach() if found else torch.zeros(())
        losses.append(mean(total))
    return losses


@case
def saved_and_loaded(mode: str) -> Losses:
    network = model()
    fully_shard(network)
    losses = train(network, torch.optim.SGD(network.parameters(), lr=1e-2))
    state = network.state_dict()
    folder = FOLDER / f"checkpoint-{mode}"
    checkpoint.save(state, checkpoint_id=folder)
    wanted = [value.to_local().clone() for value in state.values()]
    for value in state.values():
        value.to_local().zero_()
    checkpoint.load(state, checkpoint_id=folder)
    for value, before in zip(state.values(), wanted, strict=True):
        assert torch.equal(value.to_local(), before)
    return losses


@case
def checked_in_detail(_: str) -> Losses:
    """With TORCH_DISTRIBUTED_DEBUG=DETAIL, which compares every call between the ranks."""
    network = DistributedDataParallel(model(), find_unused_parameters=True)
    return train(network, torch.optim.SGD(network.parameters(), lr=1e-2))


def compiled(backend: str) -> Losses:
    import torch.distributed._functional_collectives as functional

    everyone = list(range(RANKS))

    @torch.compile(backend=backend, fullgraph=True)
    def work(given: torch.Tensor) -> torch.Tensor:
        total = functional.all_reduce(given * 2, "sum", everyone)
        gathered = functional.all_gather_tensor(total + 1, 0, everyone)
        part = functional.reduce_scatter_tensor(gathered * gathered, "sum", 0, everyone)
        return functional.all_to_all_single(part, None, None, everyone).sin() + part

    torch.manual_seed(RANK)
    return [mean(work(torch.randn(RANKS, WIDTH)).mean()) for _ in range(STEPS)]


def trainings(*backends: str) -> dict[str, dict[str, Any]]:
    """Losses of every case in every setting.

    Args:
        backends: What compiles; nothing for the cases of this file.
    """
    outcome: dict[str, dict[str, Any]] = {}
    for mode in ("gloo", "shm", "messages"):
        losses: dict[str, Any] = {}
        with world(mode):
            cases = {name: (lambda _, name=name: compiled(name)) for name in backends} or {
                name: function for name, function in CASES.items() if name != "checked_in_detail"
            }
            for name, function in cases.items():
                torch._dynamo.reset()
                try:
                    losses[name] = function(mode)
                except Exception:  # noqa: BLE001  (it is the outcome)
                    losses[name] = traceback.format_exc()
                    break
        if not backends:
            if mode != "gloo":  # where torch's own backend ends with a segmentation fault
                os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
            dist.set_debug_level_from_env()
            options = replace(MODES[mode], check_every_call=None) if MODES[mode] else None
            with world(mode, name="detail", options=options) as group:
                losses["checked_in_detail"] = checked_in_detail(mode)
                assert mode == "gloo" or group._options.check_every_call
            os.environ.pop("TORCH_DISTRIBUTED_DEBUG", None)
            dist.set_debug_level_from_env()
        outcome[mode] = losses
    return outcome
