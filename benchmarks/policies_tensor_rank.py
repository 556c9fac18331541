"""One rank of sequence-parallel blocks: ``policies_tensor_rank.py transformer-sp POLICY SETTINGS STEPS`` prints JSON.

``stock`` gathers and scatters before and after products, as Megatron-LM and torch do. Products take the time of an
accelerator; parts of them take their share of it. What is predicted is what policies say of the collectives next to
products by this network's measured times, and what all else took in this run.
"""

from __future__ import annotations

import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.fx import GraphModule, Interpreter, Node

from coppice.training.torch import tensor_overlap
from coppice.training.torch.tensor.passes import TensorOverlap
from coppice.training.torch.tensor.passes_hops import measured_costs
from coppice.training.torch.tensor.passes_layout import product_of
from lab_rank import run_model

warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 has new names for its functional collectives
WIDTH, HEADS, TOKENS, SAMPLES, BLOCKS = 128, 4, 128, 8, 2
FLOPS_PER_S = 1.5e9
WARM = 3


class SequenceBlock(nn.Module):
    """A transformer block, whose products ranks share, and the tokens outside of them."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.heads = HEADS // ranks
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.entry = nn.Linear(WIDTH, 3 * WIDTH // ranks)
        self.project = nn.Linear(WIDTH // ranks, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH // ranks)
        self.down = nn.Linear(4 * WIDTH // ranks, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            each.unflatten(-1, (self.heads, WIDTH // HEADS)).permute(1, 2, 0, 3)
            for each in self.entry(gathered(self.first(x))).chunk(3, dim=-1)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        x = x + scattered(self.project(mixed.permute(2, 0, 1, 3).flatten(-2)))
        hidden = nn.functional.gelu(self.up(gathered(self.second(x))))
        return x + scattered(self.down(hidden))


def gathered(x: torch.Tensor) -> torch.Tensor:
    """All tokens."""
    world: Any = dist.group.WORLD
    whole: torch.Tensor = functional.all_gather_tensor_autograd(x, 0, world)
    return whole


def scattered(x: torch.Tensor) -> torch.Tensor:
    """The sum over ranks, of this rank's tokens."""
    world: Any = dist.group.WORLD
    own: torch.Tensor = functional.reduce_scatter_tensor_autograd(x, "sum", 0, world)
    return own


class PacedGraph(Interpreter):
    """Runs a graph whose products take their time, and sums up what takes how long."""

    def __init__(self, module: GraphModule, seconds: dict[str, float]) -> None:
        super().__init__(module)
        self.seconds = seconds
        self.paces = {
            node: product.flops / FLOPS_PER_S
            for node in module.graph.nodes
            if (product := product_of(node)) is not None
        }
        self.seconds["all products"] += sum(self.paces.values())

    def run_node(self, n: Node) -> Any:
        begin = time.perf_counter()
        result = super().run_node(n)
        if n in self.paces:
            time.sleep(max(0.0, begin + self.paces[n] - time.perf_counter()))
        target = str(n.target)
        kind = "product" if n in self.paces else "network" if "c10d" in target or "hop_" in target else "else"
        self.seconds[kind] += time.perf_counter() - begin
        return result


def backend(overlap: TensorOverlap, seconds: dict[str, float]) -> Callable[..., Any]:
    """The overlap's graphs, at their pace."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch._aot_autograd.utils import make_boxed_func

    def compiled(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        del inputs
        return make_boxed_func(PacedGraph(overlap.apply(module), seconds).run)

    made: Callable[..., Any] = aot_autograd(fw_compiler=compiled, bw_compiler=compiled)
    return made


def train(policy: str, settings: dict[str, Any], steps: int) -> dict[str, Any]:
    """Seconds of a step, and what was predicted."""
    torch.manual_seed(0)
    ranks, rank = dist.get_world_size(), dist.get_rank()
    world: Any = dist.group.WORLD
    whole_bytes = TOKENS * SAMPLES * WIDTH * 4
    costs = measured_costs(world, torch.device("cpu"), flops_per_s=FLOPS_PER_S, around_bytes=whole_bytes)
    if policy == "stock":
        overlap = tensor_overlap("decomposition", costs=costs, extra_seconds=1e9)
    else:
        overlap = tensor_overlap(policy, costs=costs, **settings)
    blocks = nn.Sequential(*(SequenceBlock(ranks) for _ in range(BLOCKS)))
    seconds: dict[str, float] = defaultdict(float)
    run: Any = torch.compile(blocks, backend=backend(overlap, seconds), fullgraph=True)
    optimizer = torch.optim.SGD(blocks.parameters(), lr=0.01)
    inputs, targets = (
        each.chunk(ranks)[rank].contiguous() for each in torch.randn(2, TOKENS, SAMPLES, WIDTH).unbind()
    )
    losses, begin = [], 0.0
    before: dict[str, float] = {}
    for step in range(WARM + steps):
        if step == WARM:
            dist.barrier()
            begin, before = time.perf_counter(), dict(seconds)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(run(inputs), targets)
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(float(loss.detach()))
    own = (time.perf_counter() - begin) / steps
    spent = sum(seconds[kind] - before[kind] for kind in ("product", "network"))
    rest = own - spent / steps
    slowest = torch.tensor([own, rest])
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    total = torch.tensor(losses)
    dist.all_reduce(total)
    inside = sum(each.product_seconds for each in overlap.regions)
    around = sum(each.seconds for each in overlap.regions)
    sent = sum(task.startswith("start") for each in overlap.regions for task in each.tasks)
    left = sum(not each.tasks for each in overlap.regions)
    return {
        "seconds": float(slowest[0]),
        "losses": [float(each) / ranks for each in total],
        "predicted": float(slowest[1])
        + before["all products"]
        - inside
        + around
        + other_seconds(policy, costs),
        "messages": sent + left + (4 * BLOCKS if policy == "coconet" else 0),
        "network": {kind: list(line) for kind, line in costs.network.items()},
    }


def other_seconds(policy: str, costs: Any) -> float:
    """Collectives that CoCoNet's transforms leave alone: gathers before products, and what their sums become."""
    if policy != "coconet":
        return 0.0
    whole_bytes = TOKENS * SAMPLES * WIDTH * 4
    gathers = 4 * BLOCKS  # two in the forward pass of a block, two in its backward pass
    return float(gathers * costs.seconds("all_gather", whole_bytes))


if __name__ == "__main__":
    run_model({"transformer-sp": train})
