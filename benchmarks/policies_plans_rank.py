"""One rank of benchmarks/policies_plans.py: ``policies_plans_rank.py MODEL POLICY SETTINGS STEPS``; rank 0 prints JSON.

Boxes of two ranks. ``exchanges`` are a gradient all-reduce after a backward pass and an all-to-all before experts
side by side, ``transformer`` is a model whose layers two ranks of a box share, in two replicas; of ``sharded`` replicas
keep parts of weights. ``stock`` is torch: collectives started as soon as they can be, plain sums of shared layers, and
DistributedDataParallel, or FSDP2, over replicas.
``plain`` is what a planner begins with: everything whole, one after the other on its channel.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from coppice.iteration.policies.whole.operations import (
    Channel,
    CollectivePhase,
    GraphOperation,
    OperationGraph,
    WholePlan,
    WholePolicy,
)
from coppice.training.torch import (
    CollectiveBuffers,
    PhaseGroups,
    PlanExecutor,
    TensorParallelModule,
    agreed_plan,
    collective_graph,
    measured_graph,
    schedule,
)
from lab_rank import run_model
from paced import waited

BOX = 2
WARM = 10
BACKWARD_S, EXPERTS_S = 0.06, 0.04
SUM_BYTES, TOKEN_BYTES = 2 * 2**20, 2 * 2**20
ROWS, LENGTH, WIDTH, INNER, SECTIONS, WORDS = 8, 64, 128, 512, 8, 64
FORWARD_S, INPUT_S, WEIGHTS_S = 0.012, 0.012, 0.012


class Plain(WholePolicy):
    """Everything whole, in the plain decomposition and order."""

    name = "plain"
    about = assumes = "nothing"

    def plan(self, graph: OperationGraph) -> WholePlan:
        """The plan that changes nothing."""
        del graph
        return WholePlan()


class Inner(nn.Module):
    """A rank's share of a layer that takes its time; matrices see one vector a row, so that arithmetic is short."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, INNER)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        share = len(h) / ROWS
        h = waited(h, FORWARD_S * share, INPUT_S * share)
        up = waited(self.up.weight, 0.0, WEIGHTS_S * share)
        inner = nn.functional.linear(h.mean(dim=1), up, self.up.bias)
        found: torch.Tensor = self.down(torch.relu(inner))[:, None]
        return h + found


def sections(group: dist.ProcessGroup) -> nn.Module:
    """The model; each rank has half of the inner vectors."""
    rows: list[nn.Module] = [nn.Embedding(WORDS, WIDTH)]
    rows += [TensorParallelModule(Inner(), norm=nn.LayerNorm(WIDTH), group=group) for _ in range(SECTIONS)]
    rows.append(nn.Linear(WIDTH, WORDS))
    return nn.Sequential(*rows)


def own_group(rows: list[list[int]]) -> dist.ProcessGroup:
    """The group of this rank among some."""
    made = [dist.new_group(row) for row in rows]
    own: dist.ProcessGroup = next(
        group for group, row in zip(made, rows, strict=True) if dist.get_rank() in row
    )
    return own


def sharded(policy: str, settings: dict[str, Any], steps: int) -> dict[str, Any]:
    """The model with weights in parts on its replicas."""
    return transformer(policy, {**settings, "shard": True}, steps)


def transformer(policy: str, settings: dict[str, Any], steps: int) -> dict[str, Any]:
    """Seconds of a step of the model."""
    rank, size = dist.get_rank(), dist.get_world_size()
    shared = own_group([list(range(first, first + BOX)) for first in range(0, size, BOX)])
    data = own_group([list(range(place, size, BOX)) for place in range(BOX)])
    torch.manual_seed(rank % BOX)
    model = sections(shared)
    alike = [p for name, p in model.named_parameters() if ".inner." not in name]
    with torch.no_grad():
        for each in alike:
            dist.broadcast(each, src=0)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    torch.manual_seed(1 + rank // BOX)
    x, y = (torch.randint(WORDS, (ROWS, LENGTH)) for _ in range(2))
    run, at_work = model, None
    if policy == "stock" and settings.get("shard"):
        mesh = DeviceMesh.from_group(data, "cpu")
        for part in model.children():
            if isinstance(part, TensorParallelModule):
                fully_shard(part, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    elif policy == "stock":
        run = DistributedDataParallel(model, process_group=data)
    else:
        chosen: Any = Plain.of() if policy == "plain" else policy
        settings = {"data": data, "ranks_of_box": BOX, "recorded": 5, **settings}
        run, optimizer = schedule(model, optimizer, chosen, **settings)
        at_work = optimizer.schedule

    def step() -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(run(x).flatten(0, 1), y.flatten())
        torch.autograd.backward(loss)
        optimizer.step()
        return float(loss.detach())

    found = timed(step, steps)
    if at_work is not None:
        ordered = at_work.ordered
        found |= {
            "predicted": at_work.predicted_seconds,
            "plain": ordered.graph.seconds(),
            "messages": sum(len(row) for name, row in at_work.launched.items() if name != "device"),
            "choices": {name: list(each) for name, each in ordered.plan.choices.items()},
        }
        optimizer.close()
    return found


def exchanges(policy: str, settings: dict[str, Any], steps: int) -> dict[str, Any]:
    """Seconds of a sum and an exchange with what computes around them."""
    rank, size = dist.get_rank(), dist.get_world_size()
    gradients = torch.zeros(SUM_BYTES // 4)
    tokens = torch.arange(TOKEN_BYTES // 4, dtype=torch.float32) + rank
    received = torch.zeros_like(tokens)
    turn = [0]

    def backward(piece: int, pieces: int) -> None:
        length = len(gradients)
        own = gradients[length * piece // pieces : length * (piece + 1) // pieces]
        own.fill_(rank + turn[0])
        time.sleep(BACKWARD_S / pieces)

    def experts(piece: int, pieces: int) -> None:
        del piece
        time.sleep(EXPERTS_S / pieces)

    def outcome() -> float:
        turn[0] += 1
        return float(gradients[0]) + float(received.view(size, -1)[-1, 0]) / len(tokens)

    if policy == "stock":

        def step() -> float:
            exchanged = dist.all_to_all_single(received, tokens, async_op=True)
            backward(0, 1)
            summed = dist.all_reduce(gradients, async_op=True)
            exchanged.wait()
            experts(0, 1)
            summed.wait()
            return outcome()

        return timed(step, steps)
    groups = PhaseGroups(ranks_of_box=BOX)
    work: dict[str, Any] = {
        "sums": CollectiveBuffers("all_reduce", gradients),
        "tokens": CollectiveBuffers("all_to_all", tokens, received),
    }
    graph = measured_graph(collective_graph(work, groups), work, groups)
    sums, sent = graph.operations

    def computed(name: str, seconds: float, after: tuple[int, ...], decision: str) -> GraphOperation:
        decompositions = ((CollectivePhase(kind="compute", amount=seconds, channels=("device",)),),)
        return GraphOperation(
            name=name, decompositions=decompositions, after=after, decision=decision, group=decision
        )

    operations = (
        computed("backward", BACKWARD_S, (), "sums"),
        _placed(sums, (0,), "sums"),
        _placed(sent, (), "tokens"),
        computed("experts", EXPERTS_S, (2,), "tokens"),
    )
    channels = {"device": Channel(start_seconds=2e-4), **graph.channels}
    whole = OperationGraph(operations=operations, channels=channels)
    ordered = agreed_plan(whole, Plain.of() if policy == "plain" else policy, **settings)
    executor = PlanExecutor(ordered, groups, gradients.device)

    def planned() -> float:
        executor.run({**work, "backward": backward, "experts": experts})
        return outcome()

    found = timed(planned, steps)
    executor.close()
    return found | {
        "predicted": ordered.predicted_seconds,
        "plain": whole.seconds(),
        "messages": sum(len(row) for name, row in executor.launched.items() if name != "device"),
        "choices": {name: list(each) for name, each in ordered.plan.choices.items()},
    }


def _placed(operation: GraphOperation, after: tuple[int, ...], decision: str) -> GraphOperation:
    """A collective behind others, in pieces with its group."""
    return GraphOperation(
        name=operation.name,
        decompositions=operation.decompositions,
        labels=operation.labels,
        after=after,
        decision=decision,
        group=decision,
        size_bytes=operation.size_bytes,
    )


def timed(step: Any, steps: int) -> dict[str, Any]:
    """Seconds of a step in a row of them, of the slowest rank, and what each gave."""
    losses, begin = [], 0.0
    for number in range(WARM + steps):
        if number == WARM:
            dist.barrier()
            begin = time.perf_counter()
        losses.append(step())
    slowest = torch.tensor([(time.perf_counter() - begin) / steps])
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return {"seconds": float(slowest), "losses": losses}


MODELS = {"exchanges": exchanges, "transformer": transformer, "sharded": sharded}


if __name__ == "__main__":
    run_model(MODELS)
