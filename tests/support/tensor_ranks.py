"""One rank of tensor-parallel training; arguments as in overlap_ranks.py."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from coconet_cases import gap, handoff_between, optimizer_of, optimizers, refusals
from overlap_ranks import main
from refusals import until_killed
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from coppice.errors import CheckError, InputError
from coppice.iteration.policies.tensor.ring_products import RingProduct, execution_order
from coppice.iteration.tasks import run_tasks
from coppice.training.torch import tensor_overlap

warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 has new names for its functional collectives
WIDTH, HEADS, ROWS, SAMPLES = 16, 4, 8, 3
STEPS = 8
SLOW = {"costs": (1e6, 1e-5), "flops_per_s": 1e6}
"""Products take long: rings pay."""
DEAR = {"costs": (1e6, 1e-5), "flops_per_s": 1e6, "extra_seconds": 1.0}
"""Cutting costs more than it could hide."""


class _Sum(torch.autograd.Function):
    """A sum over ranks in the forward pass (g of Megatron-LM)."""

    @staticmethod
    def forward(_ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(tensor, "sum", dist.group.WORLD)

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class _SumBack(torch.autograd.Function):
    """A sum over ranks in the backward pass (f of Megatron-LM)."""

    @staticmethod
    def forward(_ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(gradient.contiguous(), "sum", dist.group.WORLD)


class Block(nn.Module):
    """A transformer block, a slice of heads and of the hidden layer on each rank.

    ``along`` is the sequence's dimension.

    ``how`` is ``plain`` (one process), ``sequence`` (gathers and scatters) or ``sums``.
    """

    def __init__(self, how: str, rank: int, size: int, along: int = 0, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.how, self.along, self.dropout = how, along, dropout
        self.heads = HEADS // size
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        for name in ("query", "key", "value"):
            setattr(self, name, cut(nn.Linear(WIDTH, WIDTH), rank, size, 0))
        self.project = cut(nn.Linear(WIDTH, WIDTH, bias=False), rank, size, 1)
        self.up = cut(nn.Linear(WIDTH, 4 * WIDTH), rank, size, 0)
        self.down = cut(nn.Linear(4 * WIDTH, WIDTH, bias=False), rank, size, 1)
        self.biases = nn.ParameterList([torch.randn(WIDTH) for _ in range(2)])

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        """What column-parallel layers take."""
        if self.how == "sequence":
            return functional.all_gather_tensor_autograd(x, self.along, dist.group.WORLD)
        return _SumBack.apply(x) if self.how == "sums" else x

    def leave(self, x: torch.Tensor) -> torch.Tensor:
        """What row-parallel layers give."""
        if self.how == "sequence":
            return functional.reduce_scatter_tensor_autograd(x, "sum", self.along, dist.group.WORLD)
        return _Sum.apply(x) if self.how == "sums" else x

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        """Attention of this rank's heads."""
        order = (1, 2, 0, 3) if self.along == 0 else (0, 2, 1, 3)
        q, k, v = (
            each(x).unflatten(-1, (self.heads, WIDTH // HEADS)).permute(order)
            for each in (self.query, self.key, self.value)
        )
        mixed = torch.softmax(q @ k.transpose(-1, -2) / 2, dim=-1) @ v
        back = (2, 0, 1, 3) if self.along == 0 else (0, 2, 1, 3)
        return mixed.permute(back).flatten(-2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = self.leave(self.project(self.attend(self.enter(self.first(x)))))
        x = x + nn.functional.dropout(mixed + self.biases[0], self.dropout)
        made = self.leave(self.down(nn.functional.gelu(self.up(self.enter(self.second(x))))))
        return x + nn.functional.dropout(made + self.biases[1], self.dropout)


def cut(layer: nn.Linear, rank: int, size: int, along: int) -> nn.Linear:
    """A rank's slice of a layer."""
    with torch.no_grad():
        layer.weight = nn.Parameter(layer.weight.chunk(size, dim=along)[rank].clone())
        if layer.bias is not None:
            layer.bias = nn.Parameter(layer.bias.chunk(size)[rank].clone())
    return layer


def whole(model: Block, size: int) -> dict[str, torch.Tensor]:
    """All parameters and their gradients in full."""
    found = {}
    for name, parameter in model.named_parameters():
        for kind, tensor in (("", parameter.detach()), (" gradient", parameter.grad)):
            parts = [torch.empty_like(tensor) for _ in range(size)]
            dist.all_gather(parts, tensor.contiguous())
            along = 1 if name.startswith(("project", "down")) else 0
            shared = name.startswith(("first", "second", "biases"))
            found[name + kind] = tensor if shared else torch.cat(parts, dim=along)
    return found


def sample(step: int, along: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Input and target."""
    generator = torch.Generator().manual_seed(step)
    shape = (ROWS, SAMPLES, WIDTH) if along == 0 else (SAMPLES, ROWS, WIDTH)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


def trained(
    model: Block, run: Any, steps: int, rank: int, size: int
) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Outputs of the steps, then parameters and last gradients as a whole."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    outputs = []
    sliced = model.how == "sequence"
    for step in range(steps):
        x, y = sample(step, model.along)
        count = x.numel()
        if sliced:
            x, y = (each.chunk(size, dim=model.along)[rank].contiguous() for each in (x, y))
        torch.manual_seed(100 + step)
        optimizer.zero_grad()
        out = run(x)
        ((out - y) ** 2).sum().div(count).backward()
        if sliced:
            for name, parameter in model.named_parameters():
                if name.startswith(("first", "second", "biases")):
                    dist.all_reduce(parameter.grad)
        optimizer.step()
        if sliced:
            parts = [torch.empty_like(out) for _ in range(size)]
            dist.all_gather(parts, out.detach().contiguous())
            outputs.append(torch.cat(parts, dim=model.along))
        else:
            outputs.append(out.detach())
    named = {name: p.detach() for name, p in model.named_parameters()}
    named |= {f"{name} gradient": p.grad for name, p in model.named_parameters()}
    return outputs, named if model.how == "plain" else whole(model, size)


def described(overlap: Any) -> list[dict[str, Any]]:
    """Regions, with what simulation says of each: tasks in the order in which they start, by stream."""
    found = []
    for region in overlap.regions:
        said = {
            "collective": region.collective,
            "cases": region.cases,
            "tasks": region.tasks,
            "seconds": region.seconds,
            "before": region.before_seconds,
        }
        if isinstance(region.plan, RingProduct):
            steps = region.plan.steps()
            names = {1: " down", -1: "", 0: ""}
            said["expected"] = [
                f"{doing} {steps[number].kind} {steps[number].step}{names[steps[number].way]}"
                for doing, number in execution_order(steps)
            ]
            graph = region.plan.graph()
        else:
            graph = region.plan
        if graph is not None:
            times = run_tasks(graph)
            order = sorted(range(len(graph)), key=lambda task: (times.start[task], task))
            said["simulated"] = {
                stream: [graph.names[task] for task in order if graph.stream[task] == number]
                for number, stream in enumerate(graph.streams)
            }
            said["simulated_seconds"] = times.seconds
        found.append(said)
    return found


CASES: list[tuple[str, str, int, float, dict[str, Any]]] = [
    ("decomposition", "sequence", 0, 0.0, SLOW),
    ("decomposition", "sequence", 1, 0.0, {**SLOW, "both_ways": True}),
    ("decomposition", "sequence", 0, 0.0, DEAR),
    ("coconet", "sums", 0, 0.1, {**SLOW, "chunks": 2}),
    ("coconet", "sequence", 0, 0.0, {**SLOW, "chunks": 2}),
]


def blocks(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Every case beside a single process."""
    del folder
    found = {}
    for number, (policy, how, along, dropout, settings) in enumerate(CASES):
        torch._dynamo.reset()
        plain = Block("plain", 0, 1, along, dropout)
        expected, weights = trained(plain, plain, STEPS, 0, 1)
        model = Block(how, rank, size, along, dropout)
        overlap = tensor_overlap(policy, record=True, **settings)
        outputs, ours = trained(
            model, torch.compile(model, backend=overlap, fullgraph=True), STEPS, rank, size
        )
        found[f"{policy} {number}"] = {
            "first": float((outputs[0] - expected[0]).abs().max()),
            "last": float((outputs[-1] - expected[-1]).abs().max()),
            "distance": gap(ours, weights),
            "regions": described(overlap),
            "carried": overlap.carried,
            "keys": list(model.state_dict()) == list(plain.state_dict()),
        }
    return found


def graphs() -> dict[str, Any]:
    """Passes on graphs of make_fx, with whole numbers: the same to the last bit."""
    rank, size = dist.get_rank(), dist.get_world_size()
    found = {}

    def gathered(x: torch.Tensor) -> torch.Tensor:
        return functional.all_gather_tensor(x, 0, dist.group.WORLD)

    def scattered(x: torch.Tensor) -> torch.Tensor:
        return functional.reduce_scatter_tensor(x, "sum", 0, dist.group.WORLD)

    def whole_numbers(*shape: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(rank + sum(shape))
        return torch.randint(-4, 5, shape, generator=generator).float()

    shapes = {
        "rows": lambda x, w: gathered(x) @ w,
        "linear": lambda x, w, b: torch.ops.aten.linear.default(gathered(x), w, b),
        "weights": lambda x, w, b: torch.ops.aten.linear.default(x, gathered(w), b),
        "contracting": lambda x, y: gathered(x).t() @ y,
        "with bias": lambda x, y, b: torch.addmm(b, gathered(x).t(), y),
        "batch": lambda x, y: torch.bmm(gathered(x), y),
        "scatter": lambda x, w: scattered(x @ w),
        "sum": lambda x, w, y, v: scattered(x @ w + (y @ v).view(x.shape[0], -1)),
        "batches": lambda x, y: scattered(torch.bmm(x, y)),
        "split": lambda x, w: gathered(x).view(3, -1) @ w,
        "both": lambda x: gathered(x).t() @ gathered(x),
        "chained": lambda x, w: gathered(x).t() @ torch.relu(gathered(x) @ w),
    }
    n = size
    inputs = {
        "rows": [(3, 5), (5, 4)],
        "linear": [(2, 3, 5), (4, 5), (4,)],
        "weights": [(6, 5), (3, 5), (3 * n,)],
        "contracting": [(3, 5), (3 * n, 4)],
        "with bias": [(3, 5), (3 * n, 4), (4,)],
        "batch": [(2, 3, 5), (2 * n, 5, 4)],
        "scatter": [(3 * n, 5), (5, 4)],
        "sum": [(3 * n, 5), (5, 4), (3 * n, 2), (2, 4)],
        "batches": [(2 * n, 3, 5), (2 * n, 5, 4)],
        "split": [(3, 5), (5 * n, 4)],
        "both": [(3, 5)],
        "chained": [(3, 5), (5, 4)],
    }
    for name, function in shapes.items():
        tensors = [whole_numbers(*shape) for shape in inputs[name]]
        plain = function(*tensors)
        for both in (False, True):
            overlap = tensor_overlap("decomposition", **SLOW, both_ways=both)
            module = overlap.apply(make_fx(function)(*tensors))
            got = module(*tensors)
            found[f"{name} {both}"] = {
                "equal": bool(torch.equal(got, plain)),
                "rings": [list(each.cases) for each in overlap.regions if each.tasks],
                "left": sum(
                    "c10d" in str(node.target) and "wait" not in str(node.target)
                    for node in module.graph.nodes
                ),
            }
    return found


def refused() -> list[str]:
    """What is not done, and why."""
    said = []
    rank = dist.get_rank()

    def function(x: torch.Tensor, w: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return torch.relu(functional.all_reduce(x @ w, "sum", dist.group.WORLD) + z)

    tensors = [torch.ones(8, 4), torch.ones(4, 8), torch.full((8, 8), float(rank))]
    overlap = tensor_overlap("coconet", costs=(1e9, 1e-7), flops_per_s=1e9)
    module = overlap.apply(make_fx(function)(*tensors))
    for attempt in (
        lambda: module(*tensors),
        lambda: tensor_overlap("oases"),
        lambda: tensor_overlap("decomposition", costs=(1e9, 0.0)),
        lambda: tensor_overlap("coconet", chunk=0),
        *refusals(),
    ):
        try:
            attempt()
        except (InputError, CheckError) as error:
            said.append(str(error))
    return said


def parts(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """All cases."""
    return {
        "blocks": blocks(rank, size, folder),
        "graphs": graphs(),
        "optimizers": optimizers(rank, size),
        "refused": refused(),
    }


def killed(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Rank 1 dies while shards are under way."""
    del folder
    model = Block("sequence", rank, size)
    run = torch.compile(model, backend=tensor_overlap("decomposition", **SLOW), fullgraph=True)
    return until_killed(
        rank, STEPS, lambda step: run(sample(step, 0)[0].chunk(size)[rank]).sum().backward(), at=4
    )


def killed_optimizer(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Rank 1 dies while gradients are summed."""
    del folder
    step, fused = optimizer_of(rank, size)

    def train(number: int) -> None:
        step(number)
        fused.step()

    return until_killed(rank, STEPS, train, at=4)


def killed_handoff(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Rank 1 dies while a sum is handed on."""
    del folder
    way = handoff_between(rank, size, (8, 6))

    def train(_: int) -> None:
        for sends in (rank < size // 2, rank >= size // 2):
            way.send(torch.ones(8, 6)) if sends else way.receive()

    return until_killed(rank, STEPS, train, at=4)


MODES = {
    "parts": parts,
    "killed": killed,
    "killed_optimizer": killed_optimizer,
    "killed_handoff": killed_handoff,
}

if __name__ == "__main__":
    main(MODES)
